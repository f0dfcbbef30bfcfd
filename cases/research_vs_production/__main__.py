"""`python -m cases.research_vs_production`: measure, print the tables, and write them into a document.

Exit code: 0 measured, 2 bad input.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import numpy as np
import torch

from cases.configured import ConfiguredCase
from cases.research_vs_production import render
from cases.research_vs_production.between import rows_of
from cases.research_vs_production.made_equal import TARGETS
from cases.research_vs_production.measure import measure
from cases.shipped import load_case
from parity.base.environment import environment
from parity.base.errors import UserError
from parity.base.files import replacing
from parity.base.option_numbers import IntegerRange
from parity.inputs.arrays import CaseInputs, make_inputs
from parity.inputs.weights import case_weights

BAD_INPUT = 2


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--case", "name", default="hstu_ml1m_large", show_default=True, help="Case of HSTU.")
@click.option("--data", type=click.Path(path_type=Path), help="Ratings of MovieLens. [default: synthetic]")
@click.option("--weights", "checkpoint", type=click.Path(path_type=Path), help="Trained research HSTU.")
@click.option("--users", type=IntegerRange(min=1), default=16, show_default=True, help="Users of a draw.")
@click.option(
    "--draws", type=IntegerRange(min=1), default=3, show_default=True, help="Draws of users and weights."
)
@click.option(
    "--candidates", type=IntegerRange(min=TARGETS), default=100, show_default=True, help="Items to rank."
)
@click.option("--write", type=click.Path(path_type=Path), help="Markdown file with tables to replace.")
def main(
    name: str,
    data: Path | None,
    checkpoint: Path | None,
    users: int,
    draws: int,
    candidates: int,
    write: Path | None,
) -> None:
    """Measure each difference between research HSTU and the production STU."""
    try:
        case = load_case(name).with_input(batch_size=users)
        kind = "initial" if checkpoint is None else "trained"
        if write is not None:
            _write(write, kind, "")  # fails early if the file has no place for them
        measured = _measured(case, data, checkpoint, draws, candidates)
        if write is not None:
            _write(write, kind, measured)
    except (UserError, OSError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(BAD_INPUT)
    click.echo(measured)


def _write(path: Path, kind: str, measured: str) -> None:
    """Replace the document's tables. Without text, only check that the document has their markers."""
    try:
        # A link stays a link.
        path = path.resolve()
        document = render.put_in(path.read_text(encoding="utf-8"), kind, measured, str(path))
        if measured:
            with replacing(path) as temporary:
                temporary.write_text(document, encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = f"cannot be read or written ({getattr(error, 'strerror', None) or 'no UTF-8'})"
        raise UserError(
            "--write", str(path), problem, "give a Markdown file, on a disk with space"
        ) from error


def _measured(
    case: ConfiguredCase, data: Path | None, checkpoint: Path | None, draws: int, candidates: int
) -> str:
    if case.config.family != "hstu":
        raise UserError("--case", case.name, f"is a case of {case.config.family}", "give one of hstu")
    if candidates % TARGETS:
        raise UserError(
            "--candidates",
            candidates,
            f"is not a multiple of {TARGETS}",
            f"give whole requests of {TARGETS} targets",
        )
    batches, items, source = _batches(case, data, draws)
    tensors, _ = case_weights(case, checkpoint)
    trained = "initial" if checkpoint is None else f"trained, {checkpoint.name}"
    rng = np.random.default_rng(case.input.seed)
    if candidates > items.size:
        raise UserError("--candidates", candidates, f"is more than the {items.size} items", "give fewer")
    result = measure(
        case.model,
        tensors,
        [rows_of(inputs.arrays) for inputs in batches],
        torch.from_numpy(rng.choice(items, candidates, replace=False)),
        lambda line: click.echo(line, err=True),
    )
    facts = {
        "model": f"{case.name} ({case.description}), weights {trained}",
        "input": f"{source}; {draws} draws of {case.input.batch_size} users, {candidates} candidates",
        "arithmetic": f"float64, {_machine()}",
    }
    return render.tables(result, facts)


def _batches(case: ConfiguredCase, data: Path | None, draws: int) -> tuple[list[CaseInputs], np.ndarray, str]:
    """A batch for each draw, the items to choose candidates from, and the source of both."""
    if data is None:
        seeds = range(case.input.seed, case.input.seed + draws)
        synthetic = [make_inputs(case.with_overrides(seed=seed)) for seed in seeds]
        items = np.arange(1, case.model.num_items + 1)
        return [run_inputs.typical for run_inputs in synthetic], items, "synthetic"
    recorded = make_inputs(case, case.read(data))
    batches = [batch.inputs for batch in recorded.batches]
    whole = [inputs for inputs in batches if inputs["past_lengths"].size == case.input.batch_size]
    if len(whole) < draws:
        raise UserError(
            "--draws",
            draws,
            f"is more than the {len(whole)} batches of {case.input.batch_size} users",
            "give fewer draws or users",
        )
    # A trained model has learned nothing about the table's other items.
    seen = np.unique(np.concatenate([inputs["past_ids"].ravel() for inputs in batches]))
    return whole[:draws], seen[seen > 0], recorded.source


def _machine() -> str:
    facts = environment()
    return f"{facts['processor']}, PyTorch {facts['torch']}"


if __name__ == "__main__":
    main()
