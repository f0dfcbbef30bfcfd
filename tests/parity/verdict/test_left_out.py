"""Elements that do not count: at a discontinuity, behind a flip, in the padding; and those that leak."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from parity.capture.captures import Capture
from parity.verdict.bound import bound_for
from parity.verdict.comparison import compare
from parity.verdict.evidence import Results
from parity.verdict.rule import failure
from parity.verdict.sampling_error import FALSE_ALARM
from parity.verdict.standards import MAX_BOUNDARY_FRACTION
from tests.parity.comparisons import (
    APPENDED,
    CHECK,
    FP32,
    OUTPUT,
    SUMS,
    TENSORS,
    B,
    D,
    N,
    evidence_with,
    module_call,
    normal,
    results_with,
)

# Elements that depend on a discontinuity


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize(("rows", "most"), [(7, 2), (32, 4), (100, 6), (10_000, 139)])
def test_the_share_of_rows_at_a_discontinuity(rows, most, width):
    """One row of a few is more than 1 %, by chance. The most that chance has grows as the binomial's tail."""
    assert (MAX_BOUNDARY_FRACTION, FALSE_ALARM) == (0.01, 1e-4)
    assert stats.binom.sf(most, rows, 0.01) < FALSE_ALARM <= stats.binom.sf(most - 1, rows, 0.01)
    for count in (most, most + 1):
        verdicts = _at_a_discontinuity(rows, width, np.arange(rows)[:, None] < count)
        for verdict in verdicts:
            if count == most:
                assert (verdict.boundary, verdict.checked) == (count * width, (rows - count) * width)
            else:
                reason = (
                    f"{count * width} elements depend on a discontinuity, more than chance has of "
                    f"1% of {rows} rows"
                )
                assert repr(verdict) == repr(failure(reason, bound_for(FP32, 1)))


@pytest.mark.parametrize(("count", "passes"), [(48, True), (56, False)])
def test_elements_with_pre_images_of_their_own_add_up_to_rows(count, passes):
    """In 100 rows of 8, the most that chance has are 6 rows; 48 elements are 6 of them."""
    boundary = np.zeros((100, 8), bool)
    boundary[:count, 3] = True
    assert all(verdict.passed is passes for verdict in _at_a_discontinuity(100, 8, boundary))


def test_padding_is_no_row_at_a_discontinuity():
    """Of 100 rows, 4 are valid, and 3 of them at a discontinuity are more than chance has."""
    lengths = np.array([4])
    boundary = (np.arange(100) < 3)[None, :, None]
    valid = {100: np.arange(100)[None, :] < lengths[:, None]}
    verdicts = _at_a_discontinuity((1, 100), 6, boundary, valid)
    assert all("of 4 rows" in verdict.reason for verdict in verdicts)


def _at_a_discontinuity(rows, width, boundary, valid=None):
    """Both verdicts on a right port whose elements lie at a discontinuity."""
    shape = (*np.atleast_1d(rows), width)
    tensor = normal(6, *shape)
    reference = Capture(
        {"bias": tensor}, [module_call("bias")], longest_sums=SUMS, longest_sums_before={"bias": 1}
    )
    exact = {"bias": tensor.double()}
    evidence = evidence_with(
        reference=reference,
        oracle=exact,
        oracle_isolated=exact,
        boundary={"bias": np.broadcast_to(boundary, shape)},
        valid=valid or {},
        batch_size=shape[0],
    )
    port = {"bias": tensor}
    tap = compare(evidence, Results({}, tapped=port, isolated=port, poisoned=port)).tap("bias")
    return tap.accumulated, tap.isolated


def _flipped(places, **changes):
    """A runner whose bias differs from the reference's at a discontinuity, and the rows behind, too."""
    boundary = np.zeros((B, N, D), bool)
    results = results_with()
    for place in places:
        boundary[place] = True
        results.tapped["bias"][place] += 1.0
    # The share at a discontinuity is judged by itself.
    evidence = evidence_with(boundary={"bias": boundary}, **changes)
    return evidence, results


def _left_out(evidence, results):
    return {
        tap.tap: [
            None if verdict is None else verdict.boundary for verdict in (tap.accumulated, tap.isolated)
        ]
        for tap in compare(evidence, results).taps
    }


@pytest.mark.parametrize(
    ("causal", "rows", "batch"),
    [(True, 3, 7), (False, 5, 7)],
)
def test_rows_behind_a_flip_are_left_out(causal, rows, batch):
    """A flip in position 2 of the first sequence: its later rows, and its outputs."""
    evidence, results = _flipped([(0, 2, 1)], causal=causal)
    assert _left_out(evidence, results) == {
        "bias": [1, 1],
        "block.inner": [rows * 3, 0],
        "block": [rows * 2, 0],
        APPENDED: [None, 0],
        OUTPUT: [batch, None],
    }
    # Without a difference at the discontinuity nothing is left out behind it.
    results.tapped["bias"] = TENSORS["bias"].clone()
    assert _left_out(evidence, results)["block"] == [0, 0]


def test_flips_of_several_taps_add_up():
    evidence, results = _flipped([(0, 4, 0)])
    inner = np.zeros((B, N, 3), bool)
    inner[1, 2, 1] = True
    evidence.boundary["block.inner"] = inner
    results.tapped["block.inner"][1, 2, 1] -= 5.0
    left_out = _left_out(evidence, results)
    assert left_out["block"] == [2 * 2, 2 * 2]
    assert left_out[OUTPUT] == [2 * 7, None]
    # A tap that is missing or of another shape has no flips of its own.
    results.tapped["bias"] = results.tapped["bias"][:, :, :2]
    assert _left_out(evidence, results)["block"] == [2, 2]
    del results.tapped["bias"]
    assert _left_out(evidence, results)["block"] == [2, 2]


@pytest.mark.parametrize("causal", [True, False])
def test_a_flip_without_positions_reaches_its_row_of_the_batch(causal):
    """Such as the indices of a top-k: all of sequence 1, and nothing of the others."""
    evidence, results = _flipped([], causal=causal, valid={})
    evidence.boundary[OUTPUT] = np.zeros(tuple(TENSORS[OUTPUT].shape), bool)
    evidence.boundary[OUTPUT][1, 3] = True
    results.tapped[OUTPUT][1, 3] += 1.0
    left_out = _left_out(evidence, results)
    assert left_out["block"] == [N * 2, 0]
    assert left_out["block.inner"] == [N * 3, 0]
    # Beside a flip with positions, both count.
    evidence.boundary["bias"] = np.zeros((B, N, D), bool)
    evidence.boundary["bias"][0, 4, 0] = True
    results.tapped["bias"][0, 4, 0] += 1.0
    assert _left_out(evidence, results)["block"] == [(N + (1 if causal else N)) * 2, 0]


def test_flips_in_sequences_of_two_lengths_reach_whole_rows_of_the_batch():
    evidence, results = _flipped([(0, 4, 0)], valid={})
    other = np.zeros((B, N + 1, 2), bool)
    other[1, 0, 0] = True
    evidence.boundary["wide"] = other
    evidence.reference.tensors["wide"] = normal(8, B, N + 1, 2)
    results.tapped["wide"] = evidence.reference.tensors["wide"] + 1.0
    assert _left_out(evidence, results)["block"] == [2 * N * 2, 0]


def test_a_flip_inside_a_module_reaches_the_module_alone():
    evidence, results = _flipped([])
    evidence.boundary = {"block.inner": np.zeros((B, N, 3), bool)}
    evidence.boundary["block.inner"][0, 3, 0] = True
    results.tapped["block.inner"][0, 3, 0] += 1.0
    assert _left_out(evidence, results)["block"] == [4, 4]
    assert _left_out(evidence, results)["bias"] == [2 * D, 0]


@pytest.mark.parametrize("rows", [2, 3])
def test_rows_behind_flips_are_left_out(rows):
    evidence, results = _flipped([(row, 0, 0) for row in range(rows)], valid={})
    boundary = np.zeros((B, N, 500), bool)
    for row in range(rows):
        boundary[row, 0, 0] = True
    # A wide tap, of which the flips are less than a hundredth.
    evidence.reference.tensors["bias"] = normal(1, B, N, 500)
    evidence.boundary = {"bias": boundary}
    for tensors in (evidence.oracle, evidence.oracle_isolated):
        tensors["bias"] = evidence.reference.tensors["bias"].double()
    for tensors in (results.tapped, results.isolated):
        tensors["bias"] = evidence.reference.tensors["bias"].clone()
    results.tapped["bias"][boundary] += 1.0
    results.poisoned = results.tapped
    comparison = compare(evidence, results)
    assert comparison.passed
    assert comparison.tap("block").accumulated.boundary == rows * N * 2


def test_a_tap_without_the_batch_is_never_behind_a_flip():
    evidence, results = _flipped([(0, 0, 0)])
    for name, shape in {"block": (B + 1, N), "block.inner": ()}.items():
        tensor = normal(9, *shape)
        evidence.reference.tensors[name] = tensor
        evidence.oracle[name] = evidence.oracle_isolated[name] = tensor.double()
        results.tapped[name] = results.isolated[name] = tensor.clone()
    left_out = _left_out(evidence, results)
    assert (left_out["block"], left_out["block.inner"]) == ([0, 0], [0, 0])


def test_incremental_outputs_behind_a_flip_are_left_out():
    evidence, results = _flipped([(0, 2, 1)], reference_incremental={CHECK: TENSORS[OUTPUT]})
    results.incremental = {CHECK: TENSORS[OUTPUT].clone()}
    results.incremental[CHECK][0] += 3.0
    assert compare(evidence, results).checks[CHECK].boundary == 7


# Leaks of the padding


@pytest.mark.parametrize(
    ("tap", "place", "leak"),
    [
        ("bias", (1, 2, 2), "bias"),
        ("bias", (1, 2, 3), ""),
        ("bias", (1, 3, 2), ""),
        ("block", (2, 0, 1), "block"),
        ("block", (2, 1, 1), ""),
        (OUTPUT, (2, 6), OUTPUT),
    ],
)
def test_a_valid_element_that_changes_with_the_padding_is_a_leak(tap, place, leak):
    """Both axes of the bias are as long as the sequence."""
    results = results_with()
    results.poisoned[tap][place] = math.nan
    comparison = compare(evidence_with(), results)
    assert comparison.padding_leak == leak
    assert comparison.passed is not bool(leak)
    assert compare(evidence_with(has_padding=False), results).padding_leak == ""


@pytest.mark.parametrize(("also", "leak"), [("", ""), (OUTPUT, "block")])
def test_a_result_without_a_padded_axis_counts_if_a_valid_one_changes(also, leak):
    """A cell that runs once for each position has results of padded positions, without their axis."""
    evidence, results = evidence_with(), results_with()
    step = normal(9, B, 2)
    evidence.reference.tensors["block"] = step
    evidence.oracle["block"] = evidence.oracle_isolated["block"] = step.double()
    for taken in (results.tapped, results.isolated, results.poisoned):
        taken["block"] = step.clone()
    results.poisoned["block"] += 1.0
    if also:
        results.poisoned[also] += 1.0
    assert compare(evidence, results).padding_leak == leak


def test_the_first_leak_counts_and_a_missing_twin_is_one():
    results = results_with()
    results.poisoned["block"][0, 0, 0] += 1.0
    results.poisoned[OUTPUT][0, 0] += 1.0
    assert compare(evidence_with(), results).padding_leak == "block"
    results.poisoned["block.inner"] = results.poisoned["block.inner"][:2]
    assert compare(evidence_with(), results).padding_leak == "block.inner"
    del results.poisoned["bias"]
    assert compare(evidence_with(), results).padding_leak == "bias"
    clean = dict(results.tapped)
    del clean["bias"]
    assert compare(evidence_with(), dataclasses.replace(results, tapped=clean)).padding_leak == "block.inner"
    results = results_with()
    del results.tapped["block"]
    assert compare(evidence_with(), results).padding_leak == "block"


def test_a_signed_zero_is_a_leak():
    results = results_with()
    for side, zero in ((results.tapped, 0.0), (results.poisoned, -0.0)):
        side["block"][0, 0, 0] = zero
    assert compare(evidence_with(), results).padding_leak == "block"
