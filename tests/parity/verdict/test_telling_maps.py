"""Error maps of a judgement on one batch: which taps have them, and from which tensors."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.capture.captures import Capture
from parity.verdict.distances import Distance
from parity.verdict.error_map import FAILING, PASSING, with_error_maps, with_telling_maps
from parity.verdict.evidence import Evidence, Results
from tests.parity.judgements import BOUND, DIAGONAL, runner, tap, verdict

B, N = 3, 6
VALID = np.arange(N) < np.array([6, 4, 5])[:, None]
LIMIT = verdict().limit.largest
OUTSIDE = ("", "..", ".")
"""Padding behind each row."""


def off(ratio, row=0, column=0):
    """A result whose error at one element is `ratio` times the limit; the oracle's elements are 1."""
    result = torch.ones(B, N, dtype=torch.float64)
    result[row, column] += ratio * LIMIT
    return result


ONES = torch.ones(B, N, dtype=torch.float64)


def cells(level, row=0, column=0):
    """The cells of `off`'s map: one level beside zeros."""
    lines = [list("0" * (N - len(outside)) + outside) for outside in OUTSIDE]
    lines[row][column] = str(level)
    return tuple("".join(line) for line in lines)


def mapped(judgement, results, oracle=None, isolated=None):
    """The maps of each tap, by name, as their cells."""
    names = [entry.tap for entry in judgement.taps]
    evidence = Evidence(
        precision=PRECISIONS["fp32"],
        entry="score",
        reference=Capture(),
        oracle=dict.fromkeys(names, ONES) if oracle is None else oracle,
        oracle_isolated=dict.fromkeys(names, ONES) if isolated is None else isolated,
        reference_incremental={},
        incremental_outputs={},
        valid={N: VALID},
        batch_size=B,
    )
    judged = with_error_maps(judgement, evidence, results)
    assert [replace(entry, error_maps={}) for entry in judged.taps] == list(judgement.taps)
    for entry in judged.taps:
        for shown in entry.error_maps.values():
            assert (shown.axes, shown.shape) == (("batch", "position"), (B, N))
    return {
        entry.tap: {name: shown.cells for name, shown in entry.error_maps.items()} for entry in judged.taps
    }


INSIDE, ALONE = off(2.0, 1, 1), off(20.0, 2, 2)
RESULTS = Results({}, tapped={"block": INSIDE}, isolated={"block": ALONE})


@pytest.mark.parametrize(
    ("accumulated", "isolated", "shown"),
    [(2.0, 2.0, ["accumulated", "isolated"]), (2.0, 0.5, ["accumulated"]), (0.5, 2.0, ["isolated"])],
)
def test_each_verdict_that_fails_has_a_map_of_its_own_tensors(accumulated, isolated, shown):
    failing = tap("block", accumulated=verdict(accumulated), isolated=verdict(isolated))
    maps = {"accumulated": cells(5, 1, 1), "isolated": cells(7, 2, 2)}
    assert mapped(runner(failing), RESULTS) == {"block": {name: maps[name] for name in shown}}


@pytest.mark.parametrize(
    ("accumulated", "isolated", "shown"), [(0.5, 0.6, "isolated"), (0.6, 0.5, "accumulated")]
)
def test_a_tap_that_passes_has_the_map_of_the_verdict_closest_to_its_limit(accumulated, isolated, shown):
    passing = tap("block", accumulated=verdict(accumulated), isolated=verdict(isolated))
    assert list(mapped(runner(passing), RESULTS)["block"]) == [shown]


def test_the_map_of_an_output_is_that_of_the_run_without_taps():
    results = replace(RESULTS, untapped={"score.output": off(5.0, 1, 3)}, tapped={"score.output": INSIDE})
    output = tap("score.output", accumulated=verdict(3.0), isolated=None)
    assert mapped(runner(output), results) == {"score.output": {"accumulated": cells(6, 1, 3)}}


def test_a_map_needs_both_sides_in_one_shape():
    failing = runner(tap("block", accumulated=verdict(2.0), isolated=verdict(2.0)))
    for results in (Results({}), Results({}, {"block": INSIDE[:, :5]}, {"block": ALONE.flatten()})):
        assert mapped(failing, results) == {"block": {}}
    for oracle in ({}, {"block": ONES[:, :5]}):
        assert mapped(failing, RESULTS, oracle, oracle) == {"block": {}}


def test_a_result_that_is_no_number_has_the_floor_for_its_limit():
    nan = Distance(math.nan, math.nan, math.nan)
    failing = tap("block", accumulated=replace(verdict(2.0), limit=nan), isolated=None)
    result = off(0.0)
    result[0, 1], result[0, 2], result[0, 3] = 1 + 0.9 * BOUND.floor, 1 + 2.9 * BOUND.floor, math.nan
    results = Results({}, tapped={"block": result})
    assert mapped(runner(failing), results)["block"]["accumulated"] == ("045900", *cells(0)[1:])


def test_the_first_failures_and_the_closest_passes_have_maps():
    failing = [tap(f"f{n}", isolated=verdict(3.0 + n), accumulated=None) for n in range(FAILING + 1)]
    passing = [tap(f"p{n}", isolated=verdict(0.1 * n), accumulated=None) for n in range(PASSING + 2)]
    gap = tap("gap", gap="none", isolated=None, accumulated=None)
    taps = (*passing, gap, *failing)
    results = Results({}, isolated={entry.tap: off(1.0) for entry in taps})
    shown = {name for name, maps in mapped(runner(*taps), results).items() if maps}
    assert shown == {*(f"f{n}" for n in range(FAILING)), *(f"p{n}" for n in range(2, PASSING + 2))}


def test_a_pass_without_an_error_needs_no_map():
    exact = tap("exact", isolated=verdict(0.0), accumulated=verdict(0.0))
    results = Results({}, {"exact": ONES}, {"exact": ONES})
    assert mapped(runner(exact), results) == {"exact": {}}


LEAK = {"poisoned": cells(9, 1, 2)}


def test_padding_that_leaks_has_a_map_of_the_changed_elements():
    """Garbage in the padding itself is no change."""
    taps = [tap("before"), tap("leak", isolated=verdict(0.0), accumulated=verdict(0.0))]
    poisoned = off(1e-3, 1, 2)
    poisoned[~torch.from_numpy(VALID)] = 7.0
    results = Results(
        {}, tapped={"leak": ONES, "before": ONES}, poisoned={"leak": poisoned, "before": poisoned}
    )
    judgement = runner(*taps, padding_leak="leak")
    assert mapped(judgement, results)["leak"] == LEAK
    assert "poisoned" not in mapped(judgement, results)["before"]
    assert "poisoned" not in str(mapped(runner(*taps), results))
    failing = runner(tap("leak", accumulated=verdict(2.0), isolated=None), padding_leak="leak")
    assert mapped(failing, results)["leak"] == {"accumulated": cells(0), **LEAK}


def test_a_leak_has_no_map_without_both_runs():
    leaking = runner(tap("leak", isolated=verdict(0.0), accumulated=verdict(0.0)), padding_leak="leak")
    for results in (
        Results({}, tapped={"leak": ONES}),
        Results({}, poisoned={"leak": ONES}),
        Results({}, tapped={"leak": ONES}, poisoned={"leak": off(1.0)[:, :5]}),
        Results({}, tapped={"leak": ONES[:, 0]}, poisoned={"leak": off(1.0)[:, 0]}),
    ):
        assert mapped(leaking, results) == {"leak": {}}


def test_over_all_batches_a_map_that_no_longer_tells_is_dropped():
    maps = {"isolated": DIAGONAL}
    close = [tap(f"p{n}", isolated=verdict(0.5 + 0.01 * n), error_maps=maps) for n in range(PASSING)]
    far = tap("far", isolated=verdict(0.1), accumulated=verdict(0.1), error_maps=maps)
    leak = tap("leak", isolated=verdict(0.0), accumulated=verdict(0.0), error_maps={"poisoned": DIAGONAL})
    judged = with_telling_maps(runner(far, *close, leak, padding_leak="leak"))
    assert {entry.tap: entry.error_maps for entry in judged.taps} == {
        "far": {},
        **{entry.tap: maps for entry in close},
        "leak": leak.error_maps,
    }


def test_elements_at_a_discontinuity_are_outside():
    boundary = np.zeros((B, N), bool)
    boundary[0, 1] = True
    evidence = Evidence(
        PRECISIONS["fp32"], "score", Capture(), {"a": ONES}, {"a": ONES}, {}, {}, {N: VALID}, B
    )
    evidence = replace(evidence, boundary={"a": boundary})
    results = Results(untapped={}, tapped={"a": off(2.0)}, isolated={"a": ONES}, poisoned={"a": off(9.0)})
    judgement = runner(tap("a", accumulated=verdict(2.0)), padding_leak="a", verdict="FAIL")
    (entry,) = with_error_maps(judgement, evidence, results).taps
    assert {name: shown.cells[0][:2] for name, shown in entry.error_maps.items()} == {
        "accumulated": "5.",
        "poisoned": "9.",
    }
