"""What `compile_plugin` prints of the research mask's plugin, of the production mask's."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from tensorrt import plugin as trtp

import kernels.plugins.stu_attention as registration
from kernels.plugins.ahead_of_time import CAPABILITIES, AttentionShape, compile_attention
from tests.kernels.compile_plugin import KINDS, PRECISIONS, facts, returned
from tests.kernels.plugin_setup import HEADS, STU_SETTINGS, stu_attention_inputs


def compiled(capability: int, precision: str, settings: str, width: int) -> dict[str, Any]:
    """Facts of one kernel for rows of about `width`."""
    shape = AttentionShape(PRECISIONS[precision], torch.int32, HEADS, 25, 50, width)
    made = compile_attention(shape, STU_SETTINGS[settings], "ieee", capability)
    return facts(made, capability) | {"capability": capability, "precision": precision}


def told(precision: str, unknown_heads: bool = False) -> dict[str, Any]:
    """What the registered function returns for rows of 5, 0, 9 and 2, as in `compile_plugin`."""
    settings = STU_SETTINGS["all"]
    inputs = stu_attention_inputs((5, 0, 9, 2), PRECISIONS[precision], settings)
    descs = [trtp.from_shape_expr(tuple(x.shape), KINDS[x.dtype]) for x in inputs]
    if unknown_heads:
        descs[0].shape_expr[1] = trtp.ShapeExpr()
    return returned(registration.compile_kernel, descs, settings.to_string())


if __name__ == "__main__":
    wanted = [(capability, "bfloat16", "all", 211) for capability in CAPABILITIES]
    wanted += [
        (90, "float32", "plain", 211),
        (90, "float16", "window", 8192),
        (100, "bfloat16", "scaled", 1024),
    ]
    json.dump(
        {
            "kernels": [compiled(*each) for each in wanted],
            "told": told("bfloat16"),
            "unknown": told("float32", unknown_heads=True),
        },
        sys.stdout,
    )
