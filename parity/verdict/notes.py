"""Notes at taps: facts beside the verdicts that decide nothing."""

from __future__ import annotations

from collections.abc import Iterator

from parity.capture.names import TapName
from parity.verdict.comparison import Comparison
from parity.verdict.evidence import Evidence
from parity.verdict.judgement import MODEL_OUTPUT, TapJudgement


def notes(evidence: Evidence, comparison: Comparison, tap: TapJudgement) -> tuple[str, ...]:
    """The notes at a tap of one runner."""
    return (*_unknown_sums(evidence, tap), *_other_arguments(comparison, tap))


def _unknown_sums(evidence: Evidence, tap: TapJudgement) -> Iterator[str]:
    """The operations of a tap's module whose longest sum is not known."""
    path = "" if tap.kind == MODEL_OUTPUT else tap.path
    for name, origin in evidence.reference.unknown_sums.get(path, {}).items():
        yield f"the longest sum of {name} is not known: {origin}"


def _other_arguments(comparison: Comparison, tap: TapJudgement) -> Iterator[str]:
    """The arguments of a tap's call that are not the reference's."""
    call = str(TapName.parse(tap.tap).module_call)
    return (other.text() for other in comparison.calls if other.call == call)
