"""Saved runs of one small case in several states of its code, each in a folder and a process of its own."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.locations import ROOT

NAME = "moving_case"
PROGRAM = (
    "from parity.base.interruption import watch; watch()\n"
    "from tests.parity.saved_runs import quick_runs\n"
    "from parity.cli.program import as_process, program; from parity.cli.registered import REGISTERED\n"
    "with quick_runs(): as_process(program(REGISTERED))"
)
"""The work of the installed program, with quick runs, for `python -c`."""
CASE = """
import numpy as np
import nvtripy as tp
import torch

import parity

WIDTH = 32


class Reference(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH)
        self.second = torch.nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)) * BETWEEN)


class First(tp.Linear):
    def forward(self, x):
        return FIRST


class Port(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.first = First(WIDTH, WIDTH, dtype=dtype)
        self.second = tp.Linear(WIDTH, 3, dtype=dtype)

    def forward(self, x):
        return self.second(tp.relu(self.first(x)) * BETWEEN)


class Case(parity.Case):
    name = "moving"
    batch_size = 40

    def build_reference(self):
        return Reference()

    def build_port(self, dtype):
        return Port(dtype)

    def make_inputs(self):
        rng = np.random.default_rng(self.seed)
        return {"x": rng.standard_normal((self.batch_size, WIDTH)).astype(np.float32)}

    def plan(self):
        return ()


case = Case()
"""
_SUM = "x @ tp.transpose(self.weight, 0, 1) + self.bias"
_HALVES = " + ".join(f"x[:, {part}] @ tp.transpose(self.weight, 0, 1)[{part}]" for part in ("16:32", "0:16"))
STATES = {
    "before": (_SUM, "1.0"),
    # Another order of the sum: other roundings, and no other function.
    "order": (f"{_HALVES} + self.bias", "1.0"),
    "fault": (f"({_SUM}) * 1.01", "1.0"),
    # Reference and port change together.
    "function": (_SUM, "1.5"),
}
"""The port's first module, and a factor of both sides, by state."""


@dataclass(frozen=True)
class Saved:
    """A saved run, and the folder with its code."""

    code: Path
    run: Path


def save(folder, state, *options, threads=1):
    """Run the case in a state of its code, in a process of its own."""
    code = folder / state
    code.mkdir(exist_ok=True)
    first, between = STATES[state]
    (code / f"{NAME}.py").write_text(CASE.replace("FIRST", first).replace("BETWEEN", between))
    run = folder / f"{state}_{threads}{''.join(options)}"
    words = [sys.executable, "-c", PROGRAM, "run", "--model", f"{NAME}:case", "--precision", "fp32"]
    done = subprocess.run(
        [*words, "--runners", "tripy", "--save", str(run), *options],
        cwd=code,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (1 if state == "fault" else 0), done.stdout + done.stderr
    return Saved(code, run)
