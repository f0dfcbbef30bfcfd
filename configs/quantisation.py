"""Quantisation of a model: a scheme for each of its products and tables, chosen by patterns.

The patterns are those of a policy (`parity.base.module_patterns`), and the schemes those of
`parity.base.quantisation`. A scheme of rows is for tables, and any other one for products. The innermost
pattern whose scheme fits decides, and among equals the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from pydantic import Field

from configs.fields import Count, Strict
from parity.base.module_patterns import covers, innermost
from parity.base.quantisation import SCHEMES, Scheme


class Quantisable(Strict):
    """The part of a model's configuration that quantises it."""

    quantised: dict[str, str] = Field(
        default={}, description="a mapping of modules' patterns to schemes, such as {'*': int8_channel}"
    )
    calibration: Literal["largest", "percentile", "squared_error"] = Field(
        default="largest", description="rule that scales of products follow from"
    )
    block_size: Count = Field(default=32, description="inputs of a product that share a scale in blocks")

    def __hash__(self) -> int:
        # A mapping has none of its own.
        return hash(self.model_dump_json())

    def products(self) -> tuple[str, ...]:
        """Paths of the products that can be quantised."""
        raise NotImplementedError

    def tables(self) -> tuple[str, ...]:
        """Paths of the tables that can be quantised; none by default."""
        return ()

    @property
    def schemes(self) -> Mapping[str, Scheme]:
        """The scheme of each quantised product and table by its path."""
        chosen = {}
        for of_tables, paths in ((False, self.products()), (True, self.tables())):
            fitting = {
                pattern: name
                for pattern, name in self.quantised.items()
                if SCHEMES[name].is_of_tables is of_tables
            }
            for path in paths:
                name = innermost(fitting, path)
                if name is not None:
                    chosen[path] = replace(SCHEMES[name], block_size=self.block_size)
        return chosen

    def quantisation_problems(self) -> list[str]:
        """Problems of the patterns and schemes, a line each."""
        problems = []
        for pattern, name in self.quantised.items():
            if name not in SCHEMES:
                problems.append(
                    f"quantised[{pattern!r}]: {name!r} is no scheme; use one of {', '.join(SCHEMES)}"
                )
                continue
            kind = "table" if SCHEMES[name].is_of_tables else "product"
            paths = self.tables() if SCHEMES[name].is_of_tables else self.products()
            if not any(covers(pattern, path) for path in paths):
                fix = f"give a pattern of {paths[0]!r} to {paths[-1]!r}" if paths else "leave the pattern out"
                problems.append(f"quantised[{pattern!r}]: {name} covers no {kind}; {fix}")
        return problems
