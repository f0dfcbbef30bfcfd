"""Verbs of runs: `run`, `replay`, `resume`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parity.base.code import shown
from parity.base.interruption import remaining
from parity.base.process import no_collections
from parity.case import Registry
from parity.cli import options, output
from parity.cli.progress import steps
from parity.cli.verb import Verb

if TYPE_CHECKING:
    from parity.report.schema import Report


@click.command(cls=Verb, example="--model my_case:case --precision fp32,bf16 --save out/")
@options.cases
@options.precision
@options.runners
@options.batch
@options.seed
@options.data
@options.weights
@options.policy
@options.save("New folder for inputs, weights, captures and the report.")
@click.option(
    "--profile",
    type=options.PATH,
    help="New folder for a Chrome or Perfetto trace of each runner, with a range for each module.",
)
@options.time_limit
@options.memory
@options.verbose
@click.pass_obj
def run(registry: Registry, verbose: bool, **chosen: Any) -> int:
    """Compare the port with its reference, module by module.

    Lists of NAMES are comma separated. Without --case and --model, the default cases run.
    """
    from parity.execution import fork_server

    reports = output.reports() if chosen["save"] is not None else output.require_reports()
    with steps() as advance:
        # The server imports PyTorch while this process does. A user's own model meets no other case's code.
        fork_server.start("" if chosen["models"] else registry.module)
        with no_collections():
            from parity import pipeline
            from parity.cli.arguments import Arguments
            from parity.cli.streams import judge_small_streams

            arguments = Arguments(**chosen, registry=registry, command=output.typed())
            # It imports the cases.
            request = arguments.request()
        report = pipeline.run(request, advance, judge_small_streams)
    folder = arguments.save or output.new_folder(reports)
    return _show(report, folder, verbose, is_saved=arguments.save is not None)


@click.command(cls=Verb, example="out/")
@click.argument("folder", type=options.PATH)
@options.verbose
def replay(folder: Path, verbose: bool) -> int:
    """Judge the saved run in FOLDER again, without runners."""
    from parity import pipeline

    reports = output.require_reports()
    with steps() as advance:
        report = pipeline.replay(folder, output.typed(), advance)
    return _show(report, output.new_folder(reports), verbose, is_saved=False)


@click.command(cls=Verb, example="out/")
@click.argument("folder", type=options.PATH)
@options.memory
@options.verbose
def resume(folder: Path, memory: float | None, verbose: bool) -> int:
    """Continue the saved run in FOLDER, which was interrupted."""
    from parity.execution import fork_server

    with steps() as advance:
        fork_server.start()
        from parity import pipeline
        from parity.cli.streams import judge_small_streams
        from parity.execution.bounds import checked

        report = pipeline.resume(folder, advance, judge_small_streams, checked(memory))
    return _show(report, folder, verbose, is_saved=True)


def _show(report: Report, folder: Path, verbose: bool, is_saved: bool) -> int:
    """Write a report to a folder, unless it is saved there, print it, and return the exit code."""
    from parity.report import terminal
    from parity.report.files import write_outputs

    problems: tuple[str, ...] = ()
    if not is_saved:
        # The report is large and in use to the end.
        with no_collections():
            problems = write_outputs(report, folder)
    place = shown(folder / "report.json")
    with remaining(f"{place} is the report"):
        console = output.stdout()
        console.print(terminal.render(report, verbose))
        for line in (*problems, f"report: {place}"):
            output.print_line(console, line)
    return report.exit_code
