"""Faults of the wide form's CUDA source: the verdict catches each in a compiled copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.hstu_forward.hopper_launch import WIDE_SOURCE
from tests.kernels.cuda_faults import Edit, edited, selected
from tests.kernels.hstu_forward.forward_cases import sized
from tests.kernels.hstu_forward.test_hopper_faults import HALF_TYPES, passes
from tests.kernels.marks import needs_hopper, needs_nvcc

# Four thread blocks share a row, and none of their columns is a whole chunk of heads or of an embedding.
SIZES = sized(250, 4, 50, 60)
# A copy compiles for float32 and the model's sizes alone.
ONE_FORM = (
    *(Edit(WIDE_SOURCE.name, edit.old, edit.new) for edit in HALF_TYPES),
    *(Edit(WIDE_SOURCE.name, f"launch_most<T, {size}>(call, stream)", "-1") for size in (32, 16)),
    Edit(WIDE_SOURCE.name, "launch<T, Head, 8>(call, stream)", "-1"),
)
FAULTS = {
    "keys of groups behind the own one": Edit(
        "wide_shared.cuh", "min(group, place.first / kRows)", "min(group, 0)"
    ),
    "words that are missing are used": Edit("cluster.cuh", "most != kMissing", "true"),
    "memory of k and v that is not reset": Edit(
        "wide.cuh", "workspace[i] = make_uint4(kMissing, kMissing, kMissing, kMissing)", "workspace[i].x = 0"
    ),
    "a stage of the weights twice": Edit(
        "wide_shared.cuh",
        "stream + static_cast<int64_t>(i) * bytes",
        "stream + static_cast<int64_t>(i / 2) * bytes",
    ),
    "the factors' second half left out": Edit(
        "wide_block.cuh",
        "for (int i = 0; i < 2; ++i) {\n#pragma unroll\n            for (int n",
        "for (int i = 0; i < 1; ++i) {\n#pragma unroll\n            for (int n",
    ),
    "biases of the block before": Edit(
        "wide.cuh",
        "layout.buffer = (block + 1) % 2;\n        send",
        "layout.buffer = block % 2;\n        send",
    ),
    "half of the rows' biases of the block before": Edit(
        "wide.cuh", "if (!is_last) attention.prepare(1);", ""
    ),
    "sums of the block before": Edit("wide.cuh", "attention.clear();", ""),
    "a slice in another thread block's place": Edit(
        "wide_block.cuh",
        "Gathered<T>::at(place, layout, place.rank), a",
        "Gathered<T>::at(place, layout, 0), a",
    ),
    "the norm over padded heads": Edit(
        "wide_block.cuh", "column % Head < call.linear_dim && column / Head", "column / Head"
    ),
    "the norm over padded columns": Edit(
        "wide_block.cuh", "is_inside ? x[chunk][i] - mean : 0.0f", "x[chunk][i] - mean"
    ),
    "a gate without u": Edit(
        "wide_block.cuh",
        "rounded(a[rank][i] * deviation, T()) * u[rank][i]",
        "rounded(a[rank][i] * deviation, T())",
    ),
    "no residual": Edit("wide_block.cuh", "sum.x += (", "sum.x = ("),
    "another chunk's output bias": Edit(
        "wide_block.cuh", "biases + place.rank * own_chunks * kWidth", "biases"
    ),
    "states of the first thread block's norm": Edit(
        "wide_block.cuh",
        "const float norm = norm_of(call, half_warp_sum(squares));",
        "const float norm = 1.0f;",
    ),
}
IN_MAKE_TEST = ("words that are missing are used", "half of the rows' biases of the block before")
"""A fault of each: the signals, the two buffers."""


def is_caught(faults: list[Edit], folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the verdict fails with the kernel of a copy that has the faults."""
    source = edited(WIDE_SOURCE, [*ONE_FORM, *faults], folder)
    return not passes(source, "_wide_library", "hopper_forward_wide_launch", SIZES, monkeypatch)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_s_text_stands_once_in_the_source(name):
    assert FAULTS[name].is_of(WIDE_SOURCE)


@needs_hopper
@needs_nvcc
def test_the_copied_source_is_the_model(lasting_folder, monkeypatch):
    assert not is_caught([], lasting_folder, monkeypatch)


@needs_hopper
@needs_nvcc
@pytest.mark.parametrize("name", selected(FAULTS, IN_MAKE_TEST))
def test_a_fault_of_the_source_is_caught(name, lasting_folder, monkeypatch):
    assert is_caught([FAULTS[name]], lasting_folder, monkeypatch)
