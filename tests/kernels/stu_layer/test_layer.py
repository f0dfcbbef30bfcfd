"""Production STU layers: one test for every backend."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.hstu_attention import hstu_attention
from kernels.stu_layer import Parameters, Sizes, stu_gate, stu_layers, stu_norm
from reference.stu import STULayer
from reference.stu_attention import STUAttentionMask
from tests.kernels.marks import DEVICE, GPU, needs_hopper, needs_triton
from tests.kernels.stu_layer.layer_cases import CASES, Case, Inputs, inputs_of, verdict

BACKENDS = ["eager", pytest.param("triton", marks=needs_triton)]
TRITON = pytest.mark.parametrize("backend", [BACKENDS[1]])


@pytest.mark.sampled
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", CASES)
@TRITON
def test_the_kernels_are_right(name, precision, backend):
    if precision == "bf16" and not GPU:
        pytest.skip("Triton's interpreter multiplies bfloat16 as integers")
    actual = verdict(CASES[name], precision, lambda inputs: inputs.run(backend))
    assert actual.passed, actual.reason


@needs_hopper
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("backend", ["hopper", "auto"])
def test_the_attention_in_another_form_is_right(backend, precision):
    case = Case(64, Sizes(2, 64, 64), window=9, contextual=3, has_scale=True)
    actual = verdict(case, precision, lambda inputs: inputs.run(backend))
    assert actual.passed, actual.reason


@pytest.mark.parametrize("backend", ["hopper", "auto"])
def test_parts_without_attention_refuse_a_form_of_the_attention(backend):
    u, a, weight, bias = rows_and_vectors(0)
    message = f"backend='{backend}': choose one of .*'triton', 'eager'"
    with pytest.raises(ValueError, match=message):
        stu_norm(u, weight, bias, backend=backend)
    with pytest.raises(ValueError, match=message):
        stu_gate(u, a, weight, bias, backend=backend)


@needs_triton
def test_layers_name_the_reason_for_which_the_attention_refuses():
    inputs = inputs_of(CASES["odd sizes"], torch.float32).to(DEVICE)
    with pytest.raises(
        RuntimeError, match="backend='hopper': it takes float16 and bfloat16, not torch.float32"
    ):
        inputs.run("hopper")


@pytest.mark.parametrize("use_group_norm", [False, True])
def test_the_definition_is_the_references_layer(use_group_norm):
    case = Case(12, Sizes(2, 5, 7, use_group_norm), window=4, contextual=2, lengths=(13,))
    inputs = inputs_of(case, torch.float64)
    x, n = inputs.x.unsqueeze(0), inputs.longest
    seen = STUAttentionMask(2, 4)(torch.tensor([n]), torch.tensor([0]), x)
    for parameters in inputs.layers:
        layer = STULayer(12, 2, 7, 5, use_group_norm=use_group_norm).double().eval()
        layer.load_state_dict({f"_{name}": tensor for name, tensor in parameters._asdict().items()})
        with torch.no_grad():
            x, _ = layer(x, seen)
    torch.testing.assert_close(inputs.run("eager"), x[0])


@TRITON
def test_two_runs_give_the_same_bits(backend):
    inputs = inputs_of(CASES["odd sizes"], torch.float32).to(DEVICE)
    assert torch.equal(inputs.run(backend), inputs.run(backend))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["odd sizes", "powers of two, group norm"])
def test_other_sequences_change_nothing(name, backend):
    inputs = inputs_of(CASES[name], torch.float32).to(DEVICE)
    start, end = inputs.offsets[3:5].tolist()
    results = []
    for garbage in (0.0, float("nan"), float("inf")):
        x = inputs.x.clone()
        x[:start], x[end:] = garbage, garbage
        results.append(replace(inputs, x=x).run(backend)[start:end])
    assert torch.isfinite(results[0]).all()
    assert all(torch.equal(results[0], result) for result in results[1:])


@TRITON
def test_rows_apart_are_taken_as_they_are(backend):
    inputs = inputs_of(CASES["odd sizes"], torch.float32).to(DEVICE)
    wide = torch.cat([inputs.x, torch.full_like(inputs.x, float("nan"))], dim=1)
    apart = replace(inputs, x=wide[:, : inputs.x.size(1)])
    assert torch.equal(apart.run(backend), inputs.run(backend))
    assert torch.equal(apart.x, inputs.x), "the layers write into their input"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lengths", [(), (0,), (0, 0, 0)])
def test_nothing_gives_nothing(lengths, backend):
    inputs = inputs_of(CASES["odd sizes"], torch.float32).to(DEVICE)
    offsets = torch.tensor((0, *lengths), device=DEVICE).cumsum(0)
    mask = replace(inputs.mask, num_targets=None)
    empty = replace(inputs, x=inputs.x[:0], offsets=offsets, longest=0, mask=mask)
    assert empty.run(backend).shape == (0, 12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_writes_where_it_is_told(backend):
    generator = torch.Generator().manual_seed(0)
    inputs = inputs_of(CASES["powers of two"], torch.float32).to(DEVICE)
    shape = (inputs.x.size(0), 2, 16)
    q, k, v = (torch.randn(shape, generator=generator).to(DEVICE) for _ in range(3))
    arguments = (q, k, v, inputs.offsets, inputs.longest, inputs.mask)
    around = torch.full((shape[0], 3, 2, 16), 7.0, device=DEVICE)
    result = hstu_attention(*arguments, backend=backend, out=around[:, 1])
    assert result.data_ptr() == around[:, 1].data_ptr()
    assert torch.equal(around[:, 1], hstu_attention(*arguments, backend=backend))
    assert (around[:, [0, 2]] == 7).all()
    with pytest.raises(ValueError, match=r"out=\(\(5, 2, 16\)"):
        hstu_attention(*arguments, backend=backend, out=torch.empty(5, 2, 16, device=DEVICE))
    with pytest.raises(ValueError, match=r"out.stride\(\)"):
        hstu_attention(*arguments, backend=backend, out=torch.empty(shape[0], 2, 32, device=DEVICE)[..., ::2])


def with_parameter(inputs: Inputs, name: str, tensor: torch.Tensor) -> list[Parameters]:
    return [inputs.layers[0]._replace(**{name: tensor})]


def test_arguments_that_do_not_fit_are_refused_by_name():
    inputs = inputs_of(CASES["odd sizes"], torch.float32)
    weight = inputs.layers[0].uvqk_weight
    for changes, message in (
        ({"layers": []}, "layers=.*at least one"),
        ({"sizes": Sizes(2, 5, 8)}, r"layers\[0\].uvqk_weight.shape=\(12, 48\): must be \(12, 52\)"),
        ({"x": inputs.x[0]}, r"x.shape=\(12,\): must be \(L, D\)"),
        ({"x": inputs.x.t().contiguous().t()}, "x.stride.*last axis contiguous"),
        ({"x": inputs.x.double()}, r"layers\[0\].uvqk_weight.dtype and device=.*must be x's, torch.float64"),
        (
            {"layers": with_parameter(inputs, "uvqk_weight", weight.t().contiguous().t())},
            r"uvqk_weight.stride\(\).*contiguous",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            replace(inputs, **changes).run("eager")
    with pytest.raises(ValueError, match="backend='fast'"):
        inputs.run("fast")
    with pytest.raises(ValueError, match=r"x.dtype=torch.float64: backend='triton' takes float32"):
        inputs.to(dtype=torch.float64).run("triton")


@TRITON
def test_gradients_are_refused(backend):
    inputs = inputs_of(CASES["odd sizes"], torch.float32).to(DEVICE)
    layers = with_parameter(inputs, "uvqk_beta", inputs.layers[0].uvqk_beta.clone().requires_grad_())
    arguments = (inputs.x, inputs.offsets, inputs.longest, inputs.mask, layers, inputs.sizes)
    with pytest.raises(RuntimeError, match="no backward.*; use torch.no_grad"):
        stu_layers(*arguments, backend=backend)
    with torch.no_grad():
        stu_layers(*arguments, backend=backend)


def rows_and_vectors(norm_groups: int) -> tuple[torch.Tensor, ...]:
    """u, a, weight, bias: rows of 14, of a number that no block divides."""
    generator = torch.Generator().manual_seed(1)
    shapes = ((301, 14), (301, 14), (norm_groups or 14,), (norm_groups or 14,))
    return tuple(torch.randn(shape, generator=generator).to(DEVICE) for shape in shapes)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("norm_groups", [0, 2])
def test_the_gate_copies_a_result_that_is_elsewhere(norm_groups, backend):
    u, a, weight, bias = rows_and_vectors(norm_groups)
    result = stu_gate(u, a, weight, bias, norm_groups, backend=backend)
    oracle = stu_gate(*(x.double() for x in (u, a, weight, bias)), norm_groups, backend="eager")
    assert torch.equal(result[:, 14:28], a)
    torch.testing.assert_close(result.double(), oracle, rtol=1e-5, atol=1e-5)
    out = torch.full_like(result, float("nan"))
    assert stu_gate(u, a, weight, bias, norm_groups, backend=backend, out=out) is out
    assert torch.equal(out, result)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_norm_writes_where_it_is_told(backend):
    x, _, weight, bias = rows_and_vectors(0)
    out = torch.full_like(x, float("nan"))
    assert stu_norm(x, weight, bias, backend=backend, out=out) is out
    assert torch.equal(out, stu_norm(x, weight, bias, backend=backend))
    oracle = stu_norm(x.double(), weight.double(), bias.double(), backend="eager")
    torch.testing.assert_close(out.double(), oracle, rtol=1e-5, atol=1e-5)
    assert not torch.equal(out, stu_norm(x, weight, bias, 0.1, backend=backend)), "eps is not read"
    assert stu_norm(x[:0], weight, bias, backend=backend).shape == (0, 14)


def test_parts_refuse_what_does_not_fit_by_name():
    u, a, weight, bias = rows_and_vectors(0)
    for call, message in (
        (lambda: stu_norm(u[0], weight, bias), r"x.shape=\(14,\)"),
        (lambda: stu_norm(u, weight[:3], bias), r"weight=.*must be \(14,\)"),
        (lambda: stu_norm(u, weight, bias.half()), "bias=.*must be"),
        (lambda: stu_norm(u, weight.repeat(2)[::2], bias), r"weight.stride\(\).*contiguous"),
        (lambda: stu_norm(u, weight, bias, out=u[:3]), r"out=.*must be \(301, 14\)"),
        (lambda: stu_gate(u, a[:3], weight, bias), "a=.*must be like u"),
        (lambda: stu_gate(u, a.t().contiguous().t(), weight, bias), r"a.stride\(\)"),
        (lambda: stu_gate(u, a, weight, bias, 3), "norm_groups=3: must divide the 14 columns"),
        (lambda: stu_gate(u, a, weight, bias, 2), r"weight=.*must be \(2,\)"),
        (lambda: stu_gate(u, a, weight, bias, backend="fast"), "backend='fast'"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
