"""The state that a GPU is timed in: driver, clocks, power, temperature."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import torch

_FIELDS = ("driver_version", "clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
_NAMES = ("driver", "SM clock", "memory clock", "power", "temperature")
_SECONDS = 60


def gpu_state() -> dict[str, str]:
    """Present state of CUDA's first GPU from NVML, by name and with units.

    Empty without a GPU. If neither nvidia-ml-py nor nvidia-smi answers, `unknown` alone holds the reasons.
    """
    if not torch.cuda.is_available():
        return {}
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    reasons = []
    for ask in (_by_library, _by_command):
        try:
            return dict(zip(_NAMES, ask(uuid), strict=True))
        except _Unknown as error:
            reasons.append(str(error))
    return {"unknown": "; ".join(reasons)}


class _Unknown(Exception):
    """One way to ask that does not work here."""


def _by_library(uuid: str) -> list[str]:
    try:
        import pynvml
    except ImportError as error:
        raise _Unknown("nvidia-ml-py is not installed") from error
    try:
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        clock: Callable[[int], int] = lambda kind: pynvml.nvmlDeviceGetClockInfo(device, kind)  # noqa: E731
        return [
            pynvml.nvmlSystemGetDriverVersion(),
            f"{clock(pynvml.NVML_CLOCK_SM)} MHz",
            f"{clock(pynvml.NVML_CLOCK_MEM)} MHz",
            f"{pynvml.nvmlDeviceGetPowerUsage(device) / 1e3:.1f} W",
            f"{pynvml.nvmlDeviceGetTemperature(device, pynvml.NVML_TEMPERATURE_GPU)} C",
        ]
    except pynvml.NVMLError as error:
        raise _Unknown(f"NVML: {error}") from error


def _by_command(uuid: str) -> list[str]:
    command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader", f"--id={uuid}"]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise _Unknown(f"nvidia-smi: {error}") from error
    values = [value.strip() for value in done.stdout.strip().split(",")]
    if len(values) != len(_FIELDS):
        raise _Unknown(f"nvidia-smi printed {done.stdout.strip()!r}")
    return [*values[:-1], f"{values[-1]} C"]
