"""The common part of runners of the exported reference: graphs, their inputs, modules cut out by name."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import onnx_ir as ir
import torch

from parity.base.precision import Precision
from parity.capture.captures import Capture, ModuleCall, argument_keys
from parity.case import Case
from parity.runners.base import Arrays, TapsModules, Tensors
from parity.runners.onnx.export import Exported, argument_name, export, feeds, traced_batch
from parity.timing.measure import Timed, TimedCall


class Session(Protocol):
    """A graph that is ready to run."""

    def __call__(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """Outputs by name, on the host."""

    def time(self, tensors: Tensors, repeats: int) -> list[float]:
        """Seconds of `repeats` synchronised runs, inputs already in place."""


class OnnxRunner(TapsModules):
    """The exported dense reference: the whole model for any batch, and each module cut out of it.

    Only first axes are dynamic in a graph. A batch with other sizes of other axes has an export of its own.
    The export has the entry alone, and no methods that fill and extend a cache.

    Attributes:
        case: The case.
        dtype: Type of the tested precision.
        exported: The export for the typical batch.
    """

    def __init__(self) -> None:
        self.case: Case
        self.dtype: torch.dtype
        self.exported: Exported
        self._export: Callable[[Arrays], Exported]
        self._dynamic: frozenset[str]
        self._exports: dict[tuple, Exported] = {}
        self._sessions: dict[Any, Session] = {}
        self._modules: dict[Any, ir.Model] = {}

    def load(self, case: Case, precision: Precision, weights: Tensors) -> None:
        self.case = case
        self.dtype = precision.dtype
        self._sessions, self._modules = {}, {}
        self._export = functools.partial(export, case, precision, weights)
        typical = traced_batch(case)
        self._dynamic = frozenset(case.dynamic_axes(typical))
        self.exported = self._export(typical)
        self._exports = {self._fixed_sizes(typical): self.exported}

    def _fixed_sizes(self, arrays: Arrays) -> tuple:
        """Sizes of the axes that are not dynamic, by the path of the entry's argument."""
        tensors = feeds(self.case, arrays, self.dtype)
        return tuple((path, tuple(tensor.shape[path in self._dynamic :])) for path, tensor in tensors.items())

    def _exported_for(self, arrays: Arrays) -> tuple[tuple, Exported]:
        """The export that takes a batch, and its key."""
        sizes = self._fixed_sizes(arrays)
        if sizes not in self._exports:
            self._exports[sizes] = self._export(arrays)
        return sizes, self._exports[sizes]

    @abc.abstractmethod
    def _open(self, model: ir.Model, tensors: Tensors, smallest: Mapping[str, int]) -> Session:
        """Make a graph ready to run on these inputs.

        Args:
            model: The graph.
            tensors: Its inputs by name.
            smallest: Inputs whose first axis is dynamic, with the smallest size that it can have.
        """

    @abc.abstractmethod
    def _fits(self, tensors: Tensors) -> Any:
        """The properties of inputs that a session depends on: inputs with equal ones share a session."""

    def _session(
        self, what: tuple, model: Callable[[], ir.Model], tensors: Tensors, smallest: Mapping[str, int]
    ) -> Session:
        key = (*what, self._fits(tensors))
        if key not in self._sessions:
            self._sessions[key] = self._open(model(), tensors, smallest)
        return self._sessions[key]

    def _inputs(self, arrays: Arrays) -> tuple[Tensors, dict[str, int]]:
        """The model's inputs, and the smallest sizes of those with a dynamic first axis."""
        smallest = {path: least for path, (_, least) in self.case.dynamic_axes(arrays).items()}
        return feeds(self.case, arrays, self.dtype), smallest

    def _whole(self, what: Callable[[Exported], ir.Model], arrays: Arrays) -> tuple[Session, Tensors]:
        """A session of the plain or the tapped model, and its inputs."""
        sizes, exported = self._exported_for(arrays)
        tensors, smallest = self._inputs(arrays)
        return self._session((what.__name__, sizes), lambda: what(exported), tensors, smallest), tensors

    def run(self, arrays: Arrays) -> dict[str, torch.Tensor]:
        session, tensors = self._whole(Exported.plain, arrays)
        return session(tensors)

    def run_tapped(self, arrays: Arrays, capture: Capture | None = None, whole: bool = True) -> Capture:
        session, tensors = self._whole(Exported.tapped, arrays)
        capture = Capture() if capture is None else capture
        capture.tensors.update(session(tensors))
        return capture

    def time(self, arrays: Arrays, repeats: int) -> Timed:
        session, tensors = self._whole(Exported.plain, arrays)
        return Timed(session.time(tensors, repeats), {})

    def run_call(
        self, call: ModuleCall, inputs: Tensors, arrays: Arrays, whole: bool = True
    ) -> dict[str, torch.Tensor]:
        session, tensors = self._call(call, inputs, arrays)
        return session(tensors)

    def timed_call(self, call: ModuleCall, inputs: Tensors, arrays: Arrays) -> TimedCall:
        session, tensors = self._call(call, inputs, arrays)
        return TimedCall(lambda repeats: session.time(tensors, repeats))

    def _call(self, call: ModuleCall, inputs: Tensors, arrays: Arrays) -> tuple[Session, Tensors]:
        keys = argument_keys(call.args, call.kwargs)
        sizes, exported = self._exported_for(arrays)
        what = (call.tap, sizes)
        if what not in self._modules:
            self._modules[what] = exported.module(call.tap, list(keys), call.outputs)
        model = self._modules[what]
        arguments = {argument_name(call.tap, path): inputs[key] for path, key in keys.items()}
        # The graph's other inputs are those of the model, for their sizes.
        available = {**feeds(self.case, arrays, self.dtype), **arguments}
        tensors = {value.name: available[value.name] for value in model.graph.inputs}
        return self._session(what, lambda: model, tensors, {}), tensors
