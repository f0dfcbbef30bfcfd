"""The smallest error that a check detects.

A limit states the allowed error; this module states the detected one. It multiplies the port's result by 1 +
e and by 1 - e, and solves for the smallest e that fails the check. Among all errors of one size, a common
factor is the hardest to detect: its largest element is no larger than its Euclidean norm.

More rows
---------
The limit of the scale error falls with the number of rows, down to its lasting part
(`parity.verdict.bound.Bound.lasting`): roundings that all rows share. A correct port may have a scale error
anywhere within the lasting part, of either sign. An error e of the other sign then exceeds the limit only
from twice the lasting part on. So a check whose lasting part is above half of `INSENSITIVE_ABOVE` cannot
promise to detect it, with any number of rows and any correct port. It is insensitive by its nature.

The number that counts is `parity.verdict.distances.carrying_rows`. A result may be 0 in nearly all rows, as
behind a ReLU whose input is negative, equal in all rows, or of the same size for any batch. No batch then has
enough rows that carry it, and the check is insensitive by its nature as well. The same holds for one row of a
whole batch, such as a loss: nothing averages its own roundings out, so that the whole floor is lasting. Every
other check becomes sensitive with enough rows, so a run draws batches of `multiples` of the typical one: each
time the one that the detected error calls for. The largest of them is the bound: rows of quantised numbers
repeat, and more of them say little more. A check that is not expected to become sensitive there asks for no
further batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from parity.verdict.distances import Distance, Oracle

_ALL_DIGITS = 17
"""Digits that tell any two numbers apart."""
INSENSITIVE_ABOVE = 0.01
"""Relative error. A check that does not detect an error of this size is INSENSITIVE and is no PASS."""
GROWTH = 4
"""Rows of a further batch, in multiples of the batch before."""
LARGEST_MULTIPLE = 64
"""Rows of the largest further batch in typical batches, where these are more than `MOST_ROWS`."""
MOST_ROWS = 1 << 14
"""Most rows of a further batch. A typical batch of few rows has little to say about rare values."""
ENOUGH_ROWS = MOST_ROWS // GROWTH
"""Rows that show in which share of all rows a result is 0."""
NEEDED_ROWS = 64
"""Carrying rows that detect `INSENSITIVE_ABOVE` in bf16, of a module with the roundings of two operations."""
LARGEST = 1.0
SMALLEST = 2.0**-30
ROUNDING_MARGIN = 1.01**0.49
"""Ratio of the smallest detected error to the one that meets a limit: roundings of the check are far less."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a check over the batches of a run.

    Attributes:
        first: Compared rows in the first batch.
        most: Compared rows in the batch with the most.
        carrying: Effective number of rows that carry the result in that batch; 0 for a result of zeros.
        is_of_batch: Whether the result is one row of the whole batch, such as a loss.
        fewer: Compared and carrying rows in the batch with the next most.
    """

    first: int = 0
    most: int = 0
    carrying: float = 0.0
    is_of_batch: bool = False
    fewer: tuple[int, float] = (0, 0.0)

    @classmethod
    def of(cls, compared: int, carrying: float, is_of_batch: bool = False) -> Rows:
        """The rows of one batch."""
        return cls(compared, compared, carrying, is_of_batch)

    def and_later(self, other: Rows) -> Rows:
        """The rows of these batches and of later ones."""
        larger = self if self.most >= other.most else other
        batches = ((side.most, side.carrying) for side in (self, other))
        fewer = [batch for batch in (*batches, self.fewer, other.fewer) if batch[0] < larger.most]
        return Rows(
            self.first or other.first,
            larger.most,
            larger.carrying,
            self.is_of_batch or other.is_of_batch,
            max(fewer, default=(0, 0.0)),
        )

    def carrying_growth(self, times: float) -> float:
        """The expected growth of the carrying rows in a batch with so many times the rows.

        It goes on as between the two largest batches, and is proportional where one of them has few rows.
        """
        rows, carrying = self.fewer
        if min(carrying, self.carrying) < NEEDED_ROWS:
            return times
        return times ** min(1.0, max(0.0, math.log(self.carrying / carrying) / math.log(self.most / rows)))


def error_text(error: float, digits: int) -> str:
    """A relative error with so many digits, or as many more as tell it from `INSENSITIVE_ABOVE`.

    No text then says that a check detects 1 % and does not.
    """
    texts = (f"{error:.{number}g}" for number in range(digits, _ALL_DIGITS))
    is_above = error > INSENSITIVE_ABOVE
    return next((text for text in texts if (float(text) > INSENSITIVE_ABOVE) is is_above), repr(error))


def multiples(rows: int) -> Iterator[int]:
    """Rows of the further batches that a run draws for insensitive checks, in multiples of the typical batch.

    Args:
        rows: Rows of the typical batch.
    """
    times = GROWTH
    while times <= LARGEST_MULTIPLE or times * rows <= MOST_ROWS:
        yield times
        times *= GROWTH


def most_further(rows: int) -> int:
    """The largest number of further batches that a run draws for a typical batch of so many rows."""
    return sum(1 for _ in multiples(rows))


def why_by_nature(
    lasting_limit: float, rows: Rows, further: int = 0, most: int = 0, detected: float | None = None
) -> str:
    """The reason why no batch of a run detects `INSENSITIVE_ABOVE`; empty if one with more rows may.

    Args:
        lasting_limit: Lasting part of the check's limit.
        rows: Rows of the check.
        further: Number of the largest further batch that the check had, in the order of `multiples`.
        most: The largest number of further batches; 0 if it is unknown.
        detected: The smallest error that the check detects; infinity if it detects none, None if unknown.
    """
    if 2.0 * lasting_limit > INSENSITIVE_ABOVE:
        roundings = (
            f"roundings of up to {lasting_limit:.2g}, and those of a correct port may hide twice as much"
        )
        return (
            f"one number of the whole batch has {roundings}"
            if rows.is_of_batch
            else f"all rows share {roundings}"
        )
    if rows.most >= ENOUGH_ROWS and rows.carrying * MOST_ROWS < NEEDED_ROWS * rows.most:
        if not rows.carrying:
            return f"the result is 0 in all {rows.most} rows"
        return f"{rows.carrying:.2g} of {rows.most} rows carry the result, equal ones counted once"
    if further and rows.most < 2 * rows.first:
        return f"the result has {rows.most} rows in a batch of any size"
    # Where nothing was compared, nothing is known of the check's nature.
    if most and further >= most and rows.most:
        return f"a run draws no more than {rows.most} rows, of which {rows.carrying:.0f} carry the result"
    left = GROWTH ** max(0, most - further)
    growth = rows.carrying_growth(left)
    if detected is not None and growth < left and _falling(detected, lasting_limit) > growth:
        few, carrying = rows.fewer
        return (
            f"{carrying:.0f} of {few} and {rows.carrying:.0f} of {rows.most} rows carry the result, so that "
            f"no batch of up to {left * rows.most} rows, the most that a run draws, is expected to be enough"
        )
    return ""


def rows_needed(detected: float, lasting_limit: float) -> float:
    """The estimated rows that detect `INSENSITIVE_ABOVE`, in multiples of the rows of a check.

    Args:
        detected: The smallest error that the check detects; infinity if it detects none.
        lasting_limit: Lasting part of its limit, at most half of `INSENSITIVE_ABOVE`.

    Returns:
        A power of `GROWTH`, from `GROWTH` on; infinity if no number is known.
    """
    times, needed = float(GROWTH), _falling(detected, lasting_limit)
    if math.isinf(needed):
        return math.inf
    while times < needed:
        times *= GROWTH
    return times


def batches_needed(detected: float, lasting_limit: float) -> int:
    """The estimated number of further batches until a check detects `INSENSITIVE_ABOVE`; 1 if it is unknown.

    It is the nearest one: a batch that is not enough costs less than one that is far too large.

    Args:
        detected, lasting_limit: As of `rows_needed`.
    """
    needed = _falling(detected, lasting_limit)
    return 1 if math.isinf(needed) else max(1, round(math.log(max(1.0, needed), GROWTH)))


def _falling(detected: float, lasting_limit: float) -> float:
    """The factor by which carrying rows must grow until a check detects `INSENSITIVE_ABOVE`; may be infinity.

    The square of the detected error has a part that falls with the rows, and twice the lasting part stays.
    """
    lasting = (2.0 * lasting_limit) ** 2
    falling = INSENSITIVE_ABOVE**2 - lasting
    return math.inf if math.isinf(detected) or falling <= 0.0 else (detected**2 - lasting) / falling


def min_detectable_error(oracle: Oracle, port: np.ndarray, error: np.ndarray, limit: Distance) -> float:
    """The smallest relative error that is detected with either sign; infinity if none up to 1 is.

    Args:
        oracle: The compared elements of the oracle.
        port: The same elements of the port, (n,) float64, within the limit.
        error: The port's scaled error, (n,) float64.
        limit: The limits of the distance.
    """
    # All measures grow with the factor from here on: what meets a limit fails beyond it.
    crossing = max(oracle.crossings(error, oracle.scaled(port), limit))
    if crossing > LARGEST:
        return math.inf
    return min(max(crossing, SMALLEST) * ROUNDING_MARGIN, LARGEST)
