"""A fault and its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pydantic import BaseModel


@dataclass(frozen=True)
class Fault:
    """One change of the port.

    Attributes:
        operator: Kind of the change: a row of the campaign's table.
        target: The changed parameter, or the changed function of the port's source.
        detail: The change among others of its kind. The three together name the fault in every campaign.
    """

    operator: str
    target: str
    detail: str

    @property
    def identity(self) -> str:
        return f"{self.operator} | {self.target} | {self.detail}"


class Outcome(str, Enum):
    """Outcome of a fault; `parity.studies.fault_injection.effects` separates the last three.

    BROKEN is a port that cannot be built or refuses its weights. It has no results to judge.
    """

    DETECTED = "detected"
    BROKEN = "broken"
    EQUIVALENT = "equivalent"
    BELOW_LIMIT = "below the limit"
    MISSED = "missed"


class Finding(BaseModel):
    """The outcome of one fault in one case and precision.

    Attributes:
        case, precision, operator, target, detail: The fault and its place.
        homes: Paths of the modules that contain the fault; "" for code between the modules.
        outcome: See `Outcome`.
        kind: Kind of the diagnosis; "refused" for BROKEN.
        named: Tap that the diagnosis names.
        localised: Whether this tap belongs to one of the homes.
        margin: Error over its limit at the named tap, or the largest of all taps for a fault that passed.
            None without numbers: another shape, an exception, data that must be equal.
        effect: Movement of the results, relative to the oracle's norm; only for a fault that passed.
        proof: Reason why the fault is equivalent, or the size of its effect.
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
        """Name of the fault and its place, by which a campaign recognises finished work."""
        return f"{self.case} | {self.precision} | {Fault(self.operator, self.target, self.detail).identity}"


class CleanFinding(BaseModel):
    """One runner judged without a fault.

    `alarm` is the text of a false diagnosis; empty without one.
    """

    number: int
    case: str
    precision: str
    runner: str
    seed: int
    batch_size: int
    alarm: str
