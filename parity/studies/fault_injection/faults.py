"""A fault and its outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from pydantic import BaseModel

from parity.case import CaseReference


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
    """Outcome of a fault; `parity.studies.fault_injection.effects` separates the next three.

    BROKEN is a port that cannot be built or refuses its weights. It has no results to judge. NOT_ASKED is a
    fault whose place the case does not ask in full. It is MISSED unless another case detects it, or asks it.
    """

    DETECTED = "detected"
    BROKEN = "broken"
    EQUIVALENT = "equivalent"
    BELOW_LIMIT = "below the limit"
    MISSED = "missed"
    NOT_ASKED = "not asked"


class Finding(BaseModel):
    """The outcome of one fault in one case and precision.

    Attributes:
        case, precision, operator, target, detail: The fault and its place.
        homes: Paths of the modules that contain the fault; "" for code between the modules.
        outcome: See `Outcome`.
        kind: Kind of the diagnosis; "refused" for BROKEN.
        named: Tap that the diagnosis names.
        localised: Whether this tap belongs to one of the homes. A fault in the suite has no home, and a
            stream names a step and a tensor: every detection of these counts.
        batch: Name of the batch that detects the fault; without a detection, that of the largest effect.
        of_family: Whether any case of a family may detect the fault.
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
    batch: str = ""
    of_family: bool = False
    margin: float | None = None
    effect: float | None = None
    proof: str = ""

    @property
    def identity(self) -> str:
        """Name of the fault and its place, by which a campaign recognises finished work."""
        return f"{self.case} | {self.precision} | {self.fault.identity}"

    @property
    def fault(self) -> Fault:
        """The fault without the place where it was tried."""
        return Fault(self.operator, self.target, self.detail)


_WEIGHT = [
    Outcome.BROKEN,
    Outcome.NOT_ASKED,
    Outcome.EQUIVALENT,
    Outcome.BELOW_LIMIT,
    Outcome.MISSED,
    Outcome.DETECTED,
]
"""Outcomes of a fault in several cases of a family: the last one counts."""
NO_CASE = "no case"
"""Name of the case in the finding of a fault that no case reaches."""


def resolved(
    findings: Sequence[Finding], unreached: Mapping[str, Iterable[tuple[str, str, str]]]
) -> list[Finding]:
    """The findings of all cases together, which decide on places that one case does not ask.

    A fault by hand for a family has one finding: its detection, if any case detects it, else the worst
    outcome. Any other fault that its case does not ask in full is missed unless another case detects it or
    has the proof.

    Args:
        findings: The findings of all cases.
        unreached: By precision, operator, target and detail of faults at lines that a case does not reach.
    """
    by_fault: dict[str, set[Outcome]] = {}
    reached = {(finding.precision, finding.fault.identity) for finding in findings}
    for finding in findings:
        by_fault.setdefault(finding.fault.identity, set()).add(finding.outcome)
    final = []
    of_family: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        if finding.of_family:
            name = finding.precision, finding.fault.identity
            known = of_family.setdefault(name, finding)
            if _WEIGHT.index(finding.outcome) > _WEIGHT.index(known.outcome):
                of_family[name] = finding
            continue
        is_asked = by_fault[finding.fault.identity] & {Outcome.DETECTED, Outcome.EQUIVALENT}
        if finding.outcome is Outcome.NOT_ASKED and not is_asked:
            finding = finding.model_copy(update={"outcome": Outcome.MISSED})
        final.append(finding)
    for finding in of_family.values():
        missed = {"outcome": Outcome.MISSED} if finding.outcome is Outcome.NOT_ASKED else {}
        final.append(finding.model_copy(update=missed))
    for precision, faults in unreached.items():
        for operator, target, detail in sorted(faults):
            if (precision, Fault(operator, target, detail).identity) not in reached:
                final.append(
                    Finding(
                        case=NO_CASE,
                        precision=precision,
                        operator=operator,
                        target=target,
                        detail=detail,
                        homes=[],
                        outcome=Outcome.MISSED,
                        kind="none",
                        named="",
                        localised=False,
                        proof="no input runs its line",
                    )
                )
    return final


class CleanFinding(BaseModel):
    """One runner judged without a fault.

    Attributes:
        number: Number of the run, which decides everything about it for given cases and precisions.
        case, precision, runner, seed, batch_size: Drawn by the number.
        batches: Names of the judged batches.
        reference: Plain data of the drawn case; `parity.load_case` makes it again.
        alarm: Verdict and text of a false diagnosis; empty without one.
    """

    number: int
    case: str
    precision: str
    runner: str
    seed: int
    batch_size: int
    batches: tuple[str, ...] = ()
    reference: CaseReference
    alarm: str
