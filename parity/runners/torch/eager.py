"""PyTorch eager: the dense reference, the truth that ports are compared with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from parity.base.errors import UserError
from parity.base.precision import Precision
from parity.base.real_numbers import complex_dtype, in_real, is_tensor, with_numbers_in
from parity.base.trees import dotted, leaves, map_tree
from parity.capture.captures import Capture, ModuleCall, TensorKey, tensor_leaves
from parity.capture.indices import IndexOutside
from parity.capture.names import TapName
from parity.capture.outputs import flat_outputs, form_of, output_of
from parity.capture.torch_hooks import module_ranges, tapped
from parity.case import Case, NoForm
from parity.case.contract import outputs_by_tap, require_whole_outputs
from parity.coverage.bounds import Bounds
from parity.coverage.questions import Coverage
from parity.inputs.weights import rounded
from parity.runners.base import (
    Appends,
    Arrays,
    MeasuresCoverage,
    RangesModules,
    RecordsCalls,
    ReplaysGraphs,
    Runner,
    TapsModules,
    Tensors,
    Unavailable,
)
from parity.runners.torch.inputs_at_fault import raising_inputs, spoiling_inputs
from parity.timing.measure import Replay, Replayed, Replays, Timed, TimedCall, measure


class TorchModel(Runner):
    """A PyTorch model as a whole: load, run, time.

    Args:
        device: Its device; by default the GPU where there is one.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model: torch.nn.Module
        self.case: Case
        self.dtype: torch.dtype
        # Of the outputs of the last run, see `Capture.forms`.
        self._forms: dict[str, str] = {}

    def load(self, case: Case, precision: Precision, weights: Tensors) -> None:
        if precision.needs_cuda and self.device.type != "cuda":
            raise Unavailable(f"{precision.name} needs a CUDA device and PyTorch sees none")
        torch.backends.cuda.matmul.allow_tf32 = precision.name == "tf32"
        torch.backends.cudnn.allow_tf32 = precision.name == "tf32"
        self._build(case, precision.dtype, rounded(weights, precision.dtype))

    def _build(self, case: Case, dtype: torch.dtype, weights: Tensors) -> None:
        self.case = case
        self.dtype = dtype
        try:
            self.model = with_numbers_in(case.build_reference(), dtype)
        except NoForm as error:
            raise Unavailable(str(error)) from error
        self.model.load_state_dict(dict(weights), strict=True)
        # PyTorch chooses some kernels by `requires_grad`, which a dispatch mode hides: see `LongestSums`.
        self.model.eval().requires_grad_(False).to(self.device)

    def _place(self, leaf: Any) -> Any:
        """A copy of a tensor or array on the device, in the model's dtype; a GPU is the model's device."""
        if isinstance(leaf, torch.device) and leaf.type != "cpu":
            return self.device
        if isinstance(leaf, np.ndarray):
            leaf = torch.tensor(leaf)
        if not isinstance(leaf, torch.Tensor):
            return leaf
        dtype = self.dtype if leaf.is_floating_point() else None
        # A copy: a module may overwrite its input, and other modules need it.
        return leaf.to(self.device, complex_dtype(self.dtype) if leaf.is_complex() else dtype, copy=True)

    def _arguments(self, arrays: Arrays) -> dict[str, Any]:
        return map_tree(self.case.entry_arguments(arrays), self._place)

    def _entry(self, arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
        return self._outputs(self.case.call(self.model, arguments))

    def _outputs(self, results: Any) -> dict[str, torch.Tensor]:
        """The results of the entry by tap name, as tensors of real numbers."""
        outputs = flat_outputs(outputs_by_tap(self.case, results))
        if not outputs:
            problem = "returns no tensor, and nothing is left to compare"
            raise UserError("outputs", self.case.entry, problem, "return what the port has to equal")
        require_whole_outputs(self.case, outputs)
        self._forms = {name: form for name, output in outputs.items() if (form := form_of(output))}
        return {name: output_of(name, output, self.dtype) for name, output in outputs.items()}

    def run(self, arrays: Arrays) -> dict[str, torch.Tensor]:
        with torch.inference_mode():
            return on_host(self._entry(self._arguments(arrays)))

    def time(self, arrays: Arrays, repeats: int) -> Timed:
        arguments = self._arguments(arrays)
        with torch.inference_mode():
            timed = measure(lambda: self._entry(arguments), repeats, self._queue())
        return Timed(timed.seconds, on_host(timed.result))

    def _queue(self) -> torch.cuda.Stream | None:
        return torch.cuda.current_stream() if self.device.type == "cuda" else None

    def allocates_by_torch(self) -> bool:
        return True


class TorchModules(TorchModel, TapsModules):
    """A PyTorch model whose modules have taps, and run alone."""

    def __init__(self, device: torch.device | None = None) -> None:
        super().__init__(device)
        self._modules: dict[str, torch.nn.Module] = {}

    def _build(self, case: Case, dtype: torch.dtype, weights: Tensors) -> None:
        super()._build(case, dtype, weights)
        self._modules = dict(self.model.named_modules())

    def modules(self) -> Mapping[str, torch.nn.Module]:
        return self._modules

    def run_tapped(self, arrays: Arrays, capture: Capture | None = None, whole: bool = True) -> Capture:
        return self._tapped(arrays, capture, record_calls=False, whole=whole)

    def _tapped(
        self, arrays: Arrays, capture: Capture | None, record_calls: bool, whole: bool = True
    ) -> Capture:
        arguments = self._arguments(arrays)
        inputs = self._named_inputs(arguments) if whole else None
        with (
            torch.inference_mode(),
            tapped(self.model, record_calls, capture=capture, inputs=inputs) as capture,
        ):
            outputs = self._entry(arguments)
        capture.tensors.update(on_host(outputs))
        capture.forms.update(self._forms)
        return capture

    def _named_inputs(self, arguments: dict[str, Any]) -> dict[str, torch.Tensor] | None:
        """The entry's tensors by name; None for a run that records no arguments."""
        return {
            str(TapName(self.case.entry, argument=dotted(path))): leaf
            for path, leaf in leaves(arguments)
            if is_tensor(leaf)
        }

    def run_call(
        self, call: ModuleCall, inputs: Tensors, arrays: Arrays, whole: bool = True
    ) -> dict[str, torch.Tensor]:
        args, kwargs = self._call_arguments(call, inputs, arrays)
        with torch.inference_mode():
            return self._call_taps(call, args, kwargs)

    def timed_call(self, call: ModuleCall, inputs: Tensors, arrays: Arrays) -> TimedCall:
        args, kwargs = self._call_arguments(call, inputs, arrays)
        module = call.function(self._modules[call.path])

        @torch.inference_mode()
        def run() -> Any:
            return module(*args, **kwargs)

        return TimedCall(lambda repeats: measure(run, repeats, self._queue()).seconds, self._replays(run))

    def _replays(self, run: Callable[[], Any]) -> Replays | None:
        return Replays(lambda: Replay(run)) if self.device.type == "cuda" else None

    def _call_arguments(self, call: ModuleCall, inputs: Tensors, arrays: Arrays) -> tuple[list, dict]:
        """The arguments of a module alone, on the device."""
        args, kwargs = recorded_arguments(call, inputs)
        return map_tree(args, self._place), map_tree(kwargs, self._place)

    def _call_taps(self, call: ModuleCall, args: list, kwargs: dict) -> dict[str, torch.Tensor]:
        result = call.function(self._modules[call.path])(*args, **kwargs)
        return {
            call.tap + suffix: in_real(tensor).cpu() for suffix, tensor in tensor_leaves(result, is_tensor)
        }


class TorchGraphs(TorchModules, ReplaysGraphs):
    """A PyTorch model that is also timed as replays of its CUDA graph."""

    def __init__(self, device: torch.device | None = None) -> None:
        super().__init__(device)
        self._whole: Replays | None = None

    def _build(self, case: Case, dtype: torch.dtype, weights: Tensors) -> None:
        self._whole = None
        super()._build(case, dtype, weights)

    def time_replays(self, arrays: Arrays, repeats: int) -> Replayed:
        if self._whole is None:
            arguments = self._arguments(arrays)
            self._whole = self._replays(torch.inference_mode()(lambda: self._entry(arguments)))
        return Replayed([]) if self._whole is None else self._whole.time(repeats)


class TorchRunner(TorchGraphs, RecordsCalls, Appends, RangesModules, MeasuresCoverage):
    """The dense reference."""

    def __init__(self, device: torch.device | None = None) -> None:
        super().__init__(device)
        self._told = Coverage()

    def label(self) -> str:
        return f"torch dense (eager, {self.device.type})"

    def load(self, case: Case, precision: Precision, weights: Tensors) -> None:
        self._told = Coverage()
        super().load(case, precision, weights)

    def coverage(self, arrays: Arrays, recorded: Capture) -> Coverage:
        with Bounds() as bounds:
            self.run(arrays)
            self.run_incremental(arrays)
        new = bounds.coverage.without(self._told)
        self._told.update(new)
        return new

    def record(self, arrays: Arrays, capture: Capture | None = None) -> Capture:
        try:
            recorded = self._tapped(arrays, capture, record_calls=True)
        except IndexOutside as error:
            raise error.of_inputs(arrays) from error
        except Exception as error:
            if (refusal := raising_inputs(arrays, error, self.run)) is None:
                raise
            raise refusal from error
        if (refusal := spoiling_inputs(self.case, arrays, recorded.tensors, self.run)) is not None:
            raise refusal
        self._record_appending(arrays, recorded)
        return recorded

    def record_outputs(self, arrays: Arrays, kinds: Collection[str] = ()) -> Capture:
        """`record` for a verdict on the outputs alone, which holds no other tensors.

        Args:
            arrays: The inputs.
            kinds: Classes of modules whose calls keep their tensors nevertheless.
        """
        arguments = self._arguments(arrays)
        with torch.inference_mode(), tapped(self.model, record_calls=True, kinds=kinds) as capture:
            outputs = self._entry(arguments)
        capture.tensors.update(on_host(outputs))
        return capture

    def _record_appending(self, arrays: Arrays, capture: Capture) -> None:
        """Add the calls that fill a cache and append to it; no full forward reaches that code."""
        steps = self.case.incremental_arguments(arrays)
        if steps is None:
            return
        beside = capture.beside()
        before, *appended = steps
        with torch.inference_mode():
            cache = self._cache_after(before, appended[:-1])
            with tapped(self.model, record_calls=True, capture=beside) as appending:
                filled = self._cache_after(before, [])
                self._extend(cache, appended[-1])
                known = len(appending.calls)
                if len(appended) > 1:
                    # It returns a state, which the last append may leave out.
                    self._extend(filled, appended[0])
        appending.keep_new_forms(known)
        capture.add_appending(appending)

    def _cache_after(self, before: dict[str, Any], appended: Sequence[dict[str, Any]]) -> Any:
        cache = self.case.prefill(self.model, **map_tree(before, self._place))
        for step in appended:
            _, cache = self._extend(cache, step)
        return cache

    def _extend(self, cache: Any, step: dict[str, Any]) -> tuple[tuple[torch.Tensor, ...], Any]:
        return self.case.extend(self.model, cache=cache, **map_tree(step, self._place))

    def run_incremental(self, arrays: Arrays) -> dict[str, torch.Tensor]:
        steps = self.case.incremental_arguments(arrays)
        if steps is None:
            return {}
        with torch.inference_mode():
            outputs, _ = self._extend(self._cache_after(steps[0], steps[1:-1]), steps[-1])
        return on_host(dict(zip(self.case.incremental_outputs, outputs, strict=True)))

    def run_appending(self, arrays: Arrays) -> Capture:
        steps = self.case.incremental_arguments(arrays)
        if steps is None:
            return Capture()
        with torch.inference_mode(), tapped(self.model, inputs={}) as capture:
            self._cache_after(steps[0], steps[1:])
        return capture.renamed(TapName.appending)

    def module_ranges(self) -> contextlib.AbstractContextManager[None]:
        return module_ranges(self.model)


def recorded_arguments(call: ModuleCall, inputs: Tensors, in_parts: bool = False) -> tuple[list, dict]:
    """The arguments of a recorded call, with the tensors of `inputs` in the place of their keys.

    Args:
        call: The call.
        inputs: Tensors by key.
        in_parts: Whether complex tensors stay (..., 2), their real and imaginary parts.
    """

    def fetch(leaf: Any) -> Any:
        if not isinstance(leaf, TensorKey):
            return leaf
        tensor = inputs[leaf.key]
        return torch.view_as_complex(tensor) if leaf.is_complex and not in_parts else tensor

    return map_tree(call.args, fetch), map_tree(call.kwargs, fetch)


def on_host(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors by name, in the host's memory."""
    return {name: tensor.cpu() for name, tensor in tensors.items()}
