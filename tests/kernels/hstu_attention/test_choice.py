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
FORMS = ["triton", "hopper"]
RESEARCH = ResearchMask(torch.zeros(1), 1.0)


def call_of(rows: int, heads: int, dim: int, sequences: int, mask, dtype=torch.bfloat16) -> Call:
    x = torch.empty(rows, heads, dim, dtype=dtype, device="meta")
    return Call(x, x, x, torch.empty(sequences + 1, dtype=torch.int64, device="meta"), 8192, mask)


@pytest.fixture
def can_run(monkeypatch):
    """Where the Hopper form may be taken, it was the faster one."""
    monkeypatch.setattr(choice, "refusal", lambda call, out: "")
    monkeypatch.setattr(choice, "missing_compiler", lambda: "")
    monkeypatch.setattr(choice, "_measured", {})
    monkeypatch.setattr(choice, "_timed", lambda call: "hopper")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


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
@pytest.mark.parametrize(
    ("of_triton", "of_hopper", "expected"),
    [(4000.0, 3900.0, "hopper"), (3900.0, 4000.0, "triton"), (4000.0, 3998.0, "triton")],
)
def test_a_kind_of_call_is_timed_once_and_needs_more_than_the_spread(
    of_triton, of_hopper, expected, monkeypatch
):
    timed = []

    def times(runs, device, **_):
        timed.append(len(runs))
        return [[median + 4 * step for step in range(-4, 5)] for median in (of_triton, of_hopper)]

    for name, reason in (("refusal", lambda call, out: ""), ("missing_compiler", lambda: "")):
        monkeypatch.setattr(choice, name, reason)
    monkeypatch.setattr(choice, "_measured", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(choice, "times_of", times)
    call = call_of(65_536, 4, 128, 8, PLAIN)
    assert [choice.faster_backend(call) for _ in range(3)] == [expected] * 3
    assert timed == [2]
    # Other lengths are of another kind.
    assert choice.faster_backend(call_of(262_144, 4, 128, 8, PLAIN)) == expected
    assert timed == [2, 2]


@needs_triton
def test_a_captured_call_of_a_new_kind_is_not_timed(can_run, monkeypatch):
    call = call_of(65_536, 4, 128, 8, PLAIN)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert choice.faster_backend(call) == "triton"
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert choice.faster_backend(call) == "hopper"


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
@pytest.mark.parametrize("mask", [PLAIN, WINDOW], ids=["no window", "window"])
@pytest.mark.parametrize("form", FORMS)
def test_a_large_call_has_the_bits_of_its_form(mask, form, monkeypatch):
    monkeypatch.setattr(choice, "_measured", {})
    monkeypatch.setattr(choice, "_timed", lambda call: form)
    lengths = torch.tensor([0, 9000, 17_000, 26_000])
    q, k, v = (torch.randn(26_000, 4, 128, device=DEVICE).bfloat16() for _ in range(3))
    arguments = (q, k, v, lengths.to(DEVICE), 12_000, mask)
    expected = form if mask is PLAIN else "triton"
    results = [hstu_attention(*arguments, backend=name) for name in ("auto", expected)]
    assert torch.equal(*results)


@needs_hopper
@pytest.mark.skipif(NVCC is None, reason="no nvcc")
def test_the_faster_form_of_a_large_call_is_measured_and_the_result_kept(monkeypatch):
    """The caller's result may be its queries, which the measurement may not change."""
    monkeypatch.setattr(choice, "_measured", {})
    lengths = torch.tensor([0, 9000, 17_000, 26_000]).to(DEVICE)
    q, k, v = (torch.randn(26_000, 4, 128, device=DEVICE).bfloat16() for _ in range(3))
    expected = {
        name: hstu_attention(q, k, v, lengths, 12_000, PLAIN, backend=name) for name in ("triton", "hopper")
    }
    own = q.clone()
    hstu_attention(own, k, v, lengths, 12_000, PLAIN, backend="auto", out=own)
    (form,) = choice._measured.values()
    assert torch.equal(own, expected[form])
