"""The production mask's plugin, with the checks of `test_hstu_plugin.py`."""

from __future__ import annotations

from functools import partial

import nvtripy as tp
import pytest
import torch
from tensorrt import plugin as trtp

import kernels.plugins.stu_attention as registration
from kernels.hstu_attention import ProductionMask, hstu_attention, hstu_attention_cached
from kernels.plugins.schema import STU_ATTENTION, STU_ATTENTION_CACHED, STUAttentionSettings
from tests.kernels.compiling import PLUGIN_GENERATIONS, printed_by
from tests.kernels.marks import needs_gpu, needs_triton
from tests.kernels.plugins.plugin_checks import (
    DTYPES,
    WRONG_ROWS,
    assert_is_refused,
    assert_is_the_operation,
    assert_is_told_to_launch,
    assert_tensorrt_can_launch,
    assert_tripy_can_call,
    graph_of,
    on_device,
)
from tests.kernels.plugins.plugin_setup import (
    HEADS,
    K_DIM,
    STU_SETTINGS,
    V_DIM,
    production_mask,
    stu_attention_inputs,
)

NAMES = ("q", "k", "v", "offsets", "num_targets", "attn_scale", "padded")


def attention_of(inputs, settings, **how):
    q, k, v, offsets, *_, padded = inputs
    return hstu_attention(q, k, v, offsets, padded.numel(), production_mask(inputs, settings), **how)


@pytest.mark.parametrize("settings", STU_SETTINGS.values(), ids=STU_SETTINGS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lengths", [(5, 0, 9, 2), (9,), (0, 0), (2, 2, 2)], ids=str)
def test_the_plugin_is_the_operation(lengths, dtype, settings):
    inputs = stu_attention_inputs(lengths, dtype, settings)
    result = tp.plugin(STU_ATTENTION, on_device(inputs), settings=settings.to_string())
    assert tuple(result.shape) == (sum(lengths), HEADS, V_DIM)
    if sum(lengths):
        attention = partial(attention_of, settings=settings)
        assert_is_the_operation(result, inputs, attention)


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
    graph = graph_of(STU_ATTENTION, settings, infos)
    attention = partial(attention_of, settings=settings)
    for lengths in ((5, 0, 6, 2), (14,), (2, 3, 2, 2, 10)):
        inputs = stu_attention_inputs(lengths, torch.float32, settings)
        assert_is_the_operation(graph(*on_device(inputs)), inputs, attention)


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
        ("", "give each setting once"),
        ("alpha=1.0", "give each setting once"),
        (f"alpha=1.0 alpha=1.0 {REST}", "give each setting once"),
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
    inputs = on_device(stu_attention_inputs((3,), torch.float32, STU_SETTINGS["plain"]))
    with pytest.raises(tp.TripyException, match="refuses its inputs: ValueError: settings="):
        tp.plugin(STU_ATTENTION, inputs, settings=text).eval()


WRONG = WRONG_ROWS | {
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
    assert_is_refused(STU_ATTENTION, settings, inputs.values(), message)


CACHED_NAMES = ("q", "k", "v", "offsets", "firsts", "num_targets")
CACHED_SETTINGS = {name: settings for name, settings in STU_SETTINGS.items() if not settings.has_attn_scale}


def cached_inputs(dtype, new=3, capacity=9):
    """New rows behind 2, 6 and no cached ones, of which the last two are targets."""
    generator = torch.Generator().manual_seed(0)
    firsts = torch.tensor([2, 6, 0], dtype=torch.int32)
    b = len(firsts)
    q = torch.randn((b * new, HEADS, K_DIM), generator=generator)
    k, v = (torch.randn((b, capacity, HEADS, dim), generator=generator) for dim in (K_DIM, V_DIM))
    offsets = torch.arange(b + 1, dtype=torch.int32) * new
    targets = torch.full((b,), 2, dtype=torch.int32)
    return [q.to(dtype), k.to(dtype), v.to(dtype), offsets, firsts, targets]


@pytest.mark.parametrize("settings", CACHED_SETTINGS.values(), ids=CACHED_SETTINGS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_plugin_behind_cached_rows_is_the_operation(dtype, settings):
    inputs = cached_inputs(dtype)
    result = tp.plugin(STU_ATTENTION_CACHED, on_device(inputs), settings=settings.to_string())
    assert tuple(result.shape) == (9, HEADS, V_DIM)

    def attention(tensors, backend):
        q, k, v, offsets, firsts, targets = tensors
        mask = ProductionMask(
            settings.alpha, 9.0, None, targets, settings.max_attn_len, settings.contextual_seq_len
        )
        return hstu_attention_cached(q, k, v, offsets, firsts, 9, 3, mask, backend=backend)

    assert_is_the_operation(result, inputs, attention)


CACHED_WRONG = WRONG_ROWS | {
    "k": (lambda x: x.flatten(2), "the rank of k is 3, but must be 4"),
    "firsts": (lambda x: x.long(), "the type of firsts is .*INT64.* must be that of offsets"),
    "num_targets": (lambda x: x.long(), "the type of num_targets is .*INT64.* must be that of offsets"),
}


@pytest.mark.parametrize("name", CACHED_WRONG)
def test_an_input_behind_cached_rows_that_does_not_fit_is_named(name):
    change, message = CACHED_WRONG[name]
    inputs = dict(zip(CACHED_NAMES, cached_inputs(torch.float32), strict=True))
    inputs[name] = change(inputs[name])
    assert_is_refused(STU_ATTENTION_CACHED, STU_SETTINGS["plain"], inputs.values(), message)


def test_a_scale_behind_cached_rows_is_refused():
    inputs = on_device(cached_inputs(torch.float32))
    settings = STU_SETTINGS["scaled"].to_string()
    with pytest.raises(tp.TripyException, match="has_attn_scale is True, but must be false"):
        tp.plugin(STU_ATTENTION_CACHED, inputs, settings=settings).eval()


def test_the_registration_behind_cached_rows_is_one_that_tripy_can_call():
    definition = trtp.op.hstu.production_attention_cached
    assert tuple(definition.input_tensor_names) == CACHED_NAMES
    assert definition.input_attrs == {"settings": str}
    assert definition.num_outputs == 1
    assert definition.impl_func is registration.compute_cached


def test_the_registration_is_one_that_tripy_can_call():
    assert_tripy_can_call(trtp.op.hstu.production_attention, STU_ATTENTION, NAMES, registration)


COMPILED_ONCE = pytest.mark.xdist_group("production_plugin")


@pytest.fixture(scope="module")
def compilations():
    """Output of `compile_plugin`."""
    return printed_by("tests.kernels.plugins.compile_plugin", "production", "told")


@needs_triton
@pytest.mark.parametrize("capability", PLUGIN_GENERATIONS)
def test_the_kernel_compiles_without_a_gpu(capability):
    kernels = printed_by("tests.kernels.plugins.compile_plugin", "production", str(capability))
    assert_tensorrt_can_launch(kernels, capability)
    assert not any(kernel["has_table"] for kernel in kernels)


@COMPILED_ONCE
@needs_triton
def test_what_tensorrt_is_told_to_launch(compilations):
    assert_is_told_to_launch(compilations["told"], programs=(HEADS,))


@COMPILED_ONCE
@needs_triton
def test_an_extent_that_must_be_known_is_named(compilations):
    assert "the second extent of q is not known" in compilations["unknown"]


@needs_triton
@needs_gpu
@pytest.mark.parametrize("settings", STU_SETTINGS.values(), ids=STU_SETTINGS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_compiled_kernel_launched_as_tensorrt_launches_it(dtype, settings):
    from kernels.hstu_attention import triton_launch
    from kernels.plugins.ahead_of_time import AttentionShape, entry_of
    from tests.kernels.plugins import driver

    inputs = [x.cuda() for x in stu_attention_inputs((200, 0, 64, 65, 128, 2), dtype, settings)]
    q, k, v, offsets, *_, padded = inputs
    longest, mask = padded.numel(), production_mask(inputs, settings)
    shape = AttentionShape(dtype, torch.int32, HEADS, K_DIM, V_DIM, 200)
    out = driver.attention(shape, settings, inputs, longest)
    schedule = entry_of(shape, settings, "ieee").schedule
    assert torch.equal(out, triton_launch.launch(q, k, v, offsets, longest, mask, "ieee", schedule))
    assert torch.isfinite(out).all()
