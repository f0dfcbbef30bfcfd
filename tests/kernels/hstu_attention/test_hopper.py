"""The Hopper form of the attention: its results on such a GPU, and what a CPU can see of it."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.hstu_attention import ProductionMask, ResearchMask, hstu_attention
from kernels.hstu_attention.hopper_launch import (
    CUDA_FLAGS,
    DTYPES,
    HEADS,
    SCALES,
    SOURCE,
    TILE_ROWS,
    Arguments,
    arguments_of,
    refusal,
)
from kernels.hstu_attention.layout import Call
from tests.kernels.hstu_attention.attention_cases import Case, production, verdict
from tests.kernels.marks import DEVICE, IS_HOPPER, NVCC, needs_hopper, needs_nvcc

COMPILER = shutil.which("c++") or shutil.which("g++")

MASKS = {
    "causal": production(),
    "targets": production(has_targets=True),
    "window": production(window=20),
    "window wider than a block": production(window=130),
    "contextual rows": production(contextual=3),
    "contextual rows beyond a block": production(contextual=70),
    "everything": production(True, True, 40, 3),
}
# Warpgroups without rows, tiles with one row, and sequences of several tiles; seven, as the masks' targets.
LENGTHS = (5, 0, 1, 130, 64, 257, 600)


def run(q, k, v, offsets, longest, mask):
    out = torch.full_like(v, float("nan"))
    result = hstu_attention(q, k, v, offsets, longest, mask, backend="hopper", out=out)
    assert result is out
    return out


@needs_hopper
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("size", HEADS)
@pytest.mark.parametrize("name", MASKS)
def test_every_mask_is_right(name, size, precision):
    lengths = (100, 257, 71) if name == "contextual rows beyond a block" else LENGTHS
    actual = verdict(Case(2, size, size, MASKS[name], lengths), precision, run)
    assert actual.passed, actual.reason


@needs_hopper
def test_slices_of_one_projection_are_taken_as_they_are():
    def sliced(q, k, v, offsets, longest, mask):
        parts = torch.cat([x.flatten(1) for x in (v, q, k)], dim=1).split(v[0].numel(), dim=1)
        v, q, k = (x.unflatten(1, (2, -1)) for x in parts)
        wide = torch.full((v.size(0), 3, *v.shape[1:]), float("nan"), dtype=v.dtype, device=v.device)
        out = hstu_attention(q, k, v, offsets.int(), longest, mask, backend="hopper", out=wide[:, 1])
        assert wide[:, ::2].isnan().all()
        return out

    actual = verdict(Case(2, 64, 64, MASKS["everything"], LENGTHS), "bf16", sliced)
    assert actual.passed, actual.reason


@needs_hopper
@pytest.mark.parametrize("garbage", [float("nan"), float("inf")])
def test_other_sequences_change_nothing(garbage):
    generator = torch.Generator().manual_seed(3)
    offsets = torch.tensor([0, 70, 75, 140])
    q, k, v = (torch.randn(140, 2, 128, generator=generator).bfloat16() for _ in range(3))
    results = []
    for around in (0.0, garbage):
        for x in (q, k, v):
            x[:70], x[75:] = around, around
        placed = [x.to(DEVICE) for x in (q, k, v, offsets)]
        results.append(run(*placed, 70, ProductionMask(0.1, 70.0))[70:75])
    assert torch.isfinite(results[0]).all()
    assert torch.equal(*results)


@needs_hopper
def test_two_calls_give_equal_bits_for_more_tiles_than_multiprocessors():
    lengths = torch.randint(1, 900, (200,), generator=torch.Generator().manual_seed(1))
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(DEVICE)
    shape = (int(lengths.sum()), 4, 128)
    q, k, v = (torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) for _ in range(3))
    mask = ProductionMask(0.1, 900.0)
    first, second = (run(q, k, v, offsets, 900, mask) for _ in range(2))
    assert first.isfinite().all()
    assert torch.equal(first, second)
    portable = hstu_attention(q, k, v, offsets, 900, mask, backend="triton")
    # Both round weights and result to bfloat16, after sums in another order.
    assert float((first - portable).double().norm() / portable.double().norm()) < 2.0**-8


MANY_SHORT_CALLS = """
import torch
from kernels.hstu_attention import ProductionMask, hstu_attention

lengths = torch.randint(126, 281, (600,), generator=torch.Generator().manual_seed(1))
offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).cuda()
q, k, v = torch.randn(3, int(lengths.sum()), 8, 128, device="cuda", dtype=torch.bfloat16)
for _ in range(500):
    hstu_attention(q, k, v, offsets, 280, ProductionMask(0.1, 280.0), backend="hopper")
torch.cuda.synchronize()
"""


@needs_hopper
def test_warpgroups_without_rows_end():
    """Many last tiles have rows for one warpgroup alone; the warps of the other wait without products."""
    root = Path(__file__).resolve().parents[3]
    subprocess.run([sys.executable, "-c", MANY_SHORT_CALLS], cwd=root, check=True, timeout=300)


@needs_hopper
@pytest.mark.parametrize("logit", [-30.0, -60.0, -1e4, 1e4])
def test_two_weights_that_share_a_reciprocal_do_not_touch(logit):
    """A row alternates between an ordinary logit and an extreme one, whose value is 0."""
    q = torch.zeros(64, 1, 32, dtype=torch.bfloat16, device=DEVICE)
    k, v = q.clone(), torch.ones_like(q)
    q[:, 0, 0] = 1
    k[::2, 0, 0], k[1::2, 0, 0] = 1, logit
    v[1::2] = 0
    out = run(q, k, v, torch.tensor([0, 64], device=DEVICE), 64, ProductionMask(1.0, 1.0))[:, 0, 0]
    expected = (torch.arange(64) // 2 + 1).double() / (1 + math.exp(-1))
    # The weight and the result are rounded to bfloat16.
    assert float(((out.double().cpu() - expected) / expected).abs().max()) <= 2 * 2.0**-8


Q = torch.zeros(4, 2, 64, dtype=torch.bfloat16)
GOOD = Call(Q, Q, Q, torch.tensor([0, 4]), 4, ProductionMask(1.0, 4.0))
REFUSED = {
    "it has no bias": GOOD._replace(mask=ResearchMask(torch.zeros(7), 4.0)),
    "it takes float16 and bfloat16": Call(*[Q.float()] * 3, *GOOD[3:]),
    r"heads of .* not 48 and 48": Call(*[torch.zeros(4, 2, 48, dtype=torch.bfloat16)] * 3, *GOOD[3:]),
    r"heads of .* not 64 and 32": GOOD._replace(v=Q[..., :32]),
    "attn_scale of torch.float64": GOOD._replace(
        mask=ProductionMask(1.0, 4.0, torch.zeros(4, dtype=torch.float64))
    ),
    "k is not aligned": GOOD._replace(
        k=torch.zeros(4, 132, dtype=torch.bfloat16)[:, 2:130].unflatten(1, (2, 64))
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_other_calls_are_refused_with_the_reason_and_a_backend_that_takes_them(reason):
    with pytest.raises(RuntimeError, match=f"^backend='hopper': .*{reason}.*; use backend='triton'$"):
        hstu_attention(*REFUSED[reason], backend="hopper")


@pytest.mark.skipif(IS_HOPPER, reason="this GPU has compute capability 9.0")
def test_another_device_is_refused():
    call = GOOD._replace(**{name: getattr(GOOD, name).to(DEVICE) for name in ("q", "k", "v", "offsets")})
    with pytest.raises(RuntimeError, match="it needs a GPU of compute capability 9.0, not "):
        hstu_attention(*call, backend="hopper")
    assert refusal(GOOD).startswith("it needs a GPU")


@pytest.fixture(scope="module")
def layout_of_call(tmp_path_factory) -> list[tuple[str, int]]:
    """Name and offset of each member of the C++ structure, then its size, from a compiled program."""
    folder = tmp_path_factory.mktemp("call")
    names = [name for name, *_ in Arguments._fields_]
    lines = "\n".join(f'    printf("{name} %zu\\n", offsetof(hopper::Call, {name}));' for name in names)
    size = '    printf("size %zu\\n", sizeof(hopper::Call));'
    source = f'#include <cstddef>\n#include <cstdio>\n#include "call.h"\nint main() {{\n{lines}\n{size}\n}}\n'
    (folder / "call.cpp").write_text(source)
    program = folder / "call"
    command = [COMPILER, "-std=c++17", "-I", str(SOURCE.parent), str(folder / "call.cpp"), "-o", str(program)]
    subprocess.run(command, check=True, timeout=120)
    lines = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.splitlines()
    return [(name, int(value)) for name, value in (line.split() for line in lines)]


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_python_and_cpp_lay_the_arguments_out_alike(layout_of_call):
    own = [(name, getattr(Arguments, name).offset) for name, *_ in Arguments._fields_]
    assert layout_of_call == [*own, ("size", ctypes.sizeof(Arguments))]


def test_the_arguments_are_those_of_the_call():
    q, k, v = (torch.zeros(9, 4, 3, 64, dtype=torch.float16)[:, i] for i in range(3))
    out, workspace = torch.zeros(9, 3, 64, dtype=torch.float16), torch.zeros(64, dtype=torch.uint8)
    targets, scale = torch.tensor([1, 2], dtype=torch.int32), torch.ones(9, dtype=torch.bfloat16)
    mask = ProductionMask(0.5, 4.0, scale, targets, 100, 5)
    offsets = torch.tensor([0, 5, 9])
    actual = arguments_of(Call(q, k, v, offsets, 7, mask), out, workspace, 132)
    tensors = {"q": q, "k": k, "v": v, "out": out, "offsets": offsets, "num_targets": targets}
    for name, x in (tensors | {"attn_scale": scale, "workspace": workspace}).items():
        assert getattr(actual, name) == x.data_ptr()
    for name in ("q", "k", "v", "out"):
        strides = (getattr(actual, f"{name}_row"), getattr(actual, f"{name}_head"))
        assert strides == tensors[name].stride()[:2]
    assert (actual.rows, actual.heads, actual.size, actual.sequences, actual.max_seq_len) == (9, 3, 64, 2, 7)
    assert (actual.is_half, actual.wide_offsets, actual.wide_targets) == (1, 1, 0)
    assert (actual.scale_type, actual.contextual, actual.window) == (SCALES[torch.bfloat16], 5, 100)
    assert (actual.multiprocessors, actual.alpha, actual.scale) == (132, 0.5, 0.25)
    assert actual.groups > 1
    assert actual.group_rows > 0
    plain = arguments_of(GOOD, Q, workspace, 132)
    assert (plain.num_targets, plain.attn_scale, plain.groups, plain.is_half) == (None, None, 1, 0)


def test_a_tile_has_as_many_rows_in_both_languages():
    assert "kTileRows = kGroups * kGroupRows" in (SOURCE.parent / "tiles.cuh").read_text()
    assert TILE_ROWS == 2 * 64


@pytest.mark.full
@needs_nvcc
def test_every_form_compiles_without_spills_or_serialised_products(tmp_path: Path):
    command = [NVCC, "-std=c++17", "-O3", "-Werror", "all-warnings", "-Xptxas", "-v", *CUDA_FLAGS, "-c"]
    done = subprocess.run(
        [*command, str(SOURCE), "-o", str(tmp_path / "object")], capture_output=True, text=True, timeout=600
    )
    report = done.stdout + done.stderr
    assert done.returncode == 0, report
    forms = len(HEADS) * len(DTYPES)
    assert report.count("Compiling entry function '_ZN6hopper16attention_kernel") == forms
    assert report.count("0 bytes spill stores, 0 bytes spill loads") == report.count("spill stores")
    # The compiler says so where it waits for each product.
    assert "serialized" not in report
