"""The compared elements of three results: reasons why they cannot be compared, and the worst of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

WORST_ELEMENTS = 5
"""Number of the worst elements in a verdict."""
BLOCK_ELEMENTS = 4096
"""Elements of a block in the search for the worst."""


@dataclass(frozen=True, slots=True)
class Element:
    """One element of a tap: its index and its value in the three results."""

    index: tuple[int, ...]
    oracle: float
    reference: float
    port: float


def mismatch_reason(oracle: torch.Tensor, reference: torch.Tensor, port: torch.Tensor) -> str:
    """The reason why shapes or types forbid a comparison; empty if none. Integers may have two types."""
    if port.shape != reference.shape:
        return f"shape {tuple(port.shape)} differs from the reference's {tuple(reference.shape)}"
    if oracle.shape != reference.shape:
        return f"oracle shape {tuple(oracle.shape)} differs from {tuple(reference.shape)}"
    if port.dtype != reference.dtype and not (is_integer(port) and is_integer(reference)):
        return _other_type(reference, port)
    return ""


EQUAL_VALUES = "and all values are equal: cast one of them, such as by tp.cast(x, tp.int64)"
"""End of the reason where integers differ in their type alone."""


def other_integers_reason(reference: torch.Tensor, port: torch.Tensor) -> str:
    """The reason why equal integers fail: their types; empty if they match."""
    if port.dtype == reference.dtype:
        return ""
    return f"{_other_type(reference, port)}, {EQUAL_VALUES}"


def _other_type(reference: torch.Tensor, port: torch.Tensor) -> str:
    return f"dtype {port.dtype} differs from the reference's {reference.dtype}"


def is_integer(tensor: torch.Tensor) -> bool:
    """Whether the elements are integers, and no booleans."""
    return tensor.dtype is not torch.bool and not tensor.dtype.is_floating_point


def compared(side: torch.Tensor, counted: np.ndarray) -> np.ndarray:
    """The counted elements as float64. NumPy's masks take a tenth of the time of PyTorch's."""
    if side.dtype is torch.bfloat16:
        # NumPy does not have the type, but has its bits.
        bits = side.view(torch.int16).numpy()[counted]
        return torch.from_numpy(bits).view(torch.bfloat16).to(torch.float64).numpy()
    # Memory that a faulty port did not write may hold signalling NaNs, of which NumPy's cast warns.
    with np.errstate(invalid="ignore"):
        return side.numpy()[counted].astype(np.float64, copy=False)


NO_CALL = ("missing: the port never calls ", "missing: the port calls ")
"""Beginnings of the reason of a call that the port does not make."""
EXTRA_CALL = ("extra: the reference never calls ", "extra: the port calls ")
"""Beginnings of the reason of a call that the reference does not make."""
NOT_FINITE = "NaN or Inf among the compared elements: "
"""Beginning of the reason of a result with NaN, or with Inf that another side does not have."""
RAISES = "the module failed"
"""Beginning of the reason of a module that raises alone."""
NO_VERDICT = "so no verdict is possible"
"""Part of the reason where non-finite elements are no fault of the port."""


def non_finite_reason(o: np.ndarray, r: np.ndarray, p: np.ndarray) -> str:
    """The reason to refuse non-finite elements; empty if all are finite.

    NaN in all three results fails too: it hides errors.
    """
    lost = {side: ~np.isfinite(values) for side, values in (("oracle", o), ("reference", r), ("port", p))}
    counts = {side: int(own.sum()) for side, own in lost.items()}
    if not any(counts.values()):
        return ""
    text = ", ".join(f"{count} in the {side}" for side, count in counts.items() if count)
    if len(set(counts.values())) == 1:
        both = "the oracle and the reference have them too"
        text += f"; {both}, {NO_VERDICT}: look for them in the inputs and weights"
    elif counts["reference"] and not counts["oracle"] and not (lost["port"] & ~lost["reference"]).any():
        only = "the oracle has numbers there and the reference none"
        text += f"; {only}, {NO_VERDICT}: the reference itself does not work in this precision"
    return f"{NOT_FINITE}{text}"


def worst_elements(
    distance: np.ndarray, counted: np.ndarray, o: np.ndarray, r: np.ndarray, p: np.ndarray
) -> tuple[Element, ...]:
    """The elements with the largest distances, the worst first.

    Args:
        distance: Absolute errors of the compared elements, (n,).
        counted: Mask of the n compared elements in the tensor.
        o, r, p: The compared elements of oracle, reference and port, (n,).
    """
    count = min(WORST_ELEMENTS, distance.size)
    order = _largest(distance, count)
    order = order[np.argsort(-distance[order], kind="stable")]
    flat = order if distance.size == counted.size else np.flatnonzero(counted)[order]
    indices = (
        np.stack(np.unravel_index(flat, counted.shape), axis=-1)
        if counted.ndim
        else np.zeros((count, 0), int)
    )
    return tuple(
        Element(tuple(int(i) for i in index), float(o[at]), float(r[at]), float(p[at]))
        for index, at in zip(indices, order, strict=True)
    )


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Positions of the `count` largest values, which lie in the `count` blocks of the largest maxima."""
    blocks = values.size // BLOCK_ELEMENTS
    positions = np.arange(values.size) if blocks <= count else np.arange(blocks * BLOCK_ELEMENTS, values.size)
    if blocks > count:
        whole = values[: blocks * BLOCK_ELEMENTS].reshape(blocks, BLOCK_ELEMENTS)
        chosen = np.argpartition(whole.max(axis=1), -count)[-count:]
        inside = chosen[:, np.newaxis] * BLOCK_ELEMENTS + np.arange(BLOCK_ELEMENTS)
        positions = np.concatenate([inside.ravel(), positions])
    return positions[np.argpartition(values[positions], -count)[-count:]]
