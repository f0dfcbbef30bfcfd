"""Verbs without models: `list`, `compare`."""

from __future__ import annotations

from pathlib import Path

import click

from parity.base.code import shown
from parity.base.interruption import remaining
from parity.case import Registry
from parity.cli import options, output
from parity.cli.progress import steps
from parity.cli.verb import BAD_INPUT, Verb


@click.command("list", cls=Verb, exit_codes=("always", "never", "bad input"))
@click.pass_obj
def list_all(registry: Registry) -> int:
    """List cases, runners and precisions, and the default ones."""
    from parity.base.precision import DEFAULT_PRECISIONS, PRECISIONS
    from parity.report import terminal
    from parity.runners import RUNNERS, default_runners

    default = default_runners()
    listed = terminal.render_list(
        [(case.name, case.default, case.description) for case in registry.cases()],
        [(name, name in default, description) for name, description in RUNNERS.items()],
        [
            (name, name in DEFAULT_PRECISIONS, f"unit round-off {precision.unit_roundoff:.2g}")
            for name, precision in PRECISIONS.items()
        ],
    )
    output.stdout().print(listed)
    return 0


@click.command(
    cls=Verb,
    example="parity_reports/OLD parity_reports/NEW",
    exit_codes=(
        "nothing is worse, and no result moved beyond rounding",
        "something is worse, or a result moved",
        "bad input, or nothing can be compared",
    ),
)
@click.argument("old", type=options.PATH)
@click.argument("new", type=options.PATH)
def compare(old: Path, new: Path) -> int:
    """Compare two reports or two saved runs.

    OLD and NEW are report.json files, or their folders. Two folders of `run --save` are compared result by
    result.
    """
    from parity.report import terminal_differences
    from parity.report.differences import compare_reports
    from parity.report.files import read_report
    from parity.studies.movement.runs import is_saved_run

    saved = [path for path in (old, new) if is_saved_run(path)]
    if len(saved) == 2:
        return _compare_runs(old, new)
    reports = (read_report(path / "report.json" if path.is_dir() else path) for path in (old, new))
    changes = compare_reports(*reports)
    console = output.stdout()
    console.print(terminal_differences.render_changes(changes))
    for path in saved:
        output.print_line(
            console, f"{path} alone is a saved run: reports are compared, and no results", "yellow"
        )
    return 1 if changes.worse else BAD_INPUT if changes.not_comparable else 0


def _compare_runs(old: Path, new: Path) -> int:
    """Write and print the comparison of two saved runs, and return the exit code."""
    from parity.report import terminal_differences
    from parity.studies.movement import command, terminal

    reports = output.require_reports()
    with steps() as advance:
        result = command.compare(old, new, output.typed(), advance)
        written = command.write(result.report, output.new_folder(reports))
    with remaining(f"{shown(written)} holds the result"):
        console = output.stdout()
        console.print(terminal.render(result.report))
        if result.changes is None:
            output.print_line(console, f"errors and latencies: {result.not_changes}", "yellow")
        else:
            console.print(terminal_differences.render_changes(result.changes))
        output.print_line(console, f"report: {shown(written)}")
    return result.exit_code
