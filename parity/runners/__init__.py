"""Runners: whatever can run a case. Each lives in a process of its own (see `parity.execution.worker`)."""

from __future__ import annotations

from torch import cuda

from parity.runners.base import Runner, Unavailable

RUNNERS: dict[str, str] = {
    "torch": "PyTorch eager on the dense reference; always runs, the others are compared with it",
    "torch_jagged": "PyTorch eager on the jagged reference",
    "torch_compile": "torch.compile on the dense reference; without a GPU only when it is asked for",
    "torch_compile_graphs": "the same with CUDA graphs; on a GPU only",
    "tripy": "the Tripy port: on TensorRT in NVIDIA's containers, on the portable runtime elsewhere",
    "torch_fused": "the reference on jagged rows with fused kernels; for cases that have this form",
    "tripy_jagged": "the Tripy port on jagged rows with the same kernels as plugins; for such cases",
    "tensorrt": "the Tripy port's graphs built by TensorRT, on any machine; run where it supports the GPU",
    "onnxruntime": "the dense reference exported to ONNX, on ONNX Runtime: on the GPU where there is one",
    "tensorrt_onnx": "the same graph built by TensorRT through Polygraphy; run where it supports the GPU",
}
"""Runners that can be asked for. The float64 oracle is none of them: it always runs and is never judged."""

BY_NAME_ONLY = ("onnxruntime", "tensorrt_onnx", "torch_fused", "tripy_jagged")
"""Not run by default: the export takes as long as the rest of a small case, and kernels are opted into."""


_COMPILING = ("torch_compile", "torch_compile_graphs")


def default_runners() -> tuple[str, ...]:
    """What a run that names no runner uses.

    Without a GPU, inductor's C++ takes minutes to compile, several times as long as all else in a run, and
    has no bearing on where the port will run.
    """
    return tuple(
        name
        for name in RUNNERS
        if name not in BY_NAME_ONLY and (name not in _COMPILING or cuda.is_available())
    )


def make_runner(name: str) -> Runner:
    """Create a runner by name, importing only what that runner needs."""
    if name == "tripy":
        from parity.runners.tripy.runner import TripyRunner

        return TripyRunner()
    if name == "tripy_jagged":
        from parity.runners.tripy.jagged import TripyJaggedRunner

        return TripyJaggedRunner()
    if name == "torch_fused":
        from parity.runners.torch.fused import TorchFusedRunner

        return TorchFusedRunner()
    if name == "tensorrt":
        from parity.runners.tensorrt import TensorRTRunner

        return TensorRTRunner()
    if name == "onnxruntime":
        from parity.runners.onnx.onnxruntime import OnnxRuntimeRunner

        return OnnxRuntimeRunner()
    if name == "tensorrt_onnx":
        from parity.runners.onnx.tensorrt import TensorRTOnnxRunner

        return TensorRTOnnxRunner()
    from parity.runners.torch import eager

    return {
        "torch": eager.TorchRunner,
        "torch_jagged": eager.TorchJaggedRunner,
        "torch_compile": eager.TorchCompileRunner,
        "torch_compile_graphs": eager.TorchCompileGraphsRunner,
        "oracle": eager.OracleRunner,
    }[name]()


__all__ = ["RUNNERS", "Runner", "Unavailable", "default_runners", "make_runner"]
