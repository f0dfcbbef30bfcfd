"""Faults of the layers, in parameters and in the kernels' source: the verdict catches each."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.stu_layer import Parameters
from tests.kernels.marks import needs_triton
from tests.kernels.mutation import mutated
from tests.kernels.stu_layer.layer_cases import CASES, Inputs, verdict

FAULTS = {
    "norm over padded columns": ("odd sizes", "axis=1) / SIZE\n", "axis=1) / x.shape[1]\n"),
    "variance over padded columns": ("odd sizes", "axis=1) / SIZE + eps", "axis=1) / x.shape[1] + eps"),
    "deviation in the padding": ("odd sizes", "tl.where(used, x - mean[:, None], 0.0)", "x - mean[:, None]"),
    "no epsilon": ("powers of two", "/ SIZE + eps", "/ SIZE"),
    "input norm without its bias": (
        "powers of two",
        "normal += tl.load(bias + cols, ",
        "tl.load(bias + cols, ",
    ),
    "input norm without its weight": (
        "powers of two",
        "normal = normal * tl.load(weight + cols, mask=cols < D, other=0.0).to(tl.float32)[None, :]\n",
        "normal = normal\n",
    ),
    "input rows taken as contiguous": ("rows apart", "row * stride + cols", "row * D + cols"),
    "no SiLU": ("powers of two", "(u * sigmoid_exact(u))", "u"),
    "gate without u": ("powers of two", "(u.to(tl.float32) * normal)", "normal"),
    "group norm of the first head's weight": (
        "powers of two, group norm",
        "weight + group)",
        "weight + 0 * group)",
    ),
    "group norm of the first head's bias": (
        "powers of two, group norm",
        "bias + group)",
        "bias + 0 * group)",
    ),
    "heads from the last to the first": (
        "odd sizes, group norm",
        "group[:, None] * SIZE",
        "(GROUPS - 1 - group)[:, None] * SIZE",
    ),
    "u of a contiguous projection": ("odd sizes", "row * stride_u", "row * WIDTH"),
}  # fmt: skip


def run(inputs: Inputs) -> torch.Tensor:
    return inputs.run("triton")


def run_apart(inputs: Inputs) -> torch.Tensor:
    wide = torch.cat([inputs.x, inputs.x], dim=1)
    return run(replace(inputs, x=wide[:, : inputs.x.size(1)]))


@needs_triton
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_kernels_is_caught(fault, tmp_path, monkeypatch):
    from kernels.stu_layer import triton_kernels, triton_launch

    name, old, new = FAULTS[fault]
    way = run_apart if name == "rows apart" else run
    case = CASES.get(name, CASES["odd sizes"])
    assert verdict(case, "fp32", way).passed
    faulty = mutated(triton_kernels, old, new, tmp_path, monkeypatch)
    for kernel in ("norm_kernel", "gate_kernel"):
        monkeypatch.setattr(triton_launch, kernel, getattr(faulty, kernel))
    assert not verdict(case, "fp32", way).passed


@needs_triton
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("name", Parameters._fields)
def test_every_parameter_of_a_layer_counts(name, number):
    def with_change(inputs: Inputs) -> torch.Tensor:
        layers = list(inputs.layers)
        layers[number] = layers[number]._replace(**{name: getattr(layers[number], name) * 1.01})
        return run(replace(inputs, layers=layers))

    assert not verdict(CASES["odd sizes"], "fp32", with_change).passed
