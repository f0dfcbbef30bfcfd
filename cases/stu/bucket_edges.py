"""Rows whose time bucket round-off could change, of every model with `HSTUPositionalEncoder`.

Legend: B users, N rows of a padded sequence, D embedding.
"""

from __future__ import annotations

import numpy as np
import torch


def close_to_bucket_edges(
    num_time_buckets: int, embedding_dim: int, lengths: torch.Tensor, seconds: torch.Tensor, *_: torch.Tensor
) -> np.ndarray:
    """Bool (B, N, D), from the encoder's settings and its arguments.

    The time bucket of a row is floor(sqrt(max(dt, 0) / 60)) in float32, clamped above. The conversion of dt,
    division and root are each good to one ulp. The bucket may change if the pre-image has a relative distance
    of up to 4 * 2^-24 from an integer. At 60 k^2 seconds the root is a whole number, unless division or root
    round incorrectly.
    """
    lengths_B, seconds_BN = lengths.numpy(), seconds.numpy()
    query_B1 = np.take_along_axis(seconds_BN, lengths_B[:, None] - 1, axis=1)
    bucket_BN = np.sqrt(np.maximum(query_B1 - seconds_BN, 0) / 60.0)
    nearest_BN = np.rint(bucket_BN)
    close_BN = np.abs(bucket_BN - nearest_BN) <= 4 * 2.0**-24 * bucket_BN
    # Zero is exact, and past the last bucket both sides clamp to the same one.
    close_BN &= (nearest_BN >= 1) & (nearest_BN <= num_time_buckets)
    return np.repeat(close_BN[:, :, None], embedding_dim, axis=2)
