"""Faults of the forward's CUDA source: the verdict catches each. A copy of the source is compiled for it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kernels.hstu_forward import HSTUForward, hopper_launch
from kernels.hstu_forward.hopper_launch import CUDA_FLAGS, SOURCE
from tests.kernels.hstu_forward.forward_cases import settings_of, sized, small_model, verdict
from tests.kernels.hstu_forward.test_hopper import NVCC, needs_hopper

HEADERS = SOURCE.parents[2]
# Rows of one and of several steps of columns, each end in, before and behind a group of 16.
LENGTHS = (211, 0, 16, 33, 1, 128, 51)
# Left out of a copy, which compiles for float32 alone.
HALF_TYPES = tuple(
    f"hopper_forward::launch_sized<{name}>(*call, queue)" for name in ("__half", "__nv_bfloat16")
)


@dataclass(frozen=True)
class Fault:
    """A text of a file of the kernel's folder, once in it, and what stands there instead."""

    file: str
    old: str
    new: str
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
        "forward.cuh", "times[place.first + row + 1]", "times[place.first + row]"
    ),
    "bias: an edge ignored": Fault("forward.cuh", " + (pattern[j] >= static_cast<int>(entry[j]));", ";"),
    "the norm over padded heads": Fault(
        "block.cuh", "column % Head < call.linear_dim && column / Head", "column / Head"
    ),
    "no residual": Fault("block.cuh", "sum.x += (", "sum.x = ("),
    "a gate of another row's norm": Fault(
        "block.cuh", "rounded(x[3] * deviation, T()) * u.w", "rounded(x[3], T()) * u.w"
    ),
    "embeddings without positions": Fault("block.cuh", " + of_row, T())", ", T())"),
    "states without their norm": Fault(
        "block.cuh", "set(to + column, x[i] / norm)", "set(to + column, x[i])"
    ),
}
IN_MAKE_TEST = ("a share of the columns left out", "bias: an edge ignored", "the norm over padded heads")
"""A fault of each: the warps' cut, the bias, the heads."""


def copied(folder: Path) -> Path:
    """The kernel's source in a folder, for float32 alone."""
    for name in ("hstu_forward/hopper", "hstu_attention/hopper"):
        shutil.copytree(HEADERS / name, folder / name)
    source = folder / "hstu_forward" / "hopper" / SOURCE.name
    text = source.read_text()
    for call in HALF_TYPES:
        assert text.count(call) == 1
        text = text.replace(call, "-1")
    source.write_text(text)
    return source


def is_caught(fault: Fault | None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the verdict fails with the kernel of a copy that has the fault."""
    source = copied(folder)
    if fault is not None:
        file = source.parent / fault.file
        file.write_text(file.read_text().replace(fault.old, fault.new))
    built = folder / "faulty.so"
    command = [NVCC, "-std=c++17", "-O3", *CUDA_FLAGS, "-shared", "-Xcompiler", "-fPIC", str(source)]
    subprocess.run([*command, "-o", str(built)], check=True, timeout=600)
    launch = ctypes.CDLL(str(built)).hopper_forward_launch
    launch.argtypes, launch.restype = (ctypes.c_void_p, ctypes.c_void_p), ctypes.c_int
    monkeypatch.setattr(hopper_launch, "_library", lambda: launch)
    config, model = small_model(max_sequence_len=200, **({} if fault is None else fault.sizes))
    settings = settings_of(config, model)

    def run(state, *arguments):
        return HSTUForward(state, settings, "fp16x3", backend="hopper")(*arguments)

    return not verdict(config, model, "fp32", LENGTHS, run).passed


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_s_text_stands_once_in_the_source(name):
    fault = FAULTS[name]
    assert (SOURCE.parent / fault.file).read_text().count(fault.old) == 1
    assert fault.old != fault.new


@needs_hopper
@pytest.mark.skipif(NVCC is None, reason="no nvcc")
def test_the_copied_source_is_the_model(tmp_path, monkeypatch):
    assert not is_caught(None, tmp_path, monkeypatch)


@needs_hopper
@pytest.mark.skipif(NVCC is None, reason="no nvcc")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in IN_MAKE_TEST else pytest.mark.full) for name in FAULTS],
)
def test_a_fault_of_the_source_is_caught(name, tmp_path, monkeypatch):
    assert is_caught(FAULTS[name], tmp_path, monkeypatch)
