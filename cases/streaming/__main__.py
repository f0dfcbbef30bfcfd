"""`python -m cases.streaming`: run reference and port over streams, judge every step, print a table.

Exit code: 0 every step passes, 1 one does not, 2 bad input.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import click
import mlir_tensorrt
import torch

from cases.hstu.case import HSTUCase
from cases.shipped import load_case
from cases.streaming.judging import StepVerdicts, follow
from cases.streaming.sides import PortSide, ReferenceSide
from cases.streaming.streams import Truth, Weights, synthetic_stream
from parity.base.errors import UserError, check_names
from parity.base.precision import DEFAULT_PRECISIONS, PRECISIONS, Precision
from parity.inputs.weights import case_weights

BAD_INPUT = 2
NEW = (1, 3, 1, 2)
"""Items that the steps bring, in turn."""


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--case", "name", default="hstu_tiny", show_default=True, help="Of research HSTU.")
@click.option("--precision", default=",".join(DEFAULT_PRECISIONS), show_default=True, help="Comma separated.")
@click.option("--weights", "checkpoint", type=click.Path(path_type=Path), help="A checkpoint of the case.")
@click.option("--steps", type=click.IntRange(min=1), default=200, show_default=True)
@click.option("--capacity", type=click.IntRange(min=1), help="Of the cache. [default: a third of the width]")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the streams.")
def main(
    name: str, precision: str, checkpoint: Path | None, steps: int, capacity: int | None, seed: int
) -> None:
    """Append items to streams of research HSTU and compare every step with the full forward."""
    try:
        case = _research_case(name)
        chosen = check_names("--precision", precision.split(","), PRECISIONS)
        capacity = _checked(case, capacity)
        tensors, _ = case_weights(case, checkpoint)
    except UserError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(BAD_INPUT)
    click.echo("precision | side | steps | items | err/limit of the cache, of the states | verdict")
    failed = False
    for each in chosen:
        failed |= _judged(case, PRECISIONS[each], tensors, steps, capacity, seed)
    sys.exit(int(failed))


def _research_case(name: str) -> HSTUCase:
    """A case by name. Raises `UserError` for another architecture's."""
    case = load_case(name)
    if not isinstance(case, HSTUCase):
        raise UserError("--case", case.name, f"is a case of {case.config.family}", "give one of hstu")
    return case


def _checked(case: HSTUCase, capacity: int | None) -> int:
    """The capacity. Raises `UserError` for a case without streams, and for a cache that does not fit."""
    if case.model.normalization == "softmax_rel_bias":
        raise UserError(
            "--case", case.name, "has softmax attention, over positions to come", "give one of rel_bias"
        )
    width = case.model.sequence_width
    capacity = max(1, width // 3) if capacity is None else capacity
    if capacity > width:
        raise UserError("--capacity", capacity, f"is more than the model's width, {width}", "give less")
    return capacity


def _judged(
    case: HSTUCase, precision: Precision, tensors: Weights, steps: int, capacity: int, seed: int
) -> bool:
    """Print a line for each side; whether one fails."""
    items = max(1, capacity // case.model.positions_per_item)
    first = (1, items + 9, max(1, items // 3), max(1, items - 4))
    stream = synthetic_stream(case.model, first, steps, NEW, seed)
    truth = Truth(case.model, tensors, precision, stream, capacity)
    sides = {
        "PyTorch": ReferenceSide(case.model, tensors, precision.dtype, len(first), capacity),
        _label(): PortSide(case.model, tensors, precision, len(first), capacity),
    }
    failed = False
    for label, side in sides.items():
        found = list(follow(truth, side))
        margins: Counter[str] = Counter()
        for step in found:
            for tensor, verdict in step.verdicts.items():
                part = "states" if tensor == "encoded" else "cache"
                margins[part] = max(margins[part], verdict.margin)
        last = found[-1]
        appended = int(sum(each.kept.sum() for each in stream.steps[: len(found)]))
        click.echo(
            f"{precision.name} | {label} | {len(found)} | {appended} | "
            f"{margins['cache']:.2f}, {margins['states']:.2f} | {_outcome(last)}"
        )
        failed |= bool(last.failed)
    return failed


def _outcome(last: StepVerdicts) -> str:
    if not last.failed:
        return "PASS"
    return f"FAIL at step {last.step}: {last.failed}, {last.verdicts[last.failed].reason}; {last.why}"


def _label() -> str:
    if not getattr(mlir_tensorrt, "__portable__", False):
        return "tripy (native)"
    return f"tripy (portable, {'cuda' if torch.cuda.is_available() else 'cpu'})"


if __name__ == "__main__":
    main()
