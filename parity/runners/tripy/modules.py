"""The port's forward and its modules, run by nvtripy.

They run on NVIDIA's TensorRT where it is installed, else on the portable runtime.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Collection
from typing import Any

import mlir_tensorrt
import numpy as np
import nvtripy as tp
import tensorrt
import torch

from parity.base.precision import Precision
from parity.base.real_numbers import in_real
from parity.base.trees import dotted, leaves, map_tree
from parity.base.variables import PORTABLE_TF32
from parity.capture.captures import Capture, ModuleCall, tensor_leaves
from parity.capture.names import TapName
from parity.capture.outputs import flat_outputs, output_of
from parity.capture.tripy_hooks import Traced, is_tripy_tensor, read_beside, tapped
from parity.case import Case, NoForm
from parity.case.contract import outputs_by_tap
from parity.case.pairing import ABSENT
from parity.coverage.questions import Coverage
from parity.coverage.weights import weights_of
from parity.inputs.weights import rounded
from parity.runners.base import (
    Arrays,
    MeasuresCoverage,
    ReplaysGraphs,
    TapsAtOnce,
    Tensors,
    Unavailable,
)
from parity.runners.torch.eager import recorded_arguments
from parity.runners.tripy.compiled import (
    Compiled,
    DynamicSizes,
    ExecutableReplay,
    placed,
    time_runs,
    to_host,
    tripy_dtype,
    tripy_value,
)
from parity.runners.tripy.lean_traces import leanly
from parity.runners.tripy.other_sizes import failing_with_sizes
from parity.runners.tripy.pairing import (
    Inside,
    built_port,
    check_patterns,
    paired_modules,
    paired_parameters,
    received_arguments,
    require_taking,
    set_parameters,
)
from parity.runners.tripy.survey import Survey
from parity.timing.measure import Replayed, Replays, Timed, TimedCall

_STATIC: DynamicSizes = {}
IS_PORTABLE = bool(getattr(mlir_tensorrt, "__portable__", False))


class TripyModules(TapsAtOnce, ReplaysGraphs, MeasuresCoverage):
    """A Tripy model: the whole model with a dynamic batch, and every module as an executable of its own."""

    def __init__(self) -> None:
        self.case: Case
        self.model: tp.Module
        self.dtype: torch.dtype
        self._modules: dict[str, tp.Module] = {}
        self._parameters: dict[str, tp.Tensor] = {}
        # Axes and types of the tensors that modules receive inside the model, by call and argument.
        self._received: dict[str, dict[str, tuple[int, torch.dtype]]] = {}
        self._executables: dict[Any, list[Compiled]] = {}
        self._whole: Replays | None = None
        self._survey: Survey | None = None
        self._asked: Coverage

    def label(self) -> str:
        if IS_PORTABLE:
            return f"tripy (portable, {'cuda' if torch.cuda.is_available() else 'cpu'})"
        return f"tripy (native TensorRT {tensorrt.__version__})"

    def load(self, case: Case, precision: Precision, weights: Tensors) -> None:
        if precision.needs_cuda and not torch.cuda.is_available():
            raise Unavailable(f"{precision.name} needs a CUDA device and none is visible")
        if IS_PORTABLE:
            # The portable runtime reads its own switch when it makes an executable, not PyTorch's.
            os.environ[PORTABLE_TF32] = str(int(precision.name == "tf32"))
        self.case = case
        self.dtype = precision.dtype
        try:
            self.model = built_port(case, precision.dtype)
        except NoForm as error:
            raise Unavailable(str(error)) from error
        self._load_parameters(weights)
        self._modules = paired_modules(self.case, self.model)
        check_patterns(case, list(self._modules))
        self._parameters = paired_parameters(self.case, self.model)
        self._executables, self._whole = {}, None
        self._survey, self._asked = None, weights_of(case, weights)

    def modules(self) -> dict[str, tp.Module]:
        return {"": self.model, **self._modules}

    def coverage(self, arrays: Arrays, recorded: Capture) -> Coverage:
        if self._survey is None:
            twin = copy.copy(self)
            self._survey = Survey(
                self.case,
                tripy_dtype(self.dtype),
                self.model,
                self._modules,
                self._parameters,
                twin,
                self._asked,
            )
            twin._executables, twin._whole = {}, None
            twin._compile = self._survey.graph
        return self._survey.answer(arrays, recorded)

    def _load_parameters(self, weights: Tensors) -> None:
        # A port has no complex numbers: their parts are real ones in its type.
        weights = {name: in_real(tensor) for name, tensor in weights.items()}
        tensors = rounded(weights, self.dtype)
        set_parameters(self.case, self.model, tensors)

    def _host(self, leaf: Any) -> Any:
        tensor = torch.tensor(leaf) if isinstance(leaf, np.ndarray) else leaf
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            tensor = tensor.to(self.dtype)
        return tripy_value(tensor)

    def _compiled(
        self,
        key: Any,
        function: Callable,
        arguments: Any,
        dynamic_sizes: DynamicSizes = _STATIC,
        taps: bool = False,
        methods: Collection[str] = (),
    ) -> Compiled:
        """An executable that accepts the arguments: an earlier one of the key, or a new one.

        Args:
            key: Name of the function.
            function: Traced with the arguments and the taps.
            arguments: Tensors on the host, nested.
            dynamic_sizes: Dynamic axes with their least sizes. The largest are those of these arguments,
                which are therefore the first and the largest of a plan.
            taps: Whether modules are tapped. All other traces are the port's own.
            methods: Methods of tapped modules that count as calls, besides `forward`.
        """
        executables = self._executables.setdefault(key, [])
        for compiled in executables:
            if compiled.accepts(arguments):
                return compiled
        compiled, traced = self._traced(
            self._compile, function, arguments, dynamic_sizes, taps=taps, methods=methods
        )
        compiled.received = traced.received
        compiled.keep_evaluated(traced.evaluated)
        executables.append(compiled)
        return compiled

    def _traced(
        self,
        compile_with: Callable[..., Any],
        function: Callable,
        *arguments: Any,
        taps: bool = False,
        methods: Collection[str] = (),
    ) -> tuple[Any, Traced]:
        """The result of `compile_with` for a function that receives a `Traced`, and what was traced."""

        def compiled() -> tuple[Any, Traced]:
            of = (self._modules, self._parameters) if taps else ({}, {})
            with tapped(*of, methods) as traced:
                return compile_with(functools.partial(function, traced=traced), *arguments), traced

        return leanly(compiled)

    def _compile(self, function: Callable, arguments: Any, dynamic_sizes: DynamicSizes) -> Compiled:
        return Compiled(function, arguments, dynamic_sizes)

    def _entry(self, arguments: dict, traced: Traced) -> dict[str, tp.Tensor | torch.Tensor]:
        outputs = flat_outputs(outputs_by_tap(self.case, self.case.call(self.model, arguments)))
        return {
            name: output if is_tripy_tensor(output) else output_of(name, output, self.dtype)
            for name, output in outputs.items()
        }

    def _entry_tapped(self, arguments: dict, traced: Traced) -> dict[str, tp.Tensor | torch.Tensor]:
        for path, leaf in leaves(arguments):
            if is_tripy_tensor(leaf):
                traced.name(leaf, str(TapName(self.case.entry, argument=dotted(path))))
        outputs = self._entry(arguments, traced)
        return {**traced.arguments, **traced.taps, **outputs}

    def _run_entry(
        self, arrays: Arrays, function: Callable, taps: bool = False
    ) -> tuple[dict[str, torch.Tensor], Compiled]:
        given = self.case.entry_arguments(arrays)
        require_taking(self.case, self.model, given)
        arguments = map_tree(given, self._host)
        sizes = self.case.dynamic_sizes(arrays)
        compiled = self._compiled(function.__name__, function, arguments, sizes, taps)
        try:
            return compiled.on_host(placed(arguments)), compiled
        except tp.TripyException as error:
            trace = functools.partial(self._traced, Compiled, function, arguments, _STATIC, taps=taps)
            failure = failing_with_sizes(trace, self.modules(), arguments, compiled.sizes)
            if failure is not None:
                raise failure from error
            raise

    def run(self, arrays: Arrays) -> dict[str, torch.Tensor]:
        return self._run_entry(arrays, self._entry)[0]

    def run_tapped(self, arrays: Arrays, capture: Capture | None = None, whole: bool = True) -> Capture:
        capture = Capture() if capture is None else capture
        results, compiled = self._run_entry(arrays, self._entry_tapped, taps=True)
        for name, tensor in results.items():
            is_argument = bool(TapName.parse(name).argument)
            if not is_argument:
                capture.tensors[name] = tensor
            elif whole:
                capture.call_inputs[name] = tensor
        self._received = {
            call: {
                leaf.name: (results[leaf.tensor].ndim, results[leaf.tensor].dtype)
                for leaf in received.arguments
                if leaf.tensor in results
            }
            for call, received in compiled.received.items()
        }
        if whole:
            capture.arguments.update(compiled.received)
            capture.evaluated.update(compiled.evaluated)
            capture.call_inputs.update(self._own_arguments(compiled))
        return capture

    def _own_arguments(self, compiled: Compiled) -> dict[str, torch.Tensor]:
        """The model's own tensors among the arguments of its modules' calls, on the host."""
        named = {leaf.tensor for call in compiled.received.values() for leaf in call.arguments}
        own = {name: self._parameters[name].trace_tensor for name in named & set(self._parameters)}
        return {name: read_beside(traced, to_host) for name, traced in own.items()}

    def time(self, arrays: Arrays, repeats: int) -> Timed:
        arguments = map_tree(self.case.entry_arguments(arrays), self._host)
        compiled = self._compiled("_entry", self._entry, arguments, self.case.dynamic_sizes(arrays))
        on_device = placed(arguments)
        seconds, outputs = time_runs(compiled, on_device, repeats)
        named = compiled.named(outputs, on_device)
        return Timed(seconds, {name: to_host(output) for name, output in named.items()})

    def allocates_by_torch(self) -> bool:
        # TensorRT allocates memory by itself.
        return IS_PORTABLE

    def time_replays(self, arrays: Arrays, repeats: int) -> Replayed:
        arguments = map_tree(self.case.entry_arguments(arrays), self._host)
        compiled = self._compiled("_entry", self._entry, arguments, self.case.dynamic_sizes(arrays))
        if self._whole is None:
            self._whole = self._replays(compiled, placed(arguments))
        return Replayed([]) if self._whole is None else self._whole.time(repeats)

    def _replays(self, compiled: Compiled, on_device: Any) -> Replays | None:
        """Replays of the portable runtime's graph; there are none on TensorRT, or without a graph."""
        if not (IS_PORTABLE and torch.cuda.is_available()) or compiled.is_empty:
            return None
        return Replays(lambda: ExecutableReplay(compiled, on_device))

    def _call(self, call: ModuleCall, inputs: Tensors, arrays: Arrays) -> tuple[Compiled, Any]:
        """One module's executable, whose results have the names of outputs, and its arguments on the host.

        Calls of one function with arguments of the same structure, types and sizes share their executable.
        """
        module = call.function(self._module(call))
        args, kwargs = received_arguments(
            self.case,
            self._module(call),
            *recorded_arguments(call, inputs, in_parts=True),
            self.inside(call),
            self._host,
        )
        arguments = {"args": args, "kwargs": kwargs}

        def function(arguments: dict, traced: Traced) -> dict[str, tp.Tensor]:
            result = module(*arguments["args"], **arguments["kwargs"])
            return dict(tensor_leaves(result, is_tripy_tensor))

        return self._compiled((call.path, call.method), function, arguments), arguments

    def inside(self, call: ModuleCall) -> Inside:
        """The form in which the last tapped run passes a call's arguments."""
        return self._received.get(call.tap, {})

    def can_run(self, call: ModuleCall) -> bool:
        # A module that the port may leave out has no error.
        return super().can_run(call) and (
            call.path in self._modules or not self.case.absence(call.path, call.kind)
        )

    def _module(self, call: ModuleCall) -> tp.Module:
        if call.path not in self._modules:
            raise LookupError(f"the port has no module {call.path}; {ABSENT}")
        return self._modules[call.path]

    def run_call(
        self, call: ModuleCall, inputs: Tensors, arrays: Arrays, whole: bool = True
    ) -> dict[str, torch.Tensor]:
        return self._results(call, *self._call(call, inputs, arrays))

    def _results(self, call: ModuleCall, compiled: Compiled, arguments: Any) -> dict[str, torch.Tensor]:
        """The results of a module's executable by tap, on the host."""
        results = compiled.on_host(placed(arguments))
        return {call.tap + output: tensor for output, tensor in results.items()}

    def timed_call(self, call: ModuleCall, inputs: Tensors, arrays: Arrays) -> TimedCall:
        compiled, arguments = self._call(call, inputs, arrays)
        on_device = placed(arguments)
        time = lambda repeats: time_runs(compiled, on_device, repeats)[0]  # noqa: E731
        return TimedCall(time, self._replays(compiled, on_device))
