"""The forward in one CUDA C++ kernel: its results on such a GPU, and what a CPU can see of it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from kernels.hstu_forward import HSTUForward, hopper_launch
from kernels.hstu_forward.hopper_launch import (
    CUDA_FLAGS,
    LONGEST,
    SOURCE,
    TYPES,
    WIDE_SOURCE,
    Arguments,
    WideArguments,
    cut_of,
    refusal,
)
from kernels.hstu_forward.hopper_weights import BUCKETS
from kernels.hstu_forward.parameters import DOT_PRECISIONS, Parameters
from kernels.hstu_forward.weights import block_weights, model_shape
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
# Groups of rows in a thread block: clusters of few large thread blocks, and of many small ones.
CUTS = pytest.mark.parametrize("of_block", [1, 2])
# Two thread blocks share a row.
WIDE = sized(100, 2, 50, 50)
KERNELS = pytest.mark.parametrize("sizes", [{}, WIDE], ids=["narrow", "wide"])


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


def assert_lengths_pass(changes: dict, precision: str, dot_precision: str, longest: int) -> None:
    """Rows of one or of several steps of columns, each row's end in, before or behind a group."""
    config, model = small_model(**changes, max_sequence_len=longest - 11)
    lengths = tuple(min(length, longest) for length in (*BOUNDARIES, 211, 128, 100))
    actual = judged(config, model, precision, dot_precision, lengths)
    assert actual.passed, actual.reason


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
    cut(monkeypatch, of_block)
    assert_lengths_pass(changes, precision, dot_precision, longest)


@needs_hopper
@FORMS
def test_the_longest_rows_are_the_model_too(precision, dot_precision):
    config, model = small_model(max_sequence_len=LONGEST - 11)
    actual = judged(config, model, precision, dot_precision, (LONGEST, 0, 1, LONGEST - 17))
    assert actual.passed, actual.reason


@needs_hopper
@KERNELS
@pytest.mark.parametrize("factor", [1e-4, 1e2])
def test_two_float16_parts_are_exact_below_and_nan_beyond_their_range(factor, sizes):
    assert_two_parts_have_their_range(factor, "hopper", **sizes)


@needs_hopper
@KERNELS
@FORMS
def test_times_far_apart_are_exact_and_beyond_reach_nan(precision, dot_precision, sizes):
    assert_far_times_are_exact_or_nan(precision, dot_precision, "hopper", **sizes)


@needs_hopper
@KERNELS
@FORMS
def test_a_captured_graph_serves_smaller_batches(precision, dot_precision, sizes):
    assert_a_graph_serves_smaller_batches(precision, dot_precision, "hopper", **sizes)


@needs_hopper
@pytest.mark.parametrize("is_copied", [False, True])
def test_calls_in_a_row_share_memory_and_see_their_own_inputs(is_copied):
    """A call's kernel starts before its predecessor ends."""
    config, model = small_model()
    lengths, ids, times = (x.to(DEVICE) for x in batch(model, BOUNDARIES))
    flat, offsets = rows(ids, lengths), torch.tensor((0, *BOUNDARIES), device=DEVICE).cumsum(0)
    state = {name: x.to(DEVICE) for name, x in model.state_dict().items()}
    forward = HSTUForward(state, settings_of(config, model), "fp16x3", backend="hopper")
    inputs = [flat.roll(number) for number in range(20)]
    expected = []
    for x in inputs:
        expected.append(forward(x, offsets, times, max(BOUNDARIES)))
        torch.cuda.synchronize()
    own, graph = flat.clone(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = []
        for x in inputs:
            results.append(forward(own.copy_(x) if is_copied else x, offsets, times, max(BOUNDARIES)))
    for _ in range(10):
        graph.replay()
        torch.cuda.synchronize()
        assert all(map(torch.equal, results, expected))


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
        ("heads of 64 elements, not 65", parameters_of(**sized(50, 1, 64, 65)), 128),
        ("D is 513, and 2 heads of 25 and 25 elements take 64", parameters_of(**sized(513, 2, 25, 25)), 128),
        ("17 heads of 25 and 25 elements take 544", parameters_of(**sized(50, 17, 25, 25)), 128),
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


def printed(compiler: str, source: str, folder: Path, suffix: str) -> list[str]:
    """The lines that a program prints; it includes the kernel's headers."""
    (folder / f"program{suffix}").write_text(source)
    command = [compiler, "-std=c++17", "-I", str(SOURCE.parent), f"program{suffix}", "-o", "program"]
    subprocess.run(command, check=True, timeout=300, cwd=folder)
    program = subprocess.run([str(folder / "program")], check=True, capture_output=True, text=True)
    return program.stdout.splitlines()


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize(
    ("structure", "name", "header"),
    [(Arguments, "Call", "call.h"), (WideArguments, "WideCall", "wide_call.h")],
)
def test_python_and_cpp_lay_the_arguments_out_alike(structure, name, header, tmp_path: Path):
    names = [field for field, *_ in structure._fields_]
    lines = "\n".join(f'printf("{x} %zu\\n", offsetof(hopper_forward::{name}, {x}));' for x in names)
    size = f'printf("size %zu\\n", sizeof(hopper_forward::{name}));'
    source = (
        f'#include <cstddef>\n#include <cstdio>\n#include "{header}"\nint main() {{\n{lines}\n{size}\n}}\n'
    )
    own = [f"{x} {getattr(structure, x).offset}" for x in names]
    assert printed(COMPILER, source, tmp_path, ".cpp") == [*own, f"size {ctypes.sizeof(structure)}"]


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
@pytest.mark.parametrize(
    ("source", "kernel", "forms"),
    [
        # Heads of 64 and 32 in one form, those of 16 and 8 in two.
        pytest.param(SOURCE, "14forward_kernel", 6, id="narrow"),
        # Heads of 64, 32 and 16, and two numbers of chunks.
        pytest.param(WIDE_SOURCE, "11wide_kernel", 6, id="wide"),
    ],
)
def test_every_form_compiles(source, kernel, forms, tmp_path: Path):
    command = [NVCC, "-std=c++17", "-O3", "-Werror", "all-warnings", "-Xptxas", "-v", *CUDA_FLAGS, "-c"]
    done = subprocess.run(
        [*command, str(source), "-o", str(tmp_path / "object")], capture_output=True, text=True, timeout=600
    )
    report = done.stdout + done.stderr
    assert done.returncode == 0, report
    assert report.count(f"Compiling entry function '_ZN14hopper_forward{kernel}") == forms * len(TYPES)
