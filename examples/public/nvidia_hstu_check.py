"""NVIDIA's own check of its Tripy HSTU, run twice: without 16 tensors, and with an old engine."""

import os
import tempfile

import nvtripy as tp
import torch
from checkout import public_module

from parity.base.trees import map_tree

# Call stacks would take minutes.
os.environ["TRIPY_PORTABLE_NO_CALL_STACKS"] = "1"
source = "-b dev-akhilg-dlrmv3 https://github.com/NVIDIA/TensorRT-Incubator"
public = public_module("tripy_hstu_example", source, "tripy/examples/dlrmv3", "fbgemm_gpu")

SIZES = {"max_seq_len": 24, "embedding_dim": 50, "num_items": 100, "gr_output_length": 10}


def inputs() -> tuple:
    """Arguments of the models for four sequences, as the public script makes them on a GPU."""
    draw, lengths = torch.Generator().manual_seed(0), torch.tensor([24, 7, 1, 15])
    ids = torch.randint(1, 100, (4, 24), generator=draw) * (torch.arange(24) < lengths[:, None])
    times = torch.randint(0, 1000, (4, 35), generator=draw)
    return lengths, ids, torch.randn(4, 24, 50, generator=draw), {"timestamps": times}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as engines:
        for run in (1, 2):
            print(f"--- run {run}")
            torch.manual_seed(run)
            reference, port = public.create_pytorch_model(**SIZES), public.create_tripy_model(**SIZES)
            public.copy_weights_to_tripy(reference, port)
            engine = public.compile_tripy_model(port, inputs(), engines)
            arguments = map_tree(public.get_tripy_inputs(inputs()), lambda x: tp.copy(x, tp.device("gpu")))
            with torch.no_grad():
                public.compare_outputs(reference(*inputs()), tp.copy(engine(*arguments), tp.device("cpu")))
