"""NVIDIA's HSTU example: its Triton operator takes 2048 time buckets, whatever the table has."""

import os

import torch
from checkout import add_to_path

os.environ["TRITON_INTERPRET"] = "1"
add_to_path("https://github.com/NVIDIA/recsys-examples", "examples", "triton")
add_to_path("https://github.com/NVIDIA/recsys-examples", "examples/hstu", "triton")
from ops.triton_ops import triton_position  # noqa: E402

BUCKETS, WIDTH, MINUTES = 20, 16, torch.tensor([0, 100, 400, 900, 1600, 2500])

if __name__ == "__main__":
    # The autotuner measures on a GPU, unless there is one configuration.
    kernel = triton_position._add_timestamp_position_embeddings_kernel
    kernel.configs = kernel.configs[:1]
    # A bucket is the square root of the minutes to the last item. A row of the table holds its own number.
    expected = (MINUTES[-1] - MINUTES).sqrt().int().clamp(max=BUCKETS)
    memory = torch.arange(2049.0)[:, None].expand(-1, WIDTH).contiguous()
    rows = triton_position.triton_add_timestamp_positional_embeddings(
        seq_embeddings=torch.zeros(6, WIDTH),
        seq_offsets=torch.tensor([0, 6]),
        pos_embeddings=torch.zeros(10, WIDTH),
        ts_embeddings=memory[: BUCKETS + 1],
        timestamps=60 * MINUTES,
        max_seq_len=6,
        max_contextual_seq_len=0,
        seq_lengths=torch.tensor([6]),
        num_targets=None,
        interleave_targets=False,
        time_bucket_fn="sqrt",
    )
    print(
        f"rows of a table of {BUCKETS + 1}: {rows[:, 0].int().tolist()}; rows that exist: {expected.tolist()}"
    )
