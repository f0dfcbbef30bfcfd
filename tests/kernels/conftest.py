"""Set-up of the kernels' tests.

A failed assertion of the plugins' shared checks shows its values, like a test's own assertion. Without a GPU,
Triton interprets its kernels; the choice must precede their import.
"""

import os

import pytest
import torch

pytest.register_assert_rewrite("tests.kernels.plugins.plugin_checks", "tests.kernels.compiling")
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
