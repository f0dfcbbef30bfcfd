"""Train the reference, so that parity can be judged on trained weights: `python -m reference.train --help`.

    python -m reference.train --case hstu_ml1m --data u.data --out trained/
    python run_parity.py --case hstu_ml1m --data u.data --weights trained/best.safetensors

Training and parity use the same readers. DLRMv3 trains on generated requests, with its tables:

    python -m reference.train --case dlrmv3_streaming --out trained/

Exit code: 0 trained, 2 bad input.
"""

from __future__ import annotations

if __name__ == "__main__":
    from parity.base.interruption import watch
    from parity.base.memory import require_least

    # Before the imports below: they take seconds, and memory.
    watch()
    require_least()

import contextlib
import functools
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from configs import CaseConfig, ConfigError, load_case
from datasets.errors import DataError
from parity.base.interruption import remaining, undoing
from parity.base.locks import Locked, locked, made
from parity.base.option_numbers import NUMBER, IntegerRange
from parity.base.streams import require_output
from reference import training_dlrm, training_dlrmv3, training_hstu
from reference.checkpoints import BEST, CHECKPOINT, TrainingError, TrainingFolder, remove_parts, unwritable
from reference.training import Listener, Losses, Result, Schedule, fit
from reference.training_tasks import task_of

BAD_INPUT = 2
RUNS = Path("trained")
_ADAM, _ADAMW = "adam", "adamw"
_LONGEST = 600
"""Longest refusal, in characters."""
_MOST_LINES = 6
_FAMILIES = {"dlrm": training_dlrm, "dlrmv3": training_dlrmv3, "hstu": training_hstu}
_OPTIMIZERS = {"dlrm": list(training_dlrm.LEARNING_RATES), "dlrmv3": [_ADAM], "hstu": [_ADAMW]}
_LEARNING_RATES = training_dlrm.LEARNING_RATES | {
    _ADAM: training_dlrmv3.LEARNING_RATE,
    _ADAMW: training_hstu.LEARNING_RATE,
}


def _short(text: str) -> str:
    """A message without control characters; the first lines, and of long ones the beginning and the end."""
    first, *rest = text.split("\n")
    if len(rest) >= _MOST_LINES:
        rest = [*rest[: _MOST_LINES - 2], f"and {len(rest) - _MOST_LINES + 2} more lines"]
    text = "\n".join([first, *rest])
    printable = "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
    half = _LONGEST // 2
    return printable if len(printable) <= _LONGEST else f"{printable[:half]}...{printable[-half:]}"


_MOST_RATE = 1e30
"""Largest learning rate: steps beyond it are no float32."""


class _Program(click.Command):
    """A command whose refusals quote the beginning of a long value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.message = _short(error.message)
            raise


@click.command(
    cls=_Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.option("--case", "case_name", required=True, help="A case of DLRM, HSTU or DLRMv3, or a YAML file.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Criteo logs or MovieLens ratings; left out for DLRMv3, whose requests are generated.",
)
@click.option("--out", type=click.Path(path_type=Path), help=f"New folder. [default: {RUNS}/CASE]")
@click.option("--epochs", type=IntegerRange(min=1), help="At most. [default: dlrm 50, hstu 30, dlrmv3 8]")
@click.option(
    "--patience",
    type=IntegerRange(min=1),
    help="Epochs without a smaller validation loss before the end. [default: dlrm 5, hstu 3, dlrmv3 2]",
)
@click.option(
    "--batch",
    type=IntegerRange(min=1, max=2**63 - 1),
    help="Rows or users of a step. [default: 128, dlrmv3 64]",
)
@click.option(
    "--optimizer",
    type=click.Choice(list(_LEARNING_RATES)),
    help="[default: dlrm sgd, hstu adamw, dlrmv3 adam]",
)
@click.option(
    "--learning-rate", type=NUMBER, help="[default: sgd 0.1, adagrad 0.01, adamw 0.001, adam 0.003]"
)
@click.option(
    "--seed", type=IntegerRange(min=0, max=2**63 - 1), default=0, show_default=True, help="Of all draws."
)
@click.option(
    "--device",
    type=click.Choice(training_dlrmv3.DEVICES),
    default="cpu",
    show_default=True,
    help="Of DLRMv3.",
)
@click.option(
    "--users", type=IntegerRange(min=1), help="Of DLRMv3: the first ones of its data alone. [default: all]"
)
@click.option("--resume", is_flag=True, help="Continue the run in --out, with the same options.")
def main(
    case_name: str,
    data: Path | None,
    out: Path | None,
    epochs: int | None,
    patience: int | None,
    batch: int | None,
    optimizer: str | None,
    learning_rate: float | None,
    seed: int,
    device: str,
    users: int | None,
    resume: bool,
) -> None:
    """Train the reference on recorded data or generated requests, with the public recipes."""
    console = Console(highlight=False)
    try:
        _check_temporaries()
        case = _trainable(case_name)
        recipe = _FAMILIES[case.family]
        optimizer = _optimizer(case, optimizer)
        rate = _learning_rate(optimizer, learning_rate)
        schedule = Schedule(
            epochs or recipe.EPOCHS, patience or recipe.PATIENCE, batch or recipe.BATCH_SIZE, seed
        )
        path = out or RUNS / case.name
        folder = TrainingFolder(path, resume)
        # The reference draws its initial values from both libraries' global generators.
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        task, digest = task_of(case, data, optimizer, rate, device, users)
        settings = {
            "case": case.name,
            "model": hashlib.sha256(case.model.model_dump_json().encode()).hexdigest(),
            "data": digest,
            "optimizer": optimizer,
            "learning_rate": rate,
            "device": device,
        }
        with _alone_in(path), _progress(console, schedule) as listener:
            result = fit(task, schedule, folder, settings, listener)
    except (DataError, ConfigError, TrainingError) as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"error: {_short(str(error))}", style="bold red", markup=False
        )
        sys.exit(BAD_INPUT)
    _print_result(console, result, path)


@contextlib.contextmanager
def _alone_in(path: Path) -> Iterator[None]:
    """Keep other processes out of the folder, which an interruption leaves with whole files.

    A training that ends before its first checkpoint leaves no new folder.
    """
    try:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(made(path))
            except OSError as error:
                raise unwritable(path, error) from error
            stack.enter_context(locked(path))
            stack.callback(undoing(functools.partial(remove_parts, path)))
            text = f"{path} holds the last checkpoint: the command with --resume goes on"
            stack.enter_context(remaining(text, (path / CHECKPOINT).exists))
            yield
    except Locked as error:
        raise TrainingError("--out", path, str(error), "wait for its end, or choose another") from error


def _check_temporaries() -> None:
    """Refuse a machine without a folder for temporary files: PyTorch asks for one at its first step."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        raise TrainingError(
            "TMPDIR", os.environ.get("TMPDIR", ""), "cannot be written, nor any other folder", "free space"
        ) from error


def _trainable(name: str) -> CaseConfig:
    case = load_case(name)
    if case.family not in _FAMILIES:
        raise TrainingError(
            "--case", name, f"is of the family {case.family}", f"use a case of {' or '.join(_FAMILIES)}"
        )
    model = case.model
    if case.family == "hstu" and model.positions_per_item > 1:
        raise TrainingError(
            "--case", name, "has ratings at positions of their own", "use one that predicts items alone"
        )
    if case.family == "dlrmv3" and not training_dlrmv3.is_trainable(model):
        raise TrainingError(
            "--case", name, "has other parts than the generated requests",
            "use one with actions, a contextual row and a task with a probability, such as dlrmv3_streaming",
        )  # fmt: skip
    if case.family == "dlrm" and (model.top_widths[-1], model.top_sigmoid) != (1, len(model.top_widths) - 1):
        raise TrainingError(
            "--case", name, "does not end in one click probability", "end arch_mlp_top in 1, under a sigmoid"
        )
    return case


def _optimizer(case: CaseConfig, asked: str | None) -> str:
    known = _OPTIMIZERS[case.family]
    if asked is not None and asked not in known:
        raise TrainingError(
            "--optimizer", asked, f"does not train {case.family}", f"use {' or '.join(known)}"
        )
    return asked or known[0]


def _learning_rate(optimizer: str, asked: float | None) -> float:
    if asked is None:
        return _LEARNING_RATES[optimizer]
    if not 0 < asked <= _MOST_RATE:
        problem = f"is no positive number up to {_MOST_RATE:g}"
        raise TrainingError("--learning-rate", asked, problem, "give one such as 0.01")
    return asked


class _Bar(Listener):
    """A bar for the epoch's steps on a terminal, a line for each epoch everywhere."""

    def __init__(self, console: Console, bar: Progress, schedule: Schedule) -> None:
        self._console, self._bar, self._schedule = console, bar, schedule
        self._task = bar.add_task("first losses", total=None)

    def on_step(self, epoch: int, step: int, steps: int, loss: float) -> None:
        text = f"epoch {epoch} of at most {self._schedule.epochs}, loss {loss:.4f}"
        self._bar.update(self._task, description=text, completed=step, total=steps)

    def on_epoch(self, epoch: int, losses: Losses, is_best: bool) -> None:
        best = "  best so far" if is_best else ""
        self._console.print(
            f"epoch {epoch:3}  train {losses.train:.4f}  validation {losses.validation:.4f}{best}"
        )


@contextlib.contextmanager
def _progress(console: Console, schedule: Schedule) -> Iterator[_Bar]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield _Bar(console, bar, schedule)


def _print_result(console: Console, result: Result, path: Path) -> None:
    if result.best_epoch == 0:
        console.print("no epoch lowered the validation loss: the best weights are the initial ones")
    for name, losses in (("initial", result.initial), (f"best, epoch {result.best_epoch}", result.best)):
        console.print(f"{name}: train {losses.train:.4f}, validation {losses.validation:.4f}")
    console.print(f"{result.epochs} epochs; weights: {path / BEST}", soft_wrap=True)


if __name__ == "__main__":
    try:
        main()
    except SystemExit:
        require_output()
        raise
