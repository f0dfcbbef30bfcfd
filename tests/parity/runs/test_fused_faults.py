"""Faults made by hand in the fused kernels and around them: found, and named at the right module.

Those of the plain PyTorch form run anywhere. Those of the Triton kernel run where there is a GPU, and with
the production mask in its interpreter, too: there, a copy of the reference asks for the kernel on the CPU.
"""

import ast
import contextlib

import pytest
import torch

from parity.coverage import source
from tests.kernels.marks import needs_gpu, needs_triton
from tests.parity.case_runs import clean_run, judged
from tests.parity.fault_runs import (
    ROOT,
    Fault,
    assert_found_and_named,
    assert_found_in,
    copied,
    edited,
    run,
    runner,
    scratch,
)
from tests.parity.hidden_gpu import without_gpu

EAGER = "kernels/hstu_attention/eager.py"
TRITON = "kernels/hstu_attention/triton_kernel.py"
TRITON_MASKS = "kernels/hstu_attention/triton_kernel_masks.py"
TRITON_BIAS = "kernels/hstu_attention/triton_kernel_bias.py"
PORT = "tripy_port/stu_fused.py"
LAYER_EAGER = "kernels/stu_layer/eager.py"
LAYER_TRITON = "kernels/stu_layer/triton_kernels.py"
LAYER_PLUGIN = "kernels/plugins/stu_layer.py"
ATTENTION = "_hstu._attention_layers.0._attn"
STU_LAYER = "_stu_module._stu_layers.0"
STU_ATTENTION = f"{STU_LAYER}._attn"
STU_NORM = f"{STU_LAYER}._input_norm"

PLAIN = {
    "mask_edge": (
        "tripy_jagged",
        Fault(
            "mask_edge",
            EAGER,
            "return index.unsqueeze(1) >= index.unsqueeze(0)",
            "return index.unsqueeze(1) > index.unsqueeze(0)",
            ATTENTION,
        ),
    ),
    "position_bias_off_by_one": (
        "tripy_jagged",
        Fault("position_bias_off_by_one", EAGER, "[mask.width - 1 + ", "[mask.width - 2 + ", ATTENTION),
    ),
    "time_bias_off_by_one": (
        "torch_fused",
        Fault(
            "time_bias_off_by_one",
            EAGER,
            "next_N = own_N[(position + 1)",
            "next_N = own_N[(position + 0)",
            ATTENTION,
        ),
    ),
    "sequences_joined": (
        "tripy_jagged",
        Fault(
            "sequences_joined",
            "tripy_port/fused_attention.py",
            "tp.sum(tp.where(column < row,",
            "tp.sum(tp.where(column + 1 < row,",
            "_hstu",
        ),
    ),
    "rows_shifted": (
        "tripy_jagged",
        Fault(
            "rows_shifted",
            "tripy_port/fused_attention.py",
            "tp.where(is_valid_BN, row_BN + 1, 0)",
            "tp.where(is_valid_BN, row_BN, 0)",
            "_hstu",
        ),
    ),
}

STU_PLAIN = {
    name: (on, Fault(name, file, old, new, named, case))
    for name, on, file, old, new, named, case in (
        (
            "window_off_by_one",
            "tripy_jagged",
            EAGER,
            "(distance_NN <= mask.max_attn_len)",
            "(distance_NN < mask.max_attn_len)",
            STU_ATTENTION,
            "stu_tiny",
        ),
        (
            "target_mask_off_by_one",
            "torch_fused",
            EAGER,
            ".clamp(max=first_target)",
            ".clamp(max=first_target + 1)",
            STU_ATTENTION,
            "stu_tiny",
        ),
        (
            "one_contextual_row_too_many",
            "tripy_jagged",
            EAGER,
            "(index < mask.contextual_seq_len)",
            "(index <= mask.contextual_seq_len)",
            STU_ATTENTION,
            "stu_tiny",
        ),
        (
            "alpha_left_out",
            "torch_fused",
            EAGER,
            "F.silu(logits_HNN * mask.alpha)",
            "F.silu(logits_HNN)",
            STU_ATTENTION,
            "stu_tiny_group",
        ),
        (
            "factors_of_the_first_rows",
            "tripy_jagged",
            EAGER,
            "mask.attn_scale[start:end]",
            "mask.attn_scale[: end - start]",
            STU_ATTENTION,
            "stu_tiny_group",
        ),
        (
            "window_and_context_swapped",
            "tripy_jagged",
            PORT,
            "valid_attn_mask.max_attn_len,\n            valid_attn_mask.contextual_seq_len,",
            "valid_attn_mask.contextual_seq_len,\n            valid_attn_mask.max_attn_len,",
            STU_ATTENTION,
            "stu_tiny",
        ),
        # The attention is right, and what the stack tells it is not.
        (
            "divisor_off_by_one",
            "tripy_jagged",
            PORT,
            "tp.zeros((x.shape[1],)",
            "tp.zeros((x.shape[1] + 1,)",
            "_stu_module",
            "stu_tiny",
        ),
        (
            "targets_forgotten",
            "tripy_jagged",
            PORT,
            "tp.cast(num_targets, x_offsets.dtype)",
            "tp.cast(num_targets, x_offsets.dtype) * 0",
            "_stu_module",
            "stu_tiny",
        ),
    )
}

LAYER_PLAIN = {
    name: (on, Fault(name, file, old, new, named, case))
    for name, on, file, old, new, named, case in (
        (
            "norm_without_its_bias",
            "tripy_layers",
            LAYER_EAGER,
            "weight.to(wide), bias.to(wide), eps).to(x.dtype)",
            "weight.to(wide), None, eps).to(x.dtype)",
            STU_NORM,
            "stu_tiny",
        ),
        (
            "gate_without_silu",
            "tripy_layers",
            LAYER_EAGER,
            "F.silu(u).to(wide)",
            "u.to(wide)",
            STU_LAYER,
            "stu_tiny",
        ),
        (
            "gate_without_u",
            "torch_layers",
            LAYER_EAGER,
            "u * _output_norm(",
            "_output_norm(",
            STU_LAYER,
            "stu_tiny",
        ),
        (
            "one_norm_for_all_heads",
            "tripy_layers",
            LAYER_EAGER,
            "F.layer_norm(by_head, by_head.shape[-1:], eps=eps)",
            "F.layer_norm(by_head, by_head.shape[-2:], eps=eps)",
            STU_LAYER,
            "stu_tiny_group",
        ),
        (
            "gate_with_another_epsilon",
            "tripy_layers",
            PORT,
            "STUGateSettings(NORM_EPS, self._output_norm.norm_groups)",
            "STUGateSettings(NORM_EPS * 1e4, self._output_norm.norm_groups)",
            STU_LAYER,
            "stu_tiny_group",
        ),
        (
            "residual_forgotten",
            "tripy_layers",
            PORT,
            "return y @ self._output_weight + x",
            "return y @ self._output_weight",
            STU_LAYER,
            "stu_tiny",
        ),
    )
}

# Rows of up to 200 positions: several blocks, the last of them not full.
KERNEL = {
    fault.name: fault
    for fault in (
        Fault(
            "mask_edge",
            TRITON_MASKS,
            "rows[:, None] >= cols[None, :]",
            "rows[:, None] > cols[None, :]",
            ATTENTION,
            "hstu_ml1m",
        ),
        Fault(
            "block_boundary",
            TRITON_MASKS,
            "end = tl.minimum(start_m + BLOCK_M, length)",
            "end = tl.minimum(start_m + BLOCK_M - BLOCK_N, length)",
            ATTENTION,
            "hstu_ml1m",
        ),
        Fault("bias_off_by_one", TRITON_BIAS, "last = width - 1", "last = width - 2", ATTENTION, "hstu_ml1m"),
        Fault(
            "last_partial_block",
            TRITON_MASKS,
            "    high = end\n",
            "    high = end // BLOCK_N * BLOCK_N\n",
            ATTENTION,
            "hstu_ml1m",
        ),
    )
}


# Two blocks of rows; all columns are one block, which is not full.
STU_KERNEL = {
    name: Fault(name, TRITON if "attn_scale" in old else TRITON_MASKS, old, new, STU_ATTENTION, case)
    for name, old, new, case in (
        ("window_off_by_one", "bitcast=True) < window", "bitcast=True) < window - 1", "stu_tiny"),
        (
            "targets_see_each_other",
            "row_position = tl.minimum(row_position, last_position)",
            "row_position = row_position",
            "stu_tiny",
        ),
        ("one_contextual_row_too_few", "(rows < contextual)", "(rows < contextual - 1)", "stu_tiny"),
        (
            "block_boundary",
            "low = tl.where(first > merged, first // BLOCK_N * BLOCK_N, 0)",
            "low = tl.where(first > merged, (first // BLOCK_N + 1) * BLOCK_N, 0)",
            "stu_tiny",
        ),
        ("last_partial_block", "    high = end\n", "    high = end // BLOCK_N * BLOCK_N\n", "stu_tiny"),
        (
            "factors_of_the_first_rows",
            "attn_scale + query_start + rows",
            "attn_scale + rows",
            "stu_tiny_group",
        ),
    )
}


# Several programs of rows; the last one is not full.
LAYER_KERNEL = {
    name: Fault(name, LAYER_TRITON, old, new, named, case)
    for name, old, new, named, case in (
        ("bias_left_out", "normal += tl.load(bias + cols, ", "tl.load(bias + cols, ", STU_NORM, "stu_tiny"),
        ("another_epsilon", "/ SIZE + eps", "/ SIZE + 10000 * eps", STU_NORM, "stu_tiny"),
        ("no_silu", "(u * sigmoid_exact(u))", "u", STU_LAYER, "stu_tiny"),
        (
            "first_heads_weight",
            "tl.load(weight + group)",
            "tl.load(weight + 0 * group)",
            STU_LAYER,
            "stu_tiny_group",
        ),
        ("a_not_copied", "if COPIES_A:", "if COPIES_A and SIZE < 1:", STU_LAYER, "stu_tiny_group"),
    )
}


EVERY_PLAIN = LAYER_PLAIN | PLAIN | {f"stu_{name}": value for name, value in STU_PLAIN.items()}
OF_EACH_RUNNER = {value[0]: (name, *value) for name, value in reversed(EVERY_PLAIN.items())}
"""The first fault of each runner, which the command judges, too."""


@contextlib.contextmanager
def in_this_process(fault):
    """Inside, the functions of the file that the fault is in are those of the edited file."""
    module = fault.file.removesuffix(".py").replace("/", ".")
    text = source.source_of(module)
    assert text.count(fault.old) == 1
    with source.swapped(module, ast.parse(text.replace(fault.old, fault.new))):
        yield


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        pytest.param(
            *value,
            id=name,
            marks=[
                pytest.mark.xdist_group(f"fused-{value[1].case}"),
                *([] if name == OF_EACH_RUNNER[value[0]][0] else [pytest.mark.full]),
            ],
        )
        for name, value in EVERY_PLAIN.items()
    ],
)
def test_a_fault_of_the_plain_form_is_found_and_named(name, fault):
    with without_gpu():
        run = clean_run(fault.case, "fp32", 0)
        assert judged(fault.case, "fp32", 0, name).passed
        with in_this_process(fault):
            diagnosis = run.judge(name).diagnosis
    assert (diagnosis.kind, diagnosis.tap) == ("module", fault.named)


APPENDED_STACK = "_hstu_transducer._stu_module"
TO_LAYERS = "x_offsets, first_rows, targets, self._valid_attn_mask, state"
TO_ATTENTION = "q, k, v, x_offsets, cached_lengths, num_targets, valid_attn_mask\n"
# The full forward is right in all of them.
APPENDED = {
    name: Fault(name, PORT, old, new, named, "dlrmv3_tiny")
    for name, old, new, named in (
        # Rows behind a short user's last candidate count as candidates, too.
        (
            "targets_of_short_users",
            "targets = tp.cast(num_targets - new_lengths, tp.int32) + m",
            "targets = tp.cast(num_targets, tp.int32)",
            f"append:{APPENDED_STACK}@1[0]",
        ),
        *(
            (
                f"a_target_less_in_layer_{layer}",
                TO_LAYERS,
                TO_LAYERS.replace("targets", f"targets - int(layer is self._stu_layers[{layer}])"),
                f"append:{APPENDED_STACK}@1[0]",
            )
            for layer in (0, 1)
        ),
        (
            "a_target_less_in_every_attention",
            TO_ATTENTION,
            TO_ATTENTION.replace("num_targets", "num_targets - 1"),
            f"append:{APPENDED_STACK}._stu_layers.0@1[0]",
        ),
        (
            "attention_scales_twice",
            "self._alpha, valid_attn_mask.max_attn_len, valid_attn_mask.contextual_seq_len\n",
            "2 * self._alpha, valid_attn_mask.max_attn_len, valid_attn_mask.contextual_seq_len\n",
            f"append:{APPENDED_STACK}._stu_layers.0._attn@1",
        ),
        (
            "a_whole_request_caches_twice_k",
            "((k, v) if return_cache_states",
            "((k * 2.0, v) if return_cache_states",
            f"append:{APPENDED_STACK}._stu_layers.0[1][0]",
        ),
    )
}


@pytest.mark.parametrize("name", ["tripy_jagged", "tripy_layers"])
@pytest.mark.xdist_group("fused-dlrmv3_tiny")
@pytest.mark.parametrize("fault", APPENDED.values(), ids=APPENDED)
def test_a_fault_behind_the_cache_of_a_fused_form_is_found_and_named(name, fault):
    with without_gpu():
        run = clean_run(fault.case, "fp32", 0)
        clean = judged(fault.case, "fp32", 0, name)
        with in_this_process(fault):
            faulty = run.judge(name)
    assert clean.passed
    assert [*clean.checks] == ["incremental.predictions"]
    assert not faulty.checks["incremental.predictions"].passed
    assert (faulty.diagnosis.kind, faulty.diagnosis.tap) == ("module", fault.named)


@pytest.mark.full
def test_the_command_names_the_call_of_an_append_with_a_wrong_argument(tmp_path):
    right = "cached_lengths, num_targets, cache\n"
    wrong = right.replace("cached_lengths", "tp.maximum(cached_lengths - 1, 0)")
    scratch(tmp_path, "tripy_port/dlrm_hstu.py", right, wrong)
    with without_gpu():
        code, report, shown = run(tmp_path, "--case", "dlrmv3_tiny_plain", "--runners", "tripy_jagged")
    diagnosis = runner(report, "tripy_jagged").diagnosis
    assert code == 1, shown
    assert (diagnosis.kind, diagnosis.tap) == ("between", "incremental.predictions")
    call = f"append:{APPENDED_STACK}@1"
    assert (
        f"{call} receives another cached_lengths: 5 of 6 elements, all at the batch 0 to 4; every"
        in diagnosis.text
    )
    assert "the code of prefill or extend makes the argument" in diagnosis.text


@pytest.mark.parametrize("case", ["hstu_tiny", "stu_tiny"])
def test_a_fused_form_without_a_cache_has_no_appends(case):
    with without_gpu():
        actual = judged(case, "fp32", 0, "tripy_jagged")
    assert actual.passed
    assert not actual.checks


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "fault"), [pytest.param(*value, id=name) for name, *value in OF_EACH_RUNNER.values()]
)
def test_the_command_finds_and_names_a_fault_of_the_plain_form(name, fault, tmp_path):
    # Where there is a GPU the attention is the Triton kernel's, and the plain form is not called.
    with without_gpu():
        assert_found_and_named(fault, tmp_path, name)


@needs_triton
@needs_gpu
@pytest.mark.parametrize("name", KERNEL)
def test_a_fault_of_the_kernel_is_found_and_named(name, tmp_path):
    assert_found_and_named(KERNEL[name], tmp_path, "torch_fused")


def with_the_kernel(folder, monkeypatch):
    """The copy, in which the reference runs the Triton kernel also without a GPU: in the interpreter."""
    if torch.cuda.is_available():
        return folder
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    chosen = 'backend="triton" if q.is_cuda else "eager"'
    return edited(folder, "reference/stu_fused.py", chosen, 'backend="triton"')


@needs_triton
@pytest.mark.full
@pytest.mark.parametrize("name", STU_KERNEL)
def test_a_fault_of_the_kernel_with_the_production_mask_is_found_and_named(name, tmp_path, monkeypatch):
    fault = STU_KERNEL[name]
    folder = with_the_kernel(scratch(tmp_path, fault.file, fault.old, fault.new), monkeypatch)
    assert_found_in(folder, fault, "torch_fused")


@needs_triton
@pytest.mark.full
@pytest.mark.parametrize("case", ["stu_tiny", "stu_tiny_group"])
def test_without_a_fault_the_kernel_with_the_production_mask_passes(case, tmp_path, monkeypatch):
    folder = with_the_kernel(copied(tmp_path), monkeypatch)
    code, report, shown = run(folder, "--case", case, "--runners", "torch_fused")
    assert code == 0, shown
    assert runner(report, "torch_fused").verdict == "PASS"


def with_the_layers_kernels(folder, monkeypatch):
    """The copy, in which the port's plugins run norm and gate in Triton's interpreter without a GPU."""
    if torch.cuda.is_available():
        return folder
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for x in ("x", "u"):
        chosen = f'backend = "triton" if {x}.is_cuda else "eager"'
        folder = edited(folder, LAYER_PLUGIN, chosen, 'backend = "triton"')
    return folder


@needs_triton
@pytest.mark.full
@pytest.mark.parametrize("name", LAYER_KERNEL)
def test_a_fault_of_the_layers_kernels_is_found_and_named(name, tmp_path, monkeypatch):
    fault = LAYER_KERNEL[name]
    folder = with_the_layers_kernels(scratch(tmp_path, fault.file, fault.old, fault.new), monkeypatch)
    assert_found_in(folder, fault, "tripy_layers")


@needs_triton
@pytest.mark.full
@pytest.mark.parametrize("case", ["stu_tiny", "stu_tiny_group"])
def test_without_a_fault_the_layers_kernels_pass(case, tmp_path, monkeypatch):
    folder = with_the_layers_kernels(copied(tmp_path), monkeypatch)
    code, report, shown = run(folder, "--case", case, "--runners", "tripy_layers")
    assert code == 0, shown
    assert runner(report, "tripy_layers").verdict == "PASS"


EVERY_KERNEL = [*KERNEL.values(), *STU_KERNEL.values(), *LAYER_KERNEL.values()]


@pytest.mark.parametrize("fault", EVERY_KERNEL, ids=lambda fault: fault.name)
def test_a_fault_of_the_kernel_can_be_made(fault):
    """Without a GPU, too, it is seen when the kernel has changed and its faults have not."""
    assert (ROOT / fault.file).read_text().count(fault.old) == 1
