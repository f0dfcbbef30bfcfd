"""Other right programs of a module or a whole model: the float64 oracle with roundings as programs make them.

Rounding samples (`parity.runners.oracle.rounding`) have independent errors in all rows. A program's errors
need not be independent. Let s be a rounded sum on a grid of step g, and b a bias below g / 2. Rounding s + b
gives s again in every row: the bias is lost, and the error is -b in all of them. Near-equal rows have
near-equal errors, too. No number of rows averages such errors out, and a later cancellation multiplies them.

A program rounds a result, or keeps it wide for the next operation. It rounds a sum of products before it adds
a bias, or not. Each sample decides both by chance, operation by operation, and rounds to nearest, ties to
even, as programs do. Rows of one sample therefore share what rows of a program share.
"""

from __future__ import annotations

import torch

from parity.base.precision import Precision
from parity.runners.oracle.choices import ChoosingOracle
from parity.runners.oracle.rounding import MOST_SAMPLES, Errors, power_of_two


class ProgramErrors(Errors):
    """The roundings of programs: each result is rounded in half of the samples, with all its elements."""

    def add(
        self,
        result: torch.Tensor,
        shape: torch.Size,
        terms_norm: torch.Tensor | None,
        count: int,
        exact: torch.Tensor | None,
        before_bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """A result with its roundings; arguments as in `Errors.add`. An exact element has no error to add."""
        rounded = result if result.shape == shape else result.expand(shape).clone()
        if before_bias is not None:
            rounded += rounding_error(before_bias.expand(shape), self.current) * self._half_of_samples(shape)
        rounded += rounding_error(rounded, self.current) * self._half_of_samples(shape)
        return rounded

    def _half_of_samples(self, shape: torch.Size) -> torch.Tensor:
        """1 for each sample that rounds, and 0 for the others, of a shape that broadcasts to `shape`."""
        sizes = (self.together, *(1,) * (len(shape) - 1)) if self.together else ()
        return torch.randint(2, sizes, generator=self.generator, dtype=torch.float64)


def rounding_error(values: torch.Tensor, precision: Precision) -> torch.Tensor:
    """The error of rounding float64 numbers to a precision, to nearest, ties to even; 0 for infinite ones."""
    step = 2.0 * precision.unit_roundoff * power_of_two(values, precision)
    step.masked_fill_(step == 0.0, 1.0)
    error = torch.round(values / step) * step - values
    return error.masked_fill_(~values.isfinite(), 0.0)


class ProgramOracle(ChoosingOracle):
    """The oracle with results of programs in place of rounding samples, as many for a tap of any size."""

    _errors = ProgramErrors

    @staticmethod
    def _samples_of(tensor: torch.Tensor) -> int:
        return MOST_SAMPLES if tensor.numel() and tensor.dtype.is_floating_point else 0
