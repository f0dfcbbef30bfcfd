"""The exported reference on ONNX Runtime: its CUDA provider where there is a GPU, else the CPU's."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import onnxruntime as ort
import torch

from parity.base.precision import Precision
from parity.case import Case
from parity.runners.base import Tensors, Unavailable
from parity.runners.onnx import elementwise, int64_order
from parity.runners.onnx.base import OnnxRunner
from parity.runners.onnx.export import save_model
from parity.timing.measure import measure

_CUDA = "CUDAExecutionProvider"
_NotImplementedByORT = ort.capi.onnxruntime_pybind11_state.NotImplemented
_ERRORS_ONLY = 3


class _OrtSession:
    """An ONNX Runtime session on the CPU, named tensors in and out."""

    def __init__(
        self, model: ir.Model, threads: int, providers: Sequence[Any] = ("CPUExecutionProvider",)
    ) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = _ERRORS_ONLY
        # A session maps the files of weights into memory: they may go once it exists.
        with tempfile.TemporaryDirectory(prefix="parity-onnx-") as folder:
            path = Path(folder) / "model.onnx"
            save_model(model, path)
            self._session = ort.InferenceSession(path, options, providers=list(providers))
        self._inputs = [value.name for value in self._session.get_inputs()]
        self._outputs = [value.name for value in self._session.get_outputs()]

    def __call__(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        results = self._session.run(self._outputs, self._arrays(tensors))
        return {name: torch.from_numpy(result) for name, result in zip(self._outputs, results, strict=True)}

    def time(self, tensors: Tensors, repeats: int) -> list[float]:
        arrays = self._arrays(tensors)
        return measure(lambda: self._session.run(self._outputs, arrays), repeats, None).seconds

    def _arrays(self, tensors: Tensors) -> dict[str, Any]:
        return {name: tensors[name].numpy() for name in self._inputs}


class _CudaSession(_OrtSession):
    """An ONNX Runtime session on the GPU, inputs and outputs of timed runs in its memory."""

    def __init__(self, model: ir.Model, threads: int, allow_tf32: bool) -> None:
        # Shape arithmetic needs the CPU's provider.
        chosen = [(_CUDA, {"use_tf32": int(allow_tf32)}), "CPUExecutionProvider"]
        super().__init__(model, threads, chosen)
        if _CUDA not in self._session.get_providers():
            raise Unavailable(f"ONNX Runtime has a {_CUDA} and could not start it; its log says why")
        # Otherwise a failure of the provider would start the session again without it.
        self._session.disable_fallback()

    def time(self, tensors: Tensors, repeats: int) -> list[float]:
        binding = self._session.io_binding()
        for name, array in self._arrays(tensors).items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0))
        for name in self._outputs:
            binding.bind_output(name, "cuda")
        # It waits for its own stream.
        return measure(lambda: self._session.run_with_iobinding(binding), repeats, None).seconds


class OnnxRuntimeRunner(OnnxRunner):
    """ONNX Runtime with its default options."""

    def __init__(self) -> None:
        super().__init__()
        self._on_gpu = torch.cuda.is_available()
        self._allow_tf32 = False

    @property
    def _wrong_order(self) -> bool:
        """Whether graphs avoid the order of 64-bit integers, which this ONNX Runtime has wrong."""
        return not self._on_gpu and not int64_order.is_right()

    @property
    def _wrong_functions(self) -> tuple[str, ...]:
        """The functions of one number that this ONNX Runtime computes wrong, and graphs avoid."""
        return () if self._on_gpu else elementwise.wrong()

    def label(self) -> str:
        level = ort.SessionOptions().graph_optimization_level.name.removeprefix("ORT_").lower()
        parts = [ort.__version__, "cuda" if self._on_gpu else "cpu", level]
        repaired = [*(["int64 order"] if self._wrong_order else []), *self._wrong_functions]
        if repaired:
            parts.append(f"repaired: {', '.join(repaired)}")
        return f"onnxruntime ({', '.join(parts)})"

    def load(self, case: Case, precision: Precision, weights: Tensors) -> None:
        if self._on_gpu and _CUDA not in ort.get_available_providers():
            # Its CPU provider has no place beside runners on the GPU.
            raise Unavailable(
                f"this ONNX Runtime has no {_CUDA}: `pip install onnxruntime-gpu` in its place, or run "
                "without a GPU (CUDA_VISIBLE_DEVICES=)"
            )
        if self._on_gpu and precision.dtype == torch.bfloat16:
            raise Unavailable("ONNX Runtime takes inputs as NumPy arrays, and NumPy has no bfloat16")
        if precision.needs_cuda and not self._on_gpu:
            raise Unavailable(f"{precision.name} is an arithmetic of CUDA devices, and this runs on the CPU")
        self._allow_tf32 = precision.name == "tf32"
        super().load(case, precision, weights)
        try:
            self._made(self.exported.plain())
        except _NotImplementedByORT as error:
            where = "a GPU" if self._on_gpu else "the CPU"
            raise Unavailable(f"ONNX Runtime on {where} cannot run {precision.name}: {error}") from error

    def _made(self, model: ir.Model) -> _OrtSession:
        threads = torch.get_num_threads()
        if self._wrong_order:
            int64_order.repair(model)
        elementwise.repair(model, self._wrong_functions)
        return _CudaSession(model, threads, self._allow_tf32) if self._on_gpu else _OrtSession(model, threads)

    def _open(self, model: ir.Model, tensors: Tensors, smallest: Mapping[str, int]) -> _OrtSession:
        return self._made(model)

    def _fits(self, tensors: Tensors) -> int:
        return torch.get_num_threads()
