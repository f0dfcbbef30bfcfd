"""The runners by name, as data, and their creation."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from enum import Enum, auto

from torch import cuda

from parity.runners.base import Runner, Unavailable


class Default(Enum):
    """The runs of a runner that nobody asks for by name."""

    ALWAYS = auto()
    ON_A_GPU = auto()
    NEVER = auto()


@dataclass(frozen=True)
class Entry:
    """One runner.

    Attributes:
        description: One line for lists.
        target: Import path of its class, `package.module:class`.
        default: The runs that have it without asking.
        packages: Advice for a machine where its packages cannot be imported.
        form: Name of the case's form that it runs; empty for the case itself.
    """

    description: str
    target: str
    default: Default = Default.ALWAYS
    packages: str = "`pip install -r requirements.txt`"
    form: str = ""


_TRIPY = "run inside NVIDIA's Tripy container, or use `make parity`"

REGISTRY: dict[str, Entry] = {
    "torch": Entry(
        "PyTorch eager on the dense reference; always runs, the others are compared with it",
        "parity.runners.torch.eager:TorchRunner",
    ),
    "torch_jagged": Entry(
        "PyTorch eager on the jagged reference",
        "parity.runners.torch.jagged:TorchJaggedRunner",
        form="jagged",
    ),
    # Without a GPU, inductor's C++ takes minutes to compile, and has no bearing on the port's machine.
    "torch_compile": Entry(
        "torch.compile on the dense reference; without a GPU only when it is asked for",
        "parity.runners.torch.compiled:TorchCompileRunner",
        Default.ON_A_GPU,
    ),
    "torch_compile_graphs": Entry(
        "the same with CUDA graphs; on a GPU only",
        "parity.runners.torch.compiled:TorchCompileGraphsRunner",
        Default.ON_A_GPU,
    ),
    "tripy": Entry(
        "the Tripy port: on TensorRT in NVIDIA's containers, on the portable runtime elsewhere",
        "parity.runners.tripy.runner:TripyRunner",
        packages=_TRIPY,
    ),
    # Kernels are opted into.
    "torch_fused": Entry(
        "the reference on jagged rows with fused kernels; for cases that have this form",
        "parity.runners.torch.fused:TorchFusedRunner",
        Default.NEVER,
        form="fused",
    ),
    "tripy_jagged": Entry(
        "the Tripy port on jagged rows with the same kernels as plugins; for such cases",
        "parity.runners.tripy.jagged:TripyJaggedRunner",
        Default.NEVER,
        _TRIPY,
        form="fused",
    ),
    "tensorrt": Entry(
        "the Tripy port's graphs built by TensorRT, on any machine; run where it supports the GPU",
        "parity.runners.tensorrt:TensorRTRunner",
        packages=_TRIPY,
    ),
    # The export takes as long as the rest of a small case.
    "onnxruntime": Entry(
        "the dense reference exported to ONNX, on ONNX Runtime: on the GPU where there is one",
        "parity.runners.onnx.onnxruntime:OnnxRuntimeRunner",
        Default.NEVER,
        "`pip install onnxruntime onnx onnxscript`",
    ),
    "tensorrt_onnx": Entry(
        "the same graph built by TensorRT through Polygraphy; run where it supports the GPU",
        "parity.runners.onnx.tensorrt:TensorRTOnnxRunner",
        Default.NEVER,
        "`pip install polygraphy onnx onnxscript`",
    ),
}
_ORACLE = Entry("the reference in float64 on the CPU", "parity.runners.oracle.float64:OracleRunner")

RUNNERS: dict[str, str] = {name: entry.description for name, entry in REGISTRY.items()}
"""Descriptions of the runners that a user can ask for. The oracle is not among them: it always runs."""


def default_runners() -> tuple[str, ...]:
    """Names of the runners of a run that names none."""
    wanted = {Default.ALWAYS, Default.ON_A_GPU} if cuda.is_available() else {Default.ALWAYS}
    return tuple(name for name, entry in REGISTRY.items() if entry.default in wanted)


def make_runner(name: str) -> Runner:
    """Create a runner, importing only the packages that it needs.

    Args:
        name: A name in `RUNNERS`, or "oracle".

    Raises:
        Unavailable: A package cannot be imported, or the runner cannot run on this machine.
    """
    entry = _ORACLE if name == "oracle" else REGISTRY[name]
    path, _, attribute = entry.target.partition(":")
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        if (error.name or "").partition(".")[0] == __name__.partition(".")[0]:
            raise  # one of our own modules: a defect
        raise Unavailable(f"{error}; {entry.packages}") from error
    return getattr(module, attribute)()
