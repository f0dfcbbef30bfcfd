"""Time whole models of `perf_model.models` on this machine's GPU, eagerly and as graph replays.

python -m perf_model.measure.models --output benchmarks/results/h200/models.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from parity.timing.gpu import this_gpu
from perf_model.measure.machine import environment
from perf_model.measure.timing import GraphTimer, summary
from perf_model.models import forward, models

WARM_UPS, RUNS = 5, 21
SCHEMA = "perf_model.models/1"


def eager_seconds(run: Callable[[], object]) -> list[float]:
    """Wall-clock seconds of forwards with synchronisation."""
    seconds = []
    for _ in range(WARM_UPS + RUNS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return seconds[WARM_UPS:]


def count_kernels(run: Callable[[], object]) -> int:
    """Number of kernels and copies of one forward in the profiler."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    return sum(event.count for event in profile.key_averages() if event.device_type.name == "CUDA")


def time_models() -> list[dict]:
    """Times of every model's eager and replayed forwards, and its number of kernels.

    Counting comes last, since the profiler stays attached and slows every later launch.
    """
    timer, lines = GraphTimer(), {}
    for model in models():
        run = forward(model, "cuda")
        eager = summary(eager_seconds(run), 1)
        replay = timer.time(lambda _, run=run: run())
        lines[model.key] = {"model": model.key, "eager": asdict(eager), "replay": asdict(replay)}
        del run
    for model in models():
        lines[model.key]["kernels"] = count_kernels(forward(model, "cuda"))
    return list(lines.values())


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    arguments = parser.parse_args()
    gpu = this_gpu()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.inference_mode():
        lines = time_models()
    head = {"schema_version": SCHEMA, "gpu": gpu.model_dump(), "environment": environment()}
    arguments.output.write_text(json.dumps(head | {"models": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
