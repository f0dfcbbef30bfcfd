"""NVIDIA's HSTU example: its Triton operator takes 2048 time buckets, whatever the table has."""

import os

import torch
from checkout import public_module
from stu_times import expected_buckets, rows_read

os.environ["TRITON_INTERPRET"] = "1"
source = "https://github.com/NVIDIA/recsys-examples"
public_module("commons", source, "examples", "triton")  # The operators import it.
public = public_module("ops.triton_ops.triton_position", source, "examples/hstu")
BUCKETS, WIDTH = 20, 16

if __name__ == "__main__":
    # The autotuner measures on a GPU, unless there is one configuration.
    kernel = public._add_timestamp_position_embeddings_kernel
    kernel.configs = kernel.configs[:1]
    memory = torch.arange(2049.0)[:, None].expand(-1, WIDTH).contiguous()
    rows = rows_read(public.triton_add_timestamp_positional_embeddings, memory[: BUCKETS + 1])
    exist = expected_buckets().clamp(max=BUCKETS).tolist()
    print(f"rows of a table of {BUCKETS + 1}: {rows}; rows that exist: {exist}")
