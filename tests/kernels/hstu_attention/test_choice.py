"""The choice between both forms of the attention: by sizes on the host, and where the Hopper form runs."""

from __future__ import annotations

import pytest
import torch

from kernels.hstu_attention import ProductionMask, ResearchMask, choice, hstu_attention
from kernels.hstu_attention.layout import Call
from tests.kernels.marks import DEVICE, NVCC, needs_hopper, needs_triton

PLAIN = ProductionMask(128**-0.5, 8192.0)
TARGETS = ProductionMask(128**-0.5, 8192.0, num_targets=torch.zeros(1, dtype=torch.int64))
WINDOW = ProductionMask(128**-0.5, 8192.0, max_attn_len=1024)
CONTEXT = ProductionMask(128**-0.5, 8192.0, contextual_seq_len=5)
RESEARCH = ResearchMask(torch.zeros(1), 1.0)


def call_of(rows: int, heads: int, dim: int, sequences: int, mask, dtype=torch.bfloat16) -> Call:
    x = torch.empty(rows, heads, dim, dtype=dtype, device="meta")
    return Call(x, x, x, torch.empty(sequences + 1, dtype=torch.int64, device="meta"), 8192, mask)


@pytest.fixture
def can_run(monkeypatch):
    monkeypatch.setattr(choice, "refusal", lambda call, out: "")
    monkeypatch.setattr(choice, "missing_compiler", lambda: "")


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (call_of(65_536, 4, 128, 8, PLAIN), "hopper"),
        (call_of(65_536, 4, 128, 8, TARGETS), "hopper"),
        (call_of(65_536, 4, 128, 8, WINDOW), "triton"),
        (call_of(65_536, 4, 128, 8, CONTEXT), "triton"),
        (call_of(65_536, 4, 128, 8, RESEARCH), "triton"),
        (call_of(65_536, 8, 64, 8, PLAIN), "triton"),
        # 8,192 rows on average, and 12 fills of 132 programs of 64 rows.
        (call_of(81_920, 4, 128, 10, PLAIN), "hopper"),
        (call_of(81_919, 4, 128, 10, PLAIN), "triton"),
        (call_of(25_344, 4, 128, 3, PLAIN), "hopper"),
        (call_of(25_343, 4, 128, 3, PLAIN), "triton"),
        (call_of(65_536, 4, 128, 0, PLAIN), "triton"),
        (call_of(0, 4, 128, 0, PLAIN), "triton"),
    ],
)
def test_many_long_sequences_of_wide_heads_take_the_hopper_form(call, expected, can_run):
    assert choice.faster_backend(call) == expected


@pytest.mark.parametrize("name", ["refusal", "missing_compiler"])
def test_it_is_not_taken_where_it_cannot_run(name, can_run, monkeypatch):
    call = call_of(65_536, 4, 128, 8, PLAIN)
    monkeypatch.setattr(choice, name, lambda *_: "a reason")
    assert choice.faster_backend(call) == "triton"


@needs_triton
def test_a_small_call_has_the_bits_of_triton():
    q, k, v = (torch.randn(9, 2, 16, device=DEVICE) for _ in range(3))
    arguments = (q, k, v, torch.tensor([0, 4, 9], device=DEVICE), 5, ProductionMask(0.25, 5.0))
    results = [hstu_attention(*arguments, backend=name) for name in ("auto", "triton")]
    assert torch.equal(*results)


def test_auto_takes_no_schedule_and_triton_types_alone():
    q = torch.zeros(4, 1, 16, dtype=torch.float64)
    arguments = (q, q, q, torch.tensor([0, 4]), 4, ProductionMask(1.0, 4.0))
    with pytest.raises(ValueError, match="q.dtype=torch.float64: backend='auto' takes float32"):
        hstu_attention(*arguments, backend="auto")


@needs_hopper
@pytest.mark.skipif(NVCC is None, reason="no nvcc")
@pytest.mark.parametrize(("mask", "expected"), [(PLAIN, "hopper"), (WINDOW, "triton")])
def test_a_large_call_has_the_bits_of_its_form(mask, expected):
    lengths = torch.tensor([0, 9000, 17_000, 26_000])
    q, k, v = (torch.randn(26_000, 4, 128, device=DEVICE).bfloat16() for _ in range(3))
    arguments = (q, k, v, lengths.to(DEVICE), 12_000, mask)
    results = [hstu_attention(*arguments, backend=name) for name in ("auto", expected)]
    assert torch.equal(*results)
