"""Options that several verbs share, and the completion of their values in a shell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from parity.base.option_numbers import INTEGER, NUMBER
from parity.runners import RUNNERS, TIMEOUT

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class NamedPath(click.Path):
    """A path. Empty text is none: for `pathlib` it is the present folder."""

    def __init__(self, **options: Any) -> None:
        super().__init__(path_type=Path, **options)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


PATH = NamedPath()


def _completed(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Names that complete the last one of a list."""
    *before, last = incomplete.split(",")
    return [
        CompletionItem(",".join([*before, name]))
        for name in names
        if name.startswith(last) and name not in before
    ]


def _complete_cases(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    if "/" in incomplete or incomplete.startswith("."):
        return [CompletionItem(incomplete, type="file")]
    return _completed((case.name for case in ctx.obj.cases()), incomplete)


def _complete_runners(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _completed(RUNNERS, incomplete)


def cases(verb: Decorated) -> Decorated:
    """Cases by name and by import path."""
    named = click.option(
        "--case", "cases", metavar="NAMES", help="Cases, or YAML files.", shell_complete=_complete_cases
    )
    imported = click.option(
        "--model", "models", metavar="NAMES", help="Your own cases, as package.module:attribute."
    )
    return named(imported(verb))


precision = click.option("--precision", metavar="NAMES", help="Precisions. [default: see list]")
one_precision = click.option("--precision", metavar="NAME", help="The precision.")
runners = click.option(
    "--runners", metavar="NAMES", help="Runners. [default: see list]", shell_complete=_complete_runners
)
batch = click.option(
    "--batch", type=INTEGER, help="Rows or users of a batch. [default: the case's; 128 with --data]"
)
seed = click.option(
    "--seed", type=INTEGER, help="Seed of synthetic inputs and initial weights. [default: the case's]"
)
data = click.option("--data", type=PATH, help="Recorded data in place of synthetic inputs.")
weights = click.option("--weights", type=PATH, help="Checkpoint: safetensors, or a state dict in a .pt file.")
policy = click.option("--policy", type=PATH, help="Policy file with the schemes of quantised modules.")
time_limit = click.option(
    "--time-limit", type=NUMBER, default=TIMEOUT, show_default=True, help="Seconds for one step of a runner."
)
memory = click.option(
    "--memory",
    metavar="GB",
    type=NUMBER,
    help="Largest memory, in 10^9 bytes. [default: 3/4 of the machine's]",
)
verbose = click.option("-v", "--verbose", is_flag=True, help="Show every module, fact and note.")


def save(text: str) -> Callable[[Decorated], Decorated]:
    """A folder for results, with its description."""
    return click.option("--save", type=PATH, help=text)
