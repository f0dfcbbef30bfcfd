"""The explanation of a diagnosis: the tensors behind it, handed to `parity.verdict.patterns`."""

from __future__ import annotations

import math

import numpy as np
import torch

from parity.inputs.masks import bits
from parity.verdict.comparison import Evidence, Results
from parity.verdict.diagnosis import TapRow
from parity.verdict.patterns import Found, explain, named_places
from parity.verdict.rule import Verdict


def why(evidence: Evidence, results: Results, row: TapRow) -> tuple[str, ...]:
    """What explains the failure of a row, in words; nothing where no known pattern does.

    A row that passes is one into which padding leaks.
    """
    if row.passed:
        return _leak(evidence, results, row.tap)
    if row.isolated is not None and not row.isolated.passed:
        return why_alone(evidence, results.isolated.get(row.tap), row)
    port = results.untapped.get(row.tap)
    port = results.tapped.get(row.tap) if port is None else port
    return _explained(evidence, evidence.oracle.get(row.tap), port, row.tap, row.accumulated)


def why_alone(evidence: Evidence, port: torch.Tensor | None, row: TapRow) -> tuple[str, ...]:
    """Likewise of a module that fails on its own, where `port` is what it gave; of an output without one."""
    if row.isolated is None:
        return _explained(evidence, evidence.oracle.get(row.tap), port, row.tap, row.accumulated)
    return _explained(evidence, evidence.oracle_isolated.get(row.tap), port, row.tap, row.isolated)


def _explained(
    evidence: Evidence,
    oracle: torch.Tensor | None,
    port: torch.Tensor | None,
    tap: str,
    verdict: Verdict | None,
) -> tuple[str, ...]:
    if oracle is None or port is None or verdict is None or verdict.passed or math.isnan(verdict.limit.l2):
        return ()
    shape = tuple(oracle.shape)
    return tuple(
        explain(
            Found(
                oracle=oracle.to(torch.float64).numpy(),
                port=port.to(torch.float64).numpy(),
                keep=evidence.counted(tap, shape),
                limit=verdict.limit,
                axes=_axes(evidence, shape),
                dtype=port.dtype,
            )
        )
    )


def _leak(evidence: Evidence, results: Results, tap: str) -> tuple[str, ...]:
    """How much of a tap garbage in the padding changes, and how far from the padding."""
    clean, poisoned = results.tapped.get(tap), results.poisoned.get(tap)
    if clean is None or poisoned is None or clean.shape != poisoned.shape:
        return ()
    shape = tuple(clean.shape)
    keep = evidence.mask(shape)
    keep = np.ones(shape, dtype=bool) if keep is None else np.broadcast_to(keep, shape)
    changed = keep & (bits(clean) != bits(poisoned))
    if not changed.any():
        return ()
    places = named_places(changed, _axes(evidence, shape))
    return (
        f"{int(changed.sum())} of {int(keep.sum())} valid elements change"
        + (f", all {'; '.join(places)}" if places else ""),
        *_reach(evidence, changed),
    )


def _reach(evidence: Evidence, changed: np.ndarray) -> tuple[str, ...]:
    """How many positions from the padding changed elements lie: a step too far, or a sum over all of it."""
    for axis, size in enumerate(changed.shape[1:], start=1):
        if size not in evidence.valid or changed.shape[0] != evidence.batch_size:
            continue
        valid = evidence.valid[size]
        hit = changed.any(axis=tuple(other for other in range(1, changed.ndim) if other != axis))
        # Valid positions of the same sequence that follow each one.
        behind = valid[:, ::-1].cumsum(axis=1)[:, ::-1] - 1
        reached = int(behind[hit].max()) + 1
        padded = valid & ~valid.all(axis=1, keepdims=True)
        if (hit == padded).all():
            return ("every valid position of the sequences with padding: something runs over the padding",)
        return (f"no further than {reached} positions from the padding",)
    return ()


def _axes(evidence: Evidence, shape: tuple[int, ...]) -> tuple[str, ...]:
    """The batch and the sequence by name, other axes by number."""
    names = [f"axis {axis}" for axis in range(len(shape))]
    if shape and shape[0] == evidence.batch_size:
        names[0] = "the batch"
        for axis, size in enumerate(shape[1:], start=1):
            if size in evidence.valid:
                names[axis] = f"the sequence (axis {axis})"
    return tuple(names)
