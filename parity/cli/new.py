"""The verb `new`: a file with a small model on both sides and its case, to start from."""

from __future__ import annotations

import errno
import importlib.util
import keyword
import os
import re
from pathlib import Path

import click

from parity.base.errors import UserError
from parity.base.files import remove_unfinished_of, replacing
from parity.cli import output
from parity.cli.verb import Verb, program_name

_TEMPLATE = Path(__file__).with_name("new_case.py")
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@click.command(
    cls=Verb,
    short_help="Write a file with a small model on both sides, and its case.",
    example="my_model",
    exit_codes=("the file is written", "never", "bad input, or the file exists"),
)
@click.argument("name")
def new(name: str) -> int:
    """Write NAME.py: a small PyTorch model, its Tripy port and their case, which runs at once."""
    path = Path(f"{_checked(name)}.py")
    text = _TEMPLATE.read_text().replace("new_case", name)
    try:
        if path.exists() or path.is_symlink():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        remove_unfinished_of(path)
        with replacing(path) as temporary:
            temporary.write_text(text)
    except OSError as error:
        problem = f"cannot be written ({error.strerror})"
        raise UserError("new", str(path), problem, "choose another name or folder") from error
    console = output.stdout()
    output.print_line(console, f"wrote {path}; the next command:")
    output.print_line(console, f"{program_name(click.get_current_context())} run --model {name}:case")
    return 0


def _checked(name: str) -> str:
    """The name. Raises `UserError` where a module cannot have it."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UserError("new", name, "is no module's name", "give lower case letters, digits and underscores")
    # The present folder stands behind all others, so that its file would not be imported.
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin != str(Path(f"{name}.py").absolute()):
        raise UserError("new", name, "is the name of an installed module", "choose another name")
    return name
