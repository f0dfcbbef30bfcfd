#!/usr/bin/env python3
"""Compare the Tripy port with its PyTorch reference, module by module. `--help` lists the options.

Exit code: 0 everything passes, 1 something diverges or breaks, 2 bad input or a runner that was asked
for and is unavailable.
"""

from __future__ import annotations

import dataclasses
import datetime
import shlex
import sys
from pathlib import Path

import click
from rich.console import Console, RenderableType
from rich.text import Text

from configs import ConfigError, list_cases, load_case, with_input
from parity import render, render_changes
from parity.compare_reports import compare_reports
from parity.errors import UserError
from parity.families import get_family
from parity.outputs import write_outputs
from parity.pipeline import check_names, replay, resume, run
from parity.precision import DEFAULT_PRECISIONS, PRECISIONS
from parity.progress import counted, spinner
from parity.report import Report, read_report
from parity.request import Request
from parity.runners import RUNNERS, Unavailable, default_runners

BAD_INPUT = 2
REPORTS = Path("parity_reports")
_OF_SELF_TEST = ("--case", "--precision", "--save")
PIPED_WIDTH = 120
# The public configurations train and evaluate 128 users at a time.
RECORDED_BATCH = 128
MAX_TIME_LIMIT = 7 * 24 * 3600.0


def _names(option: str, text: str | None) -> list[str]:
    """The names in a list; none if the option was left out. Raises `UserError` for a list of nothing."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    if text is not None and not names:
        raise UserError(option, repr(text), "names nothing", "give a name, or leave the option out")
    return names


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--list", "list_only", is_flag=True, help="List cases, precisions and runners, and stop.")
@click.option(
    "--case", "cases", metavar="NAMES", help="Cases or YAML files, comma separated. [default: see --list]"
)
@click.option(
    "--precision", metavar="NAMES", help=f"Comma separated. [default: {','.join(DEFAULT_PRECISIONS)}]"
)
@click.option("--runners", metavar="NAMES", help="Comma separated. [default: see --list]")
@click.option("--batch", type=int, help="Users in a batch. [default: the case's, 128 with --data]")
@click.option("--seed", type=int, help="Seed of synthetic input and initial weights. [default: the case's]")
@click.option("--data", type=click.Path(path_type=Path), help="MovieLens ratings or Criteo logs.")
@click.option(
    "--weights", type=click.Path(path_type=Path), help="Checkpoint: .safetensors, or a state dict in .pt."
)
@click.option(
    "--save", type=click.Path(path_type=Path), help="New folder for inputs, weights, captures, report."
)
@click.option("--resume", "resume_in", type=click.Path(path_type=Path), help="Go on with a saved run.")
@click.option("--replay", "replay_from", type=click.Path(path_type=Path), help="Judge a saved run again.")
@click.option(
    "--compare",
    nargs=2,
    type=click.Path(path_type=Path),
    metavar="OLD NEW",
    help="Two report.json, or their folders: exit code 1 if something got worse.",
)
@click.option(
    "--shrink",
    "shrink_to",
    type=click.Path(path_type=Path),
    help="New folder for the smallest case in which the module that fails still fails.",
)
@click.option(
    "--search-precision", "searching", is_flag=True, help="Find the cheapest precision of each module."
)
@click.option("--policy", type=click.Path(path_type=Path), help="Judge the precisions of a policy's file.")
@click.option(
    "--budget",
    type=float,
    default=1e-3,
    show_default=True,
    help="Of --search-precision and --policy: the outputs' largest relative error.",
)
@click.option(
    "--self-test", "self_testing", is_flag=True, help="Put faults into the port: which are noticed?"
)
@click.option("--share", type=float, default=1.0, help="Of --self-test: the share of the faults.")
@click.option("--faults", default="", help="Of --self-test: faults whose operator begins so, such as weight.")
@click.option(
    "--clean-runs", type=int, default=1000, show_default=True, help="Of --self-test: runs without a fault."
)
@click.option(
    "--profile",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for a Chrome or Perfetto trace of each runner, with a range for each module.",
)
@click.option(
    "--time-limit", type=float, default=600.0, show_default=True, help="Seconds for a runner's step."
)
def main(
    list_only: bool,
    cases: str | None,
    precision: str | None,
    runners: str | None,
    batch: int | None,
    seed: int | None,
    data: Path | None,
    weights: Path | None,
    save: Path | None,
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
    profile: Path | None,
    time_limit: float,
) -> None:
    """Compare the Tripy port with its PyTorch reference, module by module."""
    # Files and pipes have no width; a module table needs this much.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)
    try:
        if list_only:
            console.print(_everything())
            return
        others = {
            "--case": cases,
            "--precision": precision,
            "--runners": runners,
            "--batch": batch,
            "--seed": seed,
            "--data": data,
            "--weights": weights,
            "--save": save,
            "--profile": profile,
        }
        if compare is not None:
            _refuse_with("--compare", "two reports are all it takes", others | {"--replay": replay_from})
            sys.exit(_compare(console, *compare))
        if shrink_to is not None:
            sys.exit(_shrink(console, cases, precision, seed, shrink_to))
        if self_testing:
            chosen = {name: value for name, value in others.items() if name not in _OF_SELF_TEST}
            _refuse_with("--self-test", "it makes its own inputs", chosen | {"--replay": replay_from})
            sys.exit(_self_test(console, cases, precision, share, faults, clean_runs, save))
        command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
        if searching or policy is not None:
            option = "--search-precision" if searching else "--policy"
            refused = {"--precision": precision, "--runners": runners, "--replay": replay_from}
            refused |= {"--policy": policy if searching else None, "--profile": profile}
            refused |= {"--resume": resume_in}
            _refuse_with(option, "it is for the port, with a precision for each module", refused)
            request = _request(cases, None, None, batch, seed, data, weights, save, time_limit, command)
            sys.exit(_precisions(console, request, budget, policy))
        with spinner() as advance:
            if resume_in is not None:
                _refuse_with("--resume", "a run goes on as it began", others | {"--replay": replay_from})
                report, save = resume(resume_in, advance), resume_in
            elif replay_from is not None:
                _refuse_with("--replay", "a replay judges what was saved", others)
                report = replay(replay_from, command, advance)
            else:
                request = _request(
                    cases, precision, runners, batch, seed, data, weights, save, time_limit, command
                )
                report = run(dataclasses.replace(request, profile=_profile_folder(profile)), advance)
        console.print(render.render(report))
        # Whole and as it is: a path is for copying, and may hold what looks like markup.
        console.print(Text(f"report: {_written(report, save)}"), soft_wrap=True)
    except (UserError, ConfigError) as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"error: {error}", style="bold red", markup=False
        )
        sys.exit(BAD_INPUT)
    sys.exit(report.exit_code)


def _profile_folder(folder: Path | None) -> Path | None:
    """The folder, made if it is not there. Raises `UserError` where it cannot be written."""
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(
            "--profile", str(folder), f"cannot be written ({error.strerror})", "choose another folder"
        ) from error
    return folder


def _shrink(
    console: Console, cases: str | None, precision: str | None, seed: int | None, folder: Path
) -> int:
    """Shrink what fails in one case in one precision, and say where it is."""
    from parity.reproduction import shrink, write

    chosen = [
        *(load_case(name) for name in _names("--case", cases)),
        *check_names("--precision", _names("--precision", precision), PRECISIONS),
    ]
    if len(chosen) != 2:
        raise UserError(
            "--shrink", str(folder), "is for one case in one precision", "give one --case and one --precision"
        )
    case, name = chosen
    with spinner() as advance:
        failure = shrink(case if seed is None else with_input(case, seed=seed), PRECISIONS[name], advance)
    write(failure, folder)
    console.print(Text(failure.describe(case), style="bold red"))
    console.print(Text(f"python {folder / 'reproduce.py'}"), soft_wrap=True)
    return 1


def _precisions(console: Console, request: Request, budget: float, policy: Path | None) -> int:
    """Search for precisions, or judge a policy's, print what was found, and return the exit code."""
    try:
        from parity.precision_search import command
    except Unavailable as error:
        raise UserError("runner", "tripy", f"is unavailable: {error}", "run where the port can") from error
    with spinner() as advance:
        report = command.run(request, budget, policy, advance)
    folder = request.save or _new_folder()
    command.write(report, folder)
    console.print(command.render(report))
    console.print(Text(f"report: {folder / 'precision.json'}"), soft_wrap=True)
    return report.exit_code


def _self_test(
    console: Console,
    cases: str | None,
    precision: str | None,
    share: float,
    faults: str,
    clean_runs: int,
    save: Path | None,
) -> int:
    """Run or continue the campaign, print what it found, and return the exit code."""
    from parity.self_test.campaign import Plan
    from parity.self_test.command import render_self_test, self_test

    plan = Plan(
        cases=tuple(load_case(name) for name in _names("--case", cases) or list_cases()),
        precisions=check_names(
            "--precision", _names("--precision", precision) or DEFAULT_PRECISIONS, PRECISIONS
        ),
        share=share,
        clean_runs=clean_runs,
        operators=faults,
    )
    folder = save or REPORTS / "self_test"
    with counted() as advance:
        found = self_test(plan, folder, advance)
    console.print(render_self_test(found))
    console.print(Text(f"table: {folder / 'table.md'}"), soft_wrap=True)
    return found.exit_code


def _refuse_with(option: str, why: str, others: dict[str, object]) -> None:
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise UserError(
            option,
            "together with " + ", ".join(given),
            f"has no meaning: {why}",
            "leave the other options out",
        )


def _compare(console: Console, old: Path, new: Path) -> int:
    """Print what changed from one report to the other, and return the exit code."""
    reports = (read_report(path / "report.json" if path.is_dir() else path) for path in (old, new))
    changes = compare_reports(*reports)
    console.print(render_changes.render_changes(changes))
    return 1 if changes.worse else BAD_INPUT if changes.not_comparable else 0


def _everything() -> RenderableType:
    """What can be run, for --list."""
    cases = [load_case(name) for name in list_cases()]
    return render.render_list(
        [(case.name, case.default, case.description) for case in cases],
        [(name, name in default_runners(), description) for name, description in RUNNERS.items()],
        [
            (name, name in DEFAULT_PRECISIONS, f"unit round-off {precision.unit_roundoff:.2g}")
            for name, precision in PRECISIONS.items()
        ],
    )


def _request(
    cases: str | None,
    precision: str | None,
    runners: str | None,
    batch: int | None,
    seed: int | None,
    data: Path | None,
    weights: Path | None,
    save: Path | None,
    time_limit: float,
    command: str,
) -> Request:
    if not 0 < time_limit <= MAX_TIME_LIMIT:
        raise UserError(
            "--time-limit",
            time_limit,
            "is not a positive number of seconds, or more than a week",
            f"give more than 0 and at most {MAX_TIME_LIMIT:.0f}",
        )
    named = list(dict.fromkeys(_names("--case", cases)))
    selected = [load_case(name) for name in named or list_cases()]
    if not named:
        selected = [case for case in selected if case.default]
        if data is not None:
            # Those that the file is for; where it is for none, reading it says why.
            reading = [case for case in selected if get_family(case.family).recognises(data)]
            selected = reading or selected
    if data is not None and batch is None:
        batch = RECORDED_BATCH
    changes = {"batch_size": batch, "seed": seed}
    changes = {name: value for name, value in changes.items() if value is not None}
    if changes:
        selected = [with_input(case, **changes) for case in selected]
    asked = check_names("--runners", _names("--runners", runners), RUNNERS)
    precisions = _names("--precision", precision) or DEFAULT_PRECISIONS
    return Request(
        cases=tuple(selected),
        precisions=check_names("--precision", precisions, PRECISIONS),
        runners=asked or default_runners(),
        runners_asked=bool(asked),
        data=data,
        checkpoint=weights,
        save=save,
        limit=time_limit,
        command=command,
    )


def _written(report: Report, save: Path | None) -> Path:
    """Where the report is: in the saved run, or in a new file of its own."""
    if save is not None:
        return save / "report.json"
    folder = _new_folder()
    write_outputs(report, folder)
    return folder / "report.json"


def _new_folder() -> Path:
    return REPORTS / datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")


if __name__ == "__main__":
    main()
