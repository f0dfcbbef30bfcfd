"""The program: one verb a job. A call without a verb is a `run`.

No module of this package imports PyTorch before a verb runs, so that help and shell completion are quick.
"""

from __future__ import annotations

import os
import sys

import click
from click.shell_completion import CompletionItem

from parity.base.errors import UserError, check_names
from parity.base.process import leave_out_of_collections
from parity.base.streams import require_output
from parity.base.temporaries import own_temporaries
from parity.base.variables import require_text
from parity.case import Registry
from parity.cli.bisect import bisect
from parity.cli.new import new
from parity.cli.reports import compare, list_all
from parity.cli.runs import replay, resume, run
from parity.cli.serving import serve
from parity.cli.studies import precision, self_test, shrink, stream
from parity.cli.verb import BAD_INPUT, Refused, refusing

VERBS: tuple[click.Command, ...] = (
    *(run, list_all, replay, resume, compare),
    *(bisect, shrink, precision, self_test, stream, serve, new),
)
_HELP_OPTIONS = ("-h", "--help")
_WIDEST = 100_000
"""Most columns of a page."""
_HELP = """Compare a Tripy port with its PyTorch reference, module by module.

A call without a verb is a `run`. VERB --help has the options of a verb, an example and its exit codes.
"""


class Program(click.Group):
    """The verbs, in the order of the help."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse a call. Options in front belong to `run`."""
        is_bare = not args and not ctx.resilient_parsing
        if is_bare or (args and args[0].startswith("-") and args[0] not in _HELP_OPTIONS):
            args = [str(run.name), *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb. An unknown one is refused with the known ones."""
        if not ctx.resilient_parsing:
            with refusing():
                check_names("verb", args[:1], self.commands)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the verbs."""
        return list(self.commands)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Verbs, or options of `run`."""
        if not incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return run.shell_complete(click.Context(run, parent=ctx), incomplete)


def program(registry: Registry) -> Program:
    """The program over the cases of a registry."""
    return Program(
        "parity",
        commands={str(verb.name): verb for verb in VERBS},
        help=_HELP,
        subcommand_metavar="[VERB] [ARGS]...",
        context_settings={
            "help_option_names": list(_HELP_OPTIONS),
            "max_content_width": 110,
            "obj": registry,
        },
    )


def as_process(group: Program) -> None:
    """Run the program as the whole of this process."""
    if not 0 < _width() <= _WIDEST:
        # Rich believes a width of 0, and prints nothing.
        os.environ.pop("COLUMNS", None)
    try:
        require_text([*(("arguments", text) for text in sys.argv[1:]), ("present folder", _present_folder())])
        own_temporaries()
    except UserError as error:
        Refused(str(error)).show()
        sys.exit(BAD_INPUT)
    leave_out_of_collections()
    try:
        group()
    except SystemExit:
        require_output()
        raise


def _present_folder() -> str:
    """The present folder; an empty text if it is removed, which each verb that needs it tells."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _width() -> int:
    """The width of pages that the environment asks for; 0 without one."""
    try:
        return int(os.environ.get("COLUMNS", ""))
    except ValueError:
        return 0
