"""The port, run by nvtripy: on NVIDIA's TensorRT where it is installed, else on the portable runtime."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from parity.base.precision import Precision
from parity.base.trees import map_tree
from parity.capture.captures import Capture, ModuleCall, TensorKey, tensor_leaves
from parity.case import Case, NoForm
from parity.inputs.weights import rounded
from parity.runners.base import Runner, Unavailable
from parity.timing.measure import NotCapturable, Replayed, measure_queued, same_bits

try:
    import mlir_tensorrt
    import nvtripy as tp
    import tensorrt
except ImportError as error:
    raise Unavailable(
        f"nvtripy cannot be imported ({error}); run inside NVIDIA's Tripy container, or use `make parity`"
    ) from error

from parity.capture.tripy_hooks import is_tripy_tensor, named_modules, tapped
from parity.runners.tripy.call_stacks import no_call_stacks
from parity.runners.tripy.compiled import Compiled, time_runs, to_device, to_host, tripy_dtype, with_graphs

_STATIC: Mapping[int, int] = {}
_IS_PORTABLE = bool(getattr(mlir_tensorrt, "__portable__", False))
_CALLS_TO_CAPTURE = 2
"""The portable runtime captures at the second call."""


class TripyRunner(Runner):
    """The port in Tripy: the whole model with a dynamic batch, and every module as its own executable."""

    holds_taps = True

    def __init__(self) -> None:
        self.case: Case
        self.model: tp.Module
        self.dtype: torch.dtype
        self._modules: dict[str, tp.Module] = {}
        self._executables: dict[Any, Compiled] = {}
        self._replays: dict[int, tp.Executable] = {}
        self._timed: dict[str, tp.Tensor] = {}
        # TensorRT takes its own.
        self.in_torchs_memory = _IS_PORTABLE

    def label(self) -> str:
        if _IS_PORTABLE:
            return f"tripy (portable, {'cuda' if torch.cuda.is_available() else 'cpu'})"
        return f"tripy (native TensorRT {tensorrt.__version__})"

    def load(self, case: Case, precision: Precision, weights: Mapping[str, torch.Tensor]) -> None:
        if precision.needs_cuda and not torch.cuda.is_available():
            raise Unavailable(f"{precision.name} needs a CUDA device and none is visible")
        if _IS_PORTABLE:
            # The portable runtime's switch, read whenever an executable is made; PyTorch's don't reach it.
            os.environ["TRIPY_PORTABLE_TF32"] = str(int(precision.name == "tf32"))
        self.case = case
        self.dtype = precision.dtype
        try:
            self.model = case.build_port(tripy_dtype(precision.dtype))
        except NoForm as error:
            raise Unavailable(str(error)) from error
        self._load_parameters(weights)
        self._modules = dict(named_modules(self.model))
        self._executables, self._replays, self._timed = {}, {}, {}

    def _load_parameters(self, weights: Mapping[str, torch.Tensor]) -> None:
        tensors = rounded(weights, self.dtype)
        state = {name: tp.Tensor(tensor.contiguous()) for name, tensor in tensors.items()}
        self.model.load_state_dict(state, strict=True)

    def _host(self, leaf: Any) -> Any:
        tensor = torch.tensor(leaf) if isinstance(leaf, np.ndarray) else leaf
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            tensor = tensor.to(self.dtype)
        return tensor

    def _compiled(
        self, key: Any, function: Callable, arguments: Any, dynamic_sizes: Mapping[int, int] = _STATIC
    ) -> Compiled:
        shapes: list = []
        map_tree(arguments, lambda leaf: shapes.append(tuple(getattr(leaf, "shape", ()))))
        whole_key = (key, tuple(shapes))
        if whole_key not in self._executables:
            self._executables[whole_key] = self._traced(self._compile, function, arguments, dynamic_sizes)
        return self._executables[whole_key]

    def _traced(self, compile_with: Callable[..., Any], function: Callable, *arguments: Any) -> Any:
        """What `compile_with` makes of a function that is given the taps.

        Without call stacks, which are most of nvtripy's time; after an error again, with them, since its
        message points at the user's line with them.
        """
        try:
            with no_call_stacks(), tapped(self.model) as taps:
                return compile_with(functools.partial(function, taps=taps), *arguments)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001, whatever it is, it is raised again below
            with tapped(self.model) as taps:
                return compile_with(functools.partial(function, taps=taps), *arguments)

    def _compile(self, function: Callable, arguments: Any, dynamic_sizes: Mapping[int, int]) -> Compiled:
        return Compiled(function, arguments, dynamic_sizes)

    def _entry(self, arguments: dict, taps: dict[str, tp.Tensor]) -> dict[str, tp.Tensor]:
        return self.case.named_outputs(getattr(self.model, self.case.entry)(**arguments))

    def _entry_tapped(self, arguments: dict, taps: dict[str, tp.Tensor]) -> dict[str, tp.Tensor]:
        outputs = self._entry(arguments, taps)
        return {**taps, **outputs}

    def _run_entry(self, arrays: Mapping[str, np.ndarray], function: Callable) -> dict[str, torch.Tensor]:
        arguments = map_tree(self.case.entry_arguments(arrays), self._host)
        compiled = self._compiled(function.__name__, function, arguments, self.case.dynamic_sizes(arrays))
        return {name: to_host(out) for name, out in compiled(map_tree(arguments, to_device)).items()}

    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        return self._run_entry(arrays, self._entry)

    def run_tapped(
        self, arrays: Mapping[str, np.ndarray], record_calls: bool = False, capture: Capture | None = None
    ) -> Capture:
        capture = Capture() if capture is None else capture
        capture.tensors.update(self._run_entry(arrays, self._entry_tapped))
        return capture

    def time(self, arrays: Mapping[str, np.ndarray], repeats: int) -> list[float]:
        arguments = map_tree(self.case.entry_arguments(arrays), self._host)
        compiled = self._compiled("_entry", self._entry, arguments, self.case.dynamic_sizes(arrays))
        on_device = map_tree(arguments, to_device)
        seconds, outputs = time_runs(compiled, on_device, repeats)
        self._timed = compiled.named(outputs, on_device)
        return seconds

    def timed_outputs(self) -> dict[str, torch.Tensor]:
        return {name: to_host(out) for name, out in self._timed.items()}

    def time_replays(self, arrays: Mapping[str, np.ndarray], repeats: int) -> Replayed:
        arguments = map_tree(self.case.entry_arguments(arrays), self._host)
        compiled = self._compiled("_entry", self._entry, arguments, self.case.dynamic_sizes(arrays))
        return self._time_replays(compiled, arguments, repeats)

    def _time_replays(self, compiled: Compiled, arguments: Any, repeats: int) -> Replayed:
        """Calls of the portable runtime's captured graph, which copies its inputs in and its results out."""
        if not (_IS_PORTABLE and torch.cuda.is_available()) or compiled.executable is None:
            return Replayed([])
        on_device = map_tree(arguments, to_device)
        if id(compiled) not in self._replays:
            self._replays[id(compiled)] = with_graphs(compiled.executable)
        executable = self._replays[id(compiled)]
        executable.stream = compiled.executable.stream
        for _ in range(_CALLS_TO_CAPTURE):
            executable(on_device)
        try:
            replayed = measure_queued(lambda: executable(on_device), repeats, compiled.queue())
        except NotCapturable as reason:
            return Replayed([], str(reason))
        pairs = zip(replayed.result, compiled.launch(on_device), strict=True)
        if not all(same_bits(to_host(result), to_host(expected)) for result, expected in pairs):
            return Replayed([], "a replay gives other bits than a run")
        return Replayed(replayed.seconds)

    def _call(self, call: ModuleCall, inputs: Mapping[str, torch.Tensor]) -> tuple[Compiled, Any]:
        if call.path not in self._modules:
            raise LookupError(f"the port has no module {call.path}")
        module = call.function(self._modules[call.path])

        def fetch(leaf: Any) -> Any:
            return self._host(inputs[leaf.key]) if isinstance(leaf, TensorKey) else leaf

        arguments = {"args": map_tree(call.args, fetch), "kwargs": map_tree(call.kwargs, fetch)}

        def function(arguments: dict, taps: dict[str, tp.Tensor]) -> dict[str, tp.Tensor]:
            result = module(*arguments["args"], **arguments["kwargs"])
            return {call.tap + suffix: tensor for suffix, tensor in tensor_leaves(result, is_tripy_tensor)}

        return self._compiled(call.tap, function, arguments), arguments

    def run_call(
        self, call: ModuleCall, inputs: Mapping[str, torch.Tensor], arrays: Mapping[str, np.ndarray]
    ) -> dict[str, torch.Tensor]:
        compiled, arguments = self._call(call, inputs)
        return {name: to_host(out) for name, out in compiled(map_tree(arguments, to_device)).items()}

    def time_call(self, call: ModuleCall, inputs: Mapping[str, torch.Tensor], repeats: int) -> list[float]:
        compiled, arguments = self._call(call, inputs)
        return time_runs(compiled, map_tree(arguments, to_device), repeats)[0]

    def time_call_replays(
        self, call: ModuleCall, inputs: Mapping[str, torch.Tensor], repeats: int
    ) -> Replayed:
        compiled, arguments = self._call(call, inputs)
        return self._time_replays(compiled, arguments, repeats)

    def run_incremental(self, arrays: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        steps = self.case.incremental_arguments(arrays)
        if steps is None:
            return {}
        before, last = steps
        cache = self._run_step("prefill", self._prefill, map_tree(before, self._host))
        # The cache crosses between the two executables as a server would keep it: as tensors.
        last = map_tree(last, self._host) | {"cache": self.case.unflatten_cache(cache)}
        return self._run_step("extend", self._extend, last)

    def _run_step(self, key: str, function: Callable, arguments: dict) -> dict[str, torch.Tensor]:
        compiled = self._compiled(key, function, arguments)
        return {name: to_host(out) for name, out in compiled(map_tree(arguments, to_device)).items()}

    def _prefill(self, arguments: dict, taps: dict[str, tp.Tensor]) -> dict[str, tp.Tensor]:
        cache = self.case.prefill(self.model, **arguments)
        return dict(tensor_leaves(cache, is_tripy_tensor))

    def _extend(self, arguments: dict, taps: dict[str, tp.Tensor]) -> dict[str, tp.Tensor]:
        outputs = self.case.extend(self.model, **arguments)
        return dict(zip(self.case.incremental_outputs, outputs, strict=True))
