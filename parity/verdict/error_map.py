"""Error maps: the place of a tensor's error, which shows a wrong mask or a padding leak at once.

A map shows the tensor's two most telling axes, batch and position if it has them. Each cell holds the largest
error over all other axes and over its elements. A cell is one character: the level of error over limit, see
`LEVELS`, or `OUTSIDE` if no element of the cell is compared. A report stays small, and `report.json` shows
the map to a reader.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import replace

import numpy as np
import torch

from parity.capture.names import TapName
from parity.verdict.evidence import Evidence, Results
from parity.verdict.judgement import ErrorMap, RunnerJudgement, TapJudgement
from parity.verdict.rule import Verdict

LEVELS = (0.0, 0.1, 0.25, 0.5, 1.0, 3.0, 10.0, 100.0, 1000.0)
"""Level i holds error/limit up to LEVELS[i]. Level 0 equals the oracle; level 9 holds all larger errors."""
WITHIN_LIMIT = LEVELS.index(1.0)
"""The highest level within the limit."""
OUTSIDE = "."
MAX_ROWS, MAX_COLUMNS = 32, 64
MOST_TOGETHER = 2**18
"""Most elements of slices whose errors are in memory at once; a larger slice is alone."""
FAILING, PASSING = 8, 3
"""Numbers of failing and of passing taps with maps: the first failures, and those closest to a limit."""


def with_error_maps(judgement: RunnerJudgement, evidence: Evidence, results: Results) -> RunnerJudgement:
    """A judgement on one batch with the maps of its telling taps, from the tensors of the batch."""
    telling = _telling(judgement.taps)
    taps = []
    for tap in judgement.taps:
        maps = _maps(tap, evidence, results) if tap.tap in telling else {}
        if tap.tap == judgement.padding_leak:
            maps |= _padding_map(tap.tap, evidence, results)
        taps.append(replace(tap, error_maps=maps))
    return replace(judgement, taps=tuple(taps))


def with_telling_maps(judgement: RunnerJudgement) -> RunnerJudgement:
    """A judgement on all batches, with maps of its telling taps only."""
    telling = _telling(judgement.taps) | {judgement.padding_leak}
    taps = (tap if tap.tap in telling else replace(tap, error_maps={}) for tap in judgement.taps)
    return replace(judgement, taps=tuple(taps))


def _telling(taps: Iterable[TapJudgement]) -> set[str]:
    """Names of the taps with maps."""
    taps = [tap for tap in taps if not tap.gap]
    # Taps come in the order in which modules finish: the first failures are nearest to their cause.
    failing = [tap.tap for tap in taps if not tap.passed]
    passing = sorted((tap for tap in taps if tap.passed and tap.margin > 0.0), key=lambda tap: -tap.margin)
    return {*failing[:FAILING], *(tap.tap for tap in passing[:PASSING])}


def _maps(tap: TapJudgement, evidence: Evidence, results: Results) -> dict[str, ErrorMap]:
    """Maps of the verdicts that fail, else of the one closest to its limit."""
    shown = {name: verdict for name, verdict in tap.verdicts.items() if not verdict.passed}
    if not shown and tap.verdicts:
        closest = max(tap.verdicts, key=lambda name: tap.verdicts[name].margin)
        shown = {closest: tap.verdicts[closest]}
    maps = {name: _verdict_map(tap.tap, name, verdict, evidence, results) for name, verdict in shown.items()}
    return {name: error_map for name, error_map in maps.items() if error_map is not None}


def _verdict_map(
    tap: str, name: str, verdict: Verdict, evidence: Evidence, results: Results
) -> ErrorMap | None:
    if name == "isolated":
        oracle, port = evidence.oracle_isolated.get(tap), results.isolated.get(tap)
    else:
        is_output = TapName.parse(tap).is_output_of(evidence.entry)
        oracle = evidence.truth_inside(tap, verdict.bound)
        port = (results.untapped if is_output else results.tapped).get(tap)
    if oracle is None or port is None or oracle.shape != port.shape:
        return None
    counted = evidence.counted(tap, tuple(oracle.shape))
    # NaN leaves no limit; the floor is the limit beside an exact reference.
    limit = verdict.bound.floor if math.isnan(verdict.limit.largest) else verdict.limit.largest
    return error_map(oracle, port, counted, limit, evidence.batch_size, evidence.valid)


def _padding_map(tap: str, evidence: Evidence, results: Results) -> dict[str, ErrorMap]:
    """The map of elements that garbage in the padding changes, under "poisoned"."""
    clean, poisoned = results.tapped.get(tap), results.poisoned.get(tap)
    if clean is None or poisoned is None or clean.shape != poisoned.shape:
        return {}
    counted = evidence.counted(tap, tuple(clean.shape))
    changed = error_map(clean, poisoned, counted, 0.0, evidence.batch_size, evidence.valid)
    return {"poisoned": changed} if changed else {}


def error_map(
    oracle: torch.Tensor,
    port: torch.Tensor,
    counted: np.ndarray,
    limit: float,
    batch_size: int,
    sequence_sizes: Collection[int],
) -> ErrorMap | None:
    """Map the port's error; None for a tensor without two axes or without compared elements.

    Args:
        oracle: The float64 result, or the exact integers.
        port: The port's result, of the same shape.
        counted: Boolean mask of the compared elements, of the same shape.
        limit: Largest error of an element, relative to the oracle's largest element.
        batch_size: Size of a first axis that is the batch.
        sequence_sizes: Sizes of axes that are positions.
    """
    axes = _telling_axes(tuple(oracle.shape), batch_size, sequence_sizes)
    if axes is None or not counted.any():
        return None
    (row, row_name), (column, column_name) = axes
    # Some slices of the first axis at a time: the whole difference in float64 may not fit into memory.
    others = tuple(axis for axis in range(1, oracle.ndim) if axis not in (row, column))
    step = max(1, MOST_TOGETHER * oracle.shape[0] // oracle.numel())
    parts = [slice(start, start + step) for start in range(0, oracle.shape[0], step)]
    largest = [
        _largest(oracle[part].double().numpy(), port[part].double().numpy(), counted[part], others)
        for part in parts
    ]
    worst, scale = np.concatenate([worst for worst, _ in largest]), max(scale for _, scale in largest)
    if row > 0:
        worst = worst.max(axis=0)
    cells = _binned(worst, MAX_ROWS, MAX_COLUMNS)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(cells == 0.0, 0.0, cells / (scale * limit))
    levels = np.searchsorted(LEVELS, ratio)  # NaN sorts last, into the highest level.
    text = np.where(np.isneginf(cells), OUTSIDE, levels.astype(str))
    return ErrorMap(
        axes=(row_name, column_name),
        shape=(oracle.shape[row], oracle.shape[column]),
        cells=tuple("".join(line) for line in text),
    )


def _telling_axes(
    shape: tuple[int, ...], batch_size: int, sequence_sizes: Collection[int]
) -> tuple[tuple[int, str], tuple[int, str]] | None:
    """The batch, then positions, then any other axis longer than 1: the first two, in the tensor's order."""
    ranked = []
    for axis, size in enumerate(shape):
        if axis == 0 and size == batch_size:
            ranked.append((0, axis, "batch"))
        elif size in sequence_sizes:
            ranked.append((1, axis, "position"))
        elif size > 1:
            ranked.append((2, axis, f"axis {axis}"))
    chosen = sorted((axis, name) for _, axis, name in sorted(ranked)[:2])
    return (chosen[0], chosen[1]) if len(chosen) == 2 else None


def _largest(
    oracle: np.ndarray, port: np.ndarray, counted: np.ndarray, others: tuple[int, ...]
) -> tuple[np.ndarray, float]:
    """The largest error over the other axes, -inf if none is compared, and the oracle's largest element."""
    with np.errstate(invalid="ignore"):
        # Equal infinities have no difference.
        distance = np.where(port == oracle, 0.0, np.abs(port - oracle))
        difference = np.where(counted, distance, -np.inf)
    scale = np.abs(oracle, where=counted, out=np.zeros_like(oracle))
    # A maximum with NaN is NaN.
    return difference.max(axis=others), float(np.max(scale, initial=0.0, where=np.isfinite(scale)))


def _binned(values: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Largest values of at most rows x columns cells; all cells but the last ones have equal sizes."""
    for axis, most in ((0, rows), (1, columns)):
        size = -(-values.shape[axis] // most)
        values = np.maximum.reduceat(values, np.arange(0, values.shape[axis], size), axis=axis)
    return values
