"""The forward in one CUDA C++ kernel: its results on such a GPU, and what a CPU can see of it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels.hstu_forward import HSTUForward, hopper_launch
from kernels.hstu_forward.hopper_launch import (
    BUCKETS,
    CUDA_FLAGS,
    LONGEST,
    SOURCE,
    TYPES,
    WIDTH,
    Arguments,
    cut_of,
    refusal,
    swizzled,
    uvqk_of,
)
from kernels.hstu_forward.parameters import DOT_PRECISIONS, Parameters
from kernels.hstu_forward.weights import Shape, block_weights, model_shape
from tests.identifiers import shortened
from tests.kernels.hstu_forward.forward_cases import (
    BOUNDARIES,
    LENGTHS,
    assert_a_graph_serves_smaller_batches,
    assert_far_times_are_exact_or_nan,
    assert_two_parts_have_their_range,
    batch,
    rows,
    settings_of,
    sized,
    small_model,
    verdict,
)
from tests.kernels.marks import DEVICE, IS_HOPPER, NVCC, needs_hopper, needs_nvcc

COMPILER = shutil.which("c++") or shutil.which("g++")
FORMS = pytest.mark.parametrize(
    ("precision", "dot_precision"), [("fp32", "fp16x3"), ("fp16", "ieee"), ("bf16", "ieee")]
)
# Groups of rows in a thread block: a cluster of few large thread blocks, and of many small ones.
CUTS = pytest.mark.parametrize("of_block", [1, 2])


def cut(monkeypatch, of_block: int) -> None:
    """Let the launch put so many groups of rows in a thread block."""
    monkeypatch.setattr(hopper_launch, "cut_of", lambda *arguments: (cut_of(*arguments)[0], of_block))


def judged(config, model, precision: str, dot_precision: str, lengths=LENGTHS):
    settings = settings_of(config, model)

    def run(state, *arguments):
        forward = HSTUForward(state, settings, dot_precision, backend="hopper")
        states = forward(*arguments)
        # Nothing depends on the order in which warps and thread blocks run.
        assert all(torch.equal(states, forward(*arguments)) for _ in range(3))
        return states

    return verdict(config, model, precision, lengths, run)


@needs_hopper
@FORMS
@CUTS
def test_the_kernel_is_the_model(precision, dot_precision, of_block, monkeypatch):
    cut(monkeypatch, of_block)
    actual = judged(*small_model(), precision, dot_precision)
    assert actual.passed, actual.reason


@needs_hopper
@FORMS
@CUTS
@pytest.mark.parametrize(
    "changes",
    [
        {},
        # Heads of 64, 32, 16 and 8 columns, some of them empty, and keys that are wider than values.
        sized(50, 1, 50, 50),
        sized(32, 1, 16, 40),
        sized(50, 2, 25, 25),
        sized(64, 4, 16, 16),
        sized(64, 8, 8, 8),
        sized(16, 4, 3, 4),
        sized(48, 3, 8, 7),
        {"relative_attention_bias": "positional"},
        {"num_blocks": 1},
        {"num_blocks": 5, "num_buckets": 254},
    ],
    ids=shortened,
)
@pytest.mark.parametrize("longest", [51, 211])
def test_shapes_and_lengths_are_the_model_too(
    changes, precision, dot_precision, of_block, longest, monkeypatch
):
    """Rows of one and of several steps of columns, each row's end in, before and behind a group."""
    cut(monkeypatch, of_block)
    config, model = small_model(**changes, max_sequence_len=longest - 11)
    lengths = tuple(min(length, longest) for length in (*BOUNDARIES, 211, 128, 100))
    actual = judged(config, model, precision, dot_precision, lengths)
    assert actual.passed, actual.reason


@needs_hopper
@FORMS
def test_the_longest_rows_are_the_model_too(precision, dot_precision):
    config, model = small_model(max_sequence_len=LONGEST - 11)
    actual = judged(config, model, precision, dot_precision, (LONGEST, 0, 1, LONGEST - 17))
    assert actual.passed, actual.reason


@needs_hopper
@pytest.mark.parametrize("factor", [1e-4, 1e2])
def test_two_float16_parts_are_exact_below_and_nan_beyond_their_range(factor):
    assert_two_parts_have_their_range(factor, "hopper")


@needs_hopper
@FORMS
def test_times_far_apart_are_exact_and_beyond_reach_nan(precision, dot_precision):
    assert_far_times_are_exact_or_nan(precision, dot_precision, "hopper")


@needs_hopper
@FORMS
def test_a_captured_graph_serves_smaller_batches(precision, dot_precision):
    assert_a_graph_serves_smaller_batches(precision, dot_precision, "hopper")


@needs_hopper
def test_narrow_integers_and_memory_that_nobody_wrote_change_nothing():
    config, model = small_model()
    lengths, ids, times = (x.to(DEVICE) for x in batch(model, BOUNDARIES))
    flat, offsets = rows(ids, lengths), torch.tensor((0, *BOUNDARIES), device=DEVICE).cumsum(0)
    state = {name: x.to(DEVICE) for name, x in model.state_dict().items()}
    forward = HSTUForward(state, settings_of(config, model), "fp16x3", backend="hopper")
    states = forward(flat, offsets, times, max(BOUNDARIES))
    assert torch.equal(forward(flat.int(), offsets.int(), times, max(BOUNDARIES)), states)
    # Times behind a row's end.
    wide = torch.full((len(BOUNDARIES), 300), 1 << 60, device=DEVICE)
    for row, length in enumerate(BOUNDARIES):
        wide[row, : times.size(1)][: length + 1] = times[row, : length + 1]
        # The last time stands for that behind the times' end.
        wide[row, length] = times[row, min(length, times.size(1) - 1)]
    assert torch.equal(forward(flat, offsets, wide, max(BOUNDARIES)), states)


@needs_hopper
def test_no_rows_give_no_rows():
    config, model = small_model()
    state = {name: x.to(DEVICE) for name, x in model.state_dict().items()}
    forward = HSTUForward(state, settings_of(config, model), "fp16x3", backend="hopper")
    times = torch.zeros(2, 51, dtype=torch.int64, device=DEVICE)
    offsets = torch.zeros(3, dtype=torch.int64, device=DEVICE)
    assert forward(times[0, :0], offsets, times, 0).shape == (0, 50)
    assert forward(times[0, :0], offsets, times, 51).shape == (0, 50)


@needs_hopper
def test_batches_that_do_not_fit_are_refused_with_the_reason():
    config, model = small_model(max_sequence_len=600)
    state = {name: x.to(DEVICE) for name, x in model.state_dict().items()}
    forward = HSTUForward(state, settings_of(config, model), "fp16x3", backend="hopper")
    ids = torch.zeros(600, dtype=torch.int64, device=DEVICE)
    offsets, times = torch.tensor([0, 600], device=DEVICE), ids[None]
    with pytest.raises(RuntimeError, match="max_seq_len=600: it has room for 512; use backend='triton'"):
        forward(ids, offsets, times, 600)
    with pytest.raises(RuntimeError, match="ids must be contiguous int32 or int64, not torch.int16"):
        forward(ids.short(), offsets, times, 40)
    with pytest.raises(RuntimeError, match="timestamps must be int64 .* not torch.int32"):
        forward(ids, offsets, times.int(), 40)
    with pytest.raises(RuntimeError, match="it has no cache; use backend='triton'"):
        forward.empty_cache(1, 40)


def parameters_of(dtype: torch.dtype = torch.float32, dot_precision: str = "fp16x3", **changes) -> Parameters:
    config, model = small_model(**changes)
    state = {name: x.to(dtype) for name, x in model.state_dict().items()}
    settings, products = settings_of(config, model), DOT_PRECISIONS[dot_precision]
    shape = model_shape(state, settings.num_heads, settings.attention_dim, settings.linear_dim)
    factors = torch.float16 if products.on_tensor_cores else dtype
    return Parameters(
        shape,
        settings,
        products,
        state["_embedding_module._item_emb.weight"],
        state["_input_features_preproc._pos_emb.weight"],
        tuple(
            block_weights(state, n, shape, products.projections, factors, settings.bucket_divisor)
            for n in range(shape.num_blocks)
        ),
    )


@pytest.mark.parametrize(
    ("reason", "parameters", "num_buckets"),
    [
        ("dot_precision='fp16x3' alone", parameters_of(dot_precision="ieee"), 128),
        ("dot_precision='fp16x3' alone", parameters_of(dot_precision="fp16"), 128),
        (r"D is 100, and 2 heads of 25 and 25 elements take 64", parameters_of(**sized(100, 2, 25, 25)), 128),
        (r"3 heads of 25 and 25 elements take 96", parameters_of(**sized(50, 3, 25, 25)), 128),
        ("254 time buckets, not 255", parameters_of(), 255),
    ],
    ids=shortened,
)
def test_other_models_are_refused_with_the_reason(reason, parameters, num_buckets):
    assert reason in refusal(parameters, num_buckets)


@pytest.mark.skipif(IS_HOPPER, reason="this GPU has compute capability 9.0")
@pytest.mark.parametrize("dtype", TYPES)
def test_another_device_is_refused(dtype):
    dot_precision = "fp16x3" if dtype == torch.float32 else "ieee"
    parameters = parameters_of(dtype, dot_precision)
    assert refusal(parameters, BUCKETS - 2).startswith("it needs a GPU of compute capability 9.0, not ")


@pytest.mark.skipif(IS_HOPPER, reason="this GPU has compute capability 9.0")
def test_no_other_backend_takes_the_place_of_one_that_cannot_run():
    config, model = small_model()
    settings, state = settings_of(config, model), model.state_dict()
    with pytest.raises(RuntimeError, match="^backend='hopper': it needs a GPU .*; use backend='triton'$"):
        HSTUForward(state, settings, "fp16x3", backend="hopper")


def test_an_unknown_backend_is_refused():
    config, model = small_model()
    with pytest.raises(ValueError, match=r"backend='cuda': choose one of \('auto', 'triton', 'hopper'\)"):
        HSTUForward(model.state_dict(), settings_of(config, model), backend="cuda")


def test_a_sequence_has_whole_steps_of_columns_and_a_cluster_at_most_16_thread_blocks():
    for longest in range(1, 513):
        for sequences in (1, 16, 128):
            for dtype in TYPES:
                groups, of_block = cut_of(sequences, longest, dtype, 132)
                assert groups * 16 >= longest > (groups - 2) * 16
                assert groups % 2 == 0
                assert groups // of_block <= 16


def test_weights_have_each_head_in_its_columns():
    """Three heads of 8 keys and 7 values, which the other form stores 16 wide."""
    shape = Shape(1, 3, 8, 7, 48)
    assert (shape.kp, shape.vp) == (16, 16)
    stored = torch.zeros(2, shape.gates + shape.factors, shape.dp)
    for kind in range(4):
        for head in range(3):
            for element in range(8 if kind % 2 else 7):
                stored[:, kind * 48 + head * 16 + element, :48] = 1000 * kind + 100 * head + element + 1
    laid = uvqk_of(stored, shape, 8).view(2, 4, WIDTH, WIDTH)
    assert not laid[..., 48:].any()
    for kind in range(4):
        expected = torch.zeros(WIDTH)
        for head in range(3):
            for element in range(8 if kind % 2 else 7):
                expected[8 * head + element] = 1000 * kind + 100 * head + element + 1
        assert torch.equal(laid[0, kind, :, 0], expected)
        assert torch.equal(laid[1, kind, :, 47], expected)


def test_the_swizzle_is_the_kernels_and_loses_nothing():
    x = torch.arange(2 * 16 * WIDTH).view(2, 16, WIDTH)
    laid = swizzled(x)
    for row in range(16):
        for chunk in range(8):
            at = 8 * (chunk ^ (row & 1) << 2 ^ (row >> 3 & 1) << 1)
            assert torch.equal(laid[:, row, at : at + 8], x[:, row, 8 * chunk : 8 * chunk + 8])


def test_weights_of_the_other_forms_packed_heads_keep_their_columns():
    shape = replace(Shape(1, 8, 8, 8, 64))
    stored = torch.randn(1, 256, 64)
    assert torch.equal(uvqk_of(stored, shape, 8), stored)


def printed(compiler: str, source: str, folder: Path, suffix: str) -> list[str]:
    """The lines that a program prints; it includes the kernel's headers."""
    (folder / f"program{suffix}").write_text(source)
    command = [compiler, "-std=c++17", "-I", str(SOURCE.parent), f"program{suffix}", "-o", "program"]
    subprocess.run(command, check=True, timeout=300, cwd=folder)
    program = subprocess.run([str(folder / "program")], check=True, capture_output=True, text=True)
    return program.stdout.splitlines()


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_python_and_cpp_lay_the_arguments_out_alike(tmp_path: Path):
    names = [name for name, *_ in Arguments._fields_]
    lines = "\n".join(f'printf("{name} %zu\\n", offsetof(hopper_forward::Call, {name}));' for name in names)
    size = 'printf("size %zu\\n", sizeof(hopper_forward::Call));'
    source = f'#include <cstddef>\n#include <cstdio>\n#include "call.h"\nint main() {{\n{lines}\n{size}\n}}\n'
    own = [f"{name} {getattr(Arguments, name).offset}" for name in names]
    assert printed(COMPILER, source, tmp_path, ".cpp") == [*own, f"size {ctypes.sizeof(Arguments)}"]


@pytest.mark.full
@needs_nvcc
def test_the_longest_rows_fit_the_shared_memory(tmp_path: Path):
    source = (
        '#include <cstdio>\n#include "shared.cuh"\nusing hopper_forward::Layout;\n'
        "int main() { for (int parts = 1; parts <= 2; ++parts) for (int rows = 32; rows <= 512; rows += 32) "
        'printf("%d %d %d\\n", parts, rows, Layout{parts, 8, rows}.bytes(2)); }'
    )
    lines = (line.split() for line in printed(NVCC, source, tmp_path, ".cu"))
    sizes = {(int(parts), int(longest)): int(size) for parts, longest, size in lines}
    for parts in (1, 2):
        assert sizes[parts, 32] < sizes[parts, LONGEST] <= 227 * 1024


@pytest.mark.full
@needs_nvcc
def test_every_form_compiles(tmp_path: Path):
    command = [NVCC, "-std=c++17", "-O3", "-Werror", "all-warnings", "-Xptxas", "-v", *CUDA_FLAGS, "-c"]
    done = subprocess.run(
        [*command, str(SOURCE), "-o", str(tmp_path / "object")], capture_output=True, text=True, timeout=600
    )
    report = done.stdout + done.stderr
    assert done.returncode == 0, report
    # Heads of 64 and 32 in one form, those of 16 and 8 in two.
    assert report.count("Compiling entry function '_ZN14hopper_forward14forward_kernel") == 6 * len(TYPES)
