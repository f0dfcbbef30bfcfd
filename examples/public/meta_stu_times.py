"""Meta's production STU: the PyTorch operator ends time buckets at the width of the table."""

import torch
from checkout import add_to_path

add_to_path("https://github.com/meta-recsys/generative-recommenders", ".", "fbgemm_gpu", "triton")
import fbgemm_gpu  # noqa: E402, F401  # It registers operators.
from generative_recommenders.ops.pytorch import pt_position  # noqa: E402

BUCKETS, MINUTES = 100, torch.tensor([0, 100, 400, 900, 1600, 2500])

if __name__ == "__main__":
    # A bucket is the square root of the minutes to the last item. A row of the table holds its own number.
    expected = (MINUTES[-1] - MINUTES).sqrt().int()
    print(f"buckets:               {expected.tolist()}")
    for width in (8, 128):
        rows = pt_position.pytorch_add_timestamp_positional_embeddings(
            seq_embeddings=torch.zeros(6, width),
            seq_offsets=torch.tensor([0, 6]),
            pos_embeddings=torch.zeros(10, width),
            ts_embeddings=torch.arange(BUCKETS + 1.0)[:, None].expand(-1, width).contiguous(),
            timestamps=60 * MINUTES,
            max_seq_len=6,
            max_contextual_seq_len=0,
            seq_lengths=torch.tensor([6]),
            num_targets=None,
            interleave_targets=False,
            time_bucket_fn="sqrt",
        )
        print(f"rows of a table {BUCKETS + 1} x {width:3}: {rows[:, 0].int().tolist()}")
