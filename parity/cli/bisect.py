"""The verb `bisect`."""

from __future__ import annotations

import click

from parity.cli import output
from parity.cli.progress import steps
from parity.cli.verb import Verb


@click.command(
    cls=Verb,
    example="v1.0 HEAD -- parity run --model my_case:case --save {report}",
    exit_codes=(
        "the first bad commit is known",
        "it is one of several, since some commits cannot be judged",
        "bad input, GOOD does not pass, or BAD does not fail",
    ),
)
@click.argument("good")
@click.argument("bad")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--code",
    metavar="PATHS",
    help="Paths that decide the result. Commits equal in them are judged once. [default: all files]",
)
def bisect(good: str, bad: str, command: tuple[str, ...], code: str | None) -> int:
    """Find the commit since which COMMAND fails. GOOD and BAD are commits of the present repository.

    COMMAND runs in a copy of each commit. Its exit code 0 is good, 1 is bad, any other leaves the commit out.
    {report} in it stands for a folder whose report.json gives the first diverging module.
    """
    with steps() as advance:
        from parity.cli.arguments import names
        from parity.studies.bisect import command as study

        result = study.bisect(good, bad, command, tuple(names("--code", code)), advance)
    console = output.stdout()
    for line in study.render(result):
        output.print_line(console, line)
    return result.exit_code
