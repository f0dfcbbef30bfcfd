"""The port's choices in a run of the oracle, for other programs of the same code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from parity.runners.oracle.choices import Prescribed

Limits = tuple[torch.Tensor, torch.Tensor]
"""The sizes of numbers, and the limits of their errors."""


@dataclass(frozen=True)
class PortChoices:
    """The port's choices in the oracle's run of a call, or of the model, by their number in the run.

    Attributes:
        taken: The choices of the verdict: rounding explains them in the reference's program.
        shown: All choices that the port's results show.
        limits: The limits of the reference's numbers that decide.
    """

    taken: Prescribed
    shown: Prescribed
    limits: Mapping[int, Limits]
