"""A verb: a command with an example and its exit codes, which refuses bad input in one message."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, NoReturn

import click
from rich.console import Console

from parity.base.errors import UserError
from parity.base.interruption import raisable, stay_if_ending
from parity.base.memory import LACKS, OF_MEMORY
from parity.base.process import reuse_freed_memory
from parity.case.users_code import is_users, told

BAD_INPUT = 2
EXIT_CODES = (
    "every verdict passes",
    "a verdict fails, a check is INSENSITIVE, or a runner breaks",
    "bad input, or the port or a requested runner is unavailable",
)
"""Meanings of the exit codes 0, 1 and 2 of verbs that judge."""


_MORE = re.compile(r"Got unexpected extra arguments? \((.*)\)", re.DOTALL)
"""Click's message where a call has more arguments than its verb takes."""


class Refused(click.ClickException):
    """Bad input: one message on stderr."""

    exit_code = BAD_INPUT

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message."""
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        console.print(f"error: {self.message}", style="bold red", markup=False)


@contextmanager
def refusing() -> Iterator[None]:
    """`UserError` ends the program with its message and exit code 2; so does what the machine lacks.

    So does a user's code that raises, or would end the program itself, at any place. While the program ends
    by a signal, an error tells nothing.
    """
    try:
        yield
    except BaseException as error:
        stay_if_ending()
        message = _message(error)
        if message is None:
            raise
        raise Refused(message) from error


def _message(error: BaseException) -> str | None:
    """The message of an error; None for a mistake of the program."""
    if isinstance(error, UserError):
        return str(error)
    lack = _lack(error) if isinstance(error, (OSError, MemoryError, RuntimeError, ImportError)) else None
    if lack is not None:
        return str(lack)
    if isinstance(error, Exception):
        does, is_theirs = "is raised", is_users(error)
    else:
        does, is_theirs = "ends the program", isinstance(error, raisable())
    return str(UserError("case", told(error), does, "correct that code")) if is_theirs else None


def _lack(error: OSError | MemoryError | RuntimeError | ImportError) -> UserError | None:
    """The refusal for an error of the machine, which any line may meet; None for every other error."""
    if isinstance(error, OSError):
        if error.errno not in LACKS:
            return None
        place = error.filename or "a file or process"
        return UserError("machine", str(place), f"is refused ({error.strerror})", LACKS[error.errno])
    text = str(error).split("\n")[0]
    # PyTorch and the interpreter have no type of their own for these.
    if isinstance(error, MemoryError) or any(words in text for words in OF_MEMORY):
        fix = "give smaller sizes, free memory, or raise its limit (ulimit -v)"
        return UserError("memory", text or "an allocation", "is more than there is", fix)
    if "can't start new thread" in text:
        return UserError("machine", "a thread", f"is refused ({text})", LACKS[errno.EAGAIN])
    return None


class Verb(click.Command):
    """A command whose callback returns the exit code.

    Args:
        example: Arguments of a call that works, without the program and the verb.
        exit_codes: Meanings of the exit codes 0, 1 and 2.
        options: As of `click.Command`.
    """

    def __init__(self, *, example: str = "", exit_codes: Sequence[str] = EXIT_CODES, **options: Any) -> None:
        super().__init__(**options)
        self.example = example
        self.exit_codes = exit_codes

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. An unknown option is refused with a fix."""
        with refusing():
            try:
                _require_single(self.make_parser(ctx).parse_args(list(args))[2])
                return super().parse_args(ctx, args)
            except click.NoSuchOption as error:
                raise _unknown_option(ctx, error) from error
            except click.MissingParameter as error:
                raise self._missing(ctx, error) from error
            except click.UsageError as error:
                if (more := _MORE.fullmatch(error.message)) is not None:
                    fix = "leave it out; values of one option have commas between them, and no spaces"
                    verb = more[1].partition(" ")[0]
                    if verb in _verbs(ctx):
                        fix = f"begin with the verb: `{program_name(ctx)} {verb} ...`"
                    raise UserError("arguments", more[1] or "''", "is left over", fix) from error
                refusal = _no_number(error) if isinstance(error, click.BadParameter) else None
                raise refusal or _other_use(ctx, error) from error

    def _missing(self, ctx: click.Context, error: click.MissingParameter) -> UserError:
        name = error.param.human_readable_name if error.param is not None else "arguments"
        fix = f"give it, as in `{program_name(ctx)} {self.name} {self.example}`"
        return UserError(name, "", "is missing", fix)

    def invoke(self, ctx: click.Context) -> NoReturn:
        """Run, and end with the exit code. Cases of the present folder can be imported."""
        reuse_freed_memory()
        with refusing(), _importing_from(os.getcwd()):
            code = super().invoke(ctx)
        ctx.exit(code)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the example and the exit codes."""
        with formatter.section("Example"):
            formatter.write_text(f"{program_name(ctx)} {self.name} {self.example}".strip())
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in enumerate(self.exit_codes)])


def program_name(ctx: click.Context) -> str:
    """The words that start the program."""
    name = ctx.find_root().info_name or ""
    return f"python {name}" if name.endswith(".py") else name


@contextmanager
def _importing_from(folder: str) -> Iterator[None]:
    """Import modules of a folder, behind all others: a file of the user hides no library."""
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _require_single(given: Sequence[click.Parameter]) -> None:
    """Raises `UserError` if an option with a value is there twice: the last one would win in silence."""
    for option in given:
        if isinstance(option, click.Option) and not option.is_flag and given.count(option) > 1:
            raise UserError(option.opts[-1], f"{given.count(option)} values", "are given", "give one")


def _no_number(error: click.BadParameter) -> UserError | None:
    """The refusal of a text where a number belongs; None for another option."""
    option = error.param
    whole = option is not None and isinstance(option.type, click.types.IntParamType)
    if option is None or not (whole or isinstance(option.type, click.types.FloatParamType)):
        return None
    value, _, problem = error.message.removesuffix(".").rpartition(" is ")
    example = "a whole number such as 8" if whole else "a number such as 2.5"
    return UserError(option.opts[-1], value, f"is {problem}", f"give {example}")


def _other_use(ctx: click.Context, error: click.UsageError) -> UserError:
    """The refusal of any other use, such as an option without its value, in one line."""
    name = "arguments"
    if isinstance(error, click.BadParameter) and error.param is not None:
        is_option = isinstance(error.param, click.Option)
        name = error.param.opts[-1] if is_option else error.param.human_readable_name
    elif isinstance(error, click.BadOptionUsage):
        name = error.option_name
    problem = error.message.removesuffix(".").removeprefix(f"Option {name!r} ")
    fix = f"`{program_name(ctx)} {ctx.info_name} --help` tells its use"
    return UserError(name, "", problem, fix)


def _verbs(ctx: click.Context) -> Mapping[str, click.Command]:
    program = ctx.find_root().command
    return program.commands if isinstance(program, click.Group) else {}


def _unknown_option(ctx: click.Context, error: click.NoSuchOption) -> UserError:
    """The refusal, with the verb that the option belongs to or is the name of."""
    verbs = _verbs(ctx)
    takers = [
        name
        for name, verb in verbs.items()
        if any(error.option_name in option.opts for option in verb.params)
    ]
    named = [name for name in verbs if error.option_name.endswith(name)]
    if takers:
        fix = f"leave it out; it belongs to {', '.join(takers)}"
    elif named:
        fix = f"use the verb: `{program_name(ctx)} {named[0]}`"
    elif error.possibilities:
        fix = f"did you mean {' or '.join(error.possibilities)}?"
    else:
        fix = f"`{program_name(ctx)} {ctx.info_name} --help` lists the options"
    return UserError(ctx.info_name or "", error.option_name, "is no option of this verb", fix)
