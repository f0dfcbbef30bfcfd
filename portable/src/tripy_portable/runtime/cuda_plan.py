"""Plans on a GPU: queued in a stream without waiting for it, fused, or replayed as a captured graph."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tripy_portable.planner import InferenceMode, Plan
from tripy_portable.runtime.fusion import fuse, require_fusion
from tripy_portable.runtime.memref import DeviceMemRef, make_ready
from tripy_portable.runtime.options import Options
from tripy_portable.runtime.precision import MatrixPrecision
from tripy_portable.runtime.streams import current

Tensor = torch.Tensor
Function = Callable[[Sequence[Any]], list[Tensor]]

# Types by size, for copies of memory.
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class CudaPlan:
    """A plan with its data on a GPU.

    The first call fuses the plan, and the second one captures it. Only these two wait for the GPU.
    """

    def __init__(self, plan: Plan, options: Options):
        """Wraps a plan.

        Args:
            plan: a plan with its constants on the GPU.
            options: whether TF32, graphs and fusion are allowed.

        Raises:
            MTRTException: fusion is requested and unavailable.
        """
        if options.fuse:
            require_fusion()
        self._plan = plan
        self.result_types = plan.result_types
        self._precision = MatrixPrecision.of(plan, options.allow_tf32) or contextlib.nullcontext()
        self._is_captured = options.cuda_graphs and bool(plan.steps)
        # Fusion needs two steps.
        self._is_fused = options.fuse and len(plan.steps) > 1
        self._function: Function = plan.run
        self._has_run = False
        self._graph: CapturedGraph | None = None
        self._queues: tuple[torch.cuda.Stream, ...] = ()

    @property
    def steps(self) -> list:
        """The plan's steps."""
        return self._plan.steps

    @property
    def plan(self) -> Plan:
        """The plan without fusion and graphs."""
        return self._plan

    def run(self, arguments: Sequence[DeviceMemRef], queue: torch.cuda.Stream) -> list[Tensor]:
        """Queues the work in a CUDA stream.

        Args:
            arguments: memrefs of exactly the plan's types.
            queue: the stream; it waits for the arguments' own.

        Returns:
            Freshly allocated results, complete when the stream is.
        """
        if queue not in self._queues:
            self._plan.record_stream(queue)
            self._queues += (queue,)
        # Before `queue` becomes PyTorch's current stream: it is the one until now that may share memory.
        shared = make_ready([arguments[i] for i in self._plan.input_positions], queue)
        with InferenceMode(True), current(queue):
            results = self._run([memref.tensor for memref in arguments], queue)
        for other in shared:
            other.wait_stream(queue)
        return results

    def _run(self, inputs: Sequence[Tensor], queue: torch.cuda.Stream) -> list[Tensor]:
        if self._is_captured and self._has_run:
            if self._graph is None:
                with self._precision:
                    self._graph = CapturedGraph(self._function, self._plan.input_positions, inputs)
            return self._graph.replay(inputs, queue)
        if self._is_fused and not self._has_run:
            self._function = fuse(self._plan, inputs)
        with self._precision:
            results = self._function(inputs)
        # A graph is captured after a run, which loads kernels and libraries: that cannot be captured.
        self._has_run = True
        return results


class CapturedGraph:
    """A plan's work as one CUDA graph, with memory of its own for inputs and results."""

    def __init__(self, function: Function, positions: Sequence[int], inputs: Sequence[Tensor]):
        """Captures a function that has run before. Waits for the GPU.

        Args:
            function: a plan's steps.
            positions: positions of the inputs that it reads.
            inputs: tensors of the plan's shapes.
        """
        self._positions = positions
        self._inputs: list[Any] = [None] * len(inputs)
        for position in self._positions:
            self._inputs[position] = torch.empty_like(inputs[position])
        targets = [self._inputs[position] for position in self._positions]
        # The type in which one kernel copies all inputs; with one element type, its own.
        self._word = _common_word(targets)
        self._targets = [_as_words(target, self._word) for target in targets]
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._results = function(self._inputs)
        self._last: list[torch.cuda.Stream] = []
        # Replays read memory that goes back to the allocator with this object.
        weakref.finalize(self, _wait_for, self._last)

    def replay(self, inputs: Sequence[Tensor], queue: torch.cuda.Stream) -> list[Tensor]:
        """Queues the graph in the current stream, which is `queue`; the results are copies."""
        if self._last and self._last[0] != queue:
            queue.wait_stream(self._last[0])
        self._last[:] = [queue]
        if self._targets:
            sources = [_as_words(inputs[position], self._word) for position in self._positions]
            torch._foreach_copy_(self._targets, sources)
        self._graph.replay()
        return [result.clone() for result in self._results]


def _common_word(tensors: Sequence[Tensor]) -> torch.dtype | None:
    """The type that all of the tensors' memory can be read as: one kernel copies tensors of one type.

    None for tensors that have one type already, which the kernel knows.
    """
    types = {tensor.dtype for tensor in tensors}
    if len(types) < 2 and torch.float8_e4m3fn not in types:
        return None
    # Memory lies at a multiple of its elements' size: so does a word that is not larger.
    size = math.gcd(*(tensor.numel() * tensor.element_size() for tensor in tensors))
    size = math.gcd(size, *(tensor.element_size() for tensor in tensors))
    return _WORDS[size & -size]


def _as_words(tensor: Tensor, word: torch.dtype | None) -> Tensor:
    """The tensor, or its memory as a vector of words."""
    return tensor if word is None else tensor.reshape(-1).view(word)


def _wait_for(queues: list[torch.cuda.Stream]) -> None:
    for queue in queues:
        queue.synchronize()
