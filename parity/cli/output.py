"""The stdout of verbs, and the folders of their results."""

from __future__ import annotations

import datetime
import os
import shlex
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from parity.base.errors import UserError

REPORTS = Path("parity_reports")


def stdout() -> Console:
    """The terminal; a file or a pipe has the width of COLUMNS, of the terminal it is read on, or 80."""
    return Console(highlight=False)


def print_line(console: Console, text: str, style: str = "") -> None:
    """Print a line as it is: a path stays whole for copying, and may contain text that looks like markup."""
    console.print(Text(text, style=style), soft_wrap=True)


def reports() -> Path:
    """The folder of all results, in the present folder. A case that is imported may go to another one."""
    return REPORTS.absolute()


def new_folder(reports: Path) -> Path:
    """A folder for the results of this call."""
    return reports / datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")


def require_reports() -> Path:
    """Return `reports`, or raise `UserError` if `new_folder` cannot be made there.

    A call without this check tells it after its work.
    """
    place = REPORTS if os.path.lexists(REPORTS) else Path()
    try:
        tempfile.NamedTemporaryFile(dir=place).close()
    except OSError as error:
        problem = f"cannot be written ({error.strerror})"
        fix = "run in another folder, or give --save where the verb has it"
        raise UserError(str(REPORTS), str(place.absolute()), problem, fix) from error
    return reports()


def typed() -> str:
    """This command line, for reports."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
