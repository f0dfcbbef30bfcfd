"""Without a GPU Triton's kernels run in its interpreter, which must be chosen before they are made."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
