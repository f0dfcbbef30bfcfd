"""Schedules from the caller: what a call takes, a search's candidates, and its choice."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.hstu_attention import ProductionMask, Schedule, hstu_attention, search, search_schedule
from kernels.hstu_attention.layout import Call, layout_of
from kernels.hstu_attention.schedule_checks import misfit
from tests.kernels.hstu_attention.attention_cases import CASES, verdict
from tests.kernels.marks import DEVICE, GPU, needs_gpu, needs_triton
from tests.selection import first_in_test

PLAIN = Schedule(32, 16, num_warps=4, num_stages=1)
MASK = ProductionMask(0.2, 70.0)
# Each form of the candidates has a mask here. On a GPU, every mask has a turn.
FORMS = ("research, heads of 25", "everything")
WIDE = "everything, heads of 128"
MASKS = CASES | {WIDE: replace(CASES["everything"], attention_dim=128, value_dim=128)}
JUDGED = tuple(MASKS) if GPU else (*FORMS, WIDE)
# Those with one list of candidates for few programs, and one for many.
PRODUCTION = [name for name in JUDGED if "research" not in name and name != "a head of 256"]
HALF = "bf16" if GPU else "fp16"


def call_of(dtype=torch.float16, heads: int = 2, dim: int = 32, mask=MASK) -> Call:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(100, heads, dim, generator=generator).to(DEVICE, dtype) for _ in range(3))
    return Call(q, k, v, torch.tensor([0, 70, 100], device=DEVICE), 70, mask)


@needs_triton
def test_the_derived_schedule_gives_the_bits_of_a_call_without_one():
    call = call_of()
    derived = search.candidates(call)[0]
    assert torch.equal(hstu_attention(*call), hstu_attention(*call, schedule=derived))


@needs_triton
def test_a_call_runs_the_schedule_that_it_gets():
    call = call_of()
    hstu_attention(*call, schedule=PLAIN)
    assert [plan.schedule for plan in layout_of(call).plans.values()] == [PLAIN]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_m": 48}, r"schedule\.block_m=48: choose one of"),
        ({"block_n": 16.0}, r"schedule\.block_n=16\.0: choose one of"),
        ({"num_warps": 3}, r"schedule\.num_warps=3: choose one of"),
        ({"num_stages": 0}, r"schedule\.num_stages=0: use a whole number from 1 to 8"),
        ({"group": [4]}, r"schedule\.group=\[4\]: use a whole number"),
        ({"group": True}, r"schedule\.group=True: use a whole number"),
        ({"sigmoid": "fast"}, r"schedule\.sigmoid='fast': choose one of"),
        ({"use_tma": 1}, r"schedule\.use_tma=1: choose one of"),
        ({"splits": 33}, r"schedule\.splits=33: use a whole number from 1 to 32"),
        ({"registers": -1}, r"schedule\.registers=-1: use a whole number"),
        ({"packed": 1}, r"schedule\.block_n=16: use block_m, 32"),
        ({"block_n": 32, "packed": 1, "splits": 2}, r"schedule\.packed=1: use 0 with use_tma or splits"),
    ],
)
def test_a_schedule_that_no_kernel_has_is_an_error(changes, message):
    with pytest.raises(ValueError, match=message):
        hstu_attention(*call_of(), schedule=replace(PLAIN, **changes))


@needs_triton
@pytest.mark.parametrize(
    ("options", "changes", "message"),
    [
        ({"dtype": torch.float32}, {"sigmoid": "half"}, r"sigmoid='half': use 'exact' for torch.float32"),
        ({"dtype": torch.float32}, {"block_m": 16, "packed": 1}, r"packed=1: use 0; that kernel has"),
        ({}, {"heads": 4}, r"schedule\.heads=4: use a divisor of q's 2 heads"),
        ({}, {"block_n": 32, "packed": 1}, r"packed=1: use at most 0; .* max_seq_len=70 fit block_m=32"),
        ({"dim": 24}, {"use_tma": True}, r"use_tma=True: use False"),
    ],
)
def test_a_schedule_must_fit_types_and_tensors(options, changes, message):
    assert torch.cuda.is_available() or misfit(replace(PLAIN, sigmoid="half"), call_of())
    with pytest.raises(ValueError, match=message):
        hstu_attention(*call_of(**options), schedule=replace(PLAIN, **changes))


def test_other_backends_and_other_values_have_no_schedule():
    with pytest.raises(ValueError, match=r"backend='eager' has none"):
        hstu_attention(*call_of(), backend="eager", schedule=PLAIN)
    with pytest.raises(ValueError, match=r"schedule=\{'block_m': 16\}: use a Schedule"):
        hstu_attention(*call_of(), schedule={"block_m": 16})


@needs_triton
@pytest.mark.parametrize(
    "searched",
    first_in_test(
        [(name, HALF, fills) for name in JUDGED for fills in (3.0, 0.0) if fills or name in PRODUCTION]
        + [(name, "fp32", 3.0) for name in FORMS]
    ),
    ids=str,
)
def test_every_candidate_is_right(searched, monkeypatch):
    name, precision, few_fills = searched
    from triton.runtime.errors import OutOfResources

    monkeypatch.setattr(search, "_FEW_FILLS", few_fills)
    # Of the interpreter's time, those that cut rows and columns in a way of their own.
    cuts: dict[tuple[int, ...], Schedule] = {}

    def collected(*arguments):
        for x in search.candidates(Call(*arguments)):
            assert not misfit(x, Call(*arguments))
            cuts.setdefault((len(cuts),) if GPU else (x.block_m, x.block_n, x.heads, x.splits), x)
        return hstu_attention(*arguments)

    verdict(MASKS[name], precision, collected)
    assert len(cuts) > 1
    failed = []
    for schedule in cuts.values():
        try:
            actual = verdict(MASKS[name], precision, lambda *a, s=schedule: hstu_attention(*a, schedule=s))
        except OutOfResources:
            continue
        if not actual.passed:
            failed.append((schedule, actual.reason))
    assert not failed


@needs_triton
@pytest.mark.parametrize(
    ("rows", "longest", "dtype"),
    [(2_000, 2_000, torch.bfloat16), (200_000, 8_000, torch.bfloat16), (5_000, 20, torch.float16),
     (200_000, 400, torch.float32), (0, 400, torch.float32)],
)  # fmt: skip
def test_candidates_are_few_and_begin_with_the_derived_one(rows, longest, dtype):
    from kernels.hstu_attention.schedules import splits_of_call
    from kernels.hstu_attention.triton_launch import derived_schedule

    q = torch.empty(rows, 4, 128, dtype=dtype, device="meta")
    offsets = torch.empty(rows // longest + 1, dtype=torch.int64, device="meta")
    call = Call(q, q, q, offsets, longest, MASK)
    found = search.candidates(call)
    assert found[0] == derived_schedule(call, splits_of_call(q, MASK, rows // longest))
    assert len(set(found)) == len(found) <= search.MOST_CANDIDATES
    assert (len(found) > 1) == (rows > 0)
    assert all(x.block_m < 2 * max(16, longest) for x in found)


def replaced_times(monkeypatch, times) -> list[Schedule]:
    """`times(schedule)` in place of measurements; returns the list of the schedules that a search times."""
    timed: list[Schedule] = []

    def times_of(runs, device):
        # The default of a run's argument is its schedule.
        timed.extend(run.__defaults__[0] for run in runs)
        for run in runs:
            run()
        return [times(schedule) for schedule in timed]

    monkeypatch.setattr(search, "times_of", times_of)
    return timed


@needs_triton
def test_the_fastest_candidate_is_chosen(monkeypatch):
    call = call_of()
    fast = search.candidates(call)[2]
    timed = replaced_times(monkeypatch, lambda x: [1.0, 1.1, 1.2] if x == fast else [2.0, 2.1, 2.2])
    assert search_schedule(*call) == fast
    assert timed == search.candidates(call)


@pytest.mark.parametrize(
    ("derived", "other", "takes_other"),
    [
        ([10.0, 10.1, 10.2, 10.1], [9.0, 9.1, 9.2, 9.1], True),
        # Half of the rounds are alike.
        ([10.0, 10.1, 9.1, 9.0], [9.0, 9.1, 9.6, 9.1], False),
        ([10.0, 10.1, 10.2, 10.1], [10.5, 10.6, 10.7, 10.6], False),
    ],
)
def test_the_derived_schedule_stays_within_the_spread(derived, other, takes_other):
    fast = replace(PLAIN, group=2)
    assert search.fastest({PLAIN: derived, fast: other}, PLAIN) == (fast if takes_other else PLAIN)


@needs_triton
def test_a_candidate_that_does_not_fit_the_gpu_is_left_out_and_an_error_is_not(monkeypatch):
    from triton.runtime.errors import OutOfResources

    call = call_of()
    large = search.candidates(call)[1]
    errors = [OutOfResources(300_000, 232_448, "shared memory"), RuntimeError("illegal address")]

    def run(*arguments, schedule=None, **options):
        if schedule == large:
            raise errors[0]
        return hstu_attention(*arguments, schedule=schedule, **options)

    monkeypatch.setattr(search, "hstu_attention", run)
    timed = replaced_times(monkeypatch, lambda _: [1.0, 1.0])
    assert search_schedule(*call) == search.candidates(call)[0]
    assert large not in timed
    assert len(timed) == len(search.candidates(call)) - 1
    del errors[0]
    with pytest.raises(RuntimeError, match="illegal address"):
        search_schedule(*call)


@needs_triton
def test_a_call_without_rows_needs_no_search():
    call = call_of()
    empty = Call(*(x[:0] for x in call[:3]), torch.zeros(3, dtype=torch.int64, device=DEVICE), 70, MASK)
    assert search_schedule(*empty) == search.candidates(empty)[0]


@needs_triton
def test_a_search_checks_the_arguments_of_its_call():
    call = call_of()
    with pytest.raises(ValueError, match=r"max_seq_len=-1"):
        search_schedule(*call[:4], -1, MASK)


@needs_triton
@pytest.mark.skipif(GPU, reason="a CUDA device is there")
def test_a_search_needs_a_gpu():
    with pytest.raises(RuntimeError, match=r"on a CUDA GPU, not on cpu: pass CUDA tensors"):
        search_schedule(*call_of())


@needs_gpu
@needs_triton
def test_a_search_times_on_the_gpu_and_changes_no_input():
    call = call_of(torch.bfloat16)
    before, inputs = hstu_attention(*call), [x.clone() for x in call[:3]]
    schedule = search_schedule(*call)
    assert schedule in search.candidates(call)
    assert all(map(torch.equal, inputs, call[:3]))
    # No call without this schedule has changed.
    assert torch.equal(before, hstu_attention(*call))


@needs_gpu
@needs_triton
def test_a_search_during_a_capture_is_an_error():
    call = call_of(torch.bfloat16)
    search_schedule(*call)
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(RuntimeError, match="cannot run while a CUDA graph is captured"),
        torch.cuda.graph(graph),
    ):
        search_schedule(*call)
