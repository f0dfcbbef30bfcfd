"""The plan of a case's inputs: small batches that together ask what the port can meet.

One batch has one shape. A port that is wrong only for another shape, or for other values, passes it. A plan
has several batches, each with a name and a purpose in words. The first one is the typical batch: the port is
compiled for it and timed on it. The others are small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from parity.base.errors import with_arguments

Arrays = Mapping[str, np.ndarray]

TYPICAL = "typical"
"""Name of the first batch of a plan."""
FEW_ROWS = (1, 2)
"""Batch sizes of a derived plan besides the case's own."""


@with_arguments
@dataclass(frozen=True)
class PlannedBatch:
    """One batch of a plan.

    Attributes:
        name: Name in reports, unique in the plan.
        purpose: Reason for the batch: "one row is empty; ids 0 and the largest".
        inputs: Arrays by name.
    """

    name: str
    purpose: str
    inputs: Arrays


@with_arguments
@dataclass(frozen=True)
class Batches:
    """Batches of one origin, their source, and counts for the report.

    Attributes:
        inputs: Arrays by name, batch by batch.
        source: Origin of the arrays, for the report.
        counts: Numbers of rows and the like, for the report.
        labels: Observed results, batch by batch and row by row, as the case's `task` reads them. No model
            gets them. Empty where there are none.
    """

    inputs: Sequence[Arrays]
    source: str
    counts: Mapping[str, int]
    labels: Sequence[Arrays] = field(default_factory=list)
