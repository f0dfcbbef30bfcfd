"""PyTorch eager on jagged rows: another form of the reference, its results padded for comparison."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import torch

from parity.base.precision import Precision
from parity.base.trees import map_tree
from parity.capture.captures import Capture, ModuleCall, Through
from parity.capture.torch_hooks import module_ranges
from parity.case import Case, Form
from parity.runners.base import Arrays, RangesModules, Tensors
from parity.runners.forms import form_of
from parity.runners.torch.eager import TorchGraphs, TorchModules, recorded_arguments
from parity.timing.measure import TimedCall, untimed


class TorchForm(TorchModules, RangesModules):
    """A form of the reference. Its cache is the caller's business: it has no incremental forward."""

    case: Form
    name: str
    """The runner's name, as in `parity.runners.forms.FORMS`."""

    def load(self, case: Case, precision: Precision, weights: Tensors) -> None:
        super().load(form_of(case, self.name), precision, weights)

    def run_tapped(self, arrays: Arrays, capture: Capture | None = None, whole: bool = True) -> Capture:
        capture = Capture() if capture is None else capture
        padded = Through(capture.tensors, lambda name, tap: self.case.pad_taps({name: tap}, arrays))
        super().run_tapped(arrays, replace(capture, tensors=padded), whole)
        return capture

    def _named_inputs(self, arguments: dict[str, Any]) -> None:
        # Modules of another layout receive other arguments than the reference's.
        return None

    def run_call(
        self, call: ModuleCall, inputs: Tensors, arrays: Arrays, whole: bool = True
    ) -> dict[str, torch.Tensor]:
        return self.case.pad_taps(super().run_call(call, inputs, arrays, whole), arrays)

    def _call_arguments(self, call: ModuleCall, inputs: Tensors, arrays: Arrays) -> tuple[list, dict]:
        args, kwargs = recorded_arguments(call, inputs)
        args, kwargs = self.case.module_arguments(call.path, args, kwargs, arrays, self._modules)
        return map_tree(args, self._place), map_tree(kwargs, self._place)

    def module_ranges(self) -> contextlib.AbstractContextManager[None]:
        return module_ranges(self.model)


class TorchJaggedRunner(TorchForm, TorchGraphs):
    """The jagged reference. Only the whole model has a time: its modules take part in packing rows."""

    name = "torch_jagged"

    def label(self) -> str:
        return f"torch jagged (eager, {self.device.type})"

    def timed_call(self, call: ModuleCall, inputs: Tensors, arrays: Arrays) -> TimedCall:
        return TimedCall(untimed)
