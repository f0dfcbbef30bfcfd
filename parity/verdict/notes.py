"""Notes at taps: facts beside the verdicts that decide nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator

from parity.capture.names import TapName
from parity.verdict.arguments import other_form
from parity.verdict.comparison import Comparison
from parity.verdict.evidence import Evidence, Results
from parity.verdict.judgement import MODEL_OUTPUT, TapJudgement

_FAR, _FAR_ROUNDINGS = 0.01, 64.0
"""Least relative error of a reference that is told, as a number and in unit round-offs of the precision."""
INSIDE_ALONE = "judged inside the model alone"
"""Beginning of the note at a module that has no verdict alone, though the port has the module."""


def notes(evidence: Evidence, results: Results, comparison: Comparison, tap: TapJudgement) -> tuple[str, ...]:
    """The notes at a tap of one runner."""
    regrouped, other_axes = results.regrouped.get(tap.tap), results.other_axes.get(tap.tap)
    return (
        *((form,) if (form := evidence.reference.forms.get(tap.tap)) else ()),
        *_unknown_sums(evidence, tap),
        *((f"the port merges or splits axes; compared as {regrouped}",) if regrouped else ()),
        *((f"the port has the axes in another order; compared as {other_axes}",) if other_axes else ()),
        *((_factor(factor),) if (factor := results.scaled.get(tap.tap)) else ()),
        *((f"the port returns it as {numbered}",) if (numbered := results.numbered.get(tap.tap)) else ()),
        *(("the port makes this call in another order",) if _is_reordered(results, tap) else ()),
        *_without_partner(comparison, tap),
        *_other_arguments(comparison, tap),
        *_not_alone(evidence, results, tap),
        *_other_choices(tap),
        *_far_reference(evidence, tap),
        *_evaluated(results, tap),
    )


def evaluated(results: Results, path: str) -> Iterator[str]:
    """The line of a module's code, the entry's under "", that fixes a value while the port is compiled."""
    if line := results.received.evaluated.get(path):
        yield (
            f"the port's code evaluates a tensor while it is compiled, at {line}: the executable holds the "
            "value as a constant"
        )


def _factor(factor: float) -> str:
    return f"the port has {factor:.6g} times the numbers, which the module around it undoes; compared without"


def _is_reordered(results: Results, tap: TapJudgement) -> bool:
    return str(TapName.parse(tap.tap).module_call) in results.reordered


def _without_partner(comparison: Comparison, tap: TapJudgement) -> Iterator[str]:
    """The numbers of calls of a module that joins or splits them, and is not compared inside the model."""
    counts = comparison.without_partner.get(TapName.parse(tap.tap).path)
    if counts and not tap.gap and tap.accumulated is None and tap.isolated is not None:
        yield f"judged alone: {counts}; the results behind it are judged"


def _unknown_sums(evidence: Evidence, tap: TapJudgement) -> Iterator[str]:
    """The operations of a tap's module whose longest sum is not known."""
    path = "" if tap.kind == MODEL_OUTPUT else tap.path
    for name, origin in evidence.reference.unknown_sums.get(path, {}).items():
        yield f"the longest sum of {name} is not known: {origin}"


def _other_arguments(comparison: Comparison, tap: TapJudgement) -> Iterator[str]:
    """The arguments of a tap's call that are not the reference's."""
    call = str(TapName.parse(tap.tap).module_call)
    return (other.text() for other in comparison.calls if other.call == call)


def _not_alone(evidence: Evidence, results: Results, tap: TapJudgement) -> Iterator[str]:
    """The reason why a module has no verdict alone, where the reference's arguments are none for it."""
    call = evidence.kinds.get(tap.tap)
    if call is None or tap.isolated is not None:
        return
    if kinds := set(call.opaque.values()):
        received = evidence.reference.arguments.get(call.tap)
        names = (own for own in received.arguments if own.other in kinds) if received else ()
        unknown = ", ".join(f"{own.name} ({own.other})" for own in names)
        yield f"{INSIDE_ALONE}: its arguments cannot be stored: {unknown or ', '.join(sorted(kinds))}"
        return
    if form := other_form(evidence, results, call):
        yield f"{INSIDE_ALONE}: it does not run with the reference's arguments, {form}"
    elif tap.tap in results.isolated and (form := other_form(evidence, results, call, fails_alone=True)):
        yield f"{INSIDE_ALONE}: it takes other arguments than the reference's, {form}"


def _other_choices(tap: TapJudgement) -> Iterator[str]:
    """The number of choices that are not the oracle's, and that rounding explains."""
    for name, verdict in tap.verdicts.items():
        if verdict.ties:
            alone = "alone" if name == "isolated" else "inside the model"
            yield (
                f"{verdict.ties} of {verdict.checked} integers or booleans are other choices than the "
                f"oracle's {alone}; rounding explains them, and results behind them follow the port"
            )


def _far_reference(evidence: Evidence, tap: TapJudgement) -> Iterator[str]:
    """An error of the reference that is too large for the precision, where one as large of a port passes.

    A number beside a jump, such as a bucket's edge, may lie on its other side in the reference.
    """
    least = max(_FAR, _FAR_ROUNDINGS * evidence.precision.unit_roundoff)
    for name, verdict in tap.verdicts.items():
        if verdict.passed and least < verdict.reference.l2 < math.inf:
            itself = "the reference itself" + (" alone" if name == "isolated" else "")
            away = f"is {verdict.reference.l2:.2g} of the result away from the oracle"
            yield f"{itself} {away} in batch {tap.batch}, so that errors of this size pass there"


def _evaluated(results: Results, tap: TapJudgement) -> Iterator[str]:
    """See `evaluated`. The entry's is told at its first output."""
    if tap.tap == next(iter(results.untapped), ""):
        yield from evaluated(results, "")
    elif tap.kind != MODEL_OUTPUT:
        yield from evaluated(results, tap.path)
