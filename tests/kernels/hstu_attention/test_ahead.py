"""The attention's form in Gluon: its results on a Hopper GPU, faults of it, and the calls that take it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.hstu_attention import ProductionMask, ResearchMask, Schedule, ahead, hstu_attention, search
from kernels.hstu_attention.layout import Call
from kernels.hstu_attention.schedule_checks import fault_of, misfit
from tests.kernels.hstu_attention.attention_cases import Case, Run, before_garbage, production, verdict
from tests.kernels.marks import DEVICE, needs_hopper, needs_triton
from tests.kernels.mutation import mutated

AHEAD = Schedule(64, 64, 4, 2, 3, "half", use_tma=True, ahead=True)
# Sequences of many blocks, whose last ones are full, and are not.
LENGTHS = (5, 0, 1, 1300, 640, 641, 703)
# Heads of keys and of values, rows, columns, stages and warps.
FORMS = [
    (128, 128, 64, 64, 2, 4),
    (128, 128, 64, 32, 2, 4),
    (64, 128, 64, 32, 3, 4),
    (64, 64, 64, 64, 2, 4),
    (32, 64, 64, 64, 3, 4),
    (32, 32, 64, 64, 2, 4),
    (16, 16, 64, 32, 1, 4),
    (64, 64, 128, 64, 2, 8),
]
BEHIND = 64
PLAIN = ProductionMask(1.0, 4.0)
NARROW = ProductionMask(1.0, 4.0, max_attn_len=256)
NARROW_CONTEXT = ProductionMask(1.0, 4.0, max_attn_len=256, contextual_seq_len=5)
WIDE = ProductionMask(1.0, 4.0, max_attn_len=1024)


def large_logits(generator: torch.Generator, length: int) -> ProductionMask:
    return ProductionMask(100.0, 100.0)


def in_form(rows: int = 64, columns: int = 64, stages: int = 2, warps: int = 4, registers: int = 0) -> Run:
    """The form, whose rows that nobody writes are NaN."""
    schedule = replace(
        AHEAD, block_m=rows, block_n=columns, num_stages=stages, num_warps=warps, registers=registers
    )

    def run(q, k, v, *rest):
        assert misfit(schedule, Call(q, k, v, *rest)) == ""
        out = torch.full_like(v, float("nan"), memory_format=torch.contiguous_format)
        return hstu_attention(q, k, v, *rest, schedule=schedule, out=out)

    return run


@needs_hopper
@needs_triton
@pytest.mark.parametrize("window", [0, 20, 256, 1024])
@pytest.mark.parametrize("targets", [False, True])
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_every_mask_is_right_beside_a_sequence_of_nan(form, targets, window, precision):
    k_dim, v_dim, *blocks = form
    case = Case(2, k_dim, v_dim, production(targets, targets, window), LENGTHS)
    actual = verdict(case, precision, before_garbage(in_form(*blocks), BEHIND))
    assert actual.passed, actual.reason


@needs_hopper
@needs_triton
@pytest.mark.parametrize("window", [0, 20, 256])
@pytest.mark.parametrize("targets", [False, True])
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_contextual_rows_are_right_beside_a_sequence_of_nan(form, targets, window, precision):
    k_dim, v_dim, *blocks = form
    case = Case(2, k_dim, v_dim, production(targets, targets, window, 3), LENGTHS)
    actual = verdict(case, precision, before_garbage(in_form(*blocks), BEHIND))
    assert actual.passed, actual.reason


@needs_hopper
@needs_triton
@pytest.mark.parametrize("contextual", [1, 63, 64, 65, 128, 150])
@pytest.mark.parametrize("window", [0, 100])
def test_contextual_rows_end_anywhere_in_a_block(contextual, window):
    lengths = (300, contextual, 0, contextual + 1, 640, 1, 151)
    case = Case(2, 64, 64, production(False, True, window, contextual), lengths)
    actual = verdict(case, "bf16", before_garbage(in_form(), BEHIND))
    assert actual.passed, actual.reason


@needs_hopper
@needs_triton
def test_contextual_rows_without_a_history_see_themselves():
    """More contextual rows than rows, and targets behind contextual rows alone."""

    def mask(generator, length):
        return ProductionMask(0.4, 100.0, num_targets=torch.tensor([0, 30, 100]), contextual_seq_len=70)

    actual = verdict(Case(2, 64, 64, mask, (50, 100, 300)), "bf16", before_garbage(in_form(), BEHIND))
    assert actual.passed, actual.reason


@needs_hopper
@needs_triton
@pytest.mark.parametrize("lengths", [(1,), (63,), (64,), (65,), (128,), (129,), (0, 0, 5), (64,) * 40])
@pytest.mark.parametrize("window", [0, 64, 65])
def test_ends_of_blocks(lengths, window):
    run = before_garbage(in_form(registers=128), BEHIND)
    actual = verdict(Case(2, 64, 64, production(False, True, window), lengths), "bf16", run)
    assert actual.passed, actual.reason


@needs_hopper
@needs_triton
@pytest.mark.parametrize("columns", [32, 64])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_logits_of_hundreds_do_not_overflow(columns, precision):
    """Two weights share a reciprocal, of a product of exponentials."""
    run = before_garbage(in_form(columns=columns), BEHIND)
    actual = verdict(Case(2, 64, 64, large_logits, LENGTHS), precision, run)
    assert actual.passed, actual.reason


@needs_hopper
@needs_triton
def test_more_targets_than_rows_are_all_rows():
    def mask(generator, length):
        return ProductionMask(0.4, 100.0, num_targets=torch.tensor([300, 0, 140]))

    actual = verdict(Case(2, 64, 64, mask, (200, 1, 140)), "bf16", in_form())
    assert actual.passed, actual.reason


@needs_hopper
@needs_triton
def test_slices_of_a_projection_and_a_strided_result():
    """As in a layer, by the rules' own schedule: its rows fill the GPU."""
    from kernels.hstu_attention.triton_launch import derived_schedule

    offsets = torch.arange(0, 30_001, 1_000, device=DEVICE)
    whole = torch.randn(30_000, 2, 3 * 64, device=DEVICE).bfloat16()
    flat = whole.view(30_000, 384)
    q, k, v = (flat[:, 128 * i : 128 * (i + 1)].view(30_000, 2, 64) for i in range(3))
    mask = ProductionMask(0.125, 1_000.0, max_attn_len=300)
    assert derived_schedule(Call(q, k, v, offsets, 1_000, mask), 1).ahead
    out = torch.full((30_000, 2, 128), float("nan"), device=DEVICE).bfloat16()
    hstu_attention(q, k, v, offsets, 1_000, mask, out=out[:, :, :64])
    expected = hstu_attention(*(x.contiguous() for x in (q, k, v)), offsets, 1_000, mask)
    assert torch.equal(out[:, :, :64], expected)
    assert bool(out[:, :, 64:].isnan().all())


@needs_hopper
@needs_triton
@pytest.mark.parametrize(("dim", "columns", "registers"), [(128, 32, 128), (64, 64, 128), (128, 64, 0)])
def test_calls_give_equal_bits(dim, columns, registers):
    """A copy into a block that a product still reads would change some."""
    offsets = torch.arange(0, 64_001, 640, device=DEVICE)
    q, k, v = (torch.randn(64_000, 4, dim, device=DEVICE).bfloat16() for _ in range(3))
    mask = ProductionMask(dim**-0.5, 640.0, max_attn_len=256)
    schedule = replace(AHEAD, block_n=columns, registers=registers, group=16)
    first = hstu_attention(q, k, v, offsets, 640, mask, schedule=schedule)
    for _ in range(100):
        assert torch.equal(hstu_attention(q, k, v, offsets, 640, mask, schedule=schedule), first)


FAULTS = {
    "values behind the end as they are": ("gl.where((v_rows < length)[:, None], v, 0.0)", "v"),
    "blocks in front of the whole ones taken whole": ("(start_n < whole) | ", ""),
    "blocks behind the whole ones taken whole": (" | (start_n >= cut)", ""),
    "the targets' own elsewhere": ("later = own - of_history", "later = low - of_history"),
    "the last block left out": ("for block in range(1, blocks):", "for block in range(1, blocks - 1):"),
    "keys of another slot": ("ks.index(k_slot).permute", "ks.index(slot).permute"),
    "values of another slot": ("factors, vs.index(slot), acc", "factors, vs.index(0), acc"),
    "the first block's keys copied twice": ("STAGES * BLOCK_N + gl.where(", "gl.where("),
    "queries left out": ("mask=(q_rows < length)[:, None])", "mask=(q_rows < 0)[:, None])"),
    "a row left out": ("is_own = out_rows < length", "is_own = out_rows < length - 1"),
    "an exponential without its clamp": ("add.sat.f32 a,", "add.f32 a,"),
    "the other exponential without its clamp": ("add.sat.f32 b,", "add.f32 b,"),
    "a neighbour's exponent": ("fma.rn.f32 b, $3,", "fma.rn.f32 b, $2,"),
    "hidden products that may be NaN": ("gl.where(visible, x, 0.0)", "gl.where(visible, x, x * 0.0)"),
    "sums as large as their weights": ("alpha *= 2.0**-62", "alpha *= 1.0"),
    "contextual rows from the other program": ("contextual) == is_context)", "contextual) != is_context)"),
    "contextual rows with a history of their own past": ("if is_context:", "if is_context & (start_m > 0):"),
    "a block of contextual rows and others left out": (
        "+ contextual // BLOCK_M",
        "+ contextual // BLOCK_M + 1",
    ),
    "the outer alpha left out": ("own_scale.to(gl.float32) * alpha", "own_scale.to(gl.float32)"),
}


@needs_hopper
@needs_triton
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught(fault, tmp_path, monkeypatch):
    from kernels.hstu_attention import gluon_kernel, triton_launch

    faulty = mutated(gluon_kernel, *FAULTS[fault], tmp_path, monkeypatch)
    monkeypatch.setattr(triton_launch, "ahead_kernel", lambda: faulty.ahead_attention_kernel)
    run = before_garbage(in_form(), BEHIND)
    masks = (production(True, True), production(True, True, 256), production(True, True, 0, 3), large_logits)
    cases = [Case(2, 64, 64, mask, LENGTHS) for mask in masks]
    assert not all(verdict(case, "bf16", run).passed for case in cases)


def call_of(
    rows: int,
    heads: int = 1,
    dim: int = 128,
    sequences: int = 4,
    mask: ProductionMask | ResearchMask = PLAIN,
    longest: int = 9_000,
) -> Call:
    x = torch.empty(rows, heads, dim, dtype=torch.bfloat16, device="meta")
    return Call(x, x, x, torch.empty(sequences + 1, dtype=torch.int64, device="meta"), longest, mask)


@pytest.mark.parametrize(
    ("call", "columns", "registers", "group"),
    [
        # A fill is 8,448 rows of one head. Wide heads: the longer the loop, the larger the blocks.
        (call_of(16_895, mask=NARROW), 64, 0, 32),
        (call_of(16_896, mask=NARROW), 32, 128, 32),
        (call_of(33_791, mask=WIDE), 64, 0, 16),
        (call_of(33_792, mask=WIDE), 32, 128, 16),
        (call_of(101_375, sequences=40), 64, 0, 32),
        (call_of(101_376, sequences=40), 32, 128, 32),
        (call_of(101_376, sequences=24), 64, 0, 16),
        (call_of(400_000, sequences=200, mask=NARROW), 32, 128, 16),
        (call_of(16_000, sequences=40, longest=512), 64, 0, 256),
        # Contextual rows have long loops, also with a window: larger blocks there, and larger groups.
        (call_of(33_792, mask=NARROW_CONTEXT), 64, 0, 16),
        (call_of(270_335, sequences=40, mask=NARROW_CONTEXT), 64, 0, 16),
        (call_of(270_336, sequences=40, mask=NARROW_CONTEXT), 32, 128, 16),
        (call_of(101_375, sequences=40, mask=NARROW_CONTEXT), 64, 0, 32),
        (call_of(101_376, sequences=40, mask=NARROW_CONTEXT), 32, 128, 32),
        (call_of(33_791, sequences=40, mask=NARROW_CONTEXT), 64, 0, 64),
        (call_of(33_792, sequences=40, mask=NARROW_CONTEXT), 32, 128, 64),
        (call_of(270_335, dim=64, sequences=200, mask=NARROW_CONTEXT), 64, 128, 128),
        (call_of(270_336, dim=64, sequences=200, mask=NARROW_CONTEXT), 64, 128, 64),
        # Narrow heads: room for four programs from four fills on.
        (call_of(33_791, dim=64), 64, 0, 32),
        (call_of(33_792, dim=64), 64, 128, 32),
        (call_of(33_792, dim=32, sequences=64), 64, 128, 256),
        (call_of(101_375, dim=64, sequences=200, mask=NARROW), 64, 128, 128),
        (call_of(101_376, dim=64, sequences=200, mask=NARROW), 64, 128, 32),
        (call_of(101_376, dim=32, sequences=200, mask=NARROW), 64, 128, 256),
    ],
)
def test_the_schedule_follows_from_the_sizes(call, columns, registers, group, monkeypatch):
    monkeypatch.setattr(ahead, "refusal", lambda _: "")
    schedule = ahead.ahead_schedule(call)
    assert schedule == replace(AHEAD, block_n=columns, registers=registers, group=group)


@needs_triton
@pytest.mark.parametrize("dim", [64, 128])
def test_a_search_times_the_form_in_other_blocks_and_the_former_kernel(dim, monkeypatch):
    monkeypatch.setattr(ahead, "refusal", lambda _: "")
    call = call_of(101_376, dim=dim, sequences=200)
    found = search.candidates(call)
    assert found[0] == ahead.ahead_schedule(call)
    assert len(set(found)) == len(found) <= search.MOST_CANDIDATES
    assert [x.ahead for x in found].count(False) == 1
    assert {x.block_n for x in found if x.ahead} == {32, 64}
    assert not any(map(fault_of, found))


def test_few_programs_and_refused_calls_have_another_form(monkeypatch):
    assert ahead.ahead_schedule(call_of(16_896)) is None
    monkeypatch.setattr(ahead, "refusal", lambda _: "")
    # A quarter of a fill.
    assert ahead.ahead_schedule(call_of(2_111)) is None
    assert ahead.ahead_schedule(call_of(2_112)) == replace(AHEAD, group=64)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (call_of(9, mask=ResearchMask(torch.zeros(1), 1.0)), "the production mask alone"),
        (call_of(9)._replace(q=torch.empty(9, 1, 128)), "half types alone"),
        (call_of(9), "compute capability 9.0"),
    ],
)
def test_a_refusal_says_what_the_form_takes(call, reason):
    assert reason in ahead.refusal(call)


@pytest.mark.parametrize("dim", [24, 256])
def test_heads_of_other_sizes_are_refused(dim, monkeypatch):
    x = torch.zeros(4, 2, dim, dtype=torch.bfloat16)
    monkeypatch.setattr(ahead, "_has_instructions", lambda _: True)
    assert "heads side by side, of 16, 32, 64 or 128" in ahead.refusal(Call(x, x, x, x, 4, PLAIN))
    x = torch.zeros(4, 2, 64, dtype=torch.bfloat16)
    assert ahead.refusal(Call(x, x, x, x, 4, PLAIN)) == ""
    # No row is longer than all of them together.
    assert ahead.refusal(Call(x, x, x, x, 4_194_177, PLAIN)) == ""
    x = torch.empty(4_194_177, 1, 16, dtype=torch.bfloat16)
    assert "sequences of up to 4194176 rows" in ahead.refusal(Call(x, x, x, x, 4_194_177, PLAIN))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_tma": False}, "use_tma=False: use True with ahead"),
        ({"sigmoid": "exact"}, "sigmoid='exact': use 'half' with ahead"),
        ({"heads": 2}, "heads=2: use 1 with ahead"),
        ({"splits": 2}, "splits=2: use 1 with ahead"),
        ({"one_loop": True}, "one_loop=True: use False with ahead"),
        ({"block_m": 32}, "block_m=32: use 64 with 4 warps, or 128 with 8, and ahead"),
        ({"num_warps": 8}, "block_m=64: use 64 with 4 warps, or 128 with 8, and ahead"),
        ({"ahead": 1}, "ahead=1: choose one of (False, True)"),
    ],
)
def test_a_schedule_that_the_form_lacks_is_an_error(changes, message):
    x = torch.zeros(4, 1, 16, dtype=torch.float16)
    assert misfit(replace(AHEAD, **changes), Call(x, x, x, torch.tensor([0, 4]), 4, PLAIN)) == message


@pytest.mark.parametrize(
    ("sequences", "heads", "contextual", "group", "grid"),
    [
        (7, 2, 0, 16, (14, 5, 1)),
        (40, 4, 0, 16, (16, 5, 10)),
        # Equal groups.
        (41, 1, 0, 16, (21, 5, 2)),
        (70_000, 16, 0, 16, (18, 5, 62_223)),
        # A block with contextual rows and others has two programs.
        (7, 2, 1, 16, (14, 6, 1)),
        (7, 2, 64, 16, (14, 5, 1)),
        (7, 2, 65, 16, (14, 6, 1)),
        (7, 2, 1000, 16, (14, 5, 1)),
    ],
)
def test_a_grid_has_equal_groups_and_fits_the_gpu(sequences, heads, contextual, group, grid):
    found = ahead.ahead_grid(sequences, heads, 300, contextual, replace(AHEAD, group=group))
    assert found == grid
    assert found[0] * found[2] >= sequences * heads
    assert found[2] <= 65_535
