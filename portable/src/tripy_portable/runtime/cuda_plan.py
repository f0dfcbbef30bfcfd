"""Plans on a GPU: queued in a stream without waiting for it, fused, or replayed as a captured graph."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tripy_portable.planner import InferenceMode, Plan
from tripy_portable.runtime.fusion import fuse, require_fusion
from tripy_portable.runtime.memref import DeviceMemRef, make_ready
from tripy_portable.runtime.options import Options
from tripy_portable.runtime.precision import MatrixPrecision

Tensor = torch.Tensor
Function = Callable[[Sequence[Any]], list[Tensor]]

# A plugin's own products follow the same switch.
_CONTRACTIONS = frozenset(("matrix_multiply", "convolution", "deconvolution", "opaque_plugin"))


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
            require_fusion([step.node.op for step in plan.steps])
        self._plan = plan
        self.result_types = plan.result_types
        contracts = any(step.node.op in _CONTRACTIONS for step in plan.steps)
        self._precision = MatrixPrecision(options.allow_tf32) if contracts else contextlib.nullcontext()
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
        with InferenceMode(True), torch.cuda.stream(queue):
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
        self._copies = _by_element_type(self._inputs, self._positions)
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
        for positions, targets in self._copies:
            torch._foreach_copy_(targets, [_movable(inputs[position]) for position in positions])
        self._graph.replay()
        return [result.clone() for result in self._results]


def _by_element_type(inputs: Sequence[Any], positions: Sequence[int]) -> list[tuple[list[int], list[Tensor]]]:
    """Positions and tensors of the inputs of one element type: one kernel copies them."""
    groups: dict[torch.dtype, tuple[list[int], list[Tensor]]] = {}
    for position in positions:
        group = groups.setdefault(inputs[position].dtype, ([], []))
        group[0].append(position)
        group[1].append(_movable(inputs[position]))
    return list(groups.values())


def _movable(tensor: Tensor) -> Tensor:
    """The tensor, in a type that the copying kernel knows."""
    return tensor.view(torch.uint8) if tensor.dtype is torch.float8_e4m3fn else tensor


def _wait_for(queues: list[torch.cuda.Stream]) -> None:
    for queue in queues:
        queue.synchronize()
