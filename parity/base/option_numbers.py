"""Numbers of a command line, in ASCII digits alone.

Python also reads digits of other scripts and underscores: `--batch 1_6` may mean 1.6 as well as 16.
"""

from __future__ import annotations

from typing import Any

import click


class _Plain(click.ParamType):
    """A type of numbers that refuses every other text than digits, signs and points of ASCII."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and (not value.isascii() or "_" in value):
            self.fail(f"{value!r} is not a valid {self.name.split()[0]}.", param, ctx)
        return super().convert(value, param, ctx)


class Integer(_Plain, click.types.IntParamType):
    """An integer."""


class IntegerRange(_Plain, click.IntRange):
    """An integer within limits."""


class Number(_Plain, click.types.FloatParamType):
    """A number in floating point."""


INTEGER = Integer()
NUMBER = Number()
