"""Faults by hand: edits of the port's source that no operator makes, from the catalogues of a case."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from parity.base.strict_yaml import parse_yaml
from parity.coverage.source import short_name, source_of
from parity.studies.fault_injection.faults import Fault


@dataclass(frozen=True)
class Edit(Fault):
    """A text in one module of the port, replaced by another; `target` is the module, `detail` a name.

    Attributes:
        module: Import path of the port's module.
        old: A text that occurs in the module once.
        new: Its replacement.
        case: Name of the case.
        named: The tap that the diagnosis must name.

    Raises:
        LookupError: `old` does not occur in the module once, because the port has changed.
    """

    module: str
    old: str
    new: str
    case: str
    named: str

    def __post_init__(self) -> None:
        if source_of(self.module).count(self.old) != 1:
            raise LookupError(f"{self.detail}: {self.old!r} is not in {self.module} once: mend the fault")

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
        """`text`, parsed."""
        return ast.parse(self.text)


def handwritten(catalogue: Path) -> list[Edit]:
    """The edits of a catalogue, a YAML list of entries with name, module, case, named, old and new.

    Raises:
        LookupError: The port has changed at the place of an edit.
    """
    return [
        Edit(
            operator=f"by hand: {catalogue.stem}",
            target=short_name(entry["module"]),
            detail=entry["name"],
            module=entry["module"],
            old=entry["old"],
            new=entry["new"],
            case=entry["case"],
            named=entry["named"],
        )
        for entry in parse_yaml(catalogue.read_text(encoding="utf-8"))
    ]
