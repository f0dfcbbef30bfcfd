"""What a fault is, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pydantic import BaseModel


@dataclass(frozen=True)
class Fault:
    """One change of the port.

    Attributes:
        operator: What kind of change it is: a row of the campaign's table.
        target: What it changes: a parameter, or a function of the port's source.
        detail: Which of several changes of this kind; with the two others it is the fault's name for ever.
    """

    operator: str
    target: str
    detail: str

    @property
    def identity(self) -> str:
        return f"{self.operator} | {self.target} | {self.detail}"


class Outcome(str, Enum):
    """What became of a fault; `parity.studies.fault_injection.effects` tells the last three apart.

    BROKEN is a port that cannot be made or refuses its weights: noticed, and nothing to judge.
    """

    DETECTED = "detected"
    BROKEN = "broken"
    EQUIVALENT = "equivalent"
    BELOW_LIMIT = "below the limit"
    MISSED = "missed"


class Finding(BaseModel):
    """One fault in one case and precision.

    Attributes:
        case, precision, operator, target, detail: Which fault, where.
        homes: Paths of the modules that the fault is in; "" for code between the modules.
        outcome: See `Outcome`.
        kind: The diagnosis's kind; "refused" for BROKEN.
        named: The tap that the diagnosis names.
        localised: Whether that is in one of the homes.
        margin: Error over its limit at the named tap, or the largest of all taps for a fault that passed;
            None where there are no numbers: another shape, an exception, data that must be equal.
        effect: What the fault moves, relative to the oracle's norm; only measured for what passed.
        proof: Why it is equivalent, or by how much it is not.
    """

    case: str
    precision: str
    operator: str
    target: str
    detail: str
    homes: list[str]
    outcome: Outcome
    kind: str
    named: str
    localised: bool
    margin: float | None = None
    effect: float | None = None
    proof: str = ""

    @property
    def identity(self) -> str:
        """The fault's and the place's name, by which a campaign knows what it has done."""
        return f"{self.case} | {self.precision} | {Fault(self.operator, self.target, self.detail).identity}"


class CleanFinding(BaseModel):
    """One runner judged without a fault; `alarm` is empty, or the diagnosis that it should not have got."""

    number: int
    case: str
    precision: str
    runner: str
    seed: int
    batch_size: int
    alarm: str
