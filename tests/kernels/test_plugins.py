"""The fused attention as a plugin: its registration, what it computes through Tripy, and its compiled kernel.

The registration interface is here the portable one, which follows TensorRT's documentation; in NVIDIA's
environment none of this has been run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nvtripy as tp
import pytest
import torch
from tensorrt import plugin as trtp

import kernels.plugins.hstu_attention as registration
from kernels.hstu_attention import ResearchMask, hstu_attention
from kernels.hstu_attention.interface import missing_triton
from kernels.plugins.schema import HSTU_ATTENTION, HSTUAttentionSettings
from parity.precision import PRECISIONS
from parity.verdict import judge
from tests.kernels.plugin_setup import HEADS, K_DIM, SETTINGS, V_DIM, WIDTH, attention_inputs

ROOT = Path(__file__).parents[2]
NAMES = ("q", "k", "v", "offsets", "timestamps", "position_weights", "time_weights")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
GPU = torch.cuda.is_available()
needs_triton = pytest.mark.skipif(bool(missing_triton()), reason=missing_triton())


def on_device(tensor):
    return tp.copy(tp.Tensor(tensor.contiguous()), tp.device("gpu"))


def attention_of(inputs, **how):
    q, k, v, offsets, timestamps, position, time = inputs
    mask = ResearchMask(position, SETTINGS.divisor, timestamps, time, SETTINGS.bucket_divisor)
    return hstu_attention(q, k, v, offsets, timestamps.size(1), mask, **how)


def assert_is_the_operation(result, inputs):
    """The plugin calls one backend, whose bits it must return; and that backend must be right."""
    result = torch.from_dlpack(result)
    assert result.is_cuda == GPU
    assert torch.equal(
        result, attention_of([x.to(result.device) for x in inputs], backend="triton" if GPU else "eager")
    )
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    oracle, reference = (attention_of(given, backend="eager") for given in (wide, inputs))
    longest_sum = max(K_DIM, inputs[4].size(1))
    precision = next(p for p in PRECISIONS.values() if p.dtype is result.dtype)
    verdict = judge(oracle, reference, result.cpu(), precision, longest_sum)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lengths", [(5, 0, 9, 1), (9,), (0, 0), (1, 1, 1)], ids=str)
def test_the_plugin_is_the_operation(lengths, dtype):
    inputs = attention_inputs(lengths, dtype)
    given = [on_device(x) for x in inputs]
    result = tp.plugin(HSTU_ATTENTION, given, settings=SETTINGS.to_string())
    assert tuple(result.shape) == (sum(lengths), HEADS, V_DIM)
    if sum(lengths):
        assert_is_the_operation(result, inputs)


def test_one_graph_serves_other_rows_and_other_batches():
    infos = [tp.InputInfo(((1, 12, 40), HEADS, dim), tp.float32) for dim in (K_DIM, K_DIM, V_DIM)]
    infos += [tp.InputInfo(((2, 5, 6),), tp.int32), tp.InputInfo(((1, 4, 5), 10), tp.int64)]
    infos += [tp.InputInfo((2 * WIDTH - 1,), tp.float32), tp.InputInfo((17,), tp.float32)]
    compiled = tp.compile(
        lambda *inputs: tp.plugin(HSTU_ATTENTION, list(inputs), settings=SETTINGS.to_string()), args=infos
    )
    for lengths in ((5, 0, 6, 1), (10,), (2, 2, 2, 2, 10)):
        inputs = attention_inputs(lengths, torch.float32)
        assert_is_the_operation(compiled(*(on_device(x) for x in inputs)), inputs)


@needs_triton
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
def test_the_plugin_rounds_as_the_runtimes_products_do(monkeypatch):
    inputs = attention_inputs((5, 0, 9, 1), torch.float32)
    types = {torch.float32: tp.float32, torch.int32: tp.int32, torch.int64: tp.int64}
    infos = [tp.InputInfo(tuple(x.shape), types[x.dtype]) for x in inputs]
    results = {}
    for switch, precision in (("1", "tf32"), ("0", "ieee")):
        monkeypatch.setenv("TRIPY_PORTABLE_TF32", switch)
        compiled = tp.compile(
            lambda *given: tp.plugin(HSTU_ATTENTION, list(given), settings=SETTINGS.to_string()), args=infos
        )
        results[precision] = torch.from_dlpack(compiled(*(on_device(x) for x in inputs)))
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
    inputs = [on_device(x) for x in attention_inputs((3,), torch.float32)]
    with pytest.raises(tp.TripyException, match="refuses its inputs: ValueError: settings="):
        tp.plugin(HSTU_ATTENTION, inputs, settings=text).eval()


WRONG = {
    "q": (lambda x: x.to(torch.int32), "the type of q is .*INT32.* must be float32, float16 or bfloat16"),
    "v": (lambda x: x.half(), "the type of v is .*HALF.* must be q's"),
    "k": (lambda x: x.flatten(1), "the rank of k is 2, but must be 3"),
    "offsets": (lambda x: x.float(), "the type of offsets is .*FLOAT.* must be int32 or int64"),
    "timestamps": (lambda x: x.to(torch.int32), "the type of timestamps is .*INT32.* must be int64"),
    "time_weights": (lambda x: x.unsqueeze(0), "the rank of time_weights is 2, but must be 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_input_that_does_not_fit_is_named(name):
    change, message = WRONG[name]
    inputs = dict(zip(NAMES, attention_inputs((3, 2), torch.float32), strict=True))
    inputs[name] = change(inputs[name])
    given = [tp.Tensor(x.contiguous()) for x in inputs.values()]
    with pytest.raises(ValueError, match=message):
        tp.plugin(HSTU_ATTENTION, given, settings=SETTINGS.to_string())


def test_the_registration_is_one_that_tripy_can_call():
    definition = trtp.op.hstu.research_attention
    assert definition.plugin_id == HSTU_ATTENTION
    assert tuple(definition.input_tensor_names) == NAMES
    # nvtripy 0.1.7 takes one attribute, and TensorRT hands that over as a string.
    assert definition.input_attrs == {"settings": str}
    assert definition.num_outputs == 1
    assert definition.impl_func is registration.compute
    assert definition.aot_impl_func is registration.compile_kernel


@pytest.fixture(scope="module")
def compilations():
    """What `compile_plugin` prints, by the value of TensorRT's switch for TF32."""
    found = {}
    for switch in ("0", "1"):
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        done = subprocess.run(
            [sys.executable, "-m", "tests.kernels.compile_plugin"],
            cwd=ROOT,
            env=environment | {"NVIDIA_TF32_OVERRIDE": switch},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found[switch] = json.loads(done.stdout)
    return found


@needs_triton
def test_the_kernel_compiles_without_a_gpu(compilations):
    kernels = compilations["0"]["kernels"]
    assert {kernel["capability"] for kernel in kernels} == {80, 90, 100}
    assert {kernel["precision"] for kernel in kernels} == {"float32", "float16", "bfloat16"}
    for kernel in kernels:
        assert kernel["target"].startswith(f"sm_{kernel['capability']}")
        assert kernel["is_elf"]
        assert kernel["threads"] % 32 == 0
        assert kernel["shared"] <= 48 << 10
        assert kernel["heads"] % kernel["programs_per_block"] == 0
        assert kernel["has_table"]


@needs_triton
def test_the_ptx_that_tensorrt_gets_has_its_arguments_and_is_assembled(compilations):
    for kernel in compilations["0"]["kernels"]:
        # Seven inputs, three numbers, one output, and none of Triton's own.
        assert kernel["arguments"] == [".u64"] * 7 + [".u32"] * 3 + [".u64"]
        assert kernel["assembler"] == ""


@needs_triton
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_what_tensorrt_is_told_to_launch(compilations, precision):
    told = compilations["0"]["told"][precision]
    blocks = 1  # of 64 rows, for 10 positions
    assert told["is_named"]
    # Heads may share a program.
    assert told["grid"] in ([blocks * 4, 1, 1], [blocks * 4 * HEADS, 1, 1])
    assert told["threads"] % 32 == 0
    assert 0 < told["shared"] <= 48 << 10
    assert told["numbers"] == [4, 10, blocks]


@needs_triton
def test_float32_products_follow_tensorrts_switch(compilations):
    assert compilations["1"]["told"]["float32"]["uses_tf32"]
    assert not compilations["0"]["told"]["float32"]["uses_tf32"]
    assert not compilations["1"]["told"]["bfloat16"]["uses_tf32"]


@needs_triton
def test_a_kernel_that_needs_too_much_shared_memory_is_refused(compilations):
    refused = compilations["0"]["too_large"]
    assert "heads of 256 and 256 in torch.bfloat16 take" in refused
    assert "more than the 49152 that a plugin's kernel gets" in refused


@needs_triton
def test_an_extent_that_must_be_known_is_named(compilations):
    assert "the second extent of q is not known" in compilations["0"]["unknown"]["error"]


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
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("lengths", [(5, 0, 9, 1), (200, 64, 65, 128, 1), (211,)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_compiled_kernel_launched_as_tensorrt_launches_it(lengths, dtype):
    from kernels.hstu_attention import triton_launch
    from kernels.plugins.ahead_of_time import AttentionShape, compile_attention
    from tests.kernels.driver import launch

    inputs = [x.cuda() for x in attention_inputs(lengths, dtype, width=211, buckets=128)]
    shape = AttentionShape(dtype, torch.int32, HEADS, K_DIM, V_DIM, 211, 128)
    major, minor = torch.cuda.get_device_capability()
    made = compile_attention(shape, SETTINGS, "ieee", 10 * major + minor)
    out = torch.full_like(inputs[2], float("nan"))
    times = inputs[4].size(1)
    blocks = -(-times // made.block_m)
    launch(made, blocks * len(lengths) * made.programs_per_block, [*inputs, len(lengths), times, blocks, out])
    q, k, v, offsets, timestamps, position, time = inputs
    mask = ResearchMask(position, SETTINGS.divisor, timestamps, time, SETTINGS.bucket_divisor)
    # The same kernel with the schedule of any number of rows: the same bits.
    schedule = triton_launch.choose_schedule(q[:0], v[:0], times, mask)
    expected = triton_launch.launch(q, k, v, offsets, times, mask, "ieee", schedule)
    assert torch.equal(out, expected)
    assert torch.isfinite(out).all()
