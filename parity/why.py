"""The explanation of a diagnosis: the tensors behind it, handed to `parity.patterns`."""

from __future__ import annotations

import math

import numpy as np
import torch

from parity.compare import Evidence, Results, TapRow
from parity.patterns import Found, explain
from parity.verdict import Verdict


def why(evidence: Evidence, results: Results, row: TapRow) -> tuple[str, ...]:
    """What explains the failure of a row, in words; nothing where no known pattern does."""
    if row.isolated is not None and not row.isolated.passed:
        return why_alone(evidence, results.isolated.get(row.tap), row)
    port = results.untapped.get(row.tap)
    port = results.tapped.get(row.tap) if port is None else port
    return _explained(evidence, evidence.oracle.get(row.tap), port, row.tap, row.accumulated)


def why_alone(evidence: Evidence, port: torch.Tensor | None, row: TapRow) -> tuple[str, ...]:
    """Likewise of a module that fails on its own, where `port` is what it gave."""
    return _explained(evidence, evidence.oracle_isolated.get(row.tap), port, row.tap, row.isolated)


def counted(evidence: Evidence, tap: str, shape: tuple[int, ...]) -> np.ndarray:
    """Which elements of a tap count: neither padding nor at a discontinuity."""
    keep = np.ones(shape, dtype=bool)
    mask = evidence.mask(shape)
    if mask is not None:
        keep &= mask
    boundary = evidence.boundary.get(tap)
    return keep if boundary is None else keep & ~boundary


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
                keep=counted(evidence, tap, shape),
                limit=verdict.limit,
                axes=_axes(evidence, shape),
                dtype=port.dtype,
            )
        )
    )


def _axes(evidence: Evidence, shape: tuple[int, ...]) -> tuple[str, ...]:
    """The batch and the sequence by name, other axes by number."""
    names = [f"axis {axis}" for axis in range(len(shape))]
    if shape and shape[0] == evidence.batch_size:
        names[0] = "the batch"
        for axis, size in enumerate(shape[1:], start=1):
            if size in evidence.valid:
                names[axis] = f"the sequence (axis {axis})"
    return tuple(names)
