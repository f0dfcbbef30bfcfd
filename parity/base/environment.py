"""The machine and the libraries behind a run's numbers."""

from __future__ import annotations

import importlib.metadata
import os
import platform

import torch

from parity.base.gpu_state import gpu_state
from parity.base.onednn import instructions

_DISTRIBUTIONS = (
    "torch",
    "nvtripy",
    "numpy",
    "fbgemm_gpu-cpu",
    "fbgemm_gpu",
    "tripy-portable",
    "tensorrt",
    "tensorrt-cu12",
    "tensorrt-rtx-cu13",
    "mlir-tensorrt-compiler",
    "mlir-tensorrt-runtime",
)


def environment() -> dict[str, str]:
    """Versions of Python, the installed libraries and the driver; the processor and the GPU.

    `threads` is PyTorch's number of threads: the physical cores, or OMP_NUM_THREADS.
    """
    facts = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
    }
    if newest := instructions():
        facts["oneDNN"] = f"up to {newest}"
    for name in _DISTRIBUTIONS:
        try:
            facts[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
        facts["cuda"] = str(torch.version.cuda)
        state = gpu_state()
        facts["driver"] = state.get("driver", f"unknown: {state.get('unknown')}")
    return facts


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            named = (line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
            return next(named, platform.machine())
    except OSError:
        return platform.machine()
