"""The exported reference on ONNX Runtime's CPU provider."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from configs import CaseConfig
from parity.precision import Precision
from parity.runners.base import Unavailable

try:
    import onnx_ir as ir
    import onnxruntime as ort

    from parity.onnx_export import save_model
    from parity.runners.onnx_runner import OnnxRunner, Tensors
except ImportError as error:
    raise Unavailable(f"{error}; `pip install onnxruntime onnx onnxscript`") from error

_NotImplementedByORT = ort.capi.onnxruntime_pybind11_state.NotImplemented
_ERRORS_ONLY = 3


class _OrtSession:
    """An ONNX Runtime session, named tensors in and out."""

    def __init__(self, model: ir.Model, threads: int) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = _ERRORS_ONLY
        # Weights in files are mapped into memory, not copied; they may go when the session has them.
        with tempfile.TemporaryDirectory(prefix="parity-onnx-") as folder:
            path = Path(folder) / "model.onnx"
            save_model(model, path)
            self._session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._inputs = [value.name for value in self._session.get_inputs()]
        self._outputs = [value.name for value in self._session.get_outputs()]

    def __call__(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        results = self._session.run(self._outputs, self._arrays(tensors))
        return {name: torch.from_numpy(result) for name, result in zip(self._outputs, results, strict=True)}

    def time(self, tensors: Tensors, repeats: int) -> list[float]:
        arrays = self._arrays(tensors)
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            self._session.run(self._outputs, arrays)
            seconds.append(time.perf_counter() - start)
        return seconds

    def _arrays(self, tensors: Tensors) -> dict[str, Any]:
        return {name: tensors[name].numpy() for name in self._inputs}


class OnnxRuntimeRunner(OnnxRunner):
    """ONNX Runtime with the options that a user gets who gives none."""

    def label(self) -> str:
        level = ort.SessionOptions().graph_optimization_level.name.removeprefix("ORT_").lower()
        return f"onnxruntime ({ort.__version__}, cpu, {level})"

    def load(self, case: CaseConfig, precision: Precision, weights: Mapping[str, torch.Tensor]) -> None:
        if precision.needs_cuda:
            raise Unavailable(f"{precision.name} is an arithmetic of CUDA devices, and this runs on the CPU")
        super().load(case, precision, weights)
        try:
            _OrtSession(self.exported.plain(), torch.get_num_threads())
        except _NotImplementedByORT as error:
            raise Unavailable(f"ONNX Runtime on the CPU cannot run {precision.name}: {error}") from error

    def _open(self, model: ir.Model, tensors: Tensors, smallest: Mapping[str, int]) -> _OrtSession:
        return _OrtSession(model, torch.get_num_threads())

    def _fits(self, tensors: Tensors) -> int:
        return torch.get_num_threads()
