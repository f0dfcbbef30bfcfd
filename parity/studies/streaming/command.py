"""The verb `stream`: reference and port over streams of one case, every step judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from parity.base.errors import UserError
from parity.base.memory import require
from parity.base.precision import PRECISIONS, Precision
from parity.case import Case
from parity.case.streams import Stream, Streams
from parity.inputs.weights import case_weights
from parity.report.schema import StreamReport
from parity.runners import make_runner
from parity.studies.streaming.judging import StepVerdicts, follow
from parity.studies.streaming.sides import PortSide, ReferenceSide, Side
from parity.studies.streaming.truth import Truth, Weights

HEADER = "precision | side | steps | items | err/limit of the cache, of the states | verdict"
NEW = (1, 3, 1, 2)
"""Items that the steps bring, in turn."""
_LEAST_OF_A_STEP = 512
"""Memory of a step of a stream at least, in bytes: some arrays of a few numbers."""
FEW_STEPS = 6
"""Appends of the short streams of a plain run, which reach positions behind the model's last."""


@dataclass(frozen=True)
class StreamVerdict:
    """One side over a stream in one precision.

    Attributes:
        precision: Name of the precision.
        side: Name of the side.
        steps: Number of judged steps.
        items: Number of items that entered the caches.
        cache_margin, output_margin: Largest error over its limit, of the state's tensors and of the outputs.
        last: The last judged step; the one that fails, if any does.
    """

    precision: str
    side: str
    steps: int
    items: int
    cache_margin: float
    output_margin: float
    last: StepVerdicts

    @property
    def passed(self) -> bool:
        return not self.last.failed

    def report(self) -> StreamReport:
        """The same for a report."""
        failed = self.last.failed
        return StreamReport(
            precision=self.precision,
            side=self.side,
            steps=self.steps,
            items=self.items,
            cache_margin=self.cache_margin,
            output_margin=self.output_margin,
            failed=failed,
            reason=self.last.verdicts[failed].reason if failed else "",
            explanation=self.last.explanation,
        )

    def line(self) -> str:
        """A row under `HEADER`."""
        last = self.last
        outcome = "PASS"
        if last.failed:
            reason = last.verdicts[last.failed].reason
            outcome = f"FAIL at step {last.step}: {last.failed}, {reason}; {last.explanation}"
        margins = f"{self.cache_margin:.2f}, {self.output_margin:.2f}"
        return f"{self.precision} | {self.side} | {self.steps} | {self.items} | {margins} | {outcome}"


def judge_streams(
    case: Case,
    precisions: Sequence[str],
    checkpoint: Path | None,
    steps: int,
    capacity: int | None,
) -> Iterator[StreamVerdict]:
    """Judge both sides over a stream, precision by precision.

    Args:
        case: The case. Its seed draws the stream and the initial weights.
        precisions: Names of precisions.
        checkpoint: File of weights; initial weights by default.
        steps: Number of steps after the first.
        capacity: Positions in the cache; a third of the model's width by default.

    Raises:
        UserError: The case has no streams, or an argument does not fit.
    """
    streams = case.streams()
    weights, _ = case_weights(case, checkpoint)
    stream, capacity = drawn_stream(streams, steps, capacity, case.seed)
    return (
        verdict
        for name in precisions
        for verdict in _judged(streams, weights, PRECISIONS[name], stream, capacity)
    )


def drawn_stream(streams: Streams, steps: int, capacity: int | None, seed: int) -> tuple[Stream, int]:
    """A stream with rows of several lengths.

    One row begins with more items than the cache holds, and two items before the end of the model's width.

    Args:
        streams: The case's models.
        steps: Number of steps after the first.
        capacity: Positions in the cache; a third of the model's width by default.
        seed: Seed of the stream.

    Returns:
        The stream, and the capacity.

    Raises:
        UserError: The capacity does not fit, or the steps need more than the available memory.
    """
    require("--steps", steps, _LEAST_OF_A_STEP * steps, "give fewer steps")
    capacity = _checked_capacity(streams, capacity)
    items = max(1, capacity // streams.positions_per_item)
    longest = max(items + 9, streams.width // streams.positions_per_item - 2)
    first = (1, longest, max(1, items // 3), max(1, items - 4))
    return streams.draw(first, steps, NEW, seed), capacity


def _checked_capacity(streams: Streams, capacity: int | None) -> int:
    width = streams.width
    if capacity is None:
        return max(1, width // 3)
    if not 0 < capacity <= width:
        problem = f"is more than the model's width, {width}" if capacity > width else "is not positive"
        raise UserError("--capacity", capacity, problem, f"give 1 to {width}")
    return capacity


def _judged(
    streams: Streams, weights: Weights, precision: Precision, stream: Stream, capacity: int
) -> Iterator[StreamVerdict]:
    truth = Truth(streams, weights, precision, stream, capacity)
    sides: Mapping[str, Side] = {
        "PyTorch": ReferenceSide(streams, weights, precision.dtype, stream.rows, capacity),
        make_runner("tripy").label(): PortSide(streams, weights, precision, stream.rows, capacity),
    }
    for label, side in sides.items():
        judged = list(follow(truth, side))
        margins = [
            (name == streams.output, verdict.margin)
            for step in judged
            for name, verdict in step.verdicts.items()
        ]
        yield StreamVerdict(
            precision=precision.name,
            side=label,
            steps=len(judged),
            items=int(sum(step.entering.sum() for step in stream.steps[: len(judged)])),
            cache_margin=max(margin for is_output, margin in margins if not is_output),
            output_margin=max(margin for is_output, margin in margins if is_output),
            last=judged[-1],
        )
