"""Random rounding errors: the float64 oracle with an error in every operation.

The reference's distance from the oracle is one sample of a random number. If few rows carry a result, as in
a batch of one, the sample may be small by chance. The oracle takes more samples. Every result of an operation
gets the error of rounding it to the tested precision,

    uniform in +- u * 2^floor(log2 |y|)        of a result y, u being the unit round-off,

and every sum of n terms also the error of adding them pairwise, the best order, in the accumulator's
precision a,

    normal, of standard deviation RMS * a * sqrt(log2 n) * ||terms||,    RMS = 1 / sqrt(8 ln 2),

A pairwise sum has log2 n levels, and each level rounds its partial sums. With random signs, the squares of a
level's partial sums add up to the squares of the terms. One rounding has RMS units in the mean square if
leading digits are distributed logarithmically (Higham, "Accuracy and Stability of Numerical Algorithms",
2002, sections 2.7 and 4.2). The method is Parker's Monte Carlo arithmetic, 1997.

A program may round a sum of products before it adds a bias. Where the bias cancels most of the sum, this
rounding is the largest error. Where the sum s is larger than the result, the result has its error too,

    uniform in +- u * 2^floor(log2 |s|).

Below the smallest normal number of the precision, all numbers have its unit. Float16 reaches it at 6e-5.

A model may compute in float32 by its own will, in a run of a half type. These results have the errors of
float32, see `parity.runners.oracle.own_types`.

Results that are exact in any type have no error: see `parity.runners.oracle.exactness`.

Samples contain the growth of errors in sums that cancel. A bound from the length of a chain does not.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from parity.base.dispatch import EachOperation
from parity.base.precision import PRECISIONS, Precision
from parity.capture.terms import terms
from parity.runners.oracle.exactness import exact_elements, is_wide
from parity.runners.oracle.own_types import OwnResults, is_floating

FEW_ROWS = 256
"""Most rows of a tap with all samples. With more, the sampling error is a factor of at most 1.26."""
MOST_SAMPLES = 32
"""Most samples of a tap. The limit of a single number is 1.13 times the limit of infinitely many samples."""
MOST_OF_MANY_ROWS = 8
"""Most samples of a tap of more rows. The limit of a single number is 1.7 times that of infinitely many."""
MOST_ELEMENTS_OF_MANY_ROWS = 1 << 18
"""Most elements of all samples of a tap of more rows. Few samples show the errors that all rows have; more of
them measure an error that few rows carry."""
MOST_ELEMENTS = 1 << 24
"""Most elements of the taps of all samples. Where one pass has more, there are no samples."""
RMS = 1.0 / math.sqrt(8.0 * math.log(2.0))
"""Root of the mean square of one rounding, in units of round-off."""
UNIFORM_BITS = 16
"""Bits of a uniform number: an error has so many of its own digits, and far fewer matter to a mean square."""
_ODD = sum(1 << place for place in range(0, 64, UNIFORM_BITS))
"""The last bit of each of the numbers in a word."""
_EXPONENT_BITS = 0x7FF << 52
_FLOAT32 = PRECISIONS["fp32"]


def sample_count(elements: int) -> int:
    """Number of samples of a pass whose taps have so many elements."""
    return min(MOST_SAMPLES, MOST_ELEMENTS // max(1, elements))


def samples_of(tensor: torch.Tensor) -> int:
    """Most samples of a tap of any shape; 0 for integers, and for a tap without elements or with too many."""
    elements = tensor.numel()
    if not elements or not tensor.dtype.is_floating_point:
        return 0
    rows = elements // tensor.shape[-1] if tensor.ndim > 1 else elements
    return (
        MOST_SAMPLES if rows <= FEW_ROWS else min(MOST_OF_MANY_ROWS, MOST_ELEMENTS_OF_MANY_ROWS // elements)
    )


class OtherOperations(Exception):
    """A pass has other operations than the run whose types it was to take."""


class Errors:
    """Random rounding errors of one precision, a stream of them from one seed.

    Args:
        precision: The precision that results are rounded to.
        seed: Seed of the stream.
        own_types: The results with a rounding in a run of the precision, see `own_types`. Those in float32
            have errors of float32. None where all have those of the precision.

    Attributes:
        current: The precision that the next result is rounded to.
        together: Samples that a pass takes at once, along a leading axis; 0 for a pass without that axis.
        generator: Random numbers of the stream.
    """

    def __init__(
        self,
        precision: Precision,
        seed: int,
        own_types: OwnResults | None = None,
    ) -> None:
        self._precision = self.current = precision
        self._own_types = own_types
        self._place = 0
        self.together = 0
        self.generator = torch.Generator().manual_seed(seed)
        # Much faster than PyTorch's, for whole words.
        self._words = np.random.Generator(np.random.PCG64(seed))

    def begin(self, together: int) -> None:
        """Begin a pass of several samples at once: the next result is its first one."""
        self._place, self.together = 0, together

    def take_type(self, result: Any, name: str) -> None:
        """Take the type of the next floating-point result with a rounding.

        Args:
            result: The result, in one sample's shape; another one is passed over.
            name: Its operation.

        Raises:
            OtherOperations: The run of the precision has another result at this place.
        """
        if self._own_types is None or not is_floating(result):
            return
        own = self._own_types[self._place] if self._place < len(self._own_types) else None
        self._place += 1
        if own is None or own[:2] != (name, result.shape):
            raise OtherOperations(f"{name} of {tuple(result.shape)} in place of {own}")
        self.current = _FLOAT32 if own[2].itemsize >= torch.float32.itemsize else self._precision

    def add(
        self,
        result: torch.Tensor,
        shape: torch.Size,
        terms_norm: torch.Tensor | None,
        count: int,
        exact: torch.Tensor | None,
        before_bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """A result plus independent errors, in place where `result` has the `shape`.

        Args:
            result: Float64, of a shape that broadcasts to `shape`.
            shape: Shape of the errors.
            terms_norm: Norm of the terms of each sum; it broadcasts to `shape`. None for the result's size.
            count: Terms of a sum; 1 for an elementwise operation.
            exact: Elements without an error, broadcasting to `shape`; None where there are none.
            before_bias: The sum that a bias is added to; it broadcasts to `shape`. None without a bias.
        """
        precision = self.current
        rounded = result if result.shape == shape else result.expand(shape).clone()
        scale = power_of_two(result, precision)
        if exact is not None:
            scale.masked_fill_(exact, 0.0)
        # Before the result changes: its size decides, and may be the norm.
        cancelled = None
        if before_bias is not None:
            cancelled = power_of_two(before_bias, precision) * (before_bias.abs() > result.abs())
            if exact is not None:
                cancelled = cancelled.masked_fill(exact, 0.0)
        size = result.abs() if count > 1 and terms_norm is None else terms_norm
        step = 2.0 * precision.unit_roundoff / 2**UNIFORM_BITS
        rounded.addcmul_(self._uniform(shape), scale, value=step)
        if cancelled is not None:
            rounded.addcmul_(self._uniform(shape), cancelled, value=step)
        if count > 1:
            # An error needs no more digits than float32 has.
            normal = torch.randn(shape, generator=self.generator)
            if exact is not None:
                normal.masked_fill_(exact, 0.0)
            unit = RMS * precision.accumulation_roundoff * math.sqrt(math.log2(count))
            rounded.addcmul_(normal, size, value=unit)
        return rounded

    def _uniform(self, shape: torch.Size) -> torch.Tensor:
        """Independent uniform numbers in +- 2^(`UNIFORM_BITS` - 1), all of them odd: zero is their mean."""
        count = shape.numel()
        words = self._words.integers(0, 2**64, -(-count * UNIFORM_BITS // 64), dtype=np.uint64)
        words |= np.uint64(_ODD)
        return torch.from_numpy(words.view(np.int16)[:count]).view(shape)


def power_of_two(values: torch.Tensor, precision: Precision) -> torch.Tensor:
    """2^floor(log2 |y|) of each number y, 0 for a zero. A cap keeps an infinite result infinite."""
    powers = (values.view(torch.int64) & _EXPONENT_BITS).view(torch.float64)
    powers.clamp_(max=torch.finfo(torch.float64).max)
    # Other precisions have the range of float32, which no result leaves.
    if precision.dtype is torch.float16:
        powers.clamp_(min=torch.finfo(torch.float16).smallest_normal).masked_fill_(values == 0.0, 0.0)
    return powers


class Roundings(EachOperation):
    """Inside, results that concern `errors` have some: one sample."""

    def __init__(self, errors: Errors) -> None:
        super().__init__()
        self._errors = errors

    def operation(self, func: Any, args: tuple, kwargs: dict) -> Any:
        name = func.overloadpacket.__name__
        # Before the operation, which may overwrite its arguments.
        norm = norm_of_terms(func, name, args, kwargs)
        operands = [arg.clone() if name.endswith("_") else arg for arg in args if is_wide(arg)]
        result = func(*args, **kwargs)
        before = sum_before_bias(name, args, kwargs, result)
        count = terms(func, args, kwargs, result).count
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if count:
                self._errors.take_type(tensor, name)
            if count and is_wide(tensor):
                exact = exact_elements(
                    name, args, kwargs, tensor, operands, norm, count, self._errors.current
                )
                # In place: a view stays a view, and an argument that is written to stays that argument.
                self._errors.add(tensor, tensor.shape, norm, count, exact, before)
        return result


def norm_of_terms(func: Any, name: str, args: tuple, kwargs: dict) -> torch.Tensor | None:
    """||terms|| of each sum whose terms may cancel; None for other operations."""
    if name in ("mm", "bmm", "mv", "dot"):
        return func(args[0].square(), args[1].square()).sqrt()
    if name in ("addmm", "baddbmm", "addmv") and not kwargs:
        return func(*(tensor.square() for tensor in args)).sqrt()
    if name == "convolution":
        operand, weight, bias, *options = args
        squares = func(operand.square(), weight.square(), None if bias is None else bias.square(), *options)
        return squares.sqrt()
    if name == "cumsum":
        return func(args[0].square(), *args[1:], **kwargs).sqrt()
    if name in ("sum", "mean") and args[0].dtype is torch.float64:
        squares = func(args[0].square(), *args[1:], **kwargs)
        if name == "sum":
            return squares.sqrt()
        return squares.div(max(1, args[0].numel() // max(1, squares.numel()))).sqrt()
    return None


def sum_before_bias(name: str, args: tuple, kwargs: dict, result: Any) -> torch.Tensor | None:
    """The sum of products that an operation adds a bias to; None for other operations."""
    if name in ("addmm", "baddbmm", "addmv") and not kwargs:
        return result - args[0]
    if name == "convolution" and args[2] is not None:
        return result - args[2].reshape(-1, *(1,) * (result.ndim - 2))
    return None
