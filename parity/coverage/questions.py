"""Questions about a port that inputs should ask, with all answers that they have and the answers of a run.

A line has one answer: it runs. A comparison has two outcomes. A threshold is approached from each side. A
bound of the reference, which the port may have left out, has values on both sides or both outcomes. An axis
has sizes 1, 2 and more. A tensor of weights has elements other than 0 and other than 1, and a graph of the
port reads it. An option has its choices. A run gives some of these answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from parity.base.errors import UserError
from parity.base.files import parse_json, write_new

OUTCOMES = ("false", "true")
"""Answers of a comparison."""
OF_NUMBERS = ("below", "above")
"""Answers of a threshold or a bound of numbers that are no integers."""


class Kind(str, Enum):
    """Kinds of questions, in the order of a report."""

    LINE = "line"
    BRANCH = "branch"
    OUTCOME = "outcome"
    THRESHOLD = "threshold"
    BOUND = "bound"
    SIZE = "size"
    WEIGHT = "weight"
    OPTION = "option"


class Question(BaseModel):
    """One question.

    Attributes:
        kind: Its kind.
        module: Import path of the port's module, or of the reference's for a bound; empty for sizes, weights
            and options.
        place: The function, the axis of an argument, the tensor, or the option.
        line: Number of the line in the module; 0 without one.
        text: The line or expression of the source; empty without one.
        answers: All answers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    module: str = ""
    place: str
    line: int = 0
    text: str = ""
    answers: tuple[str, ...]

    @property
    def function(self) -> str:
        """Module and function, `package.module:Class.method`; the place alone without a module."""
        return f"{self.module}:{self.place}" if self.module else self.place

    def identity(self, answer: str) -> str:
        """Name of one answer, which does not depend on numbers of lines: `function | text | answer`."""
        return " | ".join(part for part in (self.function, self.text, answer) if part)


class Coverage:
    """Questions with the answers of a run.

    Attributes:
        seen: By question, the answers that the run gave.
    """

    def __init__(self, seen: Mapping[Question, Iterable[str]] | None = None) -> None:
        self.seen: dict[Question, set[str]] = {}
        for question, answers in (seen or {}).items():
            self.add(question, answers)

    def add(self, question: Question, answers: Iterable[str] = ()) -> None:
        """Add a question, if it is new, and some of its answers."""
        self.seen.setdefault(question, set()).update(answers)

    def update(self, other: Coverage) -> None:
        """Add the questions and answers of another run."""
        for question, answers in other.seen.items():
            self.add(question, answers)

    def without(self, other: Coverage) -> Coverage:
        """The questions and answers that the other one does not have."""
        return Coverage(
            {
                question: answers - other.seen.get(question, set())
                for question, answers in self.seen.items()
                if question not in other.seen or not answers <= other.seen[question]
            }
        )

    def missing(self) -> Iterator[tuple[Question, tuple[str, ...]]]:
        """Questions with the answers that the run did not give, in the order of the source."""
        for question in sorted(self.seen, key=_order):
            missing = tuple(answer for answer in question.answers if answer not in self.seen[question])
            if missing:
                yield question, missing

    def write(self, path: Path) -> None:
        """Write a file."""
        entries = [
            {"question": question.model_dump(mode="json"), "seen": sorted(self.seen[question])}
            for question in sorted(self.seen, key=_order)
        ]
        write_new(path, (json.dumps(entries) + "\n").encode())

    @classmethod
    def read(cls, path: Path) -> Coverage:
        """Read a file. Raises `UserError` if it is damaged."""
        try:
            entries = parse_json(path.read_bytes())
            return cls({Question.model_validate(entry["question"]): entry["seen"] for entry in entries})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError("coverage", str(path), "is missing or damaged", "run again") from error


def excuse_of(identity: str, excuses: Mapping[str, str]) -> str:
    """The reason why no input can give an answer; empty without one. See `Case.cannot_be_asked`."""
    for key, reason in excuses.items():
        if identity == key or identity.startswith((f"{key} | ", f"{key}:")):
            return reason
    return ""


def _order(question: Question) -> tuple:
    kind = list(Kind).index(question.kind)
    return question.module, question.line, kind, question.place, question.text, question.answers
