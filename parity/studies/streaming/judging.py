"""Verdicts of every tensor of every step, and the content of a wrong cache.

The tensors of a step are judged in the order of their computation. The rows' lengths come first, then the
cached tensors in the order of `Streams.cached`, then the outputs of the new positions. The verdict names the
first failure, since later tensors depend on it.

Legend: B rows, C capacity, N positions, X width.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from parity.case.streams import FullForward
from parity.studies.streaming.sides import Results, Side
from parity.studies.streaming.truth import LENGTHS, Place, Truth
from parity.verdict.rule import Verdict, judge
from parity.verdict.sampling_error import RoundingSamples


@dataclass(frozen=True)
class StepVerdicts:
    """The verdicts of one step.

    Attributes:
        step: Number of the step, from 0.
        verdicts: By tensor, in order.
        failed: Name of the first tensor that fails; empty if none does.
        explanation: The probable mistake in words.
    """

    step: int
    verdicts: dict[str, Verdict]
    failed: str = ""
    explanation: str = ""


def follow(truth: Truth, side: Side) -> Iterator[StepVerdicts]:
    """Run a side over the truth's stream and judge each step. Ends after the first step that fails."""
    per_item = truth.streams.positions_per_item
    begun = np.zeros(truth.stream.rows, dtype=np.int64)
    for index, step in enumerate(truth.stream.steps):
        results = side.append(truth.streams.arguments(truth.stream, begun, step))
        place = Place(begun * per_item, step.new * per_item, step.entering * per_item)
        judged = _judge_step(truth, index, results, place)
        yield judged
        if judged.failed:
            return
        begun = begun + step.entering


def _judge_step(truth: Truth, index: int, results: Results, place: Place) -> StepVerdicts:
    oracle, reference = truth.taps(truth.oracle, place), truth.taps(truth.reference, place)
    filled_BC = (place.slots(truth.capacity) >= 0).numpy()
    samples = torch.stack([place.outputs_of(sample) for sample in truth.samples])
    verdicts = {}
    for name, expected in oracle.items():
        valid = None
        if name in truth.streams.cached:
            filled = filled_BC.reshape(filled_BC.shape + (1,) * (expected.ndim - 2))
            valid = np.broadcast_to(filled, expected.shape)
        verdicts[name] = judge(
            expected,
            reference[name],
            results[name],
            truth.precision,
            truth.longest_sum,
            valid=valid,
            modules=truth.modules,
            rounding_samples=RoundingSamples(samples) if name == truth.streams.output else None,
        )
    failed = next((name for name, verdict in verdicts.items() if not verdict.passed), "")
    if not failed:
        return StepVerdicts(index, verdicts)
    explanation = _explain(truth, failed, results[failed], verdicts[failed], place)
    return StepVerdicts(index, verdicts, failed, explanation)


def _explain(truth: Truth, name: str, result: torch.Tensor, verdict: Verdict, place: Place) -> str:
    """The probable mistake behind a wrong tensor."""
    expected = truth.taps(truth.oracle, place)[name]
    if name == LENGTHS:
        return f"the streams have {result.tolist()} positions, not {expected.tolist()}"
    expected_BNX = expected.double().reshape(*expected.shape[:2], -1)
    result_BNX = result.double().reshape(expected_BNX.shape)
    bound = float(verdict.limit.largest * expected_BNX.abs().max())
    wrong_BN = (result_BNX - expected_BNX).abs().amax(2) > bound
    if name in truth.streams.cached:
        wanted_BC = place.slots(truth.capacity)
        wrong_BN &= wanted_BC >= 0
        known = truth.oracle.cached[name].double()
        known_BNX = known.reshape(*known.shape[:2], -1)
        content = _content(result_BNX, wrong_BN, wanted_BC, known_BNX, bound)
        if content:
            return content
    explanations = [truth.streams.origin(name)]
    # Integers come from the input, without arithmetic that a mistake could change. An error of many small
    # parts has no wrong element: every mistake would fit it.
    if expected.is_floating_point() and wrong_BN.any():
        for text, full in _mistaken_forwards(truth):
            mistaken_BNX = truth.taps(full, place)[name].double().reshape(expected_BNX.shape)
            if (mistaken_BNX - result_BNX)[wrong_BN].abs().amax() <= bound:
                explanations.append(text)
    return "; ".join(explanations)


def _content(
    result_BCX: torch.Tensor,
    wrong_BC: torch.Tensor,
    wanted_BC: torch.Tensor,
    known_BNX: torch.Tensor,
    bound: float,
) -> str:
    """The positions in the wrong slots of a cache, in words.

    It is empty if no slot is wrong, or most of the wrong ones hold no known position.

    Args:
        result_BCX: The cached tensor.
        wrong_BC: Whether a slot is wrong.
        wanted_BC: The position that belongs into a slot.
        known_BNX: The right values of every position.
        bound: Largest difference of an element that rounding explains.
    """
    wrong = result_BCX[wrong_BC]
    count = len(wrong)
    if not count:
        return ""
    distance, nearest = torch.cdist(wrong, known_BNX.flatten(0, 1), p=torch.inf).min(1)
    row = torch.nonzero(wrong_BC)[:, 0]
    is_known = distance <= bound
    holder, position = nearest // known_BNX.size(1), nearest % known_BNX.size(1)
    is_empty = (wrong == 0).all(1)
    if is_empty.all():
        return f"{count} slots are empty"
    if int(is_known.sum()) * 2 <= int((~is_empty).sum()):
        return ""
    is_others = is_known & (holder != row)
    if int(is_others.sum()) * 2 > int(is_known.sum()):
        at = int(is_others.nonzero()[0, 0])
        return (
            f"{int(is_others.sum())} of {count} wrong slots hold another row's positions: "
            f"row {row[at]} holds row {holder[at]}'s"
        )
    own = is_known & ~is_others
    oldest = wanted_BC[:, 0][row]
    if bool((position < oldest)[own].all()):
        at = int(own.nonzero()[0, 0])
        return (
            f"{int(own.sum())} of {count} wrong slots hold a stale entry, not evicted: "
            f"row {row[at]} holds position {position[at]}, and {oldest[at]} is its oldest"
        )
    moves = collections.Counter((position - wanted_BC[wrong_BC])[own].tolist())
    move, times = moves.most_common(1)[0]
    return f"{times} of {count} wrong slots hold the position {move:+d} from theirs: off by {abs(move)}"


def _mistaken_forwards(truth: Truth) -> Iterator[tuple[str, FullForward]]:
    """Mistakes in words, each with the full forward of a model that makes it."""
    c = truth.capacity
    yield (
        f"as if {c + 1} positions were seen: the oldest, which should have been evicted, too",
        truth.altered(c + 1),
    )
    if c > 1:
        yield f"as if {c - 1} positions were seen: the oldest is missing", truth.altered(c - 1)
    for text, change in truth.streams.mistakes().items():
        yield text, truth.altered(c, change)
