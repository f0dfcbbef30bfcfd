"""Runs of some rows of a batch at a time, for batches that need too much memory.

The float64 oracle makes tensors of twice the size, and a port's tapped graph returns all taps at once. A
batch above `MemoryBudget.slice_bytes` runs in parts, and each tap joins the parts' rows. The result is the
same for independent rows: `Case.rows` states the independence, and a test checks it. Runs of the whole model
(`run`, `run_incremental`) and the reference's run that records the calls stay whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass

import numpy as np
import torch

from parity.capture.captures import Capture, ModuleCall, Through
from parity.capture.spool import LARGE_BYTES, Spool
from parity.capture.store import Stored
from parity.case import Case
from parity.inputs.masks import same_where_valid, valid_elements

TEMPORARIES = 4
"""Tensors of the largest size that an expression holds at once, with its result: SiLU of a sum, divided."""


@dataclass(frozen=True)
class MemoryBudget:
    """Sizes in bytes that decide how a run uses memory and disk, and no verdict.

    Attributes:
        large_bytes: Size from which a tensor has a file of its own.
        slice_bytes: Memory that one part of a batch may take.
        alone_bytes: Memory above which a run of a whole batch has the machine to itself.
        memory: Memory of the whole run that the user allows.
        fixed_bytes: The part of it that processes and weights take.
    """

    large_bytes: int = LARGE_BYTES
    slice_bytes: int = 2**30
    alone_bytes: int = 3 * 2**30
    memory: float = math.inf
    fixed_bytes: int = 0


def working_bytes(reference: Capture, path: str | None = None) -> int:
    """Bytes that a running module or model holds, in the reference's precision."""
    largest = reference.largest_results
    return TEMPORARIES * (max(largest.values(), default=0) if path is None else largest.get(path, 0))


def tapped_bytes(reference: Capture, holds_taps: bool) -> int:
    """Bytes that a run with taps holds."""
    if not holds_taps:
        return working_bytes(reference)
    received = (argument for call in reference.arguments.values() for argument in call.arguments)
    # An argument with an origin is no tensor of its own.
    keys = {argument.tensor for argument in received if argument.tensor and not argument.origin}
    arguments = sum(_sizes(reference.call_inputs)[key] for key in keys)
    return working_bytes(reference) + sum(_sizes(reference.tensors).values()) + arguments


def largest_tap_bytes(reference: Capture) -> int:
    """Bytes of the largest tap, in the reference's precision."""
    return max(_sizes(reference.tensors).values(), default=0)


def call_bytes(reference: Capture, call: ModuleCall) -> int:
    """Bytes that a single call holds, with its arguments and results."""
    return working_bytes(reference, call.path) + moved_bytes(reference, call)


def moved_bytes(reference: Capture, call: ModuleCall) -> int:
    """Bytes of a call's arguments and results, with their copies on a device."""
    inputs, taps = _sizes(reference.call_inputs), _sizes(reference.tensors)
    return 2 * sum(inputs.get(key, 0) for key in call.tensor_keys) + sum(
        taps.get(name, 0) for name in call.outputs
    )


def _sizes(tensors: Mapping[str, torch.Tensor]) -> Mapping[str, int]:
    assert isinstance(tensors, Stored)
    return tensors.sizes


@dataclass(frozen=True)
class Part:
    """A batch, or some of its rows.

    Attributes:
        arrays: Its input.
        rows: Rows of the batch; None for all of them.
        batch_size: Rows of the batch.
    """

    arrays: Mapping[str, np.ndarray]
    rows: slice | None
    batch_size: int

    def cut(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part's rows of a tensor with the batch's axis; other tensors whole."""
        of_batch = self.rows is not None and tensor.ndim > 0 and tensor.shape[0] == self.batch_size
        return tensor[self.rows] if of_batch else tensor

    def inputs(self, whole: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Inputs of recorded calls."""
        return whole if self.rows is None else _Cut(whole, self)

    def into(self, tensors: Spool, reference: Capture) -> MutableMapping[str, torch.Tensor]:
        """The destination of taps, which appends rows. `reference` tells which taps have the batch's axis."""
        return tensors if self.rows is None else _Rows(tensors, self, reference)


def parts(case: Case, arrays: Mapping[str, np.ndarray], needed: int, limit: int) -> list[Part]:
    """The batch in parts within a limit; whole if its rows depend on each other.

    Args:
        case: The case, which cuts its inputs.
        arrays: The batch's inputs.
        needed: Bytes that the whole batch needs.
        limit: Bytes that a part may need.
    """
    whole = [Part(arrays, None, 0)]
    if needed <= limit:
        return whole
    batch = case.batch_size_of(arrays)
    # A power of two: single modules are mostly cut like the model, and equal tensors are equal files.
    step = max(1, batch >> math.ceil(math.log2(needed / limit)))
    cut = []
    for start in range(0, batch, step):
        rows = slice(start, min(start + step, batch))
        inputs = case.rows(arrays, rows)
        if inputs is None or not _is_cut(arrays, inputs, rows):
            return whole
        cut.append(Part(inputs, rows, batch))
    return cut if len(cut) > 1 else whole


def _is_cut(arrays: Mapping[str, np.ndarray], part: Mapping[str, np.ndarray], rows: slice) -> bool:
    """Whether all arrays are shared or cut along their first axis, as recorded inputs of calls will be."""
    count = rows.stop - rows.start
    return all(part[name].shape in (array.shape, (count, *array.shape[1:])) for name, array in arrays.items())


class _Cut(Mapping[str, torch.Tensor]):
    def __init__(self, whole: Mapping[str, torch.Tensor], part: Part) -> None:
        self._whole = whole
        self._part = part

    def __getitem__(self, key: str) -> torch.Tensor:
        return self._part.cut(self._whole[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole)

    def __len__(self) -> int:
        return len(self._whole)


class _Rows(Through):
    """Appends a part's taps to the taps of earlier parts."""

    def __init__(self, tensors: Spool, part: Part, reference: Capture) -> None:
        super().__init__(tensors, lambda name, tensor: {name: tensor})
        self._spool = tensors
        self._part = part
        assert isinstance(reference.tensors, Stored)
        self._shapes = reference.tensors.shapes

    def __setitem__(self, name: str, tensor: torch.Tensor) -> None:
        assert self._part.rows is not None
        count = self._part.rows.stop - self._part.rows.start
        known = self._shapes.get(name)
        of_batch = known is None or known[:1] == (self._part.batch_size,)
        if of_batch and tensor.shape[:1] == (count,):
            self._spool.add_rows(name, tensor)
        elif name not in self._spool:
            self._spool[name] = tensor
        elif not torch.equal(self._spool[name], tensor):
            raise ValueError(f"{name} has no axis of the batch and differs between rows of the batch")


def unless_leaking(
    capture: Capture,
    tensors: MutableMapping[str, torch.Tensor],
    clean: Mapping[str, torch.Tensor],
    case: Case,
    part: Part,
) -> Through:
    """The destination of taps of a run on poisoned padding.

    It replaces a tap by the clean run's if all valid elements are equal. The padding itself does not count,
    and the clean tensor is on the disk already.

    Args:
        capture: The capture that names such taps in `Capture.padded`.
        tensors: The destination of the replaced taps.
        clean: Taps of the clean run.
        case: The case.
        part: The rows of the run.
    """
    valid, batch_size = case.valid_rows(part.arrays), case.batch_size_of(part.arrays)

    def unless_equal(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        whole = clean.get(name)
        if whole is None:
            return {name: tensor}
        before = part.cut(whole)
        keep = valid_elements(tuple(tensor.shape), valid, batch_size)
        if not same_where_valid(before, tensor, keep):
            return {name: tensor}
        if not same_where_valid(before, tensor, None):
            capture.padded.add(name)
        return {name: before}

    return Through(tensors, unless_equal)
