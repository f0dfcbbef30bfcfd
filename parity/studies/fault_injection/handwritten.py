"""Faults by hand: edits of the port's source that no operator makes, from the catalogues of a case."""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.base.strict_yaml import parse_yaml
from parity.coverage.source import short_name, source_of
from parity.studies.fault_injection.faults import Fault

HARNESS = "harness"
"""The family of faults in the suite itself, which are applied around a whole run."""


@dataclass(frozen=True)
class Edit(Fault):
    """A text in one module of the port, replaced by another; `target` is the module, `detail` a name.

    An edit is for one case, with the tap that the diagnosis must name. Or it is for all cases of a family,
    with the class of the module that contains it: one of the cases has to detect it.

    Attributes:
        module: Import path of the changed module.
        old: A text that occurs in the module once.
        new: Its replacement.
        case: Name of the case; empty for a family's edit.
        named: The tap that the diagnosis must name; empty for a family's edit.
        family: See `parity.case.Case.family`; `HARNESS` for an edit of the suite.
        of_class: Class of the module that contains the edit.

    Raises:
        LookupError: The port has changed at the place of a case's edit.
    """

    module: str
    old: str
    new: str
    case: str = ""
    named: str = ""
    family: str = ""
    of_class: str = ""

    def __post_init__(self) -> None:
        if self.case and self.is_stale:
            raise LookupError(f"{self.detail}: {self.old!r} is not in {self.module} once: mend the fault")

    @property
    def is_stale(self) -> bool:
        """Whether `old` does not occur in the module once, because the module has changed."""
        return source_of(self.module).count(self.old) != 1

    @property
    def in_harness(self) -> bool:
        """Whether the suite contains the edit."""
        return self.family == HARNESS

    @property
    def lines(self) -> tuple[int, int]:
        """First and last line of the replaced text."""
        before = source_of(self.module).split(self.old)[0].count("\n") + 1
        return before, before + self.old.rstrip("\n").count("\n")

    @property
    def text(self) -> str:
        """The module's source with the change."""
        return source_of(self.module).replace(self.old, self.new)

    def tree(self) -> ast.Module:
        """`text`, parsed. Raises `LookupError` for a stale edit."""
        if self.is_stale:
            raise LookupError(f"{self.old!r} is not in {self.module} once")
        return ast.parse(self.text)


def handwritten(catalogue: Path) -> list[Edit]:
    """The edits of a catalogue.

    The catalogue is a YAML list of entries with `name`, `module`, `old` and `new`. Edits for one case have
    `case` and `named`, edits for a family `family` and `class`. Other keys are notes.

    Raises:
        LookupError: The port has changed at the place of a case's edit.
    """
    return [
        Edit(
            operator=f"by hand: {catalogue.stem}",
            target=short_name(entry["module"]),
            detail=entry["name"],
            module=entry["module"],
            old=entry["old"],
            new=entry["new"],
            case=entry.get("case", ""),
            named=entry.get("named", ""),
            family=entry.get("family", ""),
            of_class=entry.get("class", ""),
        )
        for entry in _entries(catalogue.read_text(encoding="utf-8"))
    ]


@functools.lru_cache(maxsize=32)
def _entries(text: str) -> Sequence[Mapping[str, Any]]:
    """The entries of a catalogue with this text, which takes a tenth of a second to parse."""
    return parse_yaml(text)
