"""One sequence for the operators that add a table of times to STU's embeddings."""

from collections.abc import Callable

import torch

MINUTES = torch.tensor([0, 100, 400, 900, 1600, 2500])


def expected_buckets() -> torch.Tensor:
    """The time bucket of each item: the square root of the minutes to the last item."""
    return (MINUTES[-1] - MINUTES).sqrt().int()


def rows_read(operator: Callable[..., torch.Tensor], table: torch.Tensor) -> list[int]:
    """The row of the table that the operator adds to each item.

    Args:
        operator: The public operator.
        table: Table of times (buckets, width). A row holds its own number.
    """
    length, width = len(MINUTES), table.shape[1]
    result = operator(
        seq_embeddings=torch.zeros(length, width),
        seq_offsets=torch.tensor([0, length]),
        pos_embeddings=torch.zeros(10, width),
        ts_embeddings=table,
        timestamps=60 * MINUTES,
        max_seq_len=length,
        max_contextual_seq_len=0,
        seq_lengths=torch.tensor([length]),
        num_targets=None,
        interleave_targets=False,
        time_bucket_fn="sqrt",
    )
    return result[:, 0].int().tolist()
