"""Largest difference of two evaluations of one function by rounding alone."""

from __future__ import annotations

import torch


def unit_roundoff(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 2


def rounding_bound(
    longest_sum: int,
    in_float32: torch.Tensor,
    in_float64: torch.Tensor,
    evaluated: torch.dtype = torch.float64,
) -> float:
    """Largest difference that two evaluations of the same function in a type, float64 here, may show.

    Rounding errors grow, to first order, in proportion to the unit round-off, through the same amplification.
    What float32 loses against float64 on the very same inputs is thus, times u64 / u32, the loss of one
    float64 evaluation, up to how lucky its sums were: an n-term sum errs by at most n u, and where it errs by
    about u at least, hence n. Two evaluations: twice that. The second term stands in where float32 was exact.
    """
    ratio = unit_roundoff(evaluated) / unit_roundoff(torch.float32)
    measured = (in_float32.double() - in_float64).abs().max().item() * ratio
    floor = unit_roundoff(evaluated) * in_float64.abs().max().item()
    return 2 * longest_sum * (measured + floor)


def max_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    assert a.numel() > 0
    assert torch.isfinite(a).all()
    return (a - b).abs().max().item()
