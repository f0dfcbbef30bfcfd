"""The fused attention as a plugin: its registration, its results through Tripy, and its compiled kernel.

The registration interface is the portable one, which follows TensorRT's documentation.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import nvtripy as tp
import pytest
import torch
from tensorrt import plugin as trtp

import kernels.plugins.hstu_attention as registration
from kernels.hstu_attention import hstu_attention
from kernels.plugins.schema import HSTU_ATTENTION, HSTUAttentionSettings
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
    SETTINGS,
    V_DIM,
    WIDTH,
    attention_inputs,
    research_mask,
)

NAMES = ("q", "k", "v", "offsets", "timestamps", "position_weights", "time_weights")


def attention_of(inputs, **how):
    q, k, v, offsets, timestamps, *_ = inputs
    return hstu_attention(q, k, v, offsets, timestamps.size(1), research_mask(inputs), **how)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lengths", [(5, 0, 9, 1), (9,), (0, 0), (1, 1, 1)], ids=str)
def test_the_plugin_is_the_operation(lengths, dtype):
    inputs = attention_inputs(lengths, dtype)
    result = tp.plugin(HSTU_ATTENTION, on_device(inputs), settings=SETTINGS.to_string())
    assert tuple(result.shape) == (sum(lengths), HEADS, V_DIM)
    if sum(lengths):
        assert_is_the_operation(result, inputs, attention_of)


def test_one_graph_serves_other_rows_and_other_batches():
    infos = [tp.InputInfo(((1, 12, 40), HEADS, dim), tp.float32) for dim in (K_DIM, K_DIM, V_DIM)]
    infos += [tp.InputInfo(((2, 5, 6),), tp.int32), tp.InputInfo(((1, 4, 5), 10), tp.int64)]
    infos += [tp.InputInfo((2 * WIDTH - 1,), tp.float32), tp.InputInfo((17,), tp.float32)]
    graph = graph_of(HSTU_ATTENTION, SETTINGS, infos)
    for lengths in ((5, 0, 6, 1), (10,), (2, 2, 2, 2, 10)):
        inputs = attention_inputs(lengths, torch.float32)
        assert_is_the_operation(graph(*on_device(inputs)), inputs, attention_of)


@needs_triton
@needs_gpu
def test_the_plugin_rounds_as_the_runtimes_products_do(monkeypatch):
    inputs = attention_inputs((5, 0, 9, 1), torch.float32)
    types = {torch.float32: tp.float32, torch.int32: tp.int32, torch.int64: tp.int64}
    infos = [tp.InputInfo(tuple(x.shape), types[x.dtype]) for x in inputs]
    results = {}
    for switch, precision in (("1", "tf32"), ("0", "ieee")):
        monkeypatch.setenv("TRIPY_PORTABLE_TF32", switch)
        graph = graph_of(HSTU_ATTENTION, SETTINGS, infos)
        results[precision] = torch.from_dlpack(graph(*on_device(inputs)))
        expected = attention_of([x.cuda() for x in inputs], backend="triton", dot_precision=precision)
        assert torch.equal(results[precision], expected)
    assert not torch.equal(results["tf32"], results["ieee"])


def test_settings_read_back_exactly():
    settings = HSTUAttentionSettings(211, 0.301)
    assert settings.to_string() == "divisor=211.0 bucket_divisor=0.301"
    assert HSTUAttentionSettings.from_string(settings.to_string()) == settings
    third = HSTUAttentionSettings(1 / 3, 1e-300)
    assert HSTUAttentionSettings.from_string(third.to_string()) == third


@pytest.mark.parametrize(
    "text",
    [
        "",
        "divisor=1.0",
        "divisor=0 bucket_divisor=1",
        "divisor=nan bucket_divisor=1",
        "divisor 1",
        "x=1.0 y=2.0",
    ]
    + ["divisor=1 divisor=1 bucket_divisor=1", "divisor=one bucket_divisor=1"],
)
def test_settings_that_cannot_be_read(text):
    with pytest.raises(ValueError, match="settings='.*must be 'divisor=1.0 bucket_divisor=1.0'"):
        HSTUAttentionSettings.from_string(text)
    inputs = on_device(attention_inputs((3,), torch.float32))
    with pytest.raises(tp.TripyException, match="refuses its inputs: ValueError: settings="):
        tp.plugin(HSTU_ATTENTION, inputs, settings=text).eval()


WRONG = WRONG_ROWS | {
    "timestamps": (lambda x: x.to(torch.int32), "the type of timestamps is .*INT32.* must be int64"),
    "time_weights": (lambda x: x.unsqueeze(0), "the rank of time_weights is 2, but must be 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_input_that_does_not_fit_is_named(name):
    change, message = WRONG[name]
    inputs = dict(zip(NAMES, attention_inputs((3, 2), torch.float32), strict=True))
    inputs[name] = change(inputs[name])
    assert_is_refused(HSTU_ATTENTION, SETTINGS, inputs.values(), message)


def test_the_registration_is_one_that_tripy_can_call():
    assert_tripy_can_call(trtp.op.hstu.research_attention, HSTU_ATTENTION, NAMES, registration)


COMPILED_ONCE = pytest.mark.xdist_group("research_plugin")


@pytest.fixture(scope="module")
def compilations():
    """Output of `compile_plugin`, by the value of TensorRT's switch for TF32."""
    program = partial(printed_by, "tests.kernels.plugins.compile_plugin", "research", "told")
    return {switch: program(NVIDIA_TF32_OVERRIDE=switch) for switch in ("0", "1")}


@needs_triton
@pytest.mark.parametrize("capability", PLUGIN_GENERATIONS)
def test_the_kernel_compiles_without_a_gpu(capability):
    kernels = printed_by(
        "tests.kernels.plugins.compile_plugin", "research", str(capability), NVIDIA_TF32_OVERRIDE="0"
    )
    assert_tensorrt_can_launch(kernels, capability)
    assert all(kernel["has_table"] for kernel in kernels)


@COMPILED_ONCE
@needs_triton
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_what_tensorrt_is_told_to_launch(compilations, precision):
    # Heads may share a program.
    assert_is_told_to_launch(compilations["0"]["told"][precision], programs=(1, HEADS))


@COMPILED_ONCE
@needs_triton
def test_float32_products_follow_tensorrts_switch(compilations):
    assert compilations["1"]["told"]["float32"]["uses_tf32"]
    assert not compilations["0"]["told"]["float32"]["uses_tf32"]
    assert not compilations["1"]["told"]["bfloat16"]["uses_tf32"]


@COMPILED_ONCE
@needs_triton
def test_a_kernel_that_needs_too_much_shared_memory_is_refused(compilations):
    refused = compilations["0"]["too_large"]
    assert "heads of 256 and 256 in torch.bfloat16 take" in refused
    assert "more than the 49152 of a plugin's kernel" in refused


@COMPILED_ONCE
@needs_triton
def test_an_extent_that_must_be_known_is_named(compilations):
    assert "the second extent of q is not known" in compilations["0"]["unknown"]


@needs_triton
def test_a_kernel_with_scratch_memory_is_refused():
    from kernels.plugins.ahead_of_time import without_scratch

    parameters = ".param .u64 f_param_0,\n.param .u64 f_param_1"
    ptx = f".visible .entry f(\n{parameters}\n)\n{{ ld.param.b64 %rd1, [f_param_0]; }}"
    plain = SimpleNamespace(name="f", global_scratch_size=0, profile_scratch_size=0)
    assert "f_param_1" not in without_scratch(ptx, plain, 1)
    with pytest.raises(ValueError, match="uses scratch memory"):
        without_scratch(ptx.replace("[f_param_0]", "[f_param_1]"), plain, 1)
    with pytest.raises(ValueError, match="uses scratch memory"):
        without_scratch(ptx, SimpleNamespace(name="f", global_scratch_size=64), 1)
    with pytest.raises(ValueError, match="uses scratch memory"):
        without_scratch(ptx, plain, 3)


@needs_triton
@needs_gpu
@pytest.mark.parametrize("lengths", [(5, 0, 9, 1), (200, 64, 65, 128, 1), (211,)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_compiled_kernel_launched_as_tensorrt_launches_it(lengths, dtype):
    from kernels.hstu_attention import triton_launch
    from kernels.plugins.ahead_of_time import AttentionShape
    from tests.kernels.plugins import driver

    inputs = [x.cuda() for x in attention_inputs(lengths, dtype, width=211, buckets=128)]
    q, k, v, offsets, timestamps, *_ = inputs
    times, mask = timestamps.size(1), research_mask(inputs)
    shape = AttentionShape(dtype, torch.int32, HEADS, K_DIM, V_DIM, 211, 128)
    out = driver.attention(shape, SETTINGS, inputs, times)
    # The same kernel with the schedule of any number of rows: the same bits.
    schedule = triton_launch.choose_schedule(q[:0], v[:0], times, mask)
    expected = triton_launch.launch(q, k, v, offsets, times, mask, "ieee", schedule)
    assert torch.equal(out, expected)
    assert torch.isfinite(out).all()
