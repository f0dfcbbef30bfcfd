"""The command line of the suite.

Exit code: 0 all verdicts pass; 1 a verdict fails or a runner breaks; 2 bad input, or a requested runner is
unavailable.
"""

from __future__ import annotations

import datetime
import shlex
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.text import Text

from parity.base.errors import UserError
from parity.base.precision import DEFAULT_PRECISIONS, PRECISIONS
from parity.base.process import reuse_freed_memory
from parity.case import Registry
from parity.cli.arguments import Arguments, refuse_with
from parity.cli.progress import counted, spinner
from parity.cli.streams import judge_small_streams, judge_stream
from parity.pipeline import replay, resume, run
from parity.report import terminal as render
from parity.report.files import read_report, write_outputs
from parity.report.schema import Report
from parity.runners import RUNNERS, Unavailable, default_runners

BAD_INPUT = 2
REPORTS = Path("parity_reports")
_OF_SELF_TEST = ("--case", "--precision", "--save")
_OF_STREAM = ("--case", "--precision", "--weights", "--seed")
PIPED_WIDTH = 120


@click.command()
@click.option("--list", "list_only", is_flag=True, help="List cases, precisions and runners, and stop.")
@click.option(
    "--case", "cases", metavar="NAMES", help="Cases, YAML files or import paths. [default: see --list]"
)
@click.option("--precision", metavar="NAMES", help=f"Precisions. [default: {','.join(DEFAULT_PRECISIONS)}]")
@click.option("--runners", metavar="NAMES", help="Runners. [default: see --list]")
@click.option("--batch", type=int, help="Rows or users of a batch. [default: the case's; 128 with --data]")
@click.option("--seed", type=int, help="Seed of synthetic inputs and initial weights. [default: the case's]")
@click.option("--data", type=click.Path(path_type=Path), help="Recorded data in place of synthetic inputs.")
@click.option(
    "--weights",
    type=click.Path(path_type=Path),
    help="Checkpoint: safetensors, or a state dict in a .pt file.",
)
@click.option(
    "--save", type=click.Path(path_type=Path), help="New folder for inputs, weights, captures and the report."
)
@click.option("--resume", "resume_in", type=click.Path(path_type=Path), help="Continue a saved run.")
@click.option(
    "--replay",
    "replay_from",
    type=click.Path(path_type=Path),
    help="Judge a saved run again, without runners.",
)
@click.option(
    "--compare",
    nargs=2,
    type=click.Path(path_type=Path),
    metavar="OLD NEW",
    help="Compare two report.json files, or their folders. Exit code 1: something is worse.",
)
@click.option(
    "--shrink",
    "shrink_to",
    type=click.Path(path_type=Path),
    help="New folder for the smallest case with the same failing module.",
)
@click.option(
    "--search-precision", "searching", is_flag=True, help="Find the cheapest precision of each module."
)
@click.option("--policy", type=click.Path(path_type=Path), help="Judge the precisions in a policy file.")
@click.option(
    "--budget",
    type=float,
    default=1e-3,
    show_default=True,
    help="Largest relative error of any output, for --search-precision and --policy.",
)
@click.option(
    "--self-test", "self_testing", is_flag=True, help="Put faults into the port and count the detected ones."
)
@click.option(
    "--share",
    type=float,
    default=1.0,
    show_default=True,
    help="Share of the faults, 0 to 1, for --self-test.",
)
@click.option("--faults", default="", help="First letters of the operators for --self-test. [default: all]")
@click.option(
    "--clean-runs",
    type=int,
    default=1000,
    show_default=True,
    help="Number of runs without a fault, for --self-test.",
)
@click.option(
    "--stream", "streaming", is_flag=True, help="Append items to a cache and judge every step: one case."
)
@click.option(
    "--steps", type=click.IntRange(min=1), default=200, show_default=True, help="Of --stream: appends."
)
@click.option(
    "--capacity", type=int, help="Of --stream: positions in the cache. [default: a third of the width]"
)
@click.option(
    "--profile",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for a Chrome or Perfetto trace of each runner, with a range for each module.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show every module, fact and note.")
@click.option(
    "--time-limit", type=float, default=600.0, show_default=True, help="Seconds for one step of a runner."
)
@click.pass_obj
def _main(
    registry: Registry,
    list_only: bool,
    resume_in: Path | None,
    replay_from: Path | None,
    compare: tuple[Path, Path] | None,
    shrink_to: Path | None,
    searching: bool,
    policy: Path | None,
    budget: float,
    self_testing: bool,
    share: float,
    faults: str,
    clean_runs: int,
    streaming: bool,
    steps: int,
    capacity: int | None,
    verbose: bool,
    **chosen: Any,
) -> None:
    """Compare the Tripy port with its PyTorch reference, module by module.

    Lists of NAMES are comma separated.
    """
    reuse_freed_memory()
    # Files and pipes have no width. A module table needs this one.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)
    arguments = Arguments(
        **chosen, registry=registry, command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    )
    options = arguments.options()
    replaying = {"--replay": replay_from}
    try:
        if list_only:
            console.print(_everything(registry))
            code = 0
        elif compare is not None:
            refuse_with("--compare", "two reports are all it takes", options | replaying)
            code = _compare(console, *compare)
        elif shrink_to is not None:
            code = _shrink(console, arguments, shrink_to)
        elif self_testing:
            others = {name: value for name, value in options.items() if name not in _OF_SELF_TEST}
            refuse_with("--self-test", "it makes its own inputs", others | replaying)
            code = _self_test(console, arguments, share, faults, clean_runs)
        elif streaming:
            others = {name: value for name, value in options.items() if name not in _OF_STREAM}
            refuse_with("--stream", "it makes its own inputs", others | replaying)
            code = judge_stream(console, arguments, steps, capacity)
        elif searching or policy is not None:
            option = "--search-precision" if searching else "--policy"
            others = {name: options[name] for name in ("--precision", "--runners", "--profile")} | replaying
            others |= {"--policy": policy if searching else None, "--resume": resume_in}
            refuse_with(option, "it is for the port, with a precision for each module", others)
            code = _precisions(console, arguments, budget, policy)
        elif resume_in is not None:
            refuse_with("--resume", "a run goes on as it began", options | replaying)
            with spinner() as advance:
                report = resume(resume_in, advance)
            code = _show(console, report, resume_in, verbose)
        elif replay_from is not None:
            refuse_with("--replay", "a replay judges what was saved", options)
            with spinner() as advance:
                report = replay(replay_from, arguments.command, advance)
            code = _show(console, report, None, verbose)
        else:
            request = arguments.request()
            with spinner() as advance:
                report = run(request, advance, judge_small_streams if arguments.is_plain else None)
            code = _show(console, report, arguments.save, verbose)
    except UserError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"error: {error}", style="bold red", markup=False
        )
        code = BAD_INPUT
    sys.exit(code)


def _show(console: Console, report: Report, saved: Path | None, verbose: bool) -> int:
    """Print a report and its path, in the saved run or in a new folder, and return the exit code."""
    console.print(render.render(report, verbose))
    folder = saved
    if folder is None:
        folder = _new_folder()
        write_outputs(report, folder)
    # The path stays on one line for copying. It may contain text that looks like markup.
    console.print(Text(f"report: {folder / 'report.json'}"), soft_wrap=True)
    return report.exit_code


def _shrink(console: Console, arguments: Arguments, folder: Path) -> int:
    """Shrink the failure of one case in one precision, and print its folder."""
    from parity.studies.shrink import shrink, write

    cases, precisions = arguments.named_cases(), arguments.precisions()
    if (len(cases), len(precisions)) != (1, 1):
        raise UserError(
            "--shrink", str(folder), "is for one case in one precision", "give one --case and one --precision"
        )
    case, seed = cases[0], arguments.seed
    with spinner() as advance:
        failure = shrink(
            case if seed is None else case.with_overrides(seed=seed), PRECISIONS[precisions[0]], advance
        )
    write(failure, folder)
    console.print(Text(failure.describe(case), style="bold red"))
    console.print(Text(f"python {folder / 'reproduce.py'}"), soft_wrap=True)
    return 1


def _precisions(console: Console, arguments: Arguments, budget: float, policy: Path | None) -> int:
    """Search for precisions or judge a policy, print the result, and return the exit code."""
    request = arguments.request()
    try:
        from parity.studies.precision_search import command
    except Unavailable as error:
        raise UserError("runner", "tripy", f"is unavailable: {error}", "run where the port can") from error
    with spinner() as advance:
        report = command.run(request, budget, policy, advance)
    folder = request.save or _new_folder()
    command.write(report, folder)
    console.print(command.render(report))
    console.print(Text(f"report: {folder / 'precision.json'}"), soft_wrap=True)
    return report.exit_code


def _self_test(console: Console, arguments: Arguments, share: float, faults: str, clean_runs: int) -> int:
    """Run or continue the campaign, print its result, and return the exit code."""
    from parity.studies.fault_injection.campaign import Plan
    from parity.studies.fault_injection.command import render_self_test, self_test

    plan = Plan(
        cases=tuple(arguments.named_cases() or arguments.all_cases()),
        precisions=arguments.precisions() or tuple(DEFAULT_PRECISIONS),
        share=share,
        clean_runs=clean_runs,
        operators=faults,
    )
    folder = arguments.save or REPORTS / "self_test"
    with counted() as advance:
        result = self_test(plan, folder, advance)
    console.print(render_self_test(result))
    console.print(Text(f"table: {folder / 'table.md'}"), soft_wrap=True)
    return result.exit_code


def _compare(console: Console, old: Path, new: Path) -> int:
    """Print the changes from one report to the other, and return the exit code."""
    from parity.report import terminal_differences as render_changes
    from parity.report.differences import compare_reports

    reports = (read_report(path / "report.json" if path.is_dir() else path) for path in (old, new))
    changes = compare_reports(*reports)
    console.print(render_changes.render_changes(changes))
    return 1 if changes.worse else BAD_INPUT if changes.not_comparable else 0


def _everything(registry: Registry) -> RenderableType:
    """Cases, precisions and runners, for --list."""
    return render.render_list(
        [(case.name, case.default, case.description) for case in registry.cases()],
        [(name, name in default_runners(), description) for name, description in RUNNERS.items()],
        [
            (name, name in DEFAULT_PRECISIONS, f"unit round-off {precision.unit_roundoff:.2g}")
            for name, precision in PRECISIONS.items()
        ],
    )


def _new_folder() -> Path:
    return REPORTS / datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")


def command(registry: Registry) -> click.Command:
    """The command line over the cases of a registry."""
    return click.Command(
        "parity",
        params=_main.params,
        help=_main.help,
        callback=_main.callback,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "max_content_width": 110,
            "obj": registry,
        },
    )
