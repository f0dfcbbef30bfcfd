"""The port on jagged rows, with the fused attention or whole layers as plugins."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import nvtripy as tp
import torch

from parity.base.precision import Precision
from parity.base.trees import map_tree
from parity.capture.captures import ModuleCall, tensor_leaves
from parity.capture.tripy_hooks import Traced, is_tripy_tensor
from parity.case import CallInForm, Case, Form
from parity.runners.base import Arrays, Tensors
from parity.runners.forms import form_of
from parity.runners.torch.eager import recorded_arguments
from parity.runners.tripy.compiled import Compiled
from parity.runners.tripy.modules import IS_PORTABLE
from parity.runners.tripy.runner import TripyRunner


class TripyJaggedRunner(TripyRunner):
    """The port's fused form, its results padded for comparison."""

    case: Form
    name = "tripy_jagged"
    """The runner's name, as in `parity.runners.forms.FORMS`."""
    layout = "jagged"
    """The form in labels."""

    def label(self) -> str:
        on_gpu = not IS_PORTABLE or torch.cuda.is_available()
        kernel = "Triton kernel" if on_gpu else "the kernel's plain PyTorch form"
        return f"{super().label()} {self.layout}, {kernel}"

    def load(self, case: Case, precision: Precision, weights: Tensors) -> None:
        super().load(form_of(case, self.name), precision, weights)

    def can_run(self, call: ModuleCall) -> bool:
        is_known = not call.appends or self.case.appends_alone
        return super().can_run(call) and is_known and call.kind not in self.case.computed_inside

    def _entry_tapped(self, arguments: dict, traced: Traced) -> dict[str, tp.Tensor]:
        outputs = self._entry(arguments, traced)
        # Modules of another layout receive other arguments than the reference's.
        traced.received.clear()
        return {**traced.taps, **outputs}

    def _run_entry(
        self, arrays: Arrays, function: Callable, taps: bool = False
    ) -> tuple[dict[str, torch.Tensor], Compiled]:
        results, compiled = super()._run_entry(arrays, function, taps)
        return self.case.pad_taps(results, arrays), compiled

    def run_call(
        self, call: ModuleCall, inputs: Tensors, arrays: Arrays, whole: bool = True
    ) -> dict[str, torch.Tensor]:
        in_form = self._in_form(call, inputs, arrays)
        return in_form.padded(self._results(call, *self._compiled_in_form(call, in_form)))

    def _call(self, call: ModuleCall, inputs: Tensors, arrays: Arrays) -> tuple[Compiled, Any]:
        return self._compiled_in_form(call, self._in_form(call, inputs, arrays))

    def _in_form(self, call: ModuleCall, inputs: Tensors, arrays: Arrays) -> CallInForm:
        args, kwargs = (
            map_tree(part, self._host) for part in recorded_arguments(call, inputs, in_parts=True)
        )
        if call.appends:
            return self.case.appended_call(call.path, call.method, args, kwargs, arrays, self._modules)
        args, kwargs = self.case.module_arguments(call.path, args, kwargs, arrays, self._modules)
        return CallInForm(args, kwargs, functools.partial(self.case.pad_taps, arrays=arrays))

    def _compiled_in_form(self, call: ModuleCall, in_form: CallInForm) -> tuple[Compiled, Any]:
        module, args, kwargs = self._module(call), in_form.args, in_form.kwargs
        # A module's call, and not its `forward`, runs its hooks.
        function_of_module = module if in_form.method == "forward" else getattr(module, in_form.method)
        # A bias or mask is no input of the graph: its tensors are in the graph, as in the model's.
        modules = {name: value for name, value in kwargs.items() if isinstance(value, tp.Module)}
        arguments = {"args": args, "kwargs": {name: kwargs[name] for name in kwargs if name not in modules}}

        def function(arguments: dict, traced: Traced) -> dict[str, tp.Tensor]:
            result = function_of_module(*arguments["args"], **arguments["kwargs"], **modules)
            return dict(tensor_leaves(result, is_tripy_tensor))

        # The tensors in a bias or mask differ between calls.
        return self._compiled(call.tap, function, arguments), arguments


class TripyLayersRunner(TripyJaggedRunner):
    """The port's form of whole layers."""

    name = "tripy_layers"
    layout = "jagged, whole layers"
