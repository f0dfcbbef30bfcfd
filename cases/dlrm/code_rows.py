"""Rows of a table in codes that ask for all parts of a rule of codes.

A code is the distance from a row's least number in steps of a scale, rounded and then clamped. With numbers
around zero neither end clamps anything: the distances run from 0 to the largest code. In 4 bits the least
number and the scale are rounded to half precision (`reference.int4_embedding_bags`), which moves an end where

* the range is small beside the least number, and half precision rounds that up: the lowest code is below 0;
* the least number is rounded up beyond the greatest one: the scale is negative, and codes are above 15;
* the range is a few of half precision's smallest numbers, and the scale is rounded down: codes are above 15.

The first two need float32 weights, since float16 and bfloat16 of this size are numbers of half precision.

In 8 bits least number and scale are float32, and the epsilon beside the range makes codes smaller. The rule
never leaves -128 to 127, whatever the row.
"""

from __future__ import annotations

import torch

ENDS = (
    # A range like the epsilon of 8 bits, and a scale of 4 bits that is rounded to 0.
    (-1e-8, 1e-8),
    # Half precision has 1.000977 for 1.0007: 0.0003 is one step, and the lowest code is -1.
    (1.0007, 1.005),
    # Equal numbers: a range of 0, and a negative one in 4 bits.
    (1.0007, 1.0007),
    # A scale of half precision's smallest number, 6e-8, with which the greatest number is 20 steps away.
    (-6e-7, 6e-7),
    (1.0007, 1.0008),
    # Half precision has -1 for -1.0003: 0.0003 is 2.6 steps.
    (-1.0003, -0.9983),
    (-1e-7, 1e-7),
)
"""Least and greatest number of a row."""


def with_code_rows(weight_ND: torch.Tensor) -> torch.Tensor:
    """A table whose first rows have their numbers between `ENDS`, in place; at most half of its rows."""
    ends = torch.tensor(ENDS)[: len(weight_ND) // 2]
    rows = weight_ND[: len(ends)]
    least, greatest = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
    # A row of one number has no range.
    parts = (rows - least) / (greatest - least).clamp_min(torch.finfo(rows.dtype).tiny)
    rows.copy_(torch.lerp(ends[:, :1], ends[:, 1:], parts))
    return weight_ND
