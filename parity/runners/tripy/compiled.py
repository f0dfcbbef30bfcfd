"""Functions as Tripy executables, their inputs and their results."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import nvtripy as tp
import torch

from parity.base.precision import dtype_name
from parity.base.trees import TreePath, dotted, leaves, map_tree, plain_tree, with_leaves
from parity.base.variables import kept
from parity.capture.arguments import Received
from parity.capture.tripy_hooks import Evaluation, is_tripy_tensor
from parity.timing.measure import NotCapturable, measure, measure_queued, same_bits

DynamicSizes = Mapping[int | tuple[str, int], int]
"""Least sizes of dynamic axes: by the size of a first axis, or by an argument's path and an axis."""
GRAPHS, FUSE = "TRIPY_PORTABLE_CUDA_GRAPHS", "TRIPY_PORTABLE_FUSE"
"""Switches of the portable runtime, which it reads when it loads an executable."""
_CALLS_TO_REPLAY = 3
"""The portable runtime captures at the second call."""


def tripy_dtype(dtype: torch.dtype) -> tp.dtype:
    """Tripy's type of the same name."""
    return getattr(tp, dtype_name(dtype))


def tripy_value(leaf: Any) -> Any:
    """Tripy's counterpart of a type or device of PyTorch; any other leaf itself."""
    if isinstance(leaf, torch.device):
        return tp.device("cpu" if leaf.type == "cpu" else "gpu")
    is_known = isinstance(leaf, torch.dtype) and hasattr(tp, dtype_name(leaf))
    return tripy_dtype(leaf) if is_known else leaf


class Compiled:
    """A traced function as one executable, its results by tap name.

    A result that is an input, or a number of the trace, needs no graph. One tensor under several names is one
    output of the engine.

    Attributes:
        executable: The executable; None if every result is an input.
        received: Arguments of the modules' calls in the trace, by the call's tap.
        evaluated: Lines that fix a value of the trace; see `Capture`.
    """

    def __init__(
        self,
        function: Callable[..., dict[str, tp.Tensor | torch.Tensor]],
        arguments: Any,
        dynamic_sizes: DynamicSizes,
    ) -> None:
        self._slots: dict[str, int] = {}
        self._passed_through: dict[str, TreePath] = {}
        self._constants: dict[str, torch.Tensor] = {}
        self._names: list[str] = []
        self.executable: tp.Executable | None = None
        self.received: dict[str, Received] = {}
        self.evaluated: dict[str, str] = {}
        self._accepted = [(path, _accepted(path, leaf, dynamic_sizes)) for path, leaf in leaves(arguments)]
        # In the order of the leaves.
        in_order = iter(self._accepted)
        infos = map_tree(plain_tree(arguments), lambda leaf: _input_info(leaf, next(in_order)[1]))
        containers = map_tree(arguments, lambda leaf: None)
        self._has_inputs = any(isinstance(info, tp.InputInfo) for _, info in leaves(infos))
        # nvtripy keeps every compiled function and its references. The function refers to this list only,
        # which is emptied, so that nvtripy keeps neither the graph nor the executable.
        held = [self, function]

        def traced(plain: Any) -> list[tp.Tensor]:
            compiled, function = held
            arguments = with_leaves(containers, plain)
            tensors = ((steps, leaf) for steps, leaf in leaves(arguments) if is_tripy_tensor(leaf))
            inputs = {id(tensor.trace_tensor): steps for steps, tensor in tensors}
            outputs: dict[int, tp.Tensor] = {}
            results = function(arguments)
            compiled._names = list(results)
            for name, tensor in results.items():
                if isinstance(tensor, torch.Tensor):
                    compiled._constants[name] = tensor
                    continue
                identity = id(tensor.trace_tensor)
                if identity in inputs:
                    compiled._passed_through[name] = inputs[identity]
                    continue
                outputs.setdefault(identity, tensor)
                compiled._slots[name] = list(outputs).index(identity)
            if not outputs:
                raise _NothingToCompile
            return list(outputs.values())

        try:
            self.executable = tp.compile(traced, args=[infos])
        except _NothingToCompile:
            pass
        finally:
            held.clear()

    @property
    def is_empty(self) -> bool:
        """Whether every result is an input, so that nothing runs."""
        return self.executable is None

    @property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the traced arguments, by dotted path."""
        return {path: tuple(high for _, high in ranges) for path, ranges in self._ranges()}

    def _ranges(self) -> Iterator[tuple[str, tuple[tuple[int, int], ...]]]:
        """The dotted path of each tensor argument, and the least and the traced size of its axes."""
        for path, accepted in self._accepted:
            if isinstance(accepted, tuple) and len(accepted) == 2 and isinstance(accepted[0], torch.dtype):
                yield dotted(path), accepted[1]

    def keep_evaluated(self, evaluated: Mapping[str, Sequence[Evaluation]]) -> None:
        """Keep the first line of each module that fixes a value, which is no size that never varies."""
        varying = {high for _, ranges in self._ranges() for low, high in ranges if low != high}
        for path, values in evaluated.items():
            for value in values:
                if value.sizes is None or varying.intersection(value.sizes):
                    self.evaluated.setdefault(path, value.line)

    def accepts(self, arguments: Any) -> bool:
        """Whether it can run on these host arguments: of the same structure, with sizes in its ranges."""
        given = list(leaves(arguments))
        if [path for path, _ in given] != [path for path, _ in self._accepted]:
            return False
        return all(
            _is_accepted(leaf, accepted)
            for (_, leaf), (_, accepted) in zip(given, self._accepted, strict=True)
        )

    def launch(self, arguments: Any) -> list[tp.Tensor]:
        """Run on the arguments of `placed` and wait for the result."""
        if self.executable is None:
            return []
        outputs = self.enqueue(arguments)
        self.executable.stream.synchronize()
        return outputs

    def enqueue(self, arguments: Any) -> list[tp.Tensor]:
        """Put a run on the arguments of `placed` into `queue`, if there is one, without waiting."""
        # Without a tensor in it, the argument is no input of the executable.
        return self.executable(arguments) if self._has_inputs else self.executable()

    def queue(self) -> torch.cuda.Stream | None:
        """The stream of its work; None if PyTorch cannot measure it."""
        return torch.cuda.ExternalStream(self.executable.stream.ptr) if torch.cuda.is_available() else None

    def accelerate(self, fuse: bool) -> None:
        """From now on, the portable runtime replays a CUDA graph.

        Args:
            fuse: Whether the first run fuses steps.
        """
        if self.executable is not None:
            stream = self.executable.stream
            self.executable = _loaded_with(self.executable, GRAPHS, *([FUSE] if fuse else []))
            self.executable.stream = stream

    def __call__(self, arguments: Any) -> dict[str, tp.Tensor | torch.Tensor]:
        return self.named(self.launch(arguments), arguments)

    def on_host(self, arguments: Any) -> dict[str, torch.Tensor]:
        """Run on the arguments of `placed`. Returns results by tap name, one copy of each tensor."""
        copies: dict[int, torch.Tensor] = {}
        results = self(arguments)
        for result in results.values():
            if id(result) not in copies:
                copies[id(result)] = to_host(result)
        return {name: copies[id(result)] for name, result in results.items()}

    def named(self, outputs: list[tp.Tensor], arguments: Any) -> dict[str, tp.Tensor | torch.Tensor]:
        """The result of `launch` by tap name, with numbers of the trace as tensors of PyTorch.

        The results have the function's order, in which a cache is put together.
        """
        results = {name: outputs[slot] for name, slot in self._slots.items()} | self._constants
        given = dict(leaves(arguments)) if self._passed_through else {}
        results |= {name: given[steps] for name, steps in self._passed_through.items()}
        return {name: results[name] for name in self._names}


class _NothingToCompile(Exception):
    """Every result of a traced function is one of its inputs."""


def _accepted(path: TreePath, leaf: Any, dynamic_sizes: DynamicSizes) -> Any:
    """The type and the (least, largest) size of each axis of a tensor; any other argument itself."""
    if not isinstance(leaf, torch.Tensor):
        return leaf

    def least(axis: int, size: int) -> int:
        own = dynamic_sizes.get((dotted(path), axis), size)
        return dynamic_sizes.get(size, own) if axis == 0 else own

    return leaf.dtype, tuple((least(axis, size), size) for axis, size in enumerate(leaf.shape))


def _is_accepted(leaf: Any, accepted: Any) -> bool:
    if not isinstance(leaf, torch.Tensor):
        # A trace tells 1 from True and from 1.0.
        return leaf is accepted or (type(leaf) is type(accepted) and bool(leaf == accepted))
    dtype, ranges = accepted
    fits = leaf.dtype == dtype and leaf.ndim == len(ranges)
    return fits and all(low <= size <= high for size, (low, high) in zip(leaf.shape, ranges, strict=True))


def _input_info(leaf: Any, accepted: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    dtype, ranges = accepted
    shape = tuple(high if low == high else (low, high, high) for low, high in ranges)
    return tp.InputInfo(shape, dtype=tripy_dtype(dtype))


def placed(arguments: Any) -> Any:
    """The arguments of a compiled function: device tensors in dictionaries, lists and tuples."""
    return map_tree(plain_tree(arguments), to_device)


def to_device(leaf: Any) -> Any:
    """A PyTorch tensor as one of Tripy on the GPU; anything else as it is."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return tp.copy(tp.Tensor(leaf.contiguous()), tp.device("gpu"))


def to_host(tensor: tp.Tensor | torch.Tensor) -> torch.Tensor:
    """A tensor of either library as one of PyTorch. One of Tripy is copied to the CPU."""
    if isinstance(tensor, torch.Tensor):
        return tensor
    return torch.from_dlpack(tensor).cpu().clone()


def time_runs(compiled: Compiled, arguments: Any, repeats: int) -> tuple[list[float], list[tp.Tensor]]:
    """Seconds of each run, and the result of the last."""
    if compiled.is_empty:
        return [], []
    queue = compiled.queue()
    # Without a queue a run waits for its end.
    run = compiled.launch if queue is None else compiled.enqueue
    timed = measure(lambda: run(arguments), repeats, queue)
    return timed.seconds, timed.result


class ExecutableReplay:
    """The portable runtime's captured graph, which copies its inputs in and its results out."""

    def __init__(self, compiled: Compiled, arguments: Any) -> None:
        """Capture a compiled function that is not empty, on the arguments of `placed`.

        Raises:
            NotCapturable: A replay gives other bits.
        """
        self._executable = _loaded_with(compiled.executable, GRAPHS)
        self._executable.stream = compiled.executable.stream
        self._arguments = arguments
        self._queue = compiled.queue()
        for _ in range(_CALLS_TO_REPLAY):
            results = self._executable(arguments)
        pairs = zip(results, compiled.launch(arguments), strict=True)
        if not all(same_bits(to_host(result), to_host(expected)) for result, expected in pairs):
            raise NotCapturable("a replay gives other bits than a run")

    def time(self, repeats: int) -> list[float]:
        """Seconds of single replays, without the host's. Raises `NotCapturable`."""
        return measure_queued(lambda: self._executable(self._arguments), repeats, self._queue).seconds


def _loaded_with(executable: tp.Executable, *switches: str) -> tp.Executable:
    """The same executable of the portable runtime, loaded with some of its switches on."""
    with kept(*switches), tempfile.TemporaryDirectory(prefix="parity-graphs-") as folder:
        os.environ.update(dict.fromkeys(switches, "1"))
        path = str(Path(folder) / "executable")
        executable.save(path)
        return tp.Executable.load(path)
