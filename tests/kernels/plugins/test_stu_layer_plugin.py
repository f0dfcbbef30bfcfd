"""The plugins of norm and gate: the operations' bits, refused inputs, and the kernels for TensorRT."""

from __future__ import annotations

import nvtripy as tp
import pytest
import torch
from tensorrt import plugin as trtp

import kernels.plugins.stu_layer as registration
from kernels.plugins.schema import STU_GATE, STU_NORM, STUGateSettings, STUNormSettings
from kernels.stu_layer import stu_gate, stu_norm
from parity.base.precision import PRECISIONS
from parity.verdict.rule import judge
from tests.kernels.compiling import PLUGIN_GENERATIONS, printed_by
from tests.kernels.marks import DEVICE, GPU, needs_gpu, needs_triton
from tests.kernels.plugins.plugin_checks import DTYPES, assert_is_refused, graph_of, on_device
from tests.kernels.plugins.plugin_setup import gate_inputs

EPS = 1e-6
NORM = STUNormSettings(EPS)
GATES = {"layer norm": STUGateSettings(EPS), "group norm": STUGateSettings(EPS, norm_groups=2)}
ROWS = (301, 1, 0)


def norm_of(inputs, settings=NORM, **how):
    return stu_norm(*inputs, settings.eps, **how)


def gate_of(inputs, settings, **how):
    return stu_gate(*inputs, settings.norm_groups, settings.eps, **how)


PLUGINS = {
    "norm": (STU_NORM, NORM, norm_of),
    **{f"gate, {name}": (STU_GATE, settings, gate_of) for name, settings in GATES.items()},
}
EVERY = pytest.mark.parametrize(("plugin", "settings", "operation"), PLUGINS.values(), ids=PLUGINS)


def inputs_of(plugin, settings, rows, dtype):
    groups = settings.norm_groups if isinstance(settings, STUGateSettings) else 0
    u, *rest = gate_inputs(rows, dtype, groups)
    return [u, *rest[1:]] if plugin == STU_NORM else [u, *rest]


@EVERY
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", ROWS)
def test_the_plugin_is_the_operation(plugin, settings, operation, dtype, rows):
    inputs = inputs_of(plugin, settings, rows, dtype)
    result = torch.from_dlpack(tp.plugin(plugin, on_device(inputs), settings=settings.to_string()))
    assert result.is_cuda == GPU
    placed = [x.to(result.device) for x in inputs]
    assert torch.equal(result, operation(placed, settings, backend="triton" if GPU else "eager"))
    if rows:
        oracle = operation([x.double() for x in inputs], settings, backend="eager")
        reference = operation(inputs, settings, backend="eager")
        precision = next(p for p in PRECISIONS.values() if p.dtype is dtype)
        verdict = judge(oracle, reference, result.cpu(), precision, inputs[0].size(1))
        assert verdict.passed, verdict.reason


@EVERY
def test_one_graph_serves_other_numbers_of_rows(plugin, settings, operation):
    widest = inputs_of(plugin, settings, 40, torch.float32)
    infos = [
        tp.InputInfo(((1, 12, 40), x.size(1)) if x.dim() == 2 else tuple(x.shape), tp.float32) for x in widest
    ]
    graph = graph_of(plugin, settings, infos)
    for rows in (1, 12, 40):
        inputs = inputs_of(plugin, settings, rows, torch.float32)
        placed = [x.to(DEVICE) for x in inputs]
        expected = operation(placed, settings, backend="triton" if GPU else "eager")
        assert torch.equal(torch.from_dlpack(graph(*on_device(inputs))), expected)


@EVERY
def test_every_setting_and_input_changes_the_result(plugin, settings, operation):
    """A plugin that drops one would therefore not pass the tests above."""
    inputs = inputs_of(plugin, settings, 5, torch.float32)
    whole = operation(inputs, settings, backend="eager")
    other = type(settings)(**(vars(settings) | {"eps": 0.1}))
    assert not torch.equal(whole, operation(inputs, other, backend="eager"))
    for place in range(len(inputs)):
        changed = [x + 1 if at == place else x for at, x in enumerate(inputs)]
        changed[0] = changed[0] * torch.linspace(1, 2, inputs[0].size(1))
        base = [inputs[0] * torch.linspace(1, 2, inputs[0].size(1)), *inputs[1:]]
        assert not torch.equal(
            operation(base, settings, backend="eager"), operation(changed, settings, backend="eager")
        ), place


def test_settings_read_back_exactly():
    assert NORM.to_string() == "eps=1e-06"
    assert STUNormSettings.from_string(NORM.to_string()) == NORM
    assert STUGateSettings(EPS, 4).to_string() == "eps=1e-06 norm_groups=4"
    assert STUGateSettings.from_string("eps=1e-06 norm_groups=4") == STUGateSettings(EPS, 4)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "give each setting once"),
        ("eps=0.0 norm_groups=0", "eps=0.0: must be positive and finite"),
        ("eps=1e-06 norm_groups=-1", "norm_groups=-1: must be at least 0"),
    ],
)
def test_settings_that_cannot_be_read(text, reason):
    with pytest.raises(ValueError, match=reason):
        STUGateSettings.from_string(text)
    inputs = on_device(gate_inputs(3, torch.float32, 0))
    with pytest.raises(tp.TripyException, match="refuses its inputs: ValueError: settings="):
        tp.plugin(STU_GATE, inputs, settings=text).eval()


WRONG = {
    "u": (0, lambda x: x.to(torch.int32), "the type of u is .*INT32.* must be float32, float16 or bfloat16"),
    "a": (1, lambda x: x.half(), "the type of a is .*HALF.* must be u's"),
    "weight": (2, lambda x: x.unsqueeze(0), "the rank of weight is 2, but must be 1"),
    "bias": (3, lambda x: x.half(), "the type of bias is .*HALF.* must be u's"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_input_that_does_not_fit_is_named(name):
    place, change, message = WRONG[name]
    inputs = gate_inputs(3, torch.float32, 0)
    inputs[place] = change(inputs[place])
    assert_is_refused(STU_GATE, GATES["layer norm"], inputs, message)
    if name != "a":
        inputs.pop(1)
        assert_is_refused(STU_NORM, NORM, inputs, message.replace("u's", "x's").replace("of u", "of x"))


@pytest.mark.parametrize(
    ("definition", "names", "functions"),
    [
        (
            trtp.op.hstu.production_norm,
            ("x", "weight", "bias"),
            (registration.compute_norm, registration.compile_norm),
        ),
        (
            trtp.op.hstu.production_gate,
            ("u", "a", "weight", "bias"),
            (registration.compute_gate, registration.compile_gate),
        ),
    ],
    ids=["norm", "gate"],
)
def test_the_registration_is_one_that_tripy_can_call(definition, names, functions):
    assert tuple(definition.input_tensor_names) == names
    assert definition.input_attrs == {"settings": str}
    assert definition.num_outputs == 1
    assert (definition.impl_func, definition.aot_impl_func) == functions


@needs_triton
@EVERY
@pytest.mark.parametrize("rows", [1, 301])
def test_the_entry_is_the_kernel(plugin, settings, operation, rows):
    """The entry with the arguments that TensorRT passes; interpreted where there is no GPU."""
    from kernels.plugins.ahead_of_time import entry_of_rows

    inputs = [x.to(DEVICE) for x in inputs_of(plugin, settings, rows, torch.float32)]
    expected = operation(inputs, settings, backend="triton")
    entry = entry_of_rows(torch.float32, inputs[0].size(1), settings)
    out = torch.full_like(expected, float("nan"))
    count = rows * ((getattr(settings, "norm_groups", 0)) or 1)
    grid = (-(-count // entry.schedule.block_m), 1, 1)
    entry.kernel[grid](*inputs, count, out, **entry.constants, num_warps=entry.schedule.num_warps)
    assert torch.equal(out, expected)


@needs_triton
@pytest.mark.parametrize("capability", PLUGIN_GENERATIONS)
def test_the_kernels_compile_without_a_gpu(capability):
    kernels = printed_by("tests.kernels.plugins.compile_plugin", "layer", str(capability))
    assert {kernel["capability"] for kernel in kernels} == {capability}
    for kernel in kernels:
        assert kernel["target"].startswith(f"sm_{capability}")
        assert kernel["is_elf"]
        assert kernel["shared"] <= 48 << 10
        # The inputs, one number, one output, and none of Triton's own.
        assert kernel["arguments"] == [".u64"] * kernel["inputs"] + [".u32", ".u64"]
        assert kernel["assembler"] == ""


@needs_triton
def test_what_tensorrt_is_told_to_launch():
    facts = printed_by("tests.kernels.plugins.compile_plugin", "layer", "told")
    for told, (rows, groups) in zip(facts["told"], ((301, 1), (301, 1), (301, 2)), strict=True):
        assert told["is_named"]
        assert told["numbers"] == [rows * groups]
        assert told["grid"][0] * told["block_m"] >= rows * groups > (told["grid"][0] - 1) * told["block_m"]
        assert told["grid"][1:] == [1, 1]
        assert told["threads"] % 32 == 0
    assert "the last extent of x is not known" in facts["unknown"][0]
    assert "the last extent of u is not known" in facts["unknown"][1]


@needs_triton
@needs_gpu
@EVERY
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_compiled_kernel_launched_as_tensorrt_launches_it(plugin, settings, operation, dtype):
    from kernels.plugins.ahead_of_time import compile_entry, entry_of_rows
    from tests.kernels.plugins import driver

    inputs = [x.cuda() for x in inputs_of(plugin, settings, 301, dtype)]
    expected = operation(inputs, settings, backend="triton")
    major, minor = torch.cuda.get_device_capability()
    kernel = compile_entry(entry_of_rows(dtype, inputs[0].size(1), settings), 10 * major + minor)
    count = 301 * (getattr(settings, "norm_groups", 0) or 1)
    out = torch.full_like(expected, float("nan"))
    driver.launch(kernel, -(-count // kernel.block_m), [*inputs, count, out])
    assert torch.equal(out, expected)
