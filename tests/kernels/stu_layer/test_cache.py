"""New rows behind cached ones: production layers and their attention against calls over all rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.hstu_attention import ProductionMask, ResearchMask, hstu_attention, hstu_attention_cached
from kernels.stu_layer import empty_cache, extend_stu_layers, stu_layers
from parity.base.precision import PRECISIONS
from parity.verdict.rule import Verdict, judge
from reference.stu import STULayer, STUStack
from tests.kernels.marks import DEVICE, GPU, needs_triton
from tests.kernels.mutation import mutated
from tests.kernels.stu_layer.layer_cases import CASES, Case, Inputs, inputs_of, judged
from tests.selection import first_in_test

BACKENDS = ["eager", pytest.param("triton", marks=needs_triton)]
# Lengths of the five sequences of `LENGTHS` after each call: no, one, many new rows; one begins late.
STEPS = ((0, 0, 0, 0, 0), (3, 0, 1, 17, 0), (3, 0, 1, 18, 19), (5, 0, 1, 33, 20))
CAPACITY = 40
MASKS = {
    "causal": Case(12, CASES["odd sizes"].sizes),
    "group norm": CASES["powers of two, group norm"],
    "window and scale": replace(CASES["every mask"], contextual=0),
}


def stepped(inputs: Inputs, backend: str, steps: tuple[tuple[int, ...], ...] = STEPS) -> torch.Tensor:
    """Results of all rows, (L, D), from one call after the other; no row is a target."""
    starts = inputs.offsets.tolist()
    cache = empty_cache(inputs.x, len(inputs.layers), len(starts) - 1, CAPACITY, inputs.sizes)
    for kept in cache.kept:
        # What a cache holds behind a sequence's rows has no influence.
        kept.fill_(float("nan"))
    result = torch.full_like(inputs.x, float("nan"))
    for firsts, lengths in pairwise(steps):
        rows = torch.cat(
            [torch.arange(s + f, s + n) for s, f, n in zip(starts[:-1], firsts, lengths, strict=True)]
        )
        new = [n - f for f, n in zip(firsts, lengths, strict=True)]
        rows, offsets = rows.to(DEVICE), torch.tensor((0, *new)).cumsum(0).to(DEVICE)
        scale = None if inputs.mask.attn_scale is None else inputs.mask.attn_scale[rows]
        mask = replace(inputs.mask, attn_scale=scale)
        with torch.no_grad():
            result[rows] = extend_stu_layers(
                inputs.x[rows], offsets, torch.tensor(firsts).to(DEVICE), max(lengths), max(new), mask,
                inputs.layers, inputs.sizes, cache, backend=backend,
            )  # fmt: skip
    return result


def without_targets(inputs: Inputs) -> Inputs:
    return replace(inputs, mask=replace(inputs.mask, num_targets=None))


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_are_right(name, precision, backend):
    if precision == "bf16" and backend == "triton" and not GPU:
        pytest.skip("Triton's interpreter multiplies bfloat16 as integers")
    case = MASKS[name]
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    inputs = without_targets(inputs_of(case, dtype))
    actual = judged(inputs, case, precision, lambda placed: stepped(placed, backend))
    assert actual.passed, actual.reason


@pytest.mark.parametrize("backend", BACKENDS)
def test_targets_follow_a_cached_history_again_and_again(backend):
    inputs = inputs_of(CASES["every mask"], torch.float32).to(DEVICE)
    bounds, targets = inputs.offsets, inputs.mask.num_targets
    history = bounds.diff() - targets
    cache = empty_cache(inputs.x, len(inputs.layers), len(targets), CAPACITY, inputs.sizes)
    whole = inputs.run(backend)

    def extend(firsts, lengths, num_targets):
        rows = torch.cat(
            [
                torch.arange(int(s + f), int(s + n))
                for s, f, n in zip(bounds[:-1], firsts, lengths, strict=True)
            ]
        )
        offsets = torch.nn.functional.pad((lengths - firsts).cumsum(0), (1, 0))
        rows = rows.to(DEVICE)
        mask = replace(inputs.mask, attn_scale=inputs.mask.attn_scale[rows], num_targets=num_targets)
        with torch.no_grad():
            result = extend_stu_layers(
                inputs.x[rows], offsets, firsts, int(lengths.max()), int((lengths - firsts).max()), mask,
                inputs.layers, inputs.sizes, cache, backend=backend,
            )  # fmt: skip
        return rows, result

    extend(torch.zeros_like(history), history, torch.zeros_like(targets))
    for _ in range(2):
        rows, result = extend(history, bounds.diff(), targets)
        torch.testing.assert_close(result, whole[rows])


def drawn(heads: int, dim: int, lengths: list[int], capacity: int, dtype: torch.dtype):
    """q, k, v of all rows, and the caches of k and v with NaN behind each sequence's rows."""
    generator = torch.Generator().manual_seed(0)
    total = sum(lengths)
    q, k, v = (torch.randn(total, heads, dim, generator=generator).to(DEVICE, dtype) for _ in range(3))
    caches = []
    for x in (k, v):
        cache = torch.full((len(lengths), capacity, heads, dim), float("nan"), dtype=dtype, device=DEVICE)
        for number, part in enumerate(x.split(lengths)):
            cache[number, : len(part)] = part
        caches.append(cache)
    return q, k, v, caches


@needs_triton
@pytest.mark.parametrize("shape", [(16, 32, 1), (64, 32, 2), (32, 64, 2)], ids=str)
@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize("contextual", [0, 3])
def test_the_attention_has_the_bits_of_a_call_over_all_rows(shape, window, contextual, monkeypatch):
    from kernels.hstu_attention import triton_launch

    block_m, block_n, stages = shape
    same = triton_launch.Schedule(block_m, block_n, 4, stages, group=2)
    monkeypatch.setattr(triton_launch, "choose_schedule", lambda *_: same)
    dtype = torch.float16 if GPU else torch.float32
    lengths, firsts = [150, 9, 70, 4], torch.tensor([131, 0, 64, 4]).to(DEVICE)
    q, k, v, caches = drawn(2, 16, lengths, 160, dtype)
    targets = torch.tensor([7, 1, 5, 0]).to(DEVICE)
    mask = ProductionMask(0.3, 150.0, None, targets, window, contextual)
    offsets = torch.tensor((0, *lengths)).cumsum(0).to(DEVICE)
    whole = hstu_attention(q, k, v, offsets, 150, mask)
    rows = torch.cat(
        [torch.arange(int(s + f), int(e)) for s, f, e in zip(offsets[:-1], firsts, offsets[1:], strict=True)]
    )
    new = torch.nn.functional.pad((offsets.diff() - firsts).cumsum(0), (1, 0))
    result = hstu_attention_cached(q[rows], *caches, new, firsts, 150, 19, mask)
    assert torch.equal(result, whole[rows])


def one_new_row(mask: ProductionMask, lengths: list[int], precision: str) -> tuple[torch.Tensor, Verdict]:
    """The last row of each sequence from a cached call, and its verdict against a call over all rows."""
    dtype = PRECISIONS[precision].dtype
    q, k, v, caches = drawn(2, 16, lengths, max(lengths) + 3, dtype)
    offsets = torch.tensor((0, *lengths)).cumsum(0).to(DEVICE)
    last = offsets[1:] - 1
    # A slice of a wider tensor, as a layer's.
    out = q.new_full((len(lengths), 3, 2, 16), float("nan"))[:, 1]
    new = torch.arange(len(lengths) + 1).to(DEVICE)
    of_last = replace(mask, attn_scale=mask.attn_scale[last])
    hstu_attention_cached(q[last], *caches, new, offsets.diff() - 1, max(lengths), 1, of_last, out=out)
    wide = replace(mask, attn_scale=mask.attn_scale.double())
    exact = hstu_attention(*(x.double() for x in (q, k, v)), offsets, max(lengths), wide, backend="eager")
    eager = hstu_attention(q, k, v, offsets, max(lengths), mask, backend="eager")
    return out, judge(exact[last].cpu(), eager[last].cpu(), out.cpu(), PRECISIONS[precision], max(lengths))


def masks_of_one_new_row() -> Iterator[tuple[ProductionMask, list[int]]]:
    """Four programs share the columns of rows as long as these."""
    lengths = [1100, 3, 700]
    scale = torch.linspace(0.5, 2.0, sum(lengths)).to(DEVICE)
    targets = torch.tensor([20, 1, 0]).to(DEVICE)
    for window, of_mask in itertools.product((0, 300), (None, targets)):
        yield ProductionMask(0.3, 1.0, scale, of_mask, window), lengths


@pytest.mark.sampled
@needs_triton
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_programs_share_the_columns_of_one_new_row(precision, number, monkeypatch):
    from kernels.hstu_attention import triton_launch

    used = []
    rule = triton_launch.splits_of_new_rows
    monkeypatch.setattr(triton_launch, "splits_of_new_rows", lambda *a: used.append(rule(*a)) or used[-1])
    mask, lengths = list(masks_of_one_new_row())[number]
    result, verdict = one_new_row(mask, lengths, precision)
    assert used == [4]
    assert verdict.passed, verdict.reason
    assert torch.equal(result, one_new_row(mask, lengths, precision)[0])


@needs_triton
@pytest.mark.parametrize("name", first_in_test(MASKS))
def test_steps_whose_columns_programs_share_are_right(name, monkeypatch):
    from kernels.hstu_attention import schedules

    monkeypatch.setattr(schedules, "_COLUMNS_OF_SPLIT", 8)
    inputs = without_targets(inputs_of(MASKS[name], torch.float32))
    actual = judged(inputs, MASKS[name], "fp32", lambda placed: stepped(placed, "triton"))
    assert actual.passed, actual.reason


def test_few_programs_share_columns():
    from kernels.hstu_attention.schedules import splits_of_call, splits_of_new_rows

    programs, lengths = (1, 4, 8, 32, 66, 67, 500), (0, 511, 512, 2047, 100_000)
    assert [splits_of_new_rows(n, 4096) for n in programs] == [16, 16, 16, 4, 2, 1, 1]
    assert [splits_of_new_rows(4, n) for n in lengths] == [1, 1, 2, 4, 32]
    q, mask = torch.empty(9000, 2, 64, dtype=torch.float16, device="meta"), ProductionMask(1.0, 1.0)
    rows = (4095, 4096, 8191, 8192)
    assert [splits_of_call(q[:n], mask, 1) for n in rows] == [1, 2, 2, 2]
    assert [splits_of_call(q[:n], mask, 2) for n in rows] == [1, 1, 1, 2]
    assert splits_of_call(q.repeat(1, 2, 1), mask, 1) == 1
    assert splits_of_call(q.float(), mask, 1) == 1
    assert splits_of_call(q, ResearchMask(q[:1, 0, 0], 1.0), 1) == 1
    windows = [ProductionMask(1.0, 1.0, max_attn_len=1024, contextual_seq_len=rows) for rows in (0, 3)]
    assert [splits_of_call(q, window, 1) for window in windows] == [1, 2]


SPLIT_FAULTS = {
    "one part alone": ("split * part", "0 * part"),
    "a part is missing": ("in tl.static_range(SPLITS)", "in tl.static_range(SPLITS - 1)"),
    "another head's place": ("head % NUM_HEADS * stride_oh", "(head + 1) % NUM_HEADS * stride_oh"),
}


@needs_triton
@pytest.mark.parametrize("fault", SPLIT_FAULTS)
def test_a_fault_in_the_sum_of_splits_is_caught(fault, tmp_path, monkeypatch):
    from kernels.hstu_attention import triton_kernel_splits, triton_launch

    faulty = mutated(triton_kernel_splits, *SPLIT_FAULTS[fault], tmp_path, monkeypatch)
    monkeypatch.setattr(triton_launch, "sum_of_splits_kernel", faulty.sum_of_splits_kernel)
    assert not one_new_row(*next(masks_of_one_new_row()), "fp32")[1].passed


FAULTS = {
    "keys in the values' place": ("tl.where(cols < GATES, GATES, GATES + FACTORS)", "GATES + cols * 0"),
    "rows in front of the cached ones": ("tl.load(firsts + sequence).to(tl.int64) + rows", "rows"),
    "the next sequence's slots": ("sequence.to(tl.int64) * capacity", "(sequence + 1).to(tl.int64) * 0"),
}


@needs_triton
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught(fault, tmp_path, monkeypatch):
    from kernels.stu_layer import triton_kernels, triton_launch

    faulty = mutated(triton_kernels, *FAULTS[fault], tmp_path, monkeypatch)
    monkeypatch.setattr(triton_launch, "keep_kernel", faulty.keep_kernel)
    case = MASKS["causal"]
    inputs = without_targets(inputs_of(case, torch.float32))
    assert not judged(inputs, case, "fp32", lambda placed: stepped(placed, "triton")).passed


def test_the_definition_is_the_references_cached_step():
    case = Case(12, CASES["odd sizes"].sizes, lengths=(13,))
    inputs = without_targets(inputs_of(case, torch.float64)).to(DEVICE)
    n, first = inputs.longest, 8
    layers = []
    for parameters in inputs.layers:
        layer = STULayer(12, 2, 7, 5).to(DEVICE, torch.float64).eval()
        layer.load_state_dict({f"_{name}": tensor for name, tensor in parameters._asdict().items()})
        layers.append(layer)
    stack, (none, before, now) = STUStack(layers), torch.tensor([[0], [first], [n]], device=DEVICE)
    x = inputs.x.unsqueeze(0)
    with torch.no_grad():
        _, state = stack(x, before, none, return_cache_states=True)
        expected, _ = stack.cached_forward(x[:, first:], now, before, none, state)
    # The reference divides by the cache's width, the kernels by the mask's divisor: both are n here.
    result = stepped(inputs, "eager", ((0,), (first,), (n,)))[first:]
    torch.testing.assert_close(result, expected[0])


def test_arguments_that_do_not_fit_are_refused_by_name():
    inputs = without_targets(inputs_of(MASKS["causal"], torch.float32)).to(DEVICE)
    cache = empty_cache(inputs.x, 2, 5, CAPACITY, inputs.sizes)
    good = {"x": inputs.x, "offsets": inputs.offsets, "firsts": torch.zeros(5, dtype=torch.int64).to(DEVICE),
            "max_seq_len": 33, "max_new": 33, "mask": inputs.mask, "layers": inputs.layers,
            "sizes": inputs.sizes, "cache": cache, "backend": "eager"}  # fmt: skip
    for changes, message in (
        ({"layers": inputs.layers[:1]}, "cache='2 layers': must have 1"),
        ({"cache": empty_cache(inputs.x.half(), 2, 5, CAPACITY, inputs.sizes)}, "cache=.*torch.float16"),
        ({"offsets": inputs.offsets[:3]}, r"offsets.shape=\(3,\): must be \(6,\)"),
        ({"firsts": torch.zeros(4, dtype=torch.int64).to(DEVICE)}, r"firsts.shape=\(4,\): must be \(5,\)"),
        ({"max_new": 34}, "max_new=34: needs 0 <= max_new <= max_seq_len=33 <= 40"),
        ({"max_seq_len": 41}, "max_seq_len=41 <= 40"),
        ({"backend": "hopper"}, "backend='hopper': choose one of .*'triton', 'eager'"),
    ):
        with pytest.raises(ValueError, match=message):
            extend_stu_layers(**good | changes)
    with pytest.raises(ValueError, match="capacity=0: must be at least 1"):
        empty_cache(inputs.x, 2, 5, 0, inputs.sizes)
    q, _, _, (k, v) = drawn(2, 16, [3, 4], 8, torch.float32)
    offsets, firsts = torch.tensor([0, 3, 7]).to(DEVICE), torch.zeros(2, dtype=torch.int64).to(DEVICE)
    mask = ProductionMask(0.3, 8.0)
    for changes, message in (
        ((q, k[:1], v, offsets, firsts, 4, 4, mask), r"k.shape=.*must be \(2, capacity"),
        ((q, k[:, :4], v[:, :4], offsets, firsts, 4, 4, mask), r"k.stride\(\)=.*capacity"),
        ((q, k, v, offsets, firsts.float(), 4, 4, mask), "firsts=.*int32 or int64"),
        ((q, k, v, offsets, firsts, 9, 4, mask), "max_seq_len=9 <= 8"),
        (
            (q, k, v, offsets, firsts, 4, 4, replace(mask, attn_scale=torch.ones(3).to(DEVICE))),
            r"attn_scale.shape=\(3,\)",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            hstu_attention_cached(*changes, backend="eager")
    made = []

    class Made(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), others=None):
            made.append(function.__name__)
            return function(*arguments, **(others or {}))

    out = torch.empty(7, 2, 9).to(DEVICE)
    with Made(), pytest.raises(ValueError, match=r"out=.*must be \(7, 2, 16\), v's torch.float32"):
        hstu_attention_cached(q, k, v, offsets, firsts, 4, 4, mask, backend="eager", out=out)
    # The check needs no tensor.
    assert not [name for name in made if "empty" in name]


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_new_rows_give_nothing(backend):
    inputs = without_targets(inputs_of(MASKS["causal"], torch.float32)).to(DEVICE)
    cache = empty_cache(inputs.x, 2, 5, CAPACITY, inputs.sizes)
    none = torch.zeros(5, dtype=torch.int64).to(DEVICE)
    with torch.no_grad():
        result = extend_stu_layers(
            inputs.x[:0], torch.zeros(6, dtype=torch.int64).to(DEVICE), none, 0, 0, inputs.mask,
            inputs.layers, inputs.sizes, cache, backend=backend,
        )  # fmt: skip
    assert result.shape == (0, 12)
    assert all(not kept.any() for kept in cache.kept)


@needs_triton
def test_a_first_step_is_a_call():
    inputs = without_targets(inputs_of(MASKS["causal"], torch.float32)).to(DEVICE)
    cache = empty_cache(inputs.x, 2, 5, CAPACITY, inputs.sizes)
    with torch.no_grad():
        firsts = torch.zeros(5, dtype=torch.int64).to(DEVICE)
        result = extend_stu_layers(
            inputs.x, inputs.offsets, firsts, 33, 33, inputs.mask, inputs.layers, inputs.sizes, cache
        )
        expected = stu_layers(inputs.x, inputs.offsets, 33, inputs.mask, inputs.layers, inputs.sizes)
    assert torch.equal(result, expected)
