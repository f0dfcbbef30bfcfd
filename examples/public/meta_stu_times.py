"""Meta's production STU: the PyTorch operator ends time buckets at the width of the table."""

import torch
from checkout import public_module
from stu_times import expected_buckets, rows_read

source = "https://github.com/meta-recsys/generative-recommenders"
public_module("fbgemm_gpu", source, ".", "fbgemm_gpu", "triton")  # It registers operators.
public = public_module("generative_recommenders.ops.pytorch.pt_position", source, ".")
BUCKETS = 100

if __name__ == "__main__":
    print(f"buckets:               {expected_buckets().tolist()}")
    for width in (8, 128):
        table = torch.arange(BUCKETS + 1.0)[:, None].expand(-1, width).contiguous()
        rows = rows_read(public.pytorch_add_timestamp_positional_embeddings, table)
        print(f"rows of a table {BUCKETS + 1} x {width:3}: {rows}")
