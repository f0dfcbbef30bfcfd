"""Names of a factor that is known up to round-off: a ratio, a short decimal, or a constant of mathematics.

A name may fit by chance. The chance is the number of names as simple as it, within the limit of any factor.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator
from fractions import Fraction

DENOMINATORS = range(1, 1025)
"""Denominators of a ratio, such as 200/211: a ratio of sizes."""
DIGITS = range(1, 7)
"""Numbers of digits of a short decimal. A text shows six."""
BY_CHANCE = 0.5
"""Largest chance of a ratio or a decimal that is told. An integer always is."""
CONSTANT_BY_CHANCE = 0.1
"""Largest chance of a constant that is told: it claims more than a number."""
MOST_NAMES = 3
"""Most names that a text lists."""
_BASES = {
    "pi": math.pi,
    "e": math.e,
    "ln 2": math.log(2),
    "ln 10": math.log(10),
    "sqrt 2": math.sqrt(2),
    "sqrt 3": math.sqrt(3),
    "sqrt pi": math.sqrt(math.pi),
    "sqrt(2 pi)": math.sqrt(2 * math.pi),
}
_MULTIPLES = (1, 2, 4)
_DEGREES = {"pi/180": math.pi / 180, "180/pi": 180 / math.pi}
Name = tuple[float, str, float]
"""The chance of a name, the name, and its value."""


def _constants() -> dict[str, float]:
    """Small multiples and parts of constants and of their inverses, by name, each value once."""
    named: dict[str, float] = {}
    for count, (base, value) in itertools.product(_MULTIPLES, _BASES.items()):
        multiple = base if count == 1 else f"{count} {base}"
        named[multiple] = count * value
        named[f"{count}/{base}"] = count / value
        if count > 1:
            named[f"{base}/{count}"] = value / count
            named[f"1/({multiple})"] = 1 / (count * value)
    first = {f"{value:.12g}": name for name, value in reversed(named.items())}
    return {name: value for name, value in named.items() if first[f"{value:.12g}"] == name} | _DEGREES


CONSTANTS = _constants()
_PER_LOGARITHM = len(CONSTANTS) / math.log(max(CONSTANTS.values()) / min(CONSTANTS.values()))
"""Number of constants in an interval from any number to e times that number."""


def names_of(factor: float, scale_error: float) -> str:
    """The names of a factor in words, behind a comma; empty without one, or for a number that is its name.

    Args:
        factor: The factor. None has a name that is 0, too small for a relative error, or not finite.
        scale_error: Its largest relative error.
    """
    if not sys.float_info.min <= abs(factor) < math.inf:
        return ""
    names: list[Name] = []
    for name in sorted(_fitting(factor, max(scale_error, sys.float_info.epsilon))):
        if all(not math.isclose(name[2], value, rel_tol=1e-12) for *_, value in names):
            names.append(name)
    sign, shown = "-" if factor < 0 else "", f"{factor:.6g}"
    words = [f"{sign}{text}" for _, text, _ in names[:MOST_NAMES]]
    if not words or words[0] == shown:
        return ""
    words = [text for text in words if text != shown]
    if len(words) == 1:
        return f", which is {words[0]} to round-off"
    return f", which round-off does not tell from {', '.join(words[:-1])} or {words[-1]}"


def _fitting(factor: float, scale_error: float) -> Iterator[Name]:
    """The names of a factor's size within its error."""
    size = abs(factor)
    yield from _ratio(size, scale_error)
    exponent = math.floor(math.log10(size))
    for digits in DIGITS:
        text = f"{size:.{digits}g}"
        chance = 2 * scale_error * size / 10.0 ** (exponent - digits + 1)
        if chance <= BY_CHANCE and abs(float(text) / size - 1) <= scale_error:
            yield chance, text, float(text)
            break
    chance = 2 * scale_error * _PER_LOGARITHM
    if chance <= CONSTANT_BY_CHANCE:
        for name, value in CONSTANTS.items():
            if abs(value / size - 1) <= scale_error:
                yield chance, name, value


def _ratio(size: float, scale_error: float) -> Iterator[Name]:
    """The simplest ratio."""
    allowed = 2 * size * scale_error
    for denominator in DENOMINATORS:
        chance = denominator**2 * allowed
        if denominator > 1 and chance > BY_CHANCE:
            return
        simple = Fraction(round(size * denominator), denominator)
        if simple and abs(float(simple) / size - 1) <= scale_error:
            yield chance if denominator > 1 else 0.0, str(simple), float(simple)
            return
