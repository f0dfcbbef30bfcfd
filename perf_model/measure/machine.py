"""The environment of a measurement."""

from __future__ import annotations

import datetime
import platform
import subprocess
import sys
from pathlib import Path

import torch

_QUERIED = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit", "temperature.gpu")


def environment() -> dict[str, str]:
    """Libraries, driver, current clocks (under load right after a measurement), date and command."""
    facts = {
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": _command(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
    }
    query = ["nvidia-smi", f"--query-gpu={','.join(_QUERIED)}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return facts | {"nvidia-smi": f"unavailable: {error}"}
    values = answer.strip().splitlines()[torch.cuda.current_device()].split(",")
    return facts | {name: value.strip() for name, value in zip(_QUERIED, values, strict=True)}


def _command() -> str:
    """The command of the measurement, with paths reduced to names."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    arguments = [Path(argument).name if "/" in argument else argument for argument in sys.argv[1:]]
    return " ".join(["python -m", spec.name if spec is not None else Path(sys.argv[0]).name, *arguments])
