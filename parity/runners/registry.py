"""The runners by name, as data, and their creation."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parity.runners.base import Runner


@dataclass(frozen=True)
class Entry:
    """One runner.

    Attributes:
        description: One line for lists.
        target: Import path of its class, `package.module:class`.
        by_name_only: Whether only runs that name it have it.
        plain_on_cpu: Whether every run on a machine without a GPU has it: there its kernels are plain.
        packages: Advice for a machine where its packages cannot be imported.
        form: Name of the case's form that it runs; empty for the case itself.
        translated_by: Libraries that translate the reference's own program for it; empty for another one.
    """

    description: str
    target: str
    by_name_only: bool = False
    plain_on_cpu: bool = False
    packages: str = "`pip install -r requirements.txt`"
    form: str = ""
    translated_by: str = ""


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
    # Compiling takes longer than everything else of a run, and no module can be judged.
    "torch_compile": Entry(
        "torch.compile on the dense reference",
        "parity.runners.torch.compiled:TorchCompileRunner",
        by_name_only=True,
        translated_by="PyTorch's compiler",
    ),
    "torch_compile_graphs": Entry(
        "the same with CUDA graphs; on a GPU only",
        "parity.runners.torch.compiled:TorchCompileGraphsRunner",
        by_name_only=True,
        translated_by="PyTorch's compiler",
    ),
    "tripy": Entry(
        "the Tripy port: on TensorRT in NVIDIA's containers, on the portable runtime elsewhere",
        "parity.runners.tripy.runner:TripyRunner",
        packages=_TRIPY,
    ),
    # On a GPU kernels are opted into.
    "torch_fused": Entry(
        "the reference on jagged rows with fused kernels; for cases that have this form",
        "parity.runners.torch.fused:TorchFusedRunner",
        by_name_only=True,
        plain_on_cpu=True,
        form="fused",
    ),
    "tripy_jagged": Entry(
        "the Tripy port on jagged rows with the same kernels as plugins; for such cases",
        "parity.runners.tripy.jagged:TripyJaggedRunner",
        by_name_only=True,
        plain_on_cpu=True,
        packages=_TRIPY,
        form="fused",
    ),
    "torch_layers": Entry(
        "the reference on jagged rows with kernels for whole layers; for cases that have this form",
        "parity.runners.torch.fused:TorchLayersRunner",
        by_name_only=True,
        form="whole_layers",
    ),
    "tripy_layers": Entry(
        "the Tripy port on jagged rows with the same kernels as plugins; for such cases",
        "parity.runners.tripy.jagged:TripyLayersRunner",
        by_name_only=True,
        packages=_TRIPY,
        form="whole_layers",
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
        by_name_only=True,
        packages="`pip install onnxruntime onnx onnxscript`",
        translated_by="the export to ONNX or ONNX Runtime",
    ),
    "tensorrt_onnx": Entry(
        "the same graph built by TensorRT through Polygraphy; run where it supports the GPU",
        "parity.runners.onnx.tensorrt:TensorRTOnnxRunner",
        by_name_only=True,
        packages="`pip install polygraphy onnx onnxscript`",
        translated_by="the export to ONNX or TensorRT",
    ),
}
_ORACLE = Entry(
    "the reference in float64: on the CPU, for costly rows on a GPU",
    "parity.runners.oracle.float64:OracleRunner",
)

RUNNERS: dict[str, str] = {name: entry.description for name, entry in REGISTRY.items()}
"""Descriptions of the runners that a user can ask for. The oracle is not among them: it always runs."""


def default_runners() -> tuple[str, ...]:
    """Names of the runners of a run that names none."""
    import torch

    on_cpu = not torch.cuda.is_available()
    return tuple(
        name for name, entry in REGISTRY.items() if not entry.by_name_only or (entry.plain_on_cpu and on_cpu)
    )


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
        from parity.runners.base import Unavailable

        raise Unavailable(f"{str(error).rstrip('.')}; {entry.packages}") from error
    return getattr(module, attribute)()
