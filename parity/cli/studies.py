"""Verbs of studies: `shrink`, `precision`, `self-test`, `stream`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import click

from parity.base.code import shown
from parity.base.errors import UserError
from parity.base.files import called_in
from parity.base.interruption import remaining
from parity.base.option_numbers import INTEGER, NUMBER, IntegerRange
from parity.case import Registry
from parity.cli import options, output
from parity.cli.progress import counted, steps
from parity.cli.verb import Verb


@click.command(
    cls=Verb,
    example="small/ --model my_case:case --precision fp32",
    exit_codes=("never", "FOLDER holds a failure", "bad input, or nothing fails"),
)
@click.argument("folder", type=options.PATH)
@options.cases
@options.one_precision
@options.seed
@click.pass_obj
def shrink(registry: Registry, folder: Path, **chosen: Any) -> int:
    """Write the innermost failing module with its inputs and weights to the new FOLDER.

    FOLDER has a script that shows the failure without this project.
    """
    here = Path.cwd()
    with steps() as advance:
        from parity.cli.arguments import Arguments, needing_port, writable

        with needing_port():
            from parity.studies import shrink as study

        arguments = Arguments(**chosen, registry=registry)
        case, precision = arguments.one_of_each("shrink")
        # A case that is imported may go to another folder.
        folder = called_in(here, folder)
        if os.path.lexists(folder):
            raise UserError("shrink", str(folder), "exists", "give a folder that does not exist")
        writable("shrink", folder)
        seed = arguments.seed
        seeded = case if seed is None else case.with_overrides(seed=seed)
        failure = study.shrink(seeded, precision, advance)
        study.write(failure, folder)
    with remaining(f"{folder} holds the failure"):
        console = output.stdout()
        output.print_line(console, failure.describe(case), "bold red")
        output.print_line(console, f"python {shlex.quote(str(folder / 'reproduce.py'))}")
    return 1


@click.command(
    cls=Verb,
    example="--model my_case:case --budget 1e-2",
    exit_codes=("the error is within the budget", "the error is beyond the budget", "bad input"),
)
@options.cases
@options.batch
@options.seed
@options.data
@options.weights
@options.save("New folder for the result.")
@click.option("--policy", type=options.PATH, help="Judge the precisions in a policy file; no search.")
@click.option("--quantise", is_flag=True, help="Search schemes of quantisation in place of precisions.")
@click.option(
    "--budget", type=NUMBER, default=1e-3, show_default=True, help="Largest relative error of any output."
)
@click.pass_obj
def precision(registry: Registry, budget: float, policy: Path | None, quantise: bool, **chosen: Any) -> int:
    """Find the cheapest precision of each module of one case."""
    reports, here = output.reports(), Path.cwd()
    with steps() as advance:
        from parity.cli.arguments import Arguments, needing_port, writable

        request = Arguments(**chosen, registry=registry, command=output.typed()).request()
        with needing_port():
            from parity.studies.precision_search import command
        if request.save is not None:
            writable("--save", request.save)
        report = command.run(request, budget, policy and called_in(here, policy), advance, quantise)
        folder = request.save or output.new_folder(reports)
        command.write(report, folder)
    with remaining(f"{shown(folder)} holds the result"):
        console = output.stdout()
        console.print(command.render(report))
        output.print_line(console, f"report: {shown(folder / 'precision.json')}")
    return report.exit_code


@click.command(
    "self-test",
    cls=Verb,
    example="--model my_case:case --precision fp16 --clean-runs 0",
    exit_codes=(
        "no fault is missed, 99 % of the detected ones are localised, no correct port raises an alarm",
        "a fault is missed, too few are localised, or there is a false alarm",
        "bad input",
    ),
)
@options.cases
@options.precision
@options.save("Folder for the findings, new or of an earlier call. [default: parity_reports/self_test]")
@click.option("--share", type=NUMBER, default=1.0, show_default=True, help="Share of the faults, 0 to 1.")
@click.option("--faults", help="First letters of the operators. [default: all]")
@click.option(
    "--clean-runs", type=INTEGER, default=1000, show_default=True, help="Number of runs without a fault."
)
@click.pass_obj
def self_test(registry: Registry, share: float, faults: str | None, clean_runs: int, **chosen: Any) -> int:
    """Put faults into the port and count the detected ones. A later call with the same folder continues.

    Without --case and --model, the default cases have the faults.
    """
    here = Path.cwd()
    with counted() as advance:
        from parity.base.precision import DEFAULT_PRECISIONS
        from parity.cli.arguments import Arguments, needing_port

        with needing_port():
            from parity.studies.fault_injection import command
            from parity.studies.fault_injection.campaign import Plan

        if faults == "":
            raise UserError("--faults", "''", "names nothing", "give letters, or leave the option out")
        arguments = Arguments(**chosen, registry=registry)
        plan = Plan(
            cases=tuple(arguments.named_cases() or arguments.default_cases()),
            precisions=arguments.precisions() or tuple(DEFAULT_PRECISIONS),
            share=share,
            clean_runs=clean_runs,
            operators=faults or "",
        )
        folder = called_in(here, arguments.save or output.REPORTS / "self_test")
        result = command.self_test(plan, folder, advance)
    with remaining(f"{shown(folder)} holds all findings"):
        console = output.stdout()
        console.print(command.render_self_test(result))
        output.print_line(console, f"table: {shown(folder / 'table.md')}")
    return result.exit_code


@click.command(
    cls=Verb,
    example="--model my_case:case --steps 20",
    exit_codes=("every step passes", "a step fails", "bad input"),
)
@options.cases
@options.precision
@options.weights
@options.seed
@click.option("--steps", type=IntegerRange(min=1), default=200, show_default=True, help="Appends.")
@click.option("--capacity", type=INTEGER, help="Positions in the cache. [default: a third of the width]")
@click.pass_obj
def stream(registry: Registry, steps: int, capacity: int | None, **chosen: Any) -> int:
    """Append items to the cache of one case and judge every step."""
    from parity.cli.arguments import Arguments
    from parity.cli.streams import judge_stream

    return judge_stream(output.stdout(), Arguments(**chosen, registry=registry), steps, capacity)
