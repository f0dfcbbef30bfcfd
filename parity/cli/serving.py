"""The verb `serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from parity.base.code import shown
from parity.base.errors import UserError, check_names
from parity.base.files import called_in, making
from parity.base.interruption import remaining
from parity.base.locks import made
from parity.base.option_numbers import INTEGER, NUMBER
from parity.case import Registry
from parity.cli import options, output
from parity.cli.progress import steps
from parity.cli.verb import Verb

DEFAULT_PRECISION = "fp32"


@click.command(
    cls=Verb,
    example="--model my_case:case --scenario offline --duration 10",
    exit_codes=(
        "every prediction passes, and LoadGen calls the performance run valid",
        "a prediction fails or its check is INSENSITIVE, the audit fails, or the performance run is invalid",
        "bad input, a fault of the tables, or LoadGen is not installed",
    ),
)
@options.cases
@click.option("--precision", metavar="NAME", help=f"The precision. [default: {DEFAULT_PRECISION}]")
@options.weights
@options.seed
@options.save("New folder for LoadGen's logs, a submitter's of the submission checker.")
@click.option("--scenario", default="offline", show_default=True, help="LoadGen's: server or offline.")
@click.option("--samples", type=INTEGER, default=64, show_default=True, help="Number of different requests.")
@click.option("--data", type=options.PATH, help="Recorded requests in place of the case's own.")
@click.option("--tables", type=options.PATH, help="Folder of tables, written if absent. [default: temporary]")
@click.option(
    "--tables-on", default="files", show_default=True, help="files, mapped into memory; cpu or cuda, whole."
)
@click.option("--runner", default="tripy", show_default=True, help="tripy, tripy_jagged or tripy_layers.")
@click.option("--fuse", is_flag=True, help="On a GPU, fuse the steps of the portable runtime's graphs.")
@click.option(
    "--tokens", type=INTEGER, help="Most tokens of a batch. [default: the case's batch at full width]"
)
@click.option(
    "--kv-cache",
    type=NUMBER,
    help="GiB of keys and values that are kept for returning users. [default: none]",
)
@click.option("--rate", type=NUMBER, default=10.0, show_default=True, help="Target, in queries a second.")
@click.option(
    "--duration", type=NUMBER, default=600.0, show_default=True, help="Least seconds of a performance run."
)
@click.option("--queries", type=INTEGER, default=100, show_default=True, help="Least queries of that run.")
@click.option("--accuracy-only", is_flag=True, help="Judge predictions; no performance run and no audit.")
@click.pass_obj
def serve(
    registry: Registry,
    scenario: str,
    samples: int,
    data: Path | None,
    tables: Path | None,
    tables_on: str,
    runner: str,
    fuse: bool,
    tokens: int | None,
    kv_cache: float | None,
    rate: float,
    duration: float,
    queries: int,
    accuracy_only: bool,
    **chosen: Any,
) -> int:
    """Serve the port of one case under LoadGen, and judge every served prediction."""
    reports, here = output.reports(), Path.cwd()
    with steps() as advance:
        from parity.cli.arguments import Arguments, apart, needing_port, writable

        arguments = Arguments(**chosen, registry=registry)
        case, precision = arguments.one_of_each("serve", default=DEFAULT_PRECISION)
        # A case that is imported may go to another folder.
        data, tables, save, weights = (
            path and called_in(here, path) for path in (data, tables, arguments.save, arguments.weights)
        )
        folder = save or output.new_folder(reports)
        if folder.exists():
            raise UserError("--save", str(folder), "exists", "give a folder that does not exist")
        apart({"--save": folder, "--tables": tables})
        writable("--save", folder)
        with needing_port(runner):
            from parity.studies.serving import command
            from parity.studies.serving.port import SERVED
        check_names("--runner", [runner], SERVED)
        check_names("--tables-on", [tables_on], command.PLACES)
        order = command.Order(
            case=case,
            precision=precision,
            checkpoint=weights,
            samples=samples,
            seed=case.with_overrides(seed=arguments.seed).seed,
            tokens=tokens,
            data=data,
            tables=tables,
            tables_on=tables_on,
            runner=runner,
            fuse=fuse,
            load=command.Load(scenario, rate, duration, queries),
            measures=not accuracy_only,
            kv_cache=kv_cache,
        )
        with needing_port(runner), made(folder.parent), making(folder) as unfinished:
            served = command.serve(order, unfinished, advance)
    with remaining(f"{shown(folder)} holds LoadGen's logs"):
        console = output.stdout()
        for line in served.lines():
            output.print_line(console, line)
        output.print_line(console, f"logs: {shown(folder)}")
    return served.exit_code
