"""The port at fixed shapes: an executable for each, and host buffers from which its inputs are copied.

With a GPU, buffers are in pinned memory. Copies go through a stream of their own, so that the inputs of one
batch are copied while the one before is computed. The portable runtime replays a captured graph, and fuses
its steps between plugins if asked to.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import nvtripy as tp
import torch

from parity.base.errors import UserError
from parity.base.memory import require
from parity.base.precision import Precision
from parity.base.trees import map_tree
from parity.capture.captures import tensor_leaves
from parity.capture.tripy_hooks import Traced, is_tripy_tensor
from parity.case import Arrays
from parity.runners.forms import FORMS, form_of
from parity.runners.tripy.compiled import Compiled, to_device, to_host
from parity.runners.tripy.modules import IS_PORTABLE
from parity.runners.tripy.runner import TripyRunner
from parity.studies.serving.buffers import Buffers
from parity.studies.serving.cache import Entry, batched, taken
from parity.studies.serving.requests import Requests, Shape

SERVED = ("tripy", "tripy_jagged", "tripy_layers")
"""Runners whose form of the port can be served."""
_TURNS = 2
"""Host buffers of a shape. A batch is staged in one while the copy of the one before may still run."""
_TIMED = 5
"""Timed runs of a shape behind the first ones, which load kernels and capture graphs."""


_KEPT = "kept"
"""Beginning of the names of keys and values among an executable's results."""
_CACHE = "cache"
"""Argument with keys and values."""
_QUEUED = 8
"""Batches of a shape that follow one another to be timed."""
_LEFT_FREE = 2
"""Bytes of free memory of a device for each byte of its cache."""
GIB = 1 << 30


@dataclass(frozen=True)
class Running:
    """A batch whose work is queued on the device, with its inputs, which live until it ends.

    Attributes:
        kept: By request, keys and values of its shared rows, for `Entry`.
        answer: Pinned memory of the output, whose copy is queued behind the work; None without a GPU.
    """

    compiled: Compiled
    outputs: list[tp.Tensor]
    ended: torch.cuda.Event | None
    inputs: Any
    kept: tuple[tuple[torch.Tensor, ...], ...] = ()
    answer: torch.Tensor | None = None

    def result(self) -> torch.Tensor:
        """The output on the host, (B, ...). Waits for it, and for no batch behind it."""
        if self.ended is not None and self.answer is not None:
            self.ended.synchronize()
            return self.answer.clone()
        if self.compiled.executable is not None:
            self.compiled.executable.stream.synchronize()
        return to_host(_output(self.compiled.named(self.outputs, self.inputs)))


class ServedPort(TripyRunner):
    """The port with an executable for each shape.

    Args:
        requests: The requests.
        precision: The precision.
        weights: Float32 weights.
        runner: The runner of `run` whose form of the port is served.
        fuse: Whether the portable runtime fuses steps, which takes seconds for each shape.
        kv_cache: Most bytes of keys and values that a server keeps; 0 for a port without a cache.

    Attributes:
        resumed_times, resumed_queued: As `times` and `queued`, of batches from a cache; empty without one.
        times: Median seconds of a batch by shape, from its inputs on the host to its result there.
        queued: Seconds of a batch by shape while batches follow one another.

    Raises:
        Unavailable: The port cannot run here, or the case has no such form.
        UserError: Steps cannot be fused here, or the bytes hold no request, or are not there.
    """

    def __init__(
        self,
        requests: Requests,
        precision: Precision,
        weights: Mapping[str, torch.Tensor],
        runner: str = SERVED[0],
        fuse: bool = False,
        kv_cache: int = 0,
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
        self._resumed: dict[Shape, Compiled] = {}
        self._names: dict[Shape, tuple[str, ...]] = {}
        self._buffers: dict[tuple[Shape, tuple[str, ...]], list[Buffers]] = {}
        self._turn = 0
        self.kv_cache = kv_cache
        self.times: dict[Shape, float] = {}
        self.queued: dict[Shape, float] = {}
        self.resumed_times: dict[Shape, float] = {}
        self.resumed_queued: dict[Shape, float] = {}
        entry = self._entry_kept if kv_cache else self._entry
        for shape in requests.sizes:
            first = requests.full(requests.of_width(shape.width)[: shape.rows], shape)
            arguments = self._arguments(requests.clean(first))
            compiled = self._compiled(shape, entry, arguments)
            if _replays():
                compiled.accelerate(fuse)
            self._by_shape[shape], self._names[shape] = compiled, tuple(arguments)
            # Kernels are loaded and graphs captured before the first query comes.
            arrays = self._warming(first)
            start = functools.partial(self.start, shape, arrays)
            self.times[shape], self.queued[shape] = self._timed(start)
            if kv_cache:
                self._prepare_to_resume(shape, first)

    def _warming(self, numbers: list[int]) -> Arrays:
        """Inputs of a batch before the first query comes."""
        requests = self._requests
        return requests.clean(numbers) if requests.device_lookup is None else requests.staged(numbers)

    def _timed(self, start: Callable[[], Running]) -> tuple[float, float]:
        """Seconds of a batch alone, and of one among others that follow one another."""
        seconds = []
        for _ in range(_TURNS + _TIMED):
            began = time.perf_counter()
            start().result()
            seconds.append(time.perf_counter() - began)
        began, running = time.perf_counter(), deque[Running]()
        for _ in range(_QUEUED):
            running.append(start())
            if len(running) == self.most_running:
                running.popleft().result()
        for work in running:
            work.result()
        return statistics.median(seconds[_TURNS:]), (time.perf_counter() - began) / _QUEUED

    def _prepare_to_resume(self, shape: Shape, numbers: list[int]) -> None:
        """Compile and time a shape's batches whose shared rows are in a cache."""
        arrays = self._warming(numbers)
        running = self.start(shape, arrays, len(numbers))
        running.result()
        entries = [Entry(number, kept) for number, kept in zip(numbers, running.kept, strict=True)]
        self._require_cache(entries[0], shape)
        fresh = {name: array for name, array in arrays.items() if name in self.case.resumed}
        rows = map_tree(batched(entries, shape.rows, shape.width), lambda leaf: leaf.cpu())
        arguments = self._resumed_arguments(self._requests.clean(numbers)) | {_CACHE: rows}
        compiled = self._compiled((_CACHE, shape), self._entry_resumed, arguments)
        if _replays():
            compiled.accelerate(self._fuses)
        self._resumed[shape] = compiled
        start = functools.partial(self.resume, shape, fresh, entries)
        self.resumed_times[shape], self.resumed_queued[shape] = self._timed(start)

    def _require_cache(self, entry: Entry, shape: Shape) -> None:
        """Refuse a cache that holds no request of a shape, or for which there is no memory."""
        size, fix = f"{self.kv_cache / GIB:.3g} GiB", "give fewer GiB"
        largest = shape.width * sum(tensor.shape[-1] * tensor.itemsize for tensor in entry.tensors)
        if largest > self.kv_cache:
            problem = f"hold no request of {shape.width} tokens, which takes {largest / GIB:.3g} GiB"
            raise UserError("--kv-cache", size, problem, f"give at least {largest / GIB:.3g}, or none")
        if self._copies is None:
            require("--kv-cache", size, self.kv_cache, fix)
        elif self.kv_cache * _LEFT_FREE > (free := torch.cuda.mem_get_info()[0]):
            problem = f"is more than half of the {free / GIB:.3g} GiB that the GPU has left"
            raise UserError("--kv-cache", size, problem, fix)

    def _entry_kept(self, arguments: dict, traced: Traced) -> dict[str, tp.Tensor]:
        results, cache = self.case.keep(self.model, arguments)
        tensors = (tensor for _, tensor in tensor_leaves(cache, is_tripy_tensor))
        kept = {f"{_KEPT}.{place}": tensor for place, tensor in enumerate(tensors)}
        return {**self.case.named_outputs(results), **kept}

    def _entry_resumed(self, arguments: dict, traced: Traced) -> dict[str, tp.Tensor]:
        inputs = dict(arguments)
        cache = inputs.pop(_CACHE)
        return self.case.named_outputs(self.case.resume(self.model, inputs, cache))

    def _resumed_arguments(self, arrays: Arrays) -> dict[str, Any]:
        return map_tree({name: arrays[name] for name in self.case.resumed if name in arrays}, self._host)

    def label(self) -> str:
        fused = "fused" if self._fuses else ""
        return " ".join(f"{super().label()} {self._form} {fused}".replace("_", " ").split())

    @property
    def most_running(self) -> int:
        """Batches whose work may be queued at a time."""
        return 1 if self._copies is None else _TURNS

    def _arguments(self, arrays: Arrays) -> Any:
        return map_tree(self.case.fixed_arguments(arrays), self._host)

    def start(self, shape: Shape, arrays: Arrays, kept: int = 0) -> Running:
        """Queue a whole batch, as `Requests.staged` has it.

        Args:
            shape: The shape of the batch.
            arrays: Its inputs.
            kept: Number of its first requests whose keys and values are kept.
        """
        compiled = self._by_shape[shape]
        inputs = self._on_device(shape, arrays, self._arguments, compiled)
        inputs = {name: inputs[name] for name in self._names[shape]}
        return self._queued(compiled, inputs, self.case.shared_rows(arrays) if kept else None, kept)

    def resume(self, shape: Shape, arrays: Arrays, entries: Sequence[Entry]) -> Running:
        """Queue a whole batch whose shared rows are in a cache.

        Args:
            shape: The shape of the batch.
            arrays: Its inputs of `Case.resumed`, as `Requests.staged` has them.
            entries: By request; behind the last one, the first one comes again.
        """
        compiled = self._resumed[shape]
        inputs = self._on_device(shape, arrays, self._resumed_arguments, compiled)
        with _in(compiled.queue()):
            rows = batched(entries, shape.rows, shape.width)
        # A tensor of PyTorch's memory on a GPU, and a copy of it on a CPU.
        cache = [to_device(tensor) if self._copies is None else tp.Tensor(tensor) for tensor in rows]
        return self._queued(compiled, {**inputs, _CACHE: cache})

    def _on_device(
        self, shape: Shape, arrays: Arrays, arguments_of: Callable[[Arrays], Any], compiled: Compiled
    ) -> Any:
        """The inputs of a batch as device tensors, with rows of tables in place of their numbers."""
        ids = {
            name: array
            for name, array in arrays.items()
            if name in self._requests.looked_up and array.dtype == np.int64
        }
        arguments = arguments_of({name: array for name, array in arrays.items() if name not in ids})
        buffers = self._buffers_of(shape, arguments)[self._turn % _TURNS]
        self._turn += 1
        buffers.fill(arguments)
        return buffers.on_device(self._copies, compiled.queue(), lambda: self._rows(ids))

    def _queued(
        self,
        compiled: Compiled,
        inputs: Any,
        shared: tuple[np.ndarray, np.ndarray] | None = None,
        kept: int = 0,
    ) -> Running:
        queue = compiled.queue()
        outputs = compiled.enqueue(inputs)
        copies: tuple[tuple[torch.Tensor, ...], ...] = ()
        if shared is not None:
            if queue is None and compiled.executable is not None:
                compiled.executable.stream.synchronize()
            results = compiled.named(outputs, inputs)
            with _in(queue):
                rows = [
                    torch.from_dlpack(result) for name, result in results.items() if name.startswith(_KEPT)
                ]
                firsts, counts = (numbers.tolist() for numbers in shared)
                copies = tuple(taken(rows, firsts[row], counts[row]) for row in range(kept))
        ended = answer = None
        if queue is not None:
            with _in(queue):
                # A copy in another stream would wait for the batches that are queued by then.
                output = torch.from_dlpack(_output(compiled.named(outputs, inputs)))
                answer = torch.empty(output.shape, dtype=output.dtype, pin_memory=True)
                answer.copy_(output, non_blocking=True)
            ended = torch.cuda.Event()
            ended.record(queue)
        return Running(compiled, outputs, ended, inputs, copies, answer)

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


def _output(results: Mapping[str, tp.Tensor]) -> tp.Tensor:
    """The entry's result, among keys and values."""
    (output,) = (result for name, result in results.items() if not name.startswith(_KEPT))
    return output


def _in(queue: torch.cuda.Stream | None) -> contextlib.AbstractContextManager[Any]:
    """A context: inside, PyTorch's work on the GPU is in a stream."""
    return contextlib.nullcontext() if queue is None else torch.cuda.stream(queue)


def _replays() -> bool:
    """Whether the portable runtime replays graphs of the port."""
    return IS_PORTABLE and torch.cuda.is_available()
