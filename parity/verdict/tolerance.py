"""The errors that a case tolerates, and the way they travel.

A tolerated error is in everything that the model computes from it. Results inside the model and arguments
that come after a tolerated tap may therefore have as large a relative error as the tap, and so may a module
alone that contains the tolerated module. Any other module alone keeps its derived limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from parity.capture.names import TapName
from parity.verdict.evidence import Evidence
from parity.verdict.judgement import TapJudgement
from parity.verdict.rule import Verdict


@dataclass(frozen=True, slots=True)
class Allowance:
    """The largest relative error that a tolerance allows at one place.

    Attributes:
        error: The error; 0 without a tolerance.
        source: Tap whose tolerated error may reach the place; empty for a rule of its own.
    """

    error: float = 0.0
    source: str = ""

    def applied(self, verdict: Verdict | None) -> Verdict | None:
        """A PASS in place of a FAIL within the allowed error. A failure without numbers stays one."""
        if verdict is None or verdict.passed or not (self.error and verdict.port.l2 <= self.error):
            return verdict
        carried = f" at {self.source}, from where the error comes" if self.source else ""
        return replace(
            verdict,
            status="PASS",
            reason="",
            min_detectable_error=self.error,
            tolerated=f"{verdict.reason}; the case tolerates {self.error:.2g}{carried}",
        )


@dataclass(frozen=True, slots=True)
class Tolerated:
    """The tolerated errors of one runner.

    Attributes:
        errors: By tap with a tolerated error of its own, in the order in which modules finish.
        places: Place of each of the reference's taps in this order.
    """

    errors: Mapping[str, float] = field(default_factory=dict)
    places: Mapping[str, int] = field(default_factory=dict)

    def before(self, finished: int) -> Allowance:
        """The largest error that reaches a place behind this number of taps."""
        return _largest((tap, error) for tap, error in self.errors.items() if self.places[tap] < finished)

    def behind(self, tap: str) -> Allowance:
        """The largest error that reaches a tap."""
        return self.before(self.places.get(tap, len(self.places)))

    def inside(self, path: str) -> Allowance:
        """The largest error of a module inside another one."""
        inner = ((tap, TapName.parse(tap).path) for tap in self.errors)
        return _largest((tap, self.errors[tap]) for tap, own in inner if own.startswith(f"{path}."))


def _largest(errors: Iterator[tuple[str, float]]) -> Allowance:
    tap, error = max(errors, key=lambda entry: entry[1], default=("", 0.0))
    return Allowance(error, tap)


def tolerate(evidence: Evidence, taps: Sequence[TapJudgement]) -> tuple[tuple[TapJudgement, ...], Tolerated]:
    """Apply the case's tolerances to the verdicts, in the order of the taps.

    Returns:
        The taps with a PASS for each tolerated failure, and the tolerated errors.
    """
    places = {tap: place for place, tap in enumerate(evidence.reference.tensors)}
    judged, errors = [], {}
    tolerated = Tolerated(errors, places)
    for tap in taps:
        own = Allowance(evidence.tolerated(tap.tap, tap.path))
        alone, inside = tolerated.inside(tap.path), tolerated.behind(tap.tap)
        verdicts = {
            name: max(own, carried, key=lambda allowance: allowance.error).applied(getattr(tap, name))
            for name, carried in (("isolated", alone), ("accumulated", inside))
        }
        if all(verdict is getattr(tap, name) for name, verdict in verdicts.items()):
            judged.append(tap)
            continue
        if own.error and tap.tap in places:
            errors[tap.tap] = own.error
        judged.append(
            TapJudgement.of(tap.tap, tap.path, tap.kind, verdicts["accumulated"], verdicts["isolated"])
        )
    return tuple(judged), tolerated
