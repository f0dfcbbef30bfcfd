"""The production mask's plugin: what `test_plugins.py` asks of the research mask's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nvtripy as tp
import pytest
import torch
from tensorrt import plugin as trtp

import kernels.plugins.stu_attention as registration
from kernels.hstu_attention import ProductionMask, hstu_attention
from kernels.hstu_attention.interface import missing_triton
from kernels.plugins.schema import STU_ATTENTION, STUAttentionSettings
from parity.precision import PRECISIONS
from parity.verdict import judge
from tests.kernels.plugin_setup import HEADS, K_DIM, STU_SETTINGS, V_DIM, stu_attention_inputs

ROOT = Path(__file__).parents[2]
NAMES = ("q", "k", "v", "offsets", "num_targets", "attn_scale", "padded")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
GPU = torch.cuda.is_available()
needs_triton = pytest.mark.skipif(bool(missing_triton()), reason=missing_triton())


def on_device(tensor):
    return tp.copy(tp.Tensor(tensor.contiguous()), tp.device("gpu"))


def mask_of(inputs, settings):
    *_, num_targets, attn_scale, padded = inputs
    return ProductionMask(
        alpha=settings.alpha,
        divisor=padded.numel(),
        attn_scale=attn_scale if settings.has_attn_scale else None,
        num_targets=num_targets,
        max_attn_len=settings.max_attn_len,
        contextual_seq_len=settings.contextual_seq_len,
    )


def attention_of(inputs, settings, **how):
    q, k, v, offsets, *_, padded = inputs
    return hstu_attention(q, k, v, offsets, padded.numel(), mask_of(inputs, settings), **how)


def assert_is_the_operation(result, inputs, settings):
    """The plugin calls one backend, whose bits it must return; and that backend must be right."""
    result = torch.from_dlpack(result)
    assert result.is_cuda == GPU
    placed = [x.to(result.device) for x in inputs]
    assert torch.equal(result, attention_of(placed, settings, backend="triton" if GPU else "eager"))
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    oracle, reference = (attention_of(given, settings, backend="eager") for given in (wide, inputs))
    longest_sum = max(K_DIM, inputs[-1].numel())
    precision = next(p for p in PRECISIONS.values() if p.dtype is result.dtype)
    verdict = judge(oracle, reference, result.cpu(), precision, longest_sum)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("settings", STU_SETTINGS.values(), ids=STU_SETTINGS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lengths", [(5, 0, 9, 2), (9,), (0, 0), (2, 2, 2)], ids=str)
def test_the_plugin_is_the_operation(lengths, dtype, settings):
    inputs = stu_attention_inputs(lengths, dtype, settings)
    result = tp.plugin(STU_ATTENTION, [on_device(x) for x in inputs], settings=settings.to_string())
    assert tuple(result.shape) == (sum(lengths), HEADS, V_DIM)
    if sum(lengths):
        assert_is_the_operation(result, inputs, settings)


def test_every_setting_and_input_changes_the_result():
    """A plugin that drops one would therefore not pass the test above."""
    settings = STU_SETTINGS["all"]
    inputs = stu_attention_inputs((5, 0, 9, 2), torch.float32, settings)
    assert inputs[4].any()
    whole = attention_of(inputs, settings, backend="eager")
    for change in (
        {"alpha": 0.5},
        {"max_attn_len": 2},
        {"contextual_seq_len": 1},
        {"has_attn_scale": False},
    ):
        changed = STUAttentionSettings(**(vars(settings) | change))
        assert not torch.equal(whole, attention_of(inputs, changed, backend="eager")), change
    for place in (4, 5):
        other = [torch.zeros_like(x) if at == place else x for at, x in enumerate(inputs)]
        assert not torch.equal(whole, attention_of(other, settings, backend="eager")), NAMES[place]


@pytest.mark.parametrize("name", ["window", "all"])
def test_one_graph_serves_other_rows_other_batches_and_other_widths(name):
    settings = STU_SETTINGS[name]
    infos = [tp.InputInfo(((1, 12, 40), HEADS, dim), tp.float32) for dim in (K_DIM, K_DIM, V_DIM)]
    infos += [tp.InputInfo(((2, 5, 6),), tp.int32), tp.InputInfo(((1, 4, 5),), tp.int32)]
    infos += [tp.InputInfo(((1, 12, 40),), tp.float32), tp.InputInfo(((1, 10, 20),), tp.int32)]
    compiled = tp.compile(
        lambda *inputs: tp.plugin(STU_ATTENTION, list(inputs), settings=settings.to_string()), args=infos
    )
    for lengths in ((5, 0, 6, 2), (14,), (2, 3, 2, 2, 10)):
        inputs = stu_attention_inputs(lengths, torch.float32, settings)
        assert_is_the_operation(compiled(*(on_device(x) for x in inputs)), inputs, settings)


def test_settings_read_back_exactly():
    settings = STUAttentionSettings(0.125, 8, 3, True)
    assert settings.to_string() == "alpha=0.125 max_attn_len=8 contextual_seq_len=3 has_attn_scale=1"
    assert STUAttentionSettings.from_string(settings.to_string()) == settings
    third = STUAttentionSettings(1 / 3)
    assert STUAttentionSettings.from_string(third.to_string()) == third


REST = "max_attn_len=0 contextual_seq_len=0 has_attn_scale=0"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "each setting must stand there once"),
        ("alpha=1.0", "each setting must stand there once"),
        (f"alpha=1.0 alpha=1.0 {REST}", "each setting must stand there once"),
        (f"alpha=inf {REST}", "alpha=inf: must be positive and finite"),
        (f"alpha=-1 {REST}", "alpha=-1.0: must be positive and finite"),
        (f"alpha=1.0 {REST.replace('len=0', 'len=-1', 1)}", "max_attn_len=-1: must be at least 0"),
        (f"alpha=1.0 {REST.replace('len=0', 'len=1.5', 1)}", "invalid literal for int"),
        (f"alpha=1.0 {REST.replace('scale=0', 'scale=2')}", "has_attn_scale"),
    ],
)
def test_settings_that_cannot_be_read(text, reason):
    with pytest.raises(ValueError, match=f"settings='.*{reason}.*; must be 'alpha=1.0 {REST}'"):
        STUAttentionSettings.from_string(text)
    inputs = [on_device(x) for x in stu_attention_inputs((3,), torch.float32, STU_SETTINGS["plain"])]
    with pytest.raises(tp.TripyException, match="refuses its inputs: ValueError: settings="):
        tp.plugin(STU_ATTENTION, inputs, settings=text).eval()


WRONG = {
    "q": (lambda x: x.to(torch.int32), "the type of q is .*INT32.* must be float32, float16 or bfloat16"),
    "k": (lambda x: x.flatten(1), "the rank of k is 2, but must be 3"),
    "offsets": (lambda x: x.float(), "the type of offsets is .*FLOAT.* must be int32 or int64"),
    "num_targets": (lambda x: x.long(), "the type of num_targets is .*INT64.* must be that of offsets"),
    "attn_scale": (lambda x: x.half(), "the type of attn_scale is .*HALF.* must be q's"),
    "padded": (lambda x: x.float(), "the type of padded is .*FLOAT.* must be int32"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_input_that_does_not_fit_is_named(name):
    change, message = WRONG[name]
    settings = STU_SETTINGS["scaled"]
    inputs = dict(zip(NAMES, stu_attention_inputs((3, 2), torch.float32, settings), strict=True))
    inputs[name] = change(inputs[name])
    given = [tp.Tensor(x.contiguous()) for x in inputs.values()]
    with pytest.raises(ValueError, match=f"hstu::production_attention: {message}"):
        tp.plugin(STU_ATTENTION, given, settings=settings.to_string())


def test_the_registration_is_one_that_tripy_can_call():
    definition = trtp.op.hstu.production_attention
    assert definition.plugin_id == STU_ATTENTION
    assert tuple(definition.input_tensor_names) == NAMES
    assert definition.input_attrs == {"settings": str}
    assert definition.num_outputs == 1
    assert definition.impl_func is registration.compute
    assert definition.aot_impl_func is registration.compile_kernel


@pytest.fixture(scope="module")
def compilations():
    """What `compile_stu_plugin` prints."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compile_stu_plugin"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_triton
def test_the_kernel_compiles_without_a_gpu(compilations):
    kernels = compilations["kernels"]
    assert {kernel["capability"] for kernel in kernels} == {80, 90, 100}
    assert {kernel["precision"] for kernel in kernels} == {"float32", "float16", "bfloat16"}
    for kernel in kernels:
        assert kernel["target"].startswith(f"sm_{kernel['capability']}")
        assert kernel["is_elf"]
        assert kernel["threads"] % 32 == 0
        assert kernel["shared"] <= 48 << 10
        # Seven inputs, three numbers, one output, and none of Triton's own.
        assert kernel["arguments"] == [".u64"] * 7 + [".u32"] * 3 + [".u64"]
        assert kernel["assembler"] == ""


@needs_triton
def test_what_tensorrt_is_told_to_launch(compilations):
    told = compilations["told"]
    blocks = 1  # of 64 rows, for 10 positions
    assert told["is_named"]
    assert told["grid"] == [blocks * 4 * HEADS, 1, 1]
    assert told["threads"] % 32 == 0
    assert 0 < told["shared"] <= 48 << 10
    assert told["numbers"] == [4, 10, blocks]


@needs_triton
def test_an_extent_that_must_be_known_is_named(compilations):
    assert "the second extent of q is not known" in compilations["unknown"]["error"]


@needs_triton
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("settings", STU_SETTINGS.values(), ids=STU_SETTINGS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_compiled_kernel_launched_as_tensorrt_launches_it(dtype, settings):
    from kernels.hstu_attention import triton_launch
    from kernels.plugins.ahead_of_time import AttentionShape, compile_attention, entry_of
    from tests.kernels.driver import launch

    lengths = (200, 0, 64, 65, 128, 2)
    inputs = [x.cuda() for x in stu_attention_inputs(lengths, dtype, settings)]
    shape = AttentionShape(dtype, torch.int32, HEADS, K_DIM, V_DIM, 200)
    major, minor = torch.cuda.get_device_capability()
    made = compile_attention(shape, settings, "ieee", 10 * major + minor)
    q, k, v, offsets, *_, padded = inputs
    out = torch.full_like(v, float("nan"))
    longest = padded.numel()
    blocks = -(-longest // made.block_m)
    numbers = (len(lengths), longest, blocks)
    launch(made, blocks * len(lengths) * made.programs_per_block, [*inputs, *numbers, out])
    schedule = entry_of(shape, settings, "ieee").schedule
    mask = mask_of(inputs, settings)
    assert torch.equal(out, triton_launch.launch(q, k, v, offsets, longest, mask, "ieee", schedule))
    assert torch.isfinite(out).all()
