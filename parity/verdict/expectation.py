"""The error that a port may have at a tap, from the oracle and the reference; see `parity.verdict.rule`."""

from __future__ import annotations

import functools
import math

import numpy as np
import torch

from parity.verdict.bound import Bound
from parity.verdict.distances import Oracle, carrying_rows, compared_rows, row_starts, sums_by_row
from parity.verdict.sampling_error import (
    RoundingSamples,
    SampledErrors,
    error_of_programs,
    expected_error,
    shared_scale_error,
)
from parity.verdict.sensitivity import Rows


class Expectation:
    """The error that a port may have, from finite elements of the oracle and the reference.

    Args:
        oracle: The oracle's whole result.
        o, r: The compared elements of oracle and reference, (n,).
        counted: Mask of the n compared elements in the tensor.
        bound: Bound that the limit follows from.
        samples: Results of the oracle under random roundings.
        batch_size: Rows of the batch; 0 if they are unknown.
        programs: Results of other right programs (`parity.runners.oracle.programs`); None not to ask them.
    """

    def __init__(
        self,
        oracle: torch.Tensor,
        o: np.ndarray,
        r: np.ndarray,
        counted: np.ndarray,
        bound: Bound,
        samples: RoundingSamples | None,
        batch_size: int = 0,
        programs: RoundingSamples | None = None,
    ) -> None:
        self.reference, self.counted = r, counted
        self.truth = Oracle(o, unit=r)
        self.err_ref = self.truth.distance(r)
        carrying = carrying_rows(oracle.to(torch.float64).numpy(), counted)
        rows = carrying.count or 1.0  # zeros are one number
        sampled = (
            samples.errors(self.truth, counted, carrying.numbers)
            if samples
            else SampledErrors.of_reference(self.truth, r, counted, carrying.numbers)
        )
        sampled = sampled.of_equal_rows(carrying.repeats)
        expected = expected_error(self.err_ref, rows, sampled)
        shared = shared_scale_error(self.err_ref, rows, sampled)
        if programs is not None:
            of_programs = error_of_programs(
                self.err_ref, rows, programs.errors(self.truth, counted, carrying.numbers)
            )
            expected = expected.largest_of(of_programs)
            shared = max(shared, of_programs.scale_error)
        self.limit = bound.limit(expected, rows)
        is_of_batch = _is_of_batch(tuple(oracle.shape), batch_size)
        self.lasting_limit = bound.lasting(shared, is_of_batch)
        self.rows = Rows.of(compared_rows(counted), carrying.count, is_of_batch)

    @functools.cached_property
    def _row_starts(self) -> np.ndarray | None:
        return row_starts(self.counted)

    def by_row(self, errors: np.ndarray) -> np.ndarray:
        """Sums over rows of squared errors of the compared elements."""
        return sums_by_row(np.square(errors), self._row_starts)

    @functools.cached_property
    def reference_by_row(self) -> np.ndarray:
        """Sums over rows of the reference's squared errors."""
        return self.by_row(self.reference - self.truth.values)


def _is_of_batch(shape: tuple[int, ...], batch_size: int) -> bool:
    """Whether a result is one row of the whole batch: one number, or one row where the batch has several."""
    rows = math.prod(shape[:-1] if len(shape) > 1 else shape)
    return not shape or (rows == 1 and batch_size > 1)
