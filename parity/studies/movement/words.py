"""The movements between two saved runs in words, the same in every form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parity.capture.names import TapName
from parity.report.overview import ratio_text
from parity.studies.movement.report import ComparisonReport, ModuleReport, MovementReport, RunnerReport
from parity.verdict.judgement import MODEL_OUTPUT
from parity.verdict.movement import ratio_of

MOST_ROOTS = 3
"""Most further modules that are named as moved by themselves."""
MEASURES = {"l2": "relative L2", "largest": "relative max", "scale_error": "scale error"}
"""Names of the measures of a distance."""


def outcome(report: ComparisonReport) -> str:
    """The result of the comparison, in one sentence."""
    results = [module for runner in report.runners for module in runner.modules]
    equal, within, moved = (
        sum(module.status == status for module in results) for status in ("equal", "within", "moved")
    )
    counts = f"{equal} equal to the bit, {within} within rounding, {moved} beyond it"
    compared = f"{equal + within + moved} results compared: {counts}"
    if not moved:
        return f"NOTHING MOVED: {compared}."
    return f"MOVED: {len(report.moved)} of {len(report.runners)} runners; {compared}."


def place(runner: RunnerReport) -> str:
    """Case, precision and runner, with its full names."""
    old, new = runner.old_label, runner.new_label
    label = old if old == new else f"{old}, now {new}"
    return f"{runner.case}, {runner.precision}, {label}"


def counts(runner: RunnerReport) -> str:
    """The numbers of results, and the largest movement in limits."""
    parts = [
        f"{count} {name}"
        for name, count in (
            ("equal to the bit", runner.counted("equal")),
            ("within rounding", runner.counted("within")),
            ("moved", runner.counted("moved")),
            ("not compared", runner.counted("gap")),
        )
        if count
    ]
    largest = f"; the largest is {ratio_text(runner.ratio)} of the limit" if runner.counted("within") else ""
    return f"{', '.join(parts)}{'' if runner.first else largest}"


def diagnosis(runner: RunnerReport) -> Iterator[str]:
    """The first result that moved, its origin, its size, and the direction, a line each."""
    first = next((module for module in runner.modules if module.tap == runner.first), None)
    if first is None or first.telling is None:
        return
    yield f"first: {first.tap} ({first.kind}), batch {first.batch}"
    yield _origin(first, runner.runner)
    yield size(first.telling)
    if runner.runner == "oracle":
        yield "the reference computes another function"
    elif direction(first.telling):
        yield direction(first.telling)
    others = runner.moved[1:]
    if others:
        roots = [tap for tap in _innermost_roots(runner.moved) if tap != first.tap]
        listed = ", ".join(roots[:MOST_ROOTS])
        left = f" and {len(roots) - MOST_ROOTS} more" if len(roots) > MOST_ROOTS else ""
        also = f"; by themselves: {listed}{left}" if roots else ""
        yield f"{len(others)} more results moved{also}"


def _innermost_roots(modules: Sequence[ModuleReport]) -> list[str]:
    """Taps of the modules that moved by themselves, in which no other one of the model did."""
    roots = [module for module in modules if module.origin == "root" and module.kind != MODEL_OUTPUT]
    paths = {module.path for module in modules if module.origin == "root"}
    return [
        module.tap
        for module in roots
        if not TapName.parse(module.tap).appends
        and not any(path.startswith(f"{module.path}.") for path in paths)
    ]


def _origin(module: ModuleReport, runner: str) -> str:
    """Whether a result moved by itself, in words."""
    inputs = "; ".join(f"{name} {_INPUT[state]}" for name, state in module.inputs.items())
    seen = f" (in the model: {inputs})" if inputs else ""
    if module.origin == "root" and module.alone is not None:
        return f"root: it moves alone, on the recorded inputs{seen}"
    if module.origin == "root":
        return f"root: no result before it moved{seen}"
    if module.origin == "carried" and module.alone is not None:
        return f"carried: alone, on the recorded inputs, it does not move{seen}"
    if module.origin == "carried":
        return f"carried: its inputs had moved{seen}"
    return f"origin unknown: it is not judged alone{seen}"


_INPUT = {
    "equal": "is equal",
    "within": "differs within rounding",
    "moved": "had moved",
    "differs": "differs, and no module returns it",
    "gap": "is not compared",
}


def size(movement: MovementReport) -> str:
    """The movement that is largest in its limit, beside the limit."""
    if movement.reason:
        return movement.reason
    name = max(MEASURES, key=lambda measure: _ratio(movement, measure))
    by, limit = (getattr(side, name) for side in (movement.by, movement.explained))
    return f"moved by {abs(by):.2e} {MEASURES[name]}; rounding explains {limit:.2e}"


def _ratio(movement: MovementReport, measure: str) -> float:
    return ratio_of(abs(getattr(movement.by, measure)), getattr(movement.explained, measure))


def direction(movement: MovementReport) -> str:
    """The run that is nearer to the oracle, in words; empty if neither is."""
    if not movement.nearer:
        return ""
    old, new = movement.old_error.l2, movement.new_error.l2
    return f"nearer to the float64 oracle: {movement.nearer} (error {old:.2e} old, {new:.2e} new)"
