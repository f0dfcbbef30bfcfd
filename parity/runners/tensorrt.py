"""The port's graphs through a real TensorRT builder, run where TensorRT supports the GPU.

nvtripy records the graphs on the portable runtime. `tripy_portable.trt` passes the recorded graphs to
TensorRT. Where the engines cannot run, the result is that TensorRT accepts the graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import nvtripy as tp
import torch

from parity.base.precision import Precision
from parity.base.trees import map_tree
from parity.capture.names import TapName
from parity.capture.tripy_hooks import Traced
from parity.case import Case
from parity.runners.base import Arrays, BuildsEngines, BuiltOnly, Refused, Tensors, Unavailable
from parity.runners.tripy.compiled import Compiled, DynamicSizes
from parity.runners.tripy.modules import IS_PORTABLE
from parity.runners.tripy.runner import TripyRunner
from parity.timing.measure import Replays

if IS_PORTABLE:
    from tripy_portable import trt
    from tripy_portable.trt.inspector import dtypes, quantised


class _OnEngine(Compiled):
    """A traced function that runs as a TensorRT engine."""

    def __init__(
        self, function: Callable, arguments: Any, dynamic_sizes: DynamicSizes, options: trt.BuildOptions
    ) -> None:
        super().__init__(function, arguments, dynamic_sizes)
        self._engine: trt.Engine | None = None
        if not self.is_empty:
            self._engine = trt.Engine(_built(trt.program_of(self.executable), options).engine_bytes)

    def launch(self, arguments: Any) -> list[torch.Tensor]:
        if self._engine is None:
            return []
        outputs = self.enqueue(arguments)
        torch.cuda.synchronize()
        return outputs

    def queue(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream()

    def enqueue(self, arguments: Any) -> list[torch.Tensor]:
        # nvtripy numbers the inputs in the order in which the tensors stand in the nested arguments.
        inputs: list[torch.Tensor] = []
        map_tree(arguments, lambda leaf: inputs.append(torch.from_dlpack(leaf)) if _is_tensor(leaf) else None)
        return self._engine(inputs)


def _is_tensor(leaf: Any) -> bool:
    return hasattr(leaf, "__dlpack__")


def _built(program: Any, options: trt.BuildOptions) -> trt.EngineBuild:
    try:
        return trt.build(program, options)
    except trt.NoPlugins as reason:
        raise Unavailable(str(reason)) from reason
    except trt.Refused as refused:
        raise Refused(str(refused)) from refused


class TensorRTRunner(TripyRunner, BuildsEngines):
    """The port as TensorRT engines: the whole model, and each module alone, where the GPU allows."""

    def __init__(self) -> None:
        if not IS_PORTABLE:
            raise Unavailable("nvtripy compiles with TensorRT itself here: runner tripy is the TensorRT run")
        if reason := trt.available():
            raise Unavailable(reason)
        super().__init__()
        self._options = trt.BuildOptions()
        self._facts: dict[Any, list[dict]] = {}
        self._cannot_run = ""
        self._modules_of: dict[str, str] = {}

    def label(self) -> str:
        return f"tensorrt ({trt.describe()})"

    def load(self, case: Case, precision: Precision, weights: Tensors) -> None:
        super().load(case, precision, weights)
        self._options = trt.BuildOptions(tf32=precision.name == "tf32")
        self._facts = {}

    def allocates_by_torch(self) -> bool:
        return False

    def build(self, arrays: Arrays, folder: Path) -> list[dict]:
        """Build the entry with a dynamic batch, and with a static one where engines run or no size varies.

        Engines and listings are kept in `folder`. Static sizes may gain time, which only an engine that runs
        shows; TensorRT accepts a graph of any batch or refuses it.
        """
        arguments = map_tree(self.case.entry_arguments(arrays), self._host)
        dynamic_sizes = self.case.dynamic_sizes(arrays)
        shapes = tuple(array.shape for array in arrays.values())
        if shapes not in self._facts:
            build = partial(self._built_entry, folder=folder)
            self._facts[shapes], _ = self._traced(
                build, self._named_entry, arguments, dynamic_sizes, taps=True
            )
        return self._facts[shapes]

    def _named_entry(self, arguments: dict, traced: Traced) -> dict[str, tp.Tensor]:
        """The entry. It notes the module that gives each Tripy tensor, of several the innermost."""
        outputs = self._entry(arguments, traced)
        self._modules_of = {}
        for tap, tensor in traced.taps.items():
            self._modules_of.setdefault(tensor.trace_tensor.name, TapName.parse(tap).path)
        return outputs

    def _quantised_layers(self, built: trt.EngineBuild) -> list[dict]:
        """The engine's layers that read quantised numbers, each with the modules whose results it computes.

        A module stands for those inside it.
        """
        layers = []
        for layer in quantised(built.inspector):
            paths = {self._modules_of[name] for name in layer["tensors"] if name in self._modules_of}
            outer = sorted(path for path in paths if not any(path.startswith(f"{other}.") for other in paths))
            layers.append({"type": layer["type"], "operands": layer["operands"], "modules": outer})
        return layers

    def _built_entry(
        self, function: Callable, arguments: Any, dynamic_sizes: DynamicSizes, folder: Path
    ) -> list[dict]:
        recorded = trt.program_of(Compiled(function, arguments, dynamic_sizes).executable)
        facts = []
        if dynamic_sizes:
            facts.append(self._keep("dynamic batch", _built(recorded, self._options), folder))
        if not self._cannot_run or not facts:
            static = _built(trt.at_typical_shapes(recorded), self._options)
            facts.append(self._keep("static", static, folder))
        return facts

    def _keep(self, shape: str, built: trt.EngineBuild, folder: Path) -> dict:
        try:
            trt.Engine(built.engine_bytes)
        except trt.CannotRun as reason:
            self._cannot_run = str(reason)
        built.save(folder)
        return {
            "shape": shape,
            "library": built.library,
            "layers": built.layers,
            "engine_layers": built.engine_layers,
            "bytes": built.size,
            "seconds": built.seconds,
            "dtypes": dtypes(built.inspector),
            "quantised": self._quantised_layers(built),
            "key": built.key,
        }

    def _replays(self, compiled: Compiled, on_device: Any) -> Replays | None:
        # The portable runtime's graph is not the engine.
        return None

    def _compile(self, function: Callable, arguments: Any, dynamic_sizes: DynamicSizes) -> Compiled:
        if self._cannot_run:
            raise BuiltOnly(self._cannot_run)
        return _OnEngine(function, arguments, dynamic_sizes, self._options)
