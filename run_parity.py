#!/usr/bin/env python3
"""Compare the Tripy port with its PyTorch reference, module by module. `--help` lists the options.

Exit code: 0 everything passes, 1 something diverges or breaks, 2 bad input or a runner that was asked
for and is unavailable.
"""

from __future__ import annotations

import contextlib
import datetime
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from configs import ConfigError, list_cases, load_case, with_input
from parity import render
from parity.errors import UserError
from parity.families import get_family
from parity.pipeline import Request, check_names, replay, run
from parity.precision import DEFAULT_PRECISIONS, PRECISIONS
from parity.report import Report, write_report
from parity.runners import RUNNERS, default_runners

BAD_INPUT = 2
REPORTS = Path("parity_reports")
PIPED_WIDTH = 110
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
@click.option("--replay", "replay_from", type=click.Path(path_type=Path), help="Judge a saved run again.")
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
    replay_from: Path | None,
    time_limit: float,
) -> None:
    """Compare the Tripy port with its PyTorch reference, module by module."""
    # Files and pipes have no width; a module table needs this much.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)
    try:
        if list_only:
            console.print(_everything())
            return
        command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
        with _progress() as advance:
            if replay_from is not None:
                _refuse_with_replay(
                    {
                        "--case": cases,
                        "--precision": precision,
                        "--runners": runners,
                        "--batch": batch,
                        "--seed": seed,
                        "--data": data,
                        "--weights": weights,
                        "--save": save,
                    }
                )
                report = replay(replay_from, command, advance)
            else:
                request = _request(
                    cases, precision, runners, batch, seed, data, weights, save, time_limit, command
                )
                report = run(request, advance)
        console.print(render.render(report))
        # Whole and as it is: a path is for copying, and may hold what looks like markup.
        console.print(Text(f"report: {_written(report, save)}"), soft_wrap=True)
    except (UserError, ConfigError) as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"error: {error}", style="bold red", markup=False
        )
        sys.exit(BAD_INPUT)
    sys.exit(report.exit_code)


def _refuse_with_replay(options: dict[str, object]) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise UserError(
            "--replay",
            "together with " + ", ".join(given),
            "has no meaning: a replay judges what was saved",
            "leave the other options out",
        )


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
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    path = REPORTS / stamp / "report.json"
    write_report(report, path)
    return path


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A spinner with the latest step on a terminal; silent elsewhere."""
    console = Console(stderr=True)
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=None, pulse_style="dim"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("starting", total=None)
        yield lambda text: bar.update(task, description=text)


if __name__ == "__main__":
    main()
