"""The movements between two saved runs as Markdown for a pull request."""

from __future__ import annotations

from parity.report.markdown import code_span, details, plain, table
from parity.report.overview import ratio_text
from parity.studies.movement import words
from parity.studies.movement.report import ComparisonReport, ModuleReport, RunnerReport

MOST_ROWS = 200
"""Most modules in all tables: a comment on GitHub holds 65,536 characters."""


def render_markdown(report: ComparisonReport) -> str:
    """The comparison as GitHub's Markdown, short enough for a comment."""
    parts = ["### Parity: two saved runs", plain(words.outcome(report)), _facts(report)]
    room = MOST_ROWS
    for runner in sorted(report.runners, key=lambda one: not one.first):
        parts.append(f"**{plain(words.place(runner))}**: {plain(words.counts(runner))}")
        parts.append("\n".join(f"- {plain(line)}" for line in words.diagnosis(runner)))
        if runner.counted("equal") == len(runner.modules):
            continue
        shown = _most_telling(runner, room)
        room -= len(shown)
        left = len(runner.modules) - len(shown)
        more = f"\n\n{left} more in compare.json" if left else ""
        parts.append(details("Modules in execution order", _modules(shown) + more))
    parts.append(details("Not compared", "\n".join(f"- {plain(note)}" for note in report.not_compared)))
    return "\n\n".join(part for part in parts if part) + "\n"


def _facts(report: ComparisonReport) -> str:
    rows = [[plain(fact.name), code_span(fact.old), code_span(fact.new)] for fact in report.differing]
    return table(["environment", "old", "new"], rows) if rows else "The environments are equal."


def _most_telling(runner: RunnerReport, room: int) -> list[ModuleReport]:
    """As many modules as there is room for, the moved ones first, in execution order."""
    order = ("moved", "within", "equal", "gap")
    chosen = sorted(runner.modules, key=lambda module: order.index(module.status))[: max(0, room)]
    taps = {module.tap for module in chosen}
    return [module for module in runner.modules if module.tap in taps]


def _modules(modules: list[ModuleReport]) -> str:
    rows = [
        [
            code_span(module.tap),
            module.status if module.status != "gap" else plain(module.gap),
            *("-" if one is None else ratio_text(one.ratio) for one in (module.inside, module.alone)),
            module.origin or "-",
            (module.telling.nearer or "-") if module.telling is not None else "-",
        ]
        for module in modules
    ]
    headers = ["module", "result", "in the model, over limit", "alone, over limit", "origin", "nearer"]
    return table(headers, rows) if rows else ""
