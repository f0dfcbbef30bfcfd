"""The sampling error of an error that is measured on few rows.

The squared errors of m independent rows have m degrees of freedom. For two programs with errors of the same
size, the ratio of their squared errors follows an F distribution. It has m degrees of freedom in the
numerator, and m in the denominator for each measurement of the expected size. The square root of its quantile
at 1 - `FALSE_ALARM` is the sampling factor. Chance alone exceeds it in at most that share of all checks.

The factor tends to 1 with many rows. For two single numbers it is 6,366, hence the rounding samples of
`parity.runners.oracle.rounding`. The scale error is one number for all rows and has one degree of freedom.

Errors within a row may correlate: one wrong input of a row reaches the whole row. A row of small norm adds
little, and equal rows have equal errors. Therefore m is `parity.verdict.distances.carrying_rows`, which never
exceeds the number of different rows.

Few rows may also carry the error. A layer norm divides a row of small variance by a small number, and
multiplies its error. A sum of v_i times squared normal numbers has (sum of v_i)^2 / (sum of v_i^2) degrees of
freedom (Satterthwaite, "An approximate distribution of estimates of variance components", 1946). The rounding
samples measure v_i, row by row. m is the smaller of both numbers. One row of large error decides on the
largest element more than on the norm: each has its own m (`parity.verdict.distances.error_rows`). A tap
without samples has many rows. One of them, or many equal ones, may carry its error all the same: there the
reference's squared errors stand for v_i, with a factor of at most that of one number in the fewest samples of
a tap.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from parity.runners.oracle.rounding import MOST_OF_MANY_ROWS
from parity.verdict.distances import Distance, Oracle, error_rows

FALSE_ALARM = 1e-4
"""Share of correct results that one measure may refuse, of a port with the worst errors that k allows.

k is the worst case: the port rounds each operation four times, in the worst order of summation, and the
reference once. A port that rounds as often as the reference is k >= 2 times as far from the limit. With
normal errors and many rounding samples its share is that of 2 * 3.9 standard deviations, 1e-14. At 1.4 times
the reference's errors the share is 4e-8, which is 0.004 false alarms in 1,000 runs of 100 measures each.
"""
_FEWEST = 1.0 + MOST_OF_MANY_ROWS
"""Degrees of freedom of one number in the fewest samples of a tap that has any, and in the reference."""
MOST_TOGETHER = 2**16
"""Most elements of samples that are compared at once: more of them leave the caches of a core."""


@dataclass(frozen=True, slots=True)
class SampledErrors:
    """Root mean square distances of rounding samples from the oracle.

    Attributes:
        count: Number of samples.
        l2, largest, scale_error: As in `parity.verdict.distances.Distance`.
        l2_rows, largest_rows: Effective numbers of rows that carry the first two; infinite where unknown, and
            for errors of 0.
    """

    count: int = 0
    l2: float = 0.0
    largest: float = 0.0
    scale_error: float = 0.0
    l2_rows: float = math.inf
    largest_rows: float = math.inf

    @classmethod
    def of_reference(
        cls, oracle: Oracle, reference: np.ndarray, counted: np.ndarray, numbers: np.ndarray | None = None
    ) -> SampledErrors:
        """No sample: the reference's own errors say which rows carry an error.

        Args:
            oracle: The n compared elements of the oracle.
            reference: The same elements of the reference, (n,).
            counted: Mask of these elements in the tensor.
            numbers: See `parity.verdict.distances.error_rows`.
        """
        squares = np.square((reference - oracle.values) / (oracle.largest or 1.0))
        l2_rows, largest_rows = error_rows(squares, counted, numbers)
        return cls(l2_rows=l2_rows or math.inf, largest_rows=largest_rows or math.inf)

    def of_equal_rows(self, repeats: float) -> SampledErrors:
        """The errors where rows repeat. Samples round each of them for itself, and programs round all alike.

        Args:
            repeats: Number of equal rows.
        """
        return replace(self, scale_error=self.scale_error * math.sqrt(repeats))


class RoundingSamples:
    """Results of the oracle under random roundings at one tap (`parity.runners.oracle.rounding`).

    Args:
        results: (K, ...), K samples of a tap of shape (...).
    """

    def __init__(self, results: torch.Tensor) -> None:
        # A model may cast to bfloat16, which NumPy does not have.
        self._results = (results.float() if results.dtype is torch.bfloat16 else results).numpy()
        self._errors_by_mask: dict[bytes, SampledErrors] = {}

    def errors(self, oracle: Oracle, counted: np.ndarray, numbers: np.ndarray | None = None) -> SampledErrors:
        """Errors of the samples.

        Args:
            oracle: The compared elements of the oracle.
            counted: Mask of these elements in the tensor.
            numbers: See `parity.verdict.distances.error_rows`.
        """
        key = np.packbits(counted).tobytes()
        if key not in self._errors_by_mask:
            errors, squares = [], np.zeros(len(oracle.values))
            for compared in self._compared(counted, len(oracle.values)):
                errors += oracle.distances(compared)
                # One sample behind the other.
                squares += np.square((compared - oracle.values) / (oracle.largest or 1.0)).sum(axis=0)
            self._errors_by_mask[key] = SampledErrors(
                len(errors),
                _root_mean_square([error.l2 for error in errors]),
                _root_mean_square([error.largest for error in errors]),
                _root_mean_square([error.scale_error for error in errors]),
                *(rows or math.inf for rows in error_rows(squares, counted, numbers)),
            )
        return self._errors_by_mask[key]

    def _compared(self, counted: np.ndarray, elements: int) -> Iterator[np.ndarray]:
        """The compared elements of all samples, (K, n), or of one after the other where they are many."""
        results = self._results.reshape(len(self._results), -1)
        step = 1 if results.shape[0] * elements > MOST_TOGETHER else len(results)
        for start in range(0, len(results), step):
            yield np.compress(counted.ravel(), results[start : start + step], axis=1)


def _root_mean_square(values: list[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))


@functools.lru_cache(maxsize=4096)
def sampling_factor(numerator: float, denominator: float) -> float:
    """The factor by which one error may exceed another of the same size by chance.

    Args:
        numerator: Degrees of freedom of the error.
        denominator: Degrees of freedom of the error that it is compared with.
    """
    # SciPy takes long to import, which a run has while its runners work.
    from scipy import special

    # The quantile of the F distribution. `scipy.stats` has it too and takes half a second to import.
    return math.sqrt(float(special.fdtri(numerator, denominator, 1.0 - FALSE_ALARM)))


def expected_error(reference: Distance, rows: float, samples: SampledErrors) -> Distance:
    """The error that a program of the reference's accuracy may have by chance.

    The reference's own error counts as one more sample. The result is at least the reference's error, which
    may have sources that no rounding sample has.

    Args:
        reference: Error of the reference.
        rows: Number of rows that carry the result.
        samples: Errors of rounding samples; `SampledErrors()` if there are none.
    """
    l2 = _pooled(reference.l2, samples.l2, samples.count)
    largest = _pooled(reference.largest, samples.largest, samples.count)
    return Distance(
        l2=max(reference.l2, _factor(rows, samples.l2_rows, samples) * l2),
        largest=max(reference.largest, _factor(rows, samples.largest_rows, samples) * largest),
        scale_error=max(abs(reference.scale_error), _scale_error_by_chance(reference, rows, samples)),
    )


def _factor(rows: float, carrying: float, samples: SampledErrors) -> float:
    """The sampling factor of an error, of a program against the reference and the samples.

    Args:
        rows: Number of rows that carry the result.
        carrying: Number of rows that carry the error.
        samples: Errors of rounding samples.
    """

    def factor(m: float) -> float:
        return sampling_factor(m, m * (samples.count + 1))

    of_error = factor(min(rows, carrying))
    if samples.count:
        return of_error
    return max(factor(rows), min(of_error, sampling_factor(1.0, _FEWEST)))


def shared_scale_error(reference: Distance, rows: float, samples: SampledErrors) -> float:
    """The part of the reference's scale error that is no chance of few rows: roundings that all rows share.

    Args:
        reference, rows, samples: As in `expected_error`.
    """
    return max(0.0, abs(reference.scale_error) - _scale_error_by_chance(reference, rows, samples))


def error_of_programs(reference: Distance, rows: float, programs: SampledErrors) -> Distance:
    """The error that one more program may have by chance. The scale error is one number, whatever rows share.

    Args:
        reference: Error of the reference, which is one more program.
        rows: Number of rows that carry the result.
        programs: Errors of other right programs.
    """
    scale_error = _pooled(reference.scale_error, programs.scale_error, programs.count)
    return replace(
        expected_error(reference, rows, programs),
        scale_error=sampling_factor(1.0, programs.count + 1) * scale_error,
    )


def _scale_error_by_chance(reference: Distance, rows: float, samples: SampledErrors) -> float:
    """The scale error that independent roundings of the rows may have by chance."""
    # Two bounds hold, from independent rows and from its own samples: take the smaller.
    l2 = _pooled(reference.l2, samples.l2, samples.count)
    measured, of_samples = min(rows, samples.l2_rows) * (samples.count + 1), math.inf
    if samples.count:
        sampled = _pooled(reference.scale_error, samples.scale_error, samples.count)
        of_samples = sampling_factor(1.0, samples.count + 1) * sampled
    else:
        measured = max(measured, min(rows, _FEWEST))
    return min(sampling_factor(1.0, measured) * l2 / math.sqrt(rows), of_samples)


def _pooled(own: float, sampled: float, count: int) -> float:
    """Root mean square of one error and of `count` samples with a root mean square of their own."""
    return math.sqrt((own * own + count * sampled * sampled) / (count + 1))
