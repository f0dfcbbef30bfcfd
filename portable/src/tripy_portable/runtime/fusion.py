"""Fusion: a plan's steps as one function, compiled by PyTorch's Inductor for the GPU.

Fused steps round like single steps: every +, -, x, / and cast of a recorded operation rounds to its own type.
There is no contraction of a product and a sum, and no rewriting by algebra. Sums have another order, and
other functions may differ within the bounds of SEMANTICS.md. A plugin's code stays its own: it runs between
the fused steps before and behind it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._triton import has_triton

from tripy_portable.diagnostics import MTRTException
from tripy_portable.kernels.plugin import plugins_as_operations
from tripy_portable.planner import Plan

Tensor = torch.Tensor

INDUCTOR_OPTIONS: dict[str, Any] = {
    # 16-bit results are rounded after every operation; no product and sum become one instruction.
    "emulate_precision_casts": True,
    "eager_numerics.division_rounding": True,
    "eager_numerics.disable_ftz": True,
    "use_fast_math": False,
    # No rewriting: x + 0 is not x where x is -0, and a product that adds a bias itself rounds only once.
    "pattern_matcher": False,
    "joint_graph_constant_folding": False,
    # The plan knows every shape, and its gathers put every index inside. Checking it costs each call time.
    "size_asserts": False,
    "alignment_asserts": False,
    "assert_indirect_indexing": False,
}


def require_fusion() -> None:
    """Checks that steps can be fused on this machine.

    Raises:
        MTRTException: a package is missing; the message names it.
    """
    missing = _missing()
    if missing:
        raise MTRTException(
            f"InvalidArgument: TRIPY_PORTABLE_FUSE=1 needs {missing}: install it, or leave the variable unset"
        )


@functools.cache
def _missing() -> str:
    if not has_triton():
        return "Triton"
    from torch._inductor import config

    unknown = sorted(set(INDUCTOR_OPTIONS) - set(config.get_config_copy()))
    return f"PyTorch 2.11 or newer, whose Inductor has {', '.join(unknown)}" if unknown else ""


def fuse(plan: Plan, inputs: Sequence[Any]) -> Callable[[Sequence[Any]], list[Tensor]]:
    """Compiles a plan that overwrites none of its arguments.

    Args:
        plan: the plan, on a GPU.
        inputs: tensors of its shapes with any values; any object for an input that the plan does not read.

    Returns:
        A function like `plan.run`, from inputs to fresh results.
    """
    positions, constants = plan.input_positions, plan.constants
    with torch.inference_mode(False), torch.no_grad():
        # Inference tensors cannot be traced, and results of earlier calls are such.
        examples = [torch.empty_like(inputs[position]) for position in positions]
        graph = trace(plan, constants, examples)
        compiled = torch._inductor.compile(graph, [*constants, *examples], options=INDUCTOR_OPTIONS)

    def run(inputs: Sequence[Any], plan: Plan = plan) -> list[Tensor]:
        # With the plan, whose plugins the compiled function calls.
        return list(compiled(*constants, *(inputs[position].contiguous() for position in positions)))

    return run


def trace(plan: Plan, constants: Sequence[Tensor], inputs: Sequence[Tensor]) -> torch.fx.GraphModule:
    """A plan's steps as a graph of ATen operations on (*constants, *inputs at `plan.input_positions`).

    Only shapes, types and devices of the tensors count.
    """
    count = 1 + max(plan.input_positions, default=-1)

    def evaluate(*tensors: Tensor) -> tuple[Tensor, ...]:
        arguments: list[Tensor | None] = [None] * count
        for position, tensor in zip(plan.input_positions, tensors[len(constants) :]):
            arguments[position] = tensor
        return tuple(plan.evaluate(tensors[: len(constants)], arguments, _stored))

    tracer = make_fx(evaluate, decomposition_table=_DECOMPOSITIONS, tracing_mode="fake")
    with plugins_as_operations():
        return tracer(*constants, *inputs)


def _stored(x: Tensor) -> Tensor:
    """The tensor, which Inductor writes to memory in place of computing it for every use.

    Inductor would compute an index anew for each gather, and then store each gather's larger result.
    """
    return x.as_strided(x.shape, x.stride()) if x.is_contiguous() else x


def _sigmoid(x: Tensor) -> Tensor:
    """As PyTorch's kernel computes it. Inductor's takes an exponential of less than float32's precision."""
    wide = x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x
    return torch.div(torch.ones_like(wide), 1 + torch.exp(-wide)).to(x.dtype)


_DECOMPOSITIONS = {torch.ops.aten.sigmoid.default: _sigmoid}
