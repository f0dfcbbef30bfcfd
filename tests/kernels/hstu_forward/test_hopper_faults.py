"""Faults of the forward's CUDA source: the verdict catches each. A copy of the source is compiled for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kernels.hstu_forward import HSTUForward, hopper_launch
from kernels.hstu_forward.hopper_launch import CUDA_FLAGS, SOURCE
from tests.kernels.cuda_faults import Edit, built, edited, selected
from tests.kernels.hstu_forward.forward_cases import settings_of, sized, small_model, verdict
from tests.kernels.marks import needs_hopper, needs_nvcc

# Rows of one and of several steps of columns, each end in, before and behind a group of 16.
LENGTHS = (211, 0, 16, 33, 1, 128, 51)
# A copy compiles for float32 alone.
HALF_TYPES = tuple(
    Edit(SOURCE.name, f"hopper_forward::launch_sized<{name}>(*call, queue)", "-1")
    for name in ("__half", "__nv_bfloat16")
)


@dataclass(frozen=True)
class Fault(Edit):
    """A fault, and sizes of the model that shows it."""

    sizes: dict[str, int] = field(default_factory=dict)


FAULTS = {
    "the last step of columns left out": Fault(
        "attention.cuh",
        "place.length) + kColumns - 1) / kColumns;\n    }",
        "place.length)) / kColumns;\n    }",
    ),
    "bias: positions off by one": Fault(
        "attention.cuh", "+ column - place.first - own;", "+ column - place.first - own - 1;"
    ),
    "the other head's queries": Fault(
        "attention.cuh", "position / 2 == member", "position / 2 != member", sized(64, 8, 8, 8)
    ),
    "the weights of the first 16 columns twice": Fault(
        "attention.cuh", "sums[number][n], weights[1], second", "sums[number][n], weights[0], second"
    ),
    "the factors' small parts left out": Fault(
        "products.cuh", "multiply(d, a[0], b[1][0], b[1][1], type);", ""
    ),
    "a share of the columns left out": Fault(
        "forward.cuh", "min(Splits, Attention<T, Head, Splits>::steps(place))", "1"
    ),
    "k and v of the block before": Fault(
        "forward.cuh", "attention(place, layout, block % 2)", "attention(place, layout, 0)"
    ),
    "bias: the row's own time": Fault(
        "buckets.cuh", "times[place.first + row + 1]", "times[place.first + row]"
    ),
    "bias: an edge ignored": Fault("buckets.cuh", " + (pattern[j] >= static_cast<int>(entry[j]));", ";"),
    "the norm over padded heads": Fault(
        "block.cuh", "column % Head < call.linear_dim && column / Head", "column / Head"
    ),
    "no residual": Fault("block.cuh", "sum.x += (", "sum.x = ("),
    "a gate of another row's norm": Fault(
        "block.cuh", "rounded(x[3] * deviation, T()) * u.w", "rounded(x[3], T()) * u.w"
    ),
    "embeddings without positions": Fault("block.cuh", " + as_float(of_row.x[i]), T())", ", T())"),
    "states without their norm": Fault(
        "block.cuh", "set(to + first + i, x[i] / norm)", "set(to + first + i, x[i])"
    ),
}
IN_MAKE_TEST = ("a share of the columns left out", "bias: an edge ignored", "the norm over padded heads")
"""A fault of each: the warps' cut, the bias, the heads."""


def passes(source: Path, library: str, function: str, sizes: dict[str, int], monkeypatch) -> bool:
    """Whether the verdict passes with the launch `function` of a source in the place of `library`'s."""
    launch = built(source, CUDA_FLAGS, function)
    monkeypatch.setattr(hopper_launch, library, lambda: launch)
    config, model = small_model(max_sequence_len=200, **sizes)
    settings = settings_of(config, model)

    def run(state, *arguments):
        return HSTUForward(state, settings, "fp16x3", backend="hopper")(*arguments)

    return verdict(config, model, "fp32", LENGTHS, run).passed


def is_caught(fault: Fault | None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the verdict fails with the kernel of a copy that has the fault."""
    source = edited(SOURCE, [*HALF_TYPES, *([] if fault is None else [fault])], folder)
    sizes = {} if fault is None else fault.sizes
    return not passes(source, "_library", "hopper_forward_launch", sizes, monkeypatch)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_s_text_stands_once_in_the_source(name):
    assert FAULTS[name].is_of(SOURCE)


@needs_hopper
@needs_nvcc
def test_the_copied_source_is_the_model(lasting_folder, monkeypatch):
    assert not is_caught(None, lasting_folder, monkeypatch)


@needs_hopper
@needs_nvcc
@pytest.mark.parametrize("name", selected(FAULTS, IN_MAKE_TEST))
def test_a_fault_of_the_source_is_caught(name, lasting_folder, monkeypatch):
    assert is_caught(FAULTS[name], lasting_folder, monkeypatch)
