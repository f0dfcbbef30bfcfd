"""What runners of the exported reference share: its graphs, their inputs, and modules cut out by name."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir
import torch

from parity.base.precision import Precision
from parity.capture.captures import Capture, ModuleCall, argument_keys
from parity.case import Case
from parity.runners.base import Runner
from parity.runners.onnx.export import Exported, argument_name, export, feeds

Tensors = Mapping[str, torch.Tensor]


class Session(Protocol):
    """A graph that is ready to run."""

    def __call__(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """Outputs by name, on the host."""

    def time(self, tensors: Tensors, repeats: int) -> list[float]:
        """Seconds of `repeats` synchronised runs, inputs already in place."""


class OnnxRunner(Runner):
    """The dense reference as exported: the whole model for any batch, and each module cut out of it."""

    # Filling and extending the cache are other entry points, which are not exported.
    appends = False

    def __init__(self) -> None:
        self.case: Case
        self.dtype: torch.dtype
        self.exported: Exported
        self._sessions: dict[Any, Session] = {}
        self._modules: dict[str, ir.Model] = {}
        self._model_inputs: Tensors = {}

    def load(self, case: Case, precision: Precision, weights: Mapping[str, torch.Tensor]) -> None:
        self.case = case
        self.dtype = precision.dtype
        self._sessions, self._modules = {}, {}
        self.exported = export(case, precision, weights)

    @abc.abstractmethod
    def _open(self, model: ir.Model, tensors: Tensors, smallest: Mapping[str, int]) -> Session:
        """Make a graph ready to run on these inputs.

        Args:
            model: What to run.
            tensors: Its inputs by name.
            smallest: Inputs whose first axis is dynamic, with the smallest size that it can have.
        """

    @abc.abstractmethod
    def _fits(self, tensors: Tensors) -> Any:
        """What of the inputs a session depends on: those that are equal in it share a session."""

    def _session(
        self, what: str, model: Callable[[], ir.Model], tensors: Tensors, smallest: Mapping[str, int]
    ) -> Session:
        key = (what, self._fits(tensors))
        if key not in self._sessions:
            self._sessions[key] = self._open(model(), tensors, smallest)
        return self._sessions[key]

    def _inputs(self, arrays: Mapping[str, np.ndarray]) -> tuple[Tensors, dict[str, int]]:
        """The model's inputs, and the smallest sizes of those with a dynamic first axis."""
        smallest = {path: least for path, (_, least) in self.case.dynamic_axes(arrays).items()}
        return feeds(self.case, arrays, self.dtype), smallest

    def _whole(
        self, what: str, model: Callable[[], ir.Model], arrays: Mapping[str, np.ndarray]
    ) -> tuple[Session, Tensors]:
        tensors, smallest = self._inputs(arrays)
        return self._session(what, model, tensors, smallest), tensors

    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        session, tensors = self._whole("plain", self.exported.plain, arrays)
        return session(tensors)

    def run_tapped(
        self, arrays: Mapping[str, np.ndarray], record_calls: bool = False, capture: Capture | None = None
    ) -> Capture:
        session, tensors = self._whole("tapped", self.exported.tapped, arrays)
        capture = Capture() if capture is None else capture
        capture.tensors.update(session(tensors))
        return capture

    def time(self, arrays: Mapping[str, np.ndarray], repeats: int) -> list[float]:
        session, tensors = self._whole("plain", self.exported.plain, arrays)
        return session.time(tensors, repeats)

    def run_call(
        self, call: ModuleCall, inputs: Mapping[str, torch.Tensor], arrays: Mapping[str, np.ndarray]
    ) -> dict[str, torch.Tensor]:
        self._model_inputs = feeds(self.case, arrays, self.dtype)
        session, tensors = self._call(call, inputs)
        return session(tensors)

    def time_call(self, call: ModuleCall, inputs: Mapping[str, torch.Tensor], repeats: int) -> list[float]:
        session, tensors = self._call(call, inputs)
        return session.time(tensors, repeats)

    def _call(self, call: ModuleCall, inputs: Tensors) -> tuple[Session, Tensors]:
        keys = argument_keys(call.args, call.kwargs)
        if call.tap not in self._modules:
            self._modules[call.tap] = self.exported.module(call.tap, list(keys), call.outputs)
        model = self._modules[call.tap]
        given = {argument_name(call.tap, path): inputs[key] for path, key in keys.items()}
        # What else the graph takes are inputs of the model, for their sizes.
        names = [value.name for value in model.graph.inputs]
        tensors = {name: given[name] if name in given else self._model_inputs[name] for name in names}
        return self._session(call.tap, lambda: model, tensors, {}), tensors
