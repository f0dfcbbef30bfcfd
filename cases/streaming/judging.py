"""Verdicts of every tensor of every step, and what a wrong cache holds.

Tensors of a step are judged in the order in which they come about: how long the streams are, the times in the
cache, the blocks' keys and values from the first block to the last, then the states of the new positions.
The first that fails is named; what comes behind it follows from it. A block's keys and values come from the
states that the block before it gave out: where they are the first to fail, behind the first block, the
attention of the block before is wrong, and its cache is right.

Legend: B rows, C capacity, N positions, X width.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from cases.streaming.sides import Results, Side
from cases.streaming.streams import Altered, Full, Truth, rows_of
from parity.verdict.rule import Verdict, judge
from parity.verdict.sampling_error import RoundingSamples


@dataclass(frozen=True)
class StepVerdicts:
    """One step's verdicts by tensor, in order; ``failed`` names the first that fails, ``why`` its mistake."""

    step: int
    verdicts: dict[str, Verdict]
    failed: str = ""
    why: str = ""


def follow(truth: Truth, side: Side) -> Iterator[StepVerdicts]:
    """Run a side over the truth's stream and judge each step. Ends behind the first step that fails."""
    per_item, rows = truth.config.positions_per_item, truth.stream.ids.shape[0]
    begun = np.zeros(rows, dtype=np.int64)
    for index, step in enumerate(truth.stream.steps):
        ids, ratings, times = truth.stream.items(begun, step.new)
        times = np.repeat(times, per_item, axis=1)[:, : step.new * per_item + 1]
        results = side.append(ids, ratings, times, step.kept)
        place = (begun * per_item, step.new * per_item, step.kept * per_item, truth.capacity)
        found = _judge_step(truth, index, results, place)
        yield found
        if found.failed:
            return
        begun = begun + step.kept


Place = tuple[np.ndarray, int, np.ndarray, int]
"""Arguments of `Full.taps`: positions before the step (B,), new ones, how many stay (B,), capacity."""


def _judge_step(truth: Truth, index: int, results: Results, place: Place) -> StepVerdicts:
    oracle, reference = truth.oracle.taps(*place), truth.reference.taps(*place)
    begun, new, kept, capacity = place
    filled_BC = np.arange(capacity) >= capacity - (begun + kept)[:, None]
    row = torch.from_numpy(begun).unsqueeze(1) + torch.arange(new)
    drawn = torch.stack([rows_of(draw, row) for draw in truth.draws])
    verdicts = {}
    for name, expected in oracle.items():
        in_cache = name not in ("lengths", "encoded")
        valid = filled_BC.reshape(filled_BC.shape + (1,) * (expected.ndim - 2)) if in_cache else None
        verdicts[name] = judge(
            expected,
            reference[name],
            results[name],
            truth.precision,
            truth.longest_sum,
            valid=None if valid is None else np.broadcast_to(valid, expected.shape),
            modules=truth.modules,
            rounding_samples=RoundingSamples(drawn) if name == "encoded" else None,
        )
    failed = next((name for name, verdict in verdicts.items() if not verdict.passed), "")
    why = _why(truth, failed, results[failed], verdicts[failed], place) if failed else ""
    return StepVerdicts(index, verdicts, failed, why)


def _why(truth: Truth, name: str, result: torch.Tensor, verdict: Verdict, place: Place) -> str:
    """What a wrong tensor holds, as far as it can be told."""
    expected = truth.oracle.taps(*place)[name]
    if name == "lengths":
        return f"the streams have {result.tolist()} positions, not {expected.tolist()}"
    begun, _, kept, capacity = place
    expected_BNX = expected.double().reshape(*expected.shape[:2], -1)
    result_BNX = result.double().reshape(expected_BNX.shape)
    bound = float(verdict.limit.largest * expected_BNX.abs().max())
    wrong_BN = (result_BNX - expected_BNX).abs().amax(2) > bound
    if name != "encoded":
        first_BN = torch.from_numpy(begun + kept).unsqueeze(1) - capacity + torch.arange(capacity)
        wrong_BN &= first_BN >= 0
        known = truth.oracle.timestamps.unsqueeze(2) if name == "timestamps" else truth.oracle.kv(name)
        held = _held(result_BNX, wrong_BN, first_BN, known.double(), bound)
        if held or name == "timestamps":
            return held or "the cache holds times of no position"
    found = [
        text
        for text, full in _alternatives(truth)
        if (full.taps(*place)[name].double() - result_BNX)[wrong_BN].abs().amax() <= bound
    ]
    return "; ".join([_origin(name, len(truth.oracle.cache)), *found])


def _origin(name: str, blocks: int) -> str:
    """What a tensor comes from that is right up to there."""
    if name == "encoded":
        return f"the attention of block {blocks - 1}, or what follows it"
    block = int(name.split(".")[1])
    if block == 0:
        return "the new positions' input, or block 0's projection"
    return f"the attention of block {block - 1}: its own cache is right"


def _held(
    result: torch.Tensor, wrong: torch.Tensor, wanted: torch.Tensor, known: torch.Tensor, bound: float
) -> str:
    """Which positions the wrong slots of a cache hold, if most of them hold any; else nothing.

    Args:
        result: (B, C, X). wrong, wanted: (B, C), which slots are wrong, and the positions that belong there.
        known: (B, N, X), of every position.
        bound: largest difference of an element that rounding explains.
    """
    count = int(wrong.sum())
    distance, nearest = torch.cdist(result[wrong], known.flatten(0, 1), p=torch.inf).min(1)
    row = torch.nonzero(wrong)[:, 0]
    is_known = distance <= bound
    holder, position = nearest // known.size(1), nearest % known.size(1)
    is_empty = (result[wrong] == 0).all(1)
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
    oldest = wanted[:, 0][row]
    if bool((position < oldest)[own].all()):
        at = int(own.nonzero()[0, 0])
        return (
            f"{int(own.sum())} of {count} wrong slots hold a stale entry, not evicted: "
            f"row {row[at]} holds position {position[at]}, and {oldest[at]} is its oldest"
        )
    moves = collections.Counter((position - wanted[wrong])[own].tolist())
    move, times = moves.most_common(1)[0]
    return f"{times} of {count} wrong slots hold the position {move:+d} from theirs: off by {abs(move)}"


def _alternatives(truth: Truth) -> Iterator[tuple[str, Full]]:
    """Full forwards with a mistake, and its name."""
    c = truth.capacity
    yield (
        f"as if {c + 1} positions were seen: the oldest, which should have been evicted, too",
        truth.altered(c + 1),
    )
    if c > 1:
        yield f"as if {c - 1} positions were seen: the oldest is missing", truth.altered(c - 1)
    for shift, word in ((1, "high"), (-1, "low")):
        yield f"as if learned positions were one too {word}", truth.altered(c, _rolled("_pos_emb", shift))
        yield (
            f"as if relative positions were one too {word}",
            truth.altered(c, _rolled("_rel_attn_bias", shift)),
        )


def _rolled(part: str, shift: int) -> Altered:
    """Puts the weights of the next or the last position in the place of each position's."""

    def alter(model: torch.nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if part in name and not name.endswith("_ts_w"):
                parameter.data = parameter.data.roll(-shift, dims=0)

    return alter
