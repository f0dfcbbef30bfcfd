"""HSTU attention: one test for every backend, and the effect of each fault."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import kernels.hstu_attention as package
from kernels.hstu_attention import ProductionMask, ResearchMask, dot_precision_of_torch, hstu_attention
from kernels.hstu_attention.eager import hstu_attention_eager, relative_bias, visible
from reference.relative_attention_bias import RelativeBucketedTimeAndPositionBasedBias
from reference.stu_attention import STUAttention, STUAttentionMask
from reference.transduction_dense import HSTUAttentionDense
from tests.kernels.hstu_attention.attention_cases import (
    CASES,
    WIDTH,
    bucket_edges,
    research,
    timestamps,
    verdict,
)
from tests.kernels.marks import DEVICE, GPU, needs_gpu, needs_triton

BACKENDS = ["eager", pytest.param("triton", marks=needs_triton)]
# Blocks are chosen by how many rows there are, and the longest row.
WAYS = [
    "eager",
    pytest.param("triton, few rows", marks=needs_triton),
    pytest.param("triton, many rows", marks=needs_triton),
    pytest.param("triton, long rows", marks=needs_triton),
    pytest.param("triton, longest rows", marks=needs_triton),
]


def runner(backend: str, dot_precision: str = "ieee"):
    def run(*arguments):
        return hstu_attention(*arguments, backend=backend, dot_precision=dot_precision)

    return run


def scheduled(longest: int):
    """The kernel as it is cut for any number of rows of up to `longest`."""
    from kernels.hstu_attention import triton_launch

    def run(q, k, v, offsets, max_seq_len, mask):
        schedule = triton_launch.choose_schedule(q[:0], v[:0], longest, mask)
        schedule = triton_launch.with_descriptors(schedule, k, v)
        return triton_launch.launch(q, k, v, offsets, max_seq_len, mask, "ieee", schedule)

    return run


@pytest.mark.sampled
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_every_backend_is_right(name, precision, way):
    if precision == "bf16" and way != "eager" and not GPU:
        pytest.skip("Triton's interpreter multiplies bfloat16 as integers")
    if way in ("eager", "triton, few rows"):
        run = runner(way.split(",")[0])
    else:
        run = scheduled({"triton, long rows": 4096, "triton, longest rows": 8192}.get(way, WIDTH))
    actual = verdict(CASES[name], precision, run)
    assert actual.passed, actual.reason


@needs_triton
@pytest.mark.parametrize("name", ["research, heads of 25", "causal", "everything"])
def test_three_tf32_products_are_judged_as_float32(name):
    actual = verdict(CASES[name], "fp32", runner("triton", "tf32x3"))
    assert actual.passed, actual.reason


@needs_gpu
@needs_triton
@pytest.mark.parametrize("name", ["research, heads of 25", "causal", "everything"])
def test_tf32_is_right(name, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
    actual = verdict(CASES[name], "tf32", runner("triton", "tf32"))
    assert actual.passed, actual.reason


@needs_triton
@pytest.mark.parametrize("name", ["research, heads of 25", "causal", "everything"])
@pytest.mark.parametrize(
    "cut",
    [
        {"block_m": 16, "block_n": 64},
        {"heads": 2, "block_m": 64},
        {"splits": 2},
        {"splits": 5, "block_n": 16},
    ],
    ids=str,
)
def test_the_schedule_changes_nothing(name, cut):
    from kernels.hstu_attention import triton_launch

    if CASES[name].heads % cut.get("heads", 1):
        pytest.skip("one head")
    schedule = replace(triton_launch.Schedule(32, 32, num_warps=4, num_stages=1, group=3), **cut)
    actual = verdict(CASES[name], "fp32", lambda *a: triton_launch.launch(*a, "ieee", schedule))
    assert actual.passed, actual.reason


@needs_triton
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mask", ["research, heads of 25", "everything"])
def test_other_sequences_change_nothing(mask, backend):
    case, results = CASES[mask], []
    generator = torch.Generator().manual_seed(3)
    offsets = torch.tensor([0, 70, 75, 140])
    product = replace_rows(case.mask(generator, 140), 3)
    q, k = (torch.randn(140, case.heads, case.attention_dim, generator=generator) for _ in range(2))
    v = torch.randn(140, case.heads, case.value_dim, generator=generator)
    for garbage in (0.0, float("nan"), float("inf")):
        tensors = [x.clone() for x in (q, k, v)]
        for x in tensors:
            x[:70], x[75:] = garbage, garbage
        placed = [x.to(DEVICE) for x in (*tensors, offsets)]
        results.append(hstu_attention(*placed, 70, moved(product), backend=backend)[70:75])
    assert torch.isfinite(results[0]).all()
    assert all(torch.equal(results[0], result) for result in results[1:])


def replace_rows(mask, rows: int):
    """The first rows of what a mask has for each sequence."""
    per_row = {name: getattr(mask, name, None) for name in ("timestamps", "num_targets")}
    return replace(mask, **{name: x[:rows] for name, x in per_row.items() if x is not None})


def moved(mask):
    tensors = {name: x.to(DEVICE) for name, x in vars(mask).items() if isinstance(x, torch.Tensor)}
    return replace(mask, **tensors)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lengths", [(), (0,), (0, 0, 0)])
def test_nothing_gives_nothing(lengths, backend):
    offsets = torch.tensor((0, *lengths), device=DEVICE).cumsum(0)
    q = torch.empty(0, 2, 25, device=DEVICE)
    out = hstu_attention(q, q, q, offsets, 0, ProductionMask(1.0, 8.0), backend=backend)
    assert out.shape == q.shape


@needs_triton
def test_slices_of_one_projection_are_taken_as_they_are():
    def run(q, k, v, offsets, longest, mask):
        parts = torch.cat([x.reshape(x.size(0), -1) for x in (v, q, k)], dim=1).split(
            [v[0].numel(), q[0].numel(), k[0].numel()], dim=1
        )
        v, q, k = (x.unflatten(1, (2, -1)) for x in parts)
        assert not q.is_contiguous()
        return hstu_attention(q, k, v, offsets.int(), longest, mask)

    actual = verdict(CASES["research, heads of 25"], "fp32", run)
    assert actual.passed, actual.reason


def test_the_eager_form_is_research_attention():
    generator = torch.Generator().manual_seed(5)
    mask = research()(generator, 0)
    weights = (mask.position_weights.double(), mask.time_weights.double())
    bias = RelativeBucketedTimeAndPositionBasedBias(WIDTH, 128, 0.301).double()
    bias._pos_w.data, bias._ts_w.data = weights
    expected = bias(mask.timestamps)
    mask = replace(mask, position_weights=weights[0], time_weights=weights[1])
    n = 130
    assert torch.equal(relative_bias(mask, 3, n), expected[3, :n, :n])
    q, k, v = (torch.randn(n, 2, 25, generator=generator, dtype=torch.float64) for _ in range(3))
    attention = HSTUAttentionDense(2, 25, 25, "rel_bias", WIDTH)
    seen = torch.ones(n, n, dtype=torch.float64).tril()
    dense = attention(*(x.reshape(1, n, 50) for x in (q, k, v)), expected[3:4, :n, :n], seen)
    one = replace(mask, timestamps=mask.timestamps[3:4])
    torch.testing.assert_close(
        hstu_attention_eager(q, k, v, torch.tensor([0, n]), one).reshape(1, n, 50), dense
    )


@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("contextual", [0, 1, 3])
@pytest.mark.parametrize("targets", [0, 7])
def test_the_eager_form_is_production_attention(window, contextual, targets):
    n = 60
    mask = ProductionMask(0.3, float(n), None, torch.tensor([targets]), window, contextual)
    like = torch.zeros(1, n, 4, dtype=torch.float64)
    expected = STUAttentionMask(contextual, window)(torch.tensor([n]), torch.tensor([targets]), like)
    assert torch.equal(visible(mask, 0, n, like.device).double(), expected[0])
    q, k, v = (torch.randn(n, 2, 16, dtype=torch.float64) for _ in range(3))
    dense = STUAttention(2, 16, 16, 0.3)(*(x.reshape(1, n, 32) for x in (q, k, v)), expected)
    torch.testing.assert_close(
        hstu_attention_eager(q, k, v, torch.tensor([0, n]), mask).reshape(1, n, 32), dense
    )


def test_the_dot_precision_is_that_of_pytorchs_products():
    on_gpu = SimpleNamespace(is_cuda=True, dtype=torch.float32)
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        for precision in ("tf32", "ieee"):
            # By the newer switch, after which the older one cannot be read, and by the older one.
            matmul.fp32_precision = precision
            assert dot_precision_of_torch(on_gpu) == precision
            matmul.fp32_precision = "none"
            matmul.allow_tf32 = precision == "tf32"
            assert dot_precision_of_torch(on_gpu) == precision
            assert dot_precision_of_torch(torch.zeros(1)) == "ieee"
            assert dot_precision_of_torch(SimpleNamespace(is_cuda=True, dtype=torch.float16)) == "ieee"
    finally:
        matmul.fp32_precision = before


@needs_gpu
@needs_triton
@pytest.mark.parametrize("logit", [-30.0, -60.0, -1e4, 1e4])
def test_two_weights_that_share_a_reciprocal_do_not_touch(logit):
    """A row's weights alternate between an ordinary logit's and an extreme one's, whose own is none, or x."""
    n, head = 64, 32
    q = torch.zeros(n, 1, head, dtype=torch.bfloat16, device=DEVICE)
    k, v = q.clone(), torch.ones_like(q)
    q[:, 0, 0] = 1
    k[::2, 0, 0], k[1::2, 0, 0] = 1, logit
    v[1::2] = 0 if logit > 0 else 1
    offsets = torch.tensor([0, n], device=DEVICE)
    out = hstu_attention(q, k, v, offsets, n, ProductionMask(1.0, 1.0))[:, 0, 0].double().cpu()
    one = 1 / (1 + math.exp(-1))
    # SiLU(logit) is below 2^-38 for those that are negative: less than a weight's rounding.
    expected = one * (torch.arange(n) // 2 + 1).double()
    # The weight and the result are rounded to bfloat16.
    assert float(((out - expected) / expected).abs().max()) <= 2 * 2.0**-8


@needs_gpu
@needs_triton
def test_no_tensor_of_all_pairs_is_made():
    n = 4096
    q = torch.randn(n, 1, 16, device=DEVICE)
    times = torch.arange(n, device=DEVICE).unsqueeze(0)
    mask = ResearchMask(
        torch.randn(2 * n - 1, device=DEVICE), float(n), times, torch.randn(129, device=DEVICE)
    )
    offsets = torch.tensor([0, n], device=DEVICE)
    hstu_attention(q, q, q, offsets, n, mask)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    hstu_attention(q, q, q, offsets, n, mask)
    assert torch.cuda.max_memory_allocated() - before < 2 * q.numel() * q.element_size()


@needs_gpu
@needs_triton
def test_rows_beyond_two_to_the_31_elements():
    length, last = (1 << 31) // 256 + 1000, 40
    q = torch.randn(length, 1, 256, device=DEVICE, dtype=torch.float16) / 16
    offsets = torch.tensor([0, length - last, length], device=DEVICE)
    out = hstu_attention(q, q, q, offsets, last, ProductionMask(1.0, 40.0))[-last:]
    own = q[-last:].clone()
    alone = hstu_attention(
        own, own, own, torch.tensor([0, last], device=DEVICE), last, ProductionMask(1.0, 40.0)
    )
    assert torch.equal(out, alone)


Q = torch.zeros(4, 2, 8)
OFFSETS = torch.tensor([0, 4])
PLAIN = ProductionMask(1.0, 4.0)
RESEARCH = ResearchMask(torch.zeros(7), 4.0, torch.zeros(1, 4, dtype=torch.int64), torch.zeros(9))
GOOD = {"q": Q, "k": Q, "v": Q, "offsets": OFFSETS, "max_seq_len": 4, "mask": PLAIN, "backend": "eager"}
REFUSED = {
    "backend=": {"backend": "cuda"},
    "dot_precision=": {"dot_precision": "bf16"},
    "q.shape=": {"q": torch.zeros(4, 16)},
    "k.shape=": {"k": torch.zeros(4, 2, 9)},
    "v.shape=": {"v": torch.zeros(4, 3, 8)},
    "v.dtype=": {"v": Q.half()},
    "q.stride": {"q": torch.zeros(4, 8, 2).transpose(1, 2)},
    "offsets=": {"offsets": torch.tensor([0.0, 4.0])},
    "max_seq_len=-1": {"max_seq_len": -1},
    "mask.divisor=": {"mask": replace(PLAIN, divisor=0.0)},
    "mask.max_attn_len=": {"mask": replace(PLAIN, max_attn_len=-1)},
    "mask.contextual_seq_len=": {"mask": replace(PLAIN, contextual_seq_len=-1)},
    "mask.attn_scale.shape=": {"mask": replace(PLAIN, attn_scale=torch.zeros(3))},
    "mask.num_targets.shape=": {"mask": replace(PLAIN, num_targets=torch.zeros(3, dtype=torch.int64))},
    "mask.num_targets.dtype=": {"mask": replace(PLAIN, num_targets=torch.zeros(1))},
    "mask.position_weights.shape=": {"mask": replace(RESEARCH, position_weights=torch.zeros(8))},
    "max_seq_len=4: the position weights serve 3": {
        "mask": replace(RESEARCH, position_weights=torch.zeros(5))
    },
    "mask.time_weights=None": {"mask": replace(RESEARCH, time_weights=None)},
    "mask.timestamps.shape=": {"mask": replace(RESEARCH, timestamps=torch.zeros(1, 3, dtype=torch.int64))},
    "mask.timestamps.dtype=": {"mask": replace(RESEARCH, timestamps=torch.zeros(1, 4))},
    "mask.time_weights.shape=": {"mask": replace(RESEARCH, time_weights=torch.zeros(1))},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_refused_by_name(message):
    arguments = {**GOOD, **REFUSED[message]}
    if message == "q.stride":
        arguments["k"] = arguments["q"]
    with pytest.raises(ValueError, match="^" + message.replace(".", r"\.").replace("(", r"\(")):
        hstu_attention(**arguments)


def test_a_longer_head_is_refused():
    q = torch.zeros(4, 1, 257)
    with pytest.raises(ValueError, match="heads of 1 to 256"):
        hstu_attention(q, q, q, OFFSETS, 4, PLAIN, backend="eager")


def test_a_missing_triton_says_what_to_do(monkeypatch):
    monkeypatch.setattr(
        package.interface, "missing_triton", lambda: "triton is not installed; pip install triton"
    )
    with pytest.raises(RuntimeError, match="pip install triton"):
        hstu_attention(Q, Q, Q, OFFSETS, 4, PLAIN)


@needs_triton
def test_a_tensor_on_the_cpu_is_refused_without_the_interpreter(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(RuntimeError, match="needs CUDA tensors"):
        hstu_attention(Q, Q, Q, OFFSETS, 4, PLAIN)


@needs_triton
@pytest.mark.skipif(GPU, reason="a GPU multiplies bfloat16")
def test_bfloat16_is_refused_by_the_interpreter():
    q = Q.bfloat16()
    with pytest.raises(RuntimeError, match="interpreter multiplies bfloat16 as integers"):
        hstu_attention(q, q, q, OFFSETS, 4, PLAIN)


@needs_triton
def test_float64_is_for_the_eager_form():
    with pytest.raises(ValueError, match=r"q\.dtype=torch\.float64"):
        hstu_attention(*(x.double().to(DEVICE) for x in (Q, Q, Q)), OFFSETS.to(DEVICE), 4, PLAIN)


def test_the_research_case_has_differences_on_the_edges_of_buckets():
    times = timestamps(torch.Generator().manual_seed(0), 7, WIDTH)
    delta = times[6, WIDTH - 1] - times[6, : WIDTH - 1]
    assert set(bucket_edges(1 << 30)) <= set(delta.tolist())
    assert int(delta.max()) < 1 << 31 < int(times[3].max() - times[3].min())
