"""Sides of `quantised.py`: calls, what they must compute, and its least work."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import nvtripy as tp
import torch

from parity.base.work import Work
from parity.runners.tripy.lean_traces import leanly

Calls = list[Callable[[], Any]]
ITEM, HALF = 2, torch.bfloat16
"""The model's type: bfloat16."""
SET_BYTES = 256e6
"""Bytes that all sets of a row move, so that the L2 cache (60 MB) holds no set from its last use."""
MOST_SETS = 16


def number_of_sets(moved: float) -> int:
    """Sets of inputs of a row whose calls move so many bytes."""
    return min(MOST_SETS, max(2, int(SET_BYTES / moved) + 1))


@dataclass(frozen=True)
class Truth:
    """What sides are judged by, as `kernels.judged` takes it: results of the first set."""

    oracle: torch.Tensor = field(repr=False)
    reference: torch.Tensor = field(repr=False)
    longest_sum: int
    modules: int = 1
    precision: str = "bf16"


@dataclass(frozen=True)
class Side:
    """One way to compute a function.

    Attributes:
        calls: a call for each set of inputs.
        truth: of the function.
        work: the function's least work in one call.
        operands: precision of the multiplied numbers, for the rate of the work's FLOPs.
    """

    calls: Calls
    truth: Truth
    work: Work
    operands: str


@dataclass(frozen=True)
class Row:
    """One size, with sides that are timed in the same rounds."""

    name: str
    sides: dict[str, Side]


def executable_of(module: tp.Module, infos: Sequence[tp.InputInfo]) -> Any:
    """The portable runtime's executable of a module."""
    # Fusion reads the arguments of a step again, so that no step may write over them.
    os.environ["TRIPY_PORTABLE_FUSE"] = "1"
    return leanly(lambda: tp.compile(module, args=list(infos)))._executable


def plan_of(executable: Any, inputs: Sequence[torch.Tensor]) -> Any:
    """An executable's plan for the shapes of inputs: what the runtime runs."""
    from tripy_portable.ir.types import tensor_type

    program = executable.program
    types = [
        tensor_type(tuple(tensor.shape), program.types[value].element)
        for value, tensor in zip(program.inputs, inputs, strict=True)
    ]
    plan = executable.make_plan(object(), types, {})
    return getattr(plan, "plan", plan)


def portable_calls(plan: Any, sets: list[list[torch.Tensor]], fused: bool) -> Calls:
    """Calls of a plan, step by step or fused by Inductor."""
    run = plan.run
    if fused:
        from tripy_portable.runtime.fusion import fuse

        run = fuse(plan, sets[0])
    return [lambda inputs=inputs: run(inputs)[0] for inputs in sets]
