"""PyTorch runners: the reference, its jagged and compiled forms, and the float64 oracle."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from parity.base.precision import Precision
from parity.base.trees import map_tree
from parity.capture.captures import Capture, ModuleCall, TensorKey, Through, tensor_leaves
from parity.capture.names import TapName
from parity.capture.torch_hooks import module_ranges, tapped
from parity.case import Case, Form, NoForm
from parity.inputs.weights import rounded
from parity.runners.base import Runner, Unavailable
from parity.runners.forms import form_of
from parity.runners.oracle.rounding import draws_for, has_few_rows
from parity.runners.oracle.sampling import LargestResult, rounding_samples
from parity.timing.measure import NotCapturable, Replay, Replayed, measure


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


class TorchRunner(Runner):
    """PyTorch eager on the dense reference: the truth that ports are compared with."""

    layout = "dense"
    ranges_modules = True

    def __init__(self) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model: torch.nn.Module
        self.case: Case
        self.dtype: torch.dtype
        self._modules: dict[str, torch.nn.Module] = {}
        self._timed: dict[str, torch.Tensor] = {}
        # By tap, the whole model under "": what can be replayed, or why it cannot.
        self._replays: dict[str, Replay | NotCapturable] = {}

    def label(self) -> str:
        return f"torch {self.layout} (eager, {self.device.type})"

    def load(self, case: Case, precision: Precision, weights: Mapping[str, torch.Tensor]) -> None:
        if precision.needs_cuda and self.device.type != "cuda":
            raise Unavailable(f"{precision.name} needs a CUDA device and PyTorch sees none")
        torch.backends.cuda.matmul.allow_tf32 = precision.name == "tf32"
        torch.backends.cudnn.allow_tf32 = precision.name == "tf32"
        self._load(case, precision.dtype, rounded(weights, precision.dtype))

    def _load(self, case: Case, dtype: torch.dtype, weights: Mapping[str, torch.Tensor]) -> None:
        self.case = case
        self.dtype = dtype
        self._timed, self._replays = {}, {}
        try:
            self.model = case.build_reference().to(dtype)
        except NoForm as error:
            raise Unavailable(str(error)) from error
        self.model.load_state_dict(dict(weights), strict=True)
        self.model.eval().to(self.device)
        self._modules = dict(self.model.named_modules())

    def _place(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.tensor(array)
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else None)

    def _entry(self, model: torch.nn.Module, arguments: dict) -> dict[str, torch.Tensor]:
        return self.case.named_outputs(getattr(model, self.case.entry)(**arguments))

    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        with torch.inference_mode():
            outputs = self._entry(self.model, map_tree(self.case.entry_arguments(arrays), self._place))
        return {name: out.cpu() for name, out in outputs.items()}

    def run_tapped(
        self, arrays: Mapping[str, np.ndarray], record_calls: bool = False, capture: Capture | None = None
    ) -> Capture:
        arguments = map_tree(self.case.entry_arguments(arrays), self._place)
        with torch.inference_mode(), tapped(self.model, record_calls, capture=capture) as capture:
            outputs = self._entry(self.model, arguments)
        capture.tensors.update({name: out.cpu() for name, out in outputs.items()})
        if record_calls and self.appends:
            self._record_appending(arrays, capture)
        return capture

    def _record_appending(self, arrays: Mapping[str, np.ndarray], capture: Capture) -> None:
        """Add the calls that fill a cache and append to it: code of modules that no full forward reaches."""
        steps = self.case.incremental_arguments(arrays)
        if steps is None:
            return
        before, last = steps
        beside = capture.beside()
        with torch.inference_mode(), tapped(self.model, record_calls=True, capture=beside) as appending:
            cache = self.case.prefill(self.model, **map_tree(before, self._place))
            self.case.extend(self.model, cache=cache, **map_tree(last, self._place))
        capture.add_appending(appending)

    def time(self, arrays: Mapping[str, np.ndarray], repeats: int) -> list[float]:
        arguments = map_tree(self.case.entry_arguments(arrays), self._place)
        with torch.inference_mode():
            timed = measure(lambda: self._entry(self.model, arguments), repeats, self._queue())
        self._timed = timed.result
        return timed.seconds

    def timed_outputs(self) -> dict[str, torch.Tensor]:
        return {name: out.cpu() for name, out in self._timed.items()}

    def time_replays(self, arrays: Mapping[str, np.ndarray], repeats: int) -> Replayed:
        arguments = map_tree(self.case.entry_arguments(arrays), self._place)
        return self._time_replays("", lambda: self._entry(self.model, arguments), repeats)

    def _queue(self) -> torch.cuda.Stream | None:
        return torch.cuda.current_stream() if self.device.type == "cuda" else None

    def _time_replays(self, tap: str, function: Callable[[], Any], repeats: int) -> Replayed:
        if self.device.type != "cuda":
            return Replayed([])
        with torch.inference_mode():
            if tap not in self._replays:
                try:
                    self._replays[tap] = Replay(function)
                except NotCapturable as reason:
                    self._replays[tap] = reason
            replay = self._replays[tap]
            return Replayed(replay.time(repeats)) if isinstance(replay, Replay) else Replayed([], str(replay))

    def module_ranges(self) -> contextlib.AbstractContextManager[None]:
        return module_ranges(self.model)

    def _call_arguments(self, call: ModuleCall, inputs: Mapping[str, torch.Tensor]) -> tuple[list, dict]:
        def fetch(leaf: Any) -> Any:
            if not isinstance(leaf, TensorKey):
                return leaf
            tensor = inputs[leaf.key]
            # A copy: a module may overwrite its input, and others need it.
            return tensor.to(self.device, self.dtype if tensor.is_floating_point() else None, copy=True)

        return map_tree(call.args, fetch), map_tree(call.kwargs, fetch)

    def run_call(
        self, call: ModuleCall, inputs: Mapping[str, torch.Tensor], arrays: Mapping[str, np.ndarray]
    ) -> dict[str, torch.Tensor]:
        args, kwargs = self._call_arguments(call, inputs)
        with torch.inference_mode():
            return self._run_module(call, args, kwargs, arrays)

    def _run_module(
        self, call: ModuleCall, args: list, kwargs: dict, arrays: Mapping[str, np.ndarray]
    ) -> dict:
        result = call.function(self._modules[call.path])(*args, **kwargs)
        return {call.tap + suffix: tensor.cpu() for suffix, tensor in tensor_leaves(result, _is_tensor)}

    def time_call(self, call: ModuleCall, inputs: Mapping[str, torch.Tensor], repeats: int) -> list[float]:
        args, kwargs = self._call_arguments(call, inputs)
        module = call.function(self._modules[call.path])
        with torch.inference_mode():
            return measure(lambda: module(*args, **kwargs), repeats, self._queue()).seconds

    def time_call_replays(
        self, call: ModuleCall, inputs: Mapping[str, torch.Tensor], repeats: int
    ) -> Replayed:
        args, kwargs = self._call_arguments(call, inputs)
        module = call.function(self._modules[call.path])
        return self._time_replays(call.tap, lambda: module(*args, **kwargs), repeats)

    def run_incremental(self, arrays: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        steps = self.case.incremental_arguments(arrays)
        if steps is None:
            return {}
        before, last = steps
        with torch.inference_mode():
            cache = self.case.prefill(self.model, **map_tree(before, self._place))
            outputs = self.case.extend(self.model, cache=cache, **map_tree(last, self._place))
        return {name: out.cpu() for name, out in zip(self.case.incremental_outputs, outputs, strict=True)}


class Float64Runner(TorchRunner):
    """The dense reference in float64, on weights and inputs rounded to the tested precision first.

    What is measured against it is therefore the computing, not the storing.
    """

    # Appending is judged against the oracle's full forward.
    appends = False

    def __init__(self) -> None:
        super().__init__()
        # float64 on a GPU is no more exact and often slower; one oracle serves every machine.
        self.device = torch.device("cpu")

    def label(self) -> str:
        return "oracle (float64, cpu)"

    def can_run(self, call: ModuleCall) -> bool:
        return True

    def load(self, case: Case, precision: Precision, weights: Mapping[str, torch.Tensor]) -> None:
        self.widening = torch.float64.itemsize // precision.dtype.itemsize
        self._load(case, torch.float64, rounded(rounded(weights, precision.dtype), torch.float64))


class OracleRunner(Float64Runner):
    """The same, and beside its taps of few rows draws of what rounding does to them
    (`parity.runners.oracle.rounding`)."""

    def load(self, case: Case, precision: Precision, weights: Mapping[str, torch.Tensor]) -> None:
        super().load(case, precision, weights)
        self._precision = precision

    def run_tapped(
        self, arrays: Mapping[str, np.ndarray], record_calls: bool = False, capture: Capture | None = None
    ) -> Capture:
        capture = Capture() if capture is None else capture
        few: list[str] = []
        elements = 0

        def noted(name: str, tap: torch.Tensor) -> dict[str, torch.Tensor]:
            nonlocal elements
            elements += tap.numel()
            few.extend([name] if has_few_rows(tap) else [])
            return {name: tap}

        through = replace(capture, tensors=Through(capture.tensors, noted))
        with LargestResult() as largest:
            super().run_tapped(arrays, record_calls, through)

        def sample(arguments: dict) -> dict[str, torch.Tensor]:
            with tapped(self.model, keep=has_few_rows) as sampled:
                outputs = self._entry(self.model, arguments)
            return sampled.tensors | outputs

        def arguments() -> dict:
            return map_tree(self.case.entry_arguments(arrays), self._place)

        capture.tensors.update(self._samples(arguments, sample, few, elements, largest.bytes))
        return capture

    def run_call(
        self, call: ModuleCall, inputs: Mapping[str, torch.Tensor], arrays: Mapping[str, np.ndarray]
    ) -> dict[str, torch.Tensor]:
        # Read once: they may be files.
        inputs = {key: inputs[key] for key in call.tensor_keys}
        with LargestResult() as largest:
            results = super().run_call(call, inputs, arrays)

        def arguments() -> tuple[list, dict]:
            return self._call_arguments(call, inputs)

        def sample(arguments: tuple[list, dict]) -> dict[str, torch.Tensor]:
            return self._run_module(call, *arguments, arrays)

        few = [name for name, tap in results.items() if has_few_rows(tap)]
        elements = sum(tap.numel() for tap in results.values())
        return results | self._samples(arguments, sample, few, elements, largest.bytes)

    def _samples(
        self,
        arguments: Callable[[], Any],
        run: Callable[[Any], dict[str, torch.Tensor]],
        taps: list[str],
        elements: int,
        largest: int,
    ) -> dict[str, torch.Tensor]:
        if not taps or self.in_slices:
            return {}
        samples = rounding_samples(arguments, run, taps, self._precision, draws_for(elements), largest)
        return {str(TapName.parse(tap).of_samples()): values for tap, values in samples.items()}


class TorchJaggedRunner(TorchRunner):
    """PyTorch eager on the jagged reference, its results padded so that taps compare with the dense ones."""

    case: Form
    name = "torch_jagged"
    layout = "jagged"
    # Its cache makes the caller move rows about; tests/reference compares it with the full forward.
    appends = False

    def load(self, case: Case, precision: Precision, weights: Mapping[str, torch.Tensor]) -> None:
        super().load(form_of(case, self.name), precision, weights)

    def run_tapped(
        self, arrays: Mapping[str, np.ndarray], record_calls: bool = False, capture: Capture | None = None
    ) -> Capture:
        capture = Capture() if capture is None else capture
        padded = Through(capture.tensors, lambda name, tap: self.case.pad_taps({name: tap}, arrays))
        super().run_tapped(arrays, record_calls, replace(capture, tensors=padded))
        return capture

    def _run_module(
        self, call: ModuleCall, args: list, kwargs: dict, arrays: Mapping[str, np.ndarray]
    ) -> dict:
        args, kwargs = self.case.module_arguments(call.path, args, kwargs, arrays, self._modules)
        return self.case.pad_taps(super()._run_module(call, args, kwargs, arrays), arrays)

    def time_call(self, call: ModuleCall, inputs: Mapping[str, torch.Tensor], repeats: int) -> list[float]:
        # The recorded arguments are the dense module's; unpadding them is no part of the jagged one's time.
        return []

    def time_call_replays(
        self, call: ModuleCall, inputs: Mapping[str, torch.Tensor], repeats: int
    ) -> Replayed:
        return Replayed([])


class TorchCompileRunner(TorchRunner):
    """torch.compile on the dense reference. It fuses modules, so only the model's outputs are compared."""

    taps_modules = False
    appends = False
    ranges_modules = False
    mode = "default"

    def label(self) -> str:
        return f"torch.compile dense (inductor, {self.device.type})"

    def time_replays(self, arrays: Mapping[str, np.ndarray], repeats: int) -> Replayed:
        # That is the next runner.
        return Replayed([])

    def load(self, case: Case, precision: Precision, weights: Mapping[str, torch.Tensor]) -> None:
        if self.device.type == "cpu" and shutil.which("g++") is None and shutil.which("clang++") is None:
            raise Unavailable("torch.compile needs a C++ compiler on the CPU and none is on the PATH")
        super().load(case, precision, weights)
        torch._dynamo.reset()
        entry = getattr(self.model, self.case.entry)
        self._compiled = torch.compile(entry, fullgraph=True, dynamic=False, mode=self.mode)

    def _entry(self, model: torch.nn.Module, arguments: dict) -> dict[str, torch.Tensor]:
        return self.case.named_outputs(self._compiled(**arguments))


class TorchCompileGraphsRunner(TorchCompileRunner):
    """The same, replayed as CUDA graphs: mode "reduce-overhead"."""

    mode = "reduce-overhead"
    # The graphs' own pool is in none of the allocator's numbers: it would look as if runs took nothing.
    in_torchs_memory = False

    def label(self) -> str:
        return f"torch.compile dense (inductor, CUDA graphs, {self.device.type})"

    def load(self, case: Case, precision: Precision, weights: Mapping[str, torch.Tensor]) -> None:
        if self.device.type != "cuda":
            raise Unavailable("CUDA graphs need a CUDA device and PyTorch sees none")
        super().load(case, precision, weights)
