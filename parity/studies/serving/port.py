"""The port at fixed shapes: an executable for each, and host buffers from which its inputs are copied.

With a GPU, buffers are in pinned memory. Copies go through a stream of their own, so that the inputs of one
batch are copied while the one before is computed. The portable runtime replays a captured graph, and fuses
its steps between plugins if asked to.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import nvtripy as tp
import torch

from parity.base.errors import UserError
from parity.base.precision import Precision
from parity.base.trees import leaves, map_tree
from parity.case import Arrays
from parity.runners.forms import FORMS, form_of
from parity.runners.tripy.compiled import Compiled, to_device, to_host
from parity.runners.tripy.runner import IS_PORTABLE, TripyRunner
from parity.studies.serving.requests import Requests, Shape

SERVED = ("tripy", "tripy_jagged", "tripy_layers")
"""Runners whose form of the port can be served."""
_TURNS = 2
"""Host buffers of a shape. A batch is staged in one while the copy of the one before may still run."""
_TIMED = 5
"""Timed runs of a shape behind the first ones, which load kernels and capture graphs."""


class Buffers:
    """Host memory for the entry's arguments of one batch.

    Args:
        arguments: Arguments of the right shapes and types, on the host.
    """

    def __init__(self, arguments: Any) -> None:
        is_pinned = torch.cuda.is_available()
        self.arguments = map_tree(
            arguments,
            lambda leaf: torch.empty_like(leaf, pin_memory=is_pinned) if _is_tensor(leaf) else leaf,
        )
        self._copied = torch.cuda.Event() if is_pinned else None

    def fill(self, arguments: Any) -> None:
        """Overwrite every element. Waits until the copy of the last content has ended."""
        if self._copied is not None:
            self._copied.synchronize()
        for (_, buffer), (_, values) in zip(leaves(self.arguments), leaves(arguments), strict=True):
            if _is_tensor(buffer):
                buffer.copy_(values)

    def on_device(
        self,
        copies: torch.cuda.Stream | None,
        work: torch.cuda.Stream | None,
        looked_up: Callable[[], dict[str, torch.Tensor]] = dict,
    ) -> Any:
        """The content as device tensors. The work's stream waits for the copy, and the host does not.

        Args:
            copies: Stream of the copies; None without a GPU.
            work: Stream of the work; None without a GPU.
            looked_up: Further arguments, on the CPU or the device, which come in the stream of the copies.
        """
        if copies is None or work is None or self._copied is None:
            return map_tree({**self.arguments, **looked_up()}, to_device)
        with torch.cuda.stream(copies):
            copied = map_tree(
                self.arguments,
                lambda leaf: leaf.to("cuda", non_blocking=True) if _is_tensor(leaf) else leaf,
            )
            # Rows of tables on the CPU are copied too.
            copied = {**copied, **map_tree(looked_up(), lambda leaf: leaf.to("cuda", non_blocking=True))}
            self._copied.record(copies)
        work.wait_event(self._copied)
        for _, leaf in leaves(copied):
            if _is_tensor(leaf):
                leaf.record_stream(work)
        return map_tree(copied, lambda leaf: tp.Tensor(leaf) if _is_tensor(leaf) else leaf)


@dataclass(frozen=True)
class Running:
    """A batch whose work is queued on the device, with its inputs, which live until it ends."""

    compiled: Compiled
    outputs: list[tp.Tensor]
    ended: torch.cuda.Event | None
    inputs: Any

    def result(self) -> torch.Tensor:
        """The output on the host, (B, ...). Waits for it."""
        if self.ended is not None:
            self.ended.synchronize()
        elif self.compiled.executable is not None:
            self.compiled.executable.stream.synchronize()
        (output,) = self.compiled.named(self.outputs, self.inputs).values()
        return to_host(output)


class ServedPort(TripyRunner):
    """The port with an executable for each shape.

    Args:
        requests: The requests.
        precision: The precision.
        weights: Float32 weights.
        runner: The runner of `run` whose form of the port is served.
        fuse: Whether the portable runtime fuses steps, which takes seconds for each shape.

    Attributes:
        times: Median seconds of a batch by shape, from its inputs on the host to its result there.

    Raises:
        Unavailable: The port cannot run here, or the case has no such form.
        UserError: Steps cannot be fused here.
    """

    def __init__(
        self,
        requests: Requests,
        precision: Precision,
        weights: Mapping[str, torch.Tensor],
        runner: str = SERVED[0],
        fuse: bool = False,
    ) -> None:
        if fuse and not _replays():
            problem = "needs the portable runtime and a GPU, and this machine lacks one of them"
            raise UserError("--fuse", "on", problem, "leave --fuse out")
        super().__init__()
        self._fuses = fuse
        self._requests = requests
        self._form = FORMS.get(runner, "")
        self.load(form_of(requests.case, runner) if self._form else requests.case, precision, weights)
        self._copies = torch.cuda.Stream() if torch.cuda.is_available() else None
        self._by_shape: dict[Shape, Compiled] = {}
        self._names: dict[Shape, tuple[str, ...]] = {}
        self._buffers: dict[tuple[Shape, tuple[str, ...]], list[Buffers]] = {}
        self._turn = 0
        self.times: dict[Shape, float] = {}
        for shape in requests.sizes:
            first = requests.full(requests.of_width(shape.width)[: shape.rows], shape)
            arguments = self._arguments(requests.clean(first))
            compiled = self._compiled(shape, self._entry, arguments)
            if _replays():
                compiled.accelerate(fuse)
            self._by_shape[shape], self._names[shape] = compiled, tuple(arguments)
            # Kernels are loaded and graphs captured before the first query comes.
            warming = requests.clean if requests.device_lookup is None else requests.staged
            seconds = [self._timed(shape, warming(first)) for _ in range(_TURNS + _TIMED)]
            self.times[shape] = statistics.median(seconds[_TURNS:])

    def _timed(self, shape: Shape, arrays: Arrays) -> float:
        began = time.perf_counter()
        self.start(shape, arrays).result()
        return time.perf_counter() - began

    def label(self) -> str:
        fused = "fused" if self._fuses else ""
        return " ".join(f"{super().label()} {self._form} {fused}".replace("_", " ").split())

    @property
    def most_running(self) -> int:
        """Batches whose work may be queued at a time."""
        return 1 if self._copies is None else _TURNS

    def _arguments(self, arrays: Arrays) -> Any:
        return map_tree(self.case.fixed_arguments(arrays), self._host)

    def start(self, shape: Shape, arrays: Arrays) -> Running:
        """Queue a whole batch, as `Requests.staged` has it."""
        compiled = self._by_shape[shape]
        ids = {
            name: array
            for name, array in arrays.items()
            if name in self._requests.looked_up and array.dtype == np.int64
        }
        arguments = self._arguments({name: array for name, array in arrays.items() if name not in ids})
        buffers = self._buffers_of(shape, arguments)[self._turn % _TURNS]
        self._turn += 1
        buffers.fill(arguments)
        queue = compiled.queue()
        inputs = buffers.on_device(self._copies, queue, lambda: self._rows(ids))
        inputs = {name: inputs[name] for name in self._names[shape]}
        outputs = compiled.enqueue(inputs)
        ended = None
        if queue is not None:
            ended = torch.cuda.Event()
            ended.record(queue)
        return Running(compiled, outputs, ended, inputs)

    def _buffers_of(self, shape: Shape, arguments: dict[str, Any]) -> list[Buffers]:
        key = (shape, tuple(arguments))
        if key not in self._buffers:
            self._buffers[key] = [Buffers(arguments) for _ in range(_TURNS)]
        return self._buffers[key]

    def _rows(self, ids: Arrays) -> dict[str, torch.Tensor]:
        """Rows of the device's tables, in the model's type."""
        lookup = self._requests.device_lookup
        if not ids:
            return {}
        if lookup is None:
            raise RuntimeError("numbers of rows, and no tables on a device")
        return {name: lookup(name, own).to(self.dtype) for name, own in ids.items()}


def _replays() -> bool:
    """Whether the portable runtime replays graphs of the port."""
    return IS_PORTABLE and torch.cuda.is_available()


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)
