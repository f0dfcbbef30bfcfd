"""The port's graphs through a real TensorRT builder, run where TensorRT supports the GPU.

nvtripy records the graphs on the portable runtime; `tripy_portable.trt` gives them to TensorRT as they were
recorded. Where the engines cannot run, that TensorRT accepts the graphs is the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parity.base.precision import Precision
from parity.base.trees import map_tree
from parity.case import Case
from parity.runners.base import BuiltOnly, Refused, Unavailable
from parity.runners.tripy.runner import Compiled, TripyRunner, mlir_tensorrt
from parity.timing.measure import Replayed

if not getattr(mlir_tensorrt, "__portable__", False):
    raise Unavailable("nvtripy compiles with TensorRT itself here: runner tripy is the TensorRT run")

from tripy_portable import trt
from tripy_portable.trt.inspector import dtypes

if reason := trt.available():
    raise Unavailable(reason)


class _OnEngine(Compiled):
    """A traced function that runs as a TensorRT engine."""

    def __init__(
        self, function: Callable, arguments: Any, dynamic_sizes: Mapping[int, int], options: trt.BuildOptions
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


class TensorRTRunner(TripyRunner):
    """The port as TensorRT engines: the whole model, and each module alone, where the GPU allows."""

    builds = True

    def __init__(self) -> None:
        super().__init__()
        self.in_torchs_memory = False
        self._options = trt.BuildOptions()
        self._facts: dict[Any, list[dict]] = {}
        self._why_not_run = ""

    def label(self) -> str:
        return f"tensorrt ({trt.describe()})"

    def load(self, case: Case, precision: Precision, weights: Mapping[str, torch.Tensor]) -> None:
        super().load(case, precision, weights)
        self._options = trt.BuildOptions(tf32=precision.name == "tf32")
        self._facts = {}

    def build(self, arrays: Mapping[str, np.ndarray], folder: Path) -> list[dict]:
        """Build the entry with a dynamic and with a static batch, keep engines and listings in `folder`."""
        arguments = map_tree(self.case.entry_arguments(arrays), self._host)
        dynamic_sizes = self.case.dynamic_sizes(arrays)
        shapes = tuple(array.shape for array in arrays.values())
        if shapes not in self._facts:
            built = self._traced(self._built_both, self._entry, arguments, dynamic_sizes)
            self._facts[shapes] = [self._keep(shape, each, folder) for shape, each in built.items()]
        return self._facts[shapes]

    def _built_both(
        self, function: Callable, arguments: Any, dynamic_sizes: Mapping[int, int]
    ) -> dict[str, trt.EngineBuild]:
        recorded = trt.program_of(Compiled(function, arguments, dynamic_sizes).executable)
        programs = {"static": trt.at_typical_shapes(recorded)}
        if dynamic_sizes:
            programs = {"dynamic batch": recorded, **programs}
        return {shape: _built(each, self._options) for shape, each in programs.items()}

    def _keep(self, shape: str, built: trt.EngineBuild, folder: Path) -> dict:
        try:
            trt.Engine(built.engine_bytes)
        except trt.CannotRun as why:
            self._why_not_run = str(why)
        built.save(folder)
        return {
            "shape": shape,
            "library": built.library,
            "layers": built.layers,
            "engine_layers": built.engine_layers,
            "bytes": built.size,
            "seconds": built.seconds,
            "dtypes": dtypes(built.inspector),
            "key": built.key,
        }

    def _time_replays(self, compiled: Compiled, arguments: Any, repeats: int) -> Replayed:
        # What could be replayed is the portable runtime's, and not the engine.
        return Replayed([])

    def _compile(self, function: Callable, arguments: Any, dynamic_sizes: Mapping[int, int]) -> Compiled:
        if self._why_not_run:
            raise BuiltOnly(self._why_not_run)
        return _OnEngine(function, arguments, dynamic_sizes, self._options)
