"""Faults made by hand: edits of the port's source that no operator makes."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from parity.base.strict_yaml import parse_yaml
from parity.studies.fault_injection.faults import Fault
from parity.studies.fault_injection.source import source_of

CATALOGUES = tuple(sorted(Path(__file__).parent.glob("*.yaml")))
"""Each a file of edits: those of the tests, and those made after the operators were frozen."""
HANDWRITTEN = Path(__file__).with_name("handwritten.yaml")


@dataclass(frozen=True)
class Edit(Fault):
    """A text in one file of the port, replaced by another; `target` is the file, `detail` a name.

    Attributes:
        file: The port's file, without its suffix.
        old: A text that is in the file once.
        new: What takes its place.
        case: The case that it is made for.
        named: The tap that must be named.

    Raises:
        LookupError: The port has changed: `old` is not in the file once. A fault that is no longer put in is
            no port that cannot be made.
    """

    file: str
    old: str
    new: str
    case: str
    named: str

    def __post_init__(self) -> None:
        if source_of(self.file).count(self.old) != 1:
            raise LookupError(f"{self.detail}: {self.old!r} is not in {self.file}.py once: mend the fault")

    @property
    def lines(self) -> tuple[int, int]:
        """First and last line of the text that is replaced."""
        before = source_of(self.file).split(self.old)[0].count("\n") + 1
        return before, before + self.old.rstrip("\n").count("\n")

    @property
    def text(self) -> str:
        """The file with the change."""
        return source_of(self.file).replace(self.old, self.new)

    def tree(self) -> ast.Module:
        """`text`, parsed."""
        return ast.parse(self.text)


def handwritten(catalogue: Path = HANDWRITTEN) -> list[Edit]:
    """The edits in a catalogue. Raises `LookupError` if the port has changed where one of them is."""
    return [
        Edit(
            operator=f"by hand: {catalogue.stem}",
            target=entry["file"],
            detail=entry["name"],
            file=entry["file"],
            old=entry["old"],
            new=entry["new"],
            case=entry["case"],
            named=entry["named"],
        )
        for entry in parse_yaml(catalogue.read_text(encoding="utf-8"))
    ]
