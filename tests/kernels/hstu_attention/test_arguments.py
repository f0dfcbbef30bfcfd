"""Calls that do not fit are refused with the field, its value and the fix; loose limits change nothing."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from kernels.hstu_attention import ProductionMask, ResearchMask, hstu_attention, hstu_attention_cached
from kernels.hstu_attention.layout import Call
from tests.kernels.marks import DEVICE, needs_hopper, needs_triton

ROWS, HEADS, DIM = 50, 2, 16
OFFSETS = torch.tensor([0, 20, ROWS])
WEIGHTS = torch.zeros(2 * ROWS - 1)


def tensors(rows: int = ROWS, dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(rows, HEADS, DIM, generator=generator).to(device, dtype) for _ in range(3)]


def production(**changes: object) -> ProductionMask:
    return ProductionMask(**{"alpha": 0.25, "divisor": 50.0, **changes})


def call(mask: object = None, **changes: object) -> torch.Tensor:
    q, k, v = tensors()
    given = {"q": q, "k": k, "v": v, "offsets": OFFSETS, "max_seq_len": 30, **changes}
    mask = production() if mask is None else mask
    return hstu_attention(*(given.pop(n) for n in ("q", "k", "v", "offsets", "max_seq_len")), mask, **given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": None}, "q='NoneType': must be a torch.Tensor"),
        ({"q": tensors()[0].numpy()}, "q='ndarray'"),
        ({"k": tensors()[0].to_sparse()}, "k.layout=torch.sparse_coo: must be a strided tensor"),
        ({"q": torch.nested.nested_tensor([torch.zeros(3, 16)])}, "q.layout"),
        ({"offsets": [0, 50]}, "offsets='list'"),
        ({"mask": {}}, "mask='dict': must be a ResearchMask or a ProductionMask"),
        ({"max_seq_len": 30.0}, "max_seq_len=30.0: must be a whole number"),
        ({"max_seq_len": None}, "max_seq_len=None"),
        ({"max_seq_len": torch.tensor(30)}, "max_seq_len=tensor"),
        ({"mask": production(divisor=None)}, "mask.divisor=None: must be a positive number"),
        ({"mask": production(divisor=torch.tensor(3.0))}, "mask.divisor=tensor"),
        ({"mask": production(divisor=float("nan"))}, "mask.divisor=nan"),
        ({"mask": production(alpha=float("nan"))}, "mask.alpha=nan: must be a finite number"),
        ({"mask": production(alpha=None)}, "mask.alpha=None"),
        ({"mask": production(alpha=torch.tensor(1.0))}, "mask.alpha=tensor"),
        ({"mask": production(max_attn_len=2.5)}, "mask.max_attn_len=2.5: must be a whole number"),
        ({"mask": production(max_attn_len=None)}, "mask.max_attn_len=None"),
        ({"mask": production(max_attn_len=2**31)}, "mask.max_attn_len=2147483648"),
        ({"mask": production(contextual_seq_len=1.5)}, "mask.contextual_seq_len=1.5"),
        ({"mask": production(contextual_seq_len=2**30)}, "mask.contextual_seq_len=1073741824"),
        ({"mask": production(num_targets=3)}, "mask.num_targets='int': must be a torch.Tensor"),
        ({"mask": production(attn_scale=torch.ones(ROWS, dtype=torch.complex64))}, "mask.attn_scale.dtype"),
        ({"mask": ResearchMask(WEIGHTS.long(), 50.0)}, "mask.position_weights.dtype=torch.int64"),
        (
            {
                "mask": ResearchMask(
                    WEIGHTS, 50.0, torch.zeros(2, 30, dtype=torch.int64), torch.ones(3).half()
                )
            },
            "mask.time_weights.dtype=torch.float16: must be position_weights', torch.float32",
        ),
        ({"out": [1]}, "out='list': must be a torch.Tensor, or None"),
    ],
)
def test_an_argument_of_another_kind_or_range_is_named(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call(**changes)


def test_gradients_are_refused_except_in_eager():
    q = tensors()[0].requires_grad_()
    for backend in ("triton", "hopper", "auto"):
        with pytest.raises(RuntimeError, match=f"backend='{backend}' has no backward.* use torch.no_grad"):
            call(q=q, backend=backend)
        with pytest.raises(RuntimeError, match="has no backward"):
            call(production(attn_scale=torch.ones(ROWS, requires_grad=True)), backend=backend)
    call(q=q, backend="eager").sum().backward()
    assert q.grad is not None
    assert bool(q.grad.any())
    cache = torch.zeros(2, 30, HEADS, DIM)
    numbers = (OFFSETS, torch.zeros(2, dtype=torch.int64), 30, 30)
    with pytest.raises(RuntimeError, match="has no backward"):
        hstu_attention_cached(q, cache, cache, *numbers, production())


def test_a_result_over_keys_or_values_is_refused_and_one_beside_them_is_not():
    q, k, v = tensors()
    for out in (k, v):
        with pytest.raises(ValueError, match="out=.*may not overlap k or v"):
            call(q=q, k=k, v=v, out=out, backend="eager")
    joined = torch.cat([q, k, v, torch.zeros_like(q)], dim=1)
    q, k, v, out = joined.split(HEADS, dim=1)
    expected = call(q=q.clone(), k=k.clone(), v=v.clone(), backend="eager")
    assert torch.equal(call(q=q, k=k, v=v, out=out, backend="eager"), expected)
    with pytest.raises(ValueError, match="may not overlap"):
        call(q=q, k=k, v=v, out=joined[:, 3 * HEADS - 1 : 4 * HEADS - 1], backend="eager")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask": production(max_attn_len=-3)}, "mask.max_attn_len=-3"),
        ({"mask": production(contextual_seq_len=-3)}, "mask.contextual_seq_len=-3"),
        ({"mask": production(divisor=-3.0)}, "mask.divisor=-3.0"),
        ({"mask": ResearchMask(WEIGHTS, 50.0)}, "mask='ResearchMask': must be a ProductionMask"),
        ({"max_new": 30.0}, "max_new=30.0: must be a whole number"),
        ({"offsets": OFFSETS[:0]}, "offsets=(0,): must be (B + 1,)"),
    ],
)
def test_the_cached_form_checks_the_same(changes, message):
    q, _, _ = tensors()
    given = {"offsets": OFFSETS, "max_new": 30, "mask": production(), **changes}
    cache, firsts = torch.zeros(2, 30, HEADS, DIM), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=re.escape(message)):
        hstu_attention_cached(
            q, cache, cache, given["offsets"], firsts, 30, given["max_new"], given["mask"], backend="eager"
        )


@needs_triton
@pytest.mark.parametrize("longest", [10**6, 2**31 - 1, 2**40])
def test_a_loose_limit_changes_nothing_and_starts_no_more_programs(longest):
    q, k, v = tensors(device=DEVICE)
    offsets = OFFSETS.to(DEVICE)
    expected = hstu_attention(q, k, v, offsets, 50, production(), backend="eager")
    result = hstu_attention(q, k, v, offsets, longest, production())
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


@needs_triton
def test_rows_behind_the_last_offset_are_left_alone_where_programs_share_columns(monkeypatch):
    from kernels.hstu_attention import schedules, triton_launch

    monkeypatch.setattr(schedules, "_LEAST_ROWS_TO_SPLIT", 1)
    monkeypatch.setattr(triton_launch, "size_class", lambda *_: "of this test")
    rows, end = 180, 150
    q, k, v = tensors(rows, torch.float16, DEVICE)
    offsets, mask = torch.tensor([9, end], device=DEVICE), production()
    assert schedules.splits_of_call(q, mask, 1) > 1
    out = torch.full_like(v, 7.0)
    hstu_attention(q, k, v, offsets, end, mask, out=out)
    expected = hstu_attention(q.double(), k.double(), v.double(), offsets, end, mask, backend="eager")
    torch.testing.assert_close(out[9:end].double(), expected[9:end], rtol=2e-3, atol=1e-3)
    assert bool((out[end:] == 7.0).all())


@needs_hopper
def test_threads_may_measure_at_once_while_another_one_draws_random_numbers():
    from kernels.hstu_attention import choice

    choice._measured.clear()

    def measure(rows: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            q, k, v = (torch.randn(8 * rows, 4, 128, device=DEVICE).bfloat16() for _ in range(3))
            offsets = torch.arange(9, device=DEVICE) * rows
            hstu_attention(q, k, v, offsets, rows, production(), backend="auto")
            torch.cuda.current_stream().synchronize()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(measure, (8300, 8300, 11800, 11800)))
    assert len(choice._measured) == 2


def test_the_call_of_a_layout_is_not_changed_by_a_refusal():
    q, k, v = tensors()
    before = Call(q, k, v, OFFSETS, 30, production())
    with pytest.raises(ValueError, match="max_seq_len"):
        hstu_attention(*before[:4], 30.5, before.mask, backend="eager")
    assert hstu_attention(*before, backend="eager").shape == v.shape


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offsets": torch.tensor([0, 30, 20])}, "offsets[2]=20: follows 30; give ascending numbers"),
        (
            {"offsets": torch.tensor([0, 20, ROWS + 1])},
            "offsets[2]=51: must be at most 50, the number of rows",
        ),
        ({"offsets": torch.tensor([-1, 20, ROWS])}, "offsets[0]=-1: give 0 or more"),
        ({"max_seq_len": 29}, "max_seq_len=29: offsets[2] ends a row of 30; give its length"),
        (
            {name: x.int() for name, x in zip("qkv", tensors(), strict=True)},
            "q.dtype=torch.int32: use a floating",
        ),
    ],
)
def test_the_eager_form_reads_the_offsets(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call(backend="eager", **changes)


@pytest.mark.parametrize(
    ("offsets", "firsts", "message"),
    [
        ([0, 20, 10], [0, 0], "offsets[2]=10: follows 20"),
        ([0, 20, 51], [0, 0], "offsets[2]=51: must be at most 50"),
        ([0, 20, 50], [0, 1], "firsts[1]=1: must be 0 to 0, so that its new rows fit into the cache"),
        ([0, 20, 50], [-1, 0], "firsts[0]=-1: must be 0 to 10"),
    ],
)
def test_the_cached_eager_form_reads_offsets_and_firsts(offsets, firsts, message):
    q, _, _ = tensors()
    cache = torch.zeros(2, 30, HEADS, DIM)
    with pytest.raises(ValueError, match=re.escape(message)):
        hstu_attention_cached(
            q,
            cache,
            cache,
            torch.tensor(offsets),
            torch.tensor(firsts),
            30,
            30,
            production(),
            backend="eager",
        )
