"""Comparisons as whole values: every tap of both sides, every reason, the share of elements left out."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.capture.captures import Capture, ModuleCall
from parity.verdict.bound import bound_for
from parity.verdict.comparison import MAX_BOUNDARY_FRACTION, MAX_FLIPPED_FRACTION, Comparison, compare
from parity.verdict.evidence import Evidence, Results
from parity.verdict.judgement import MODEL_OUTPUT, Diagnosis
from parity.verdict.rule import failure, judge
from parity.verdict.sampling_error import RoundingSamples

FP32 = PRECISIONS["fp32"]
B, N, D = 4, 5, 5
LENGTHS = np.array([5, 3, 1, 4])
VALID = np.arange(N) < LENGTHS[:, None]
OUTPUT, APPENDED = "score.out", "append:block"


def _tensor(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double().float()


TENSORS = {
    "bias": _tensor(1, B, N, D),
    "block.inner": _tensor(2, B, N, 3),
    "block": _tensor(3, B, N, 2),
    APPENDED: _tensor(4, B, 2),
    OUTPUT: _tensor(5, B, 7),
}
SUMS = {"bias": 1, "block.inner": 3, "block": 11}
CHECK = "incremental.out"


def _call(tap, outputs=None):
    path = tap.removeprefix("append:")
    return ModuleCall(path, tap, path.title(), [], {}, outputs or (tap,))


def _wide(tensors):
    return {name: tensor.double() for name, tensor in tensors.items()}


def _copies(*names):
    return {name: TENSORS[name].clone() for name in names or TENSORS}


def _evidence(**changes):
    reference = Capture(
        tensors=_copies(),
        calls=[_call(tap) for tap in TENSORS if tap != OUTPUT],
        longest_sums=SUMS,
        longest_sums_before={"bias": 1, "block.inner": 4, "block": 15, APPENDED: 15},
    )
    fields = {
        "precision": FP32,
        "entry": "score",
        "reference": reference,
        "oracle": _wide(TENSORS),
        "oracle_isolated": _wide(_copies("bias", "block.inner", "block", APPENDED)),
        "reference_incremental": {},
        "incremental_outputs": {CHECK: OUTPUT},
        "valid": {N: VALID},
        "batch_size": B,
    }
    return Evidence(**(fields | changes))


def _results(**changes):
    tapped = _copies("bias", "block.inner", "block", OUTPUT)
    fields = {
        "untapped": _copies(OUTPUT),
        "tapped": tapped,
        "isolated": _copies("bias", "block.inner", "block", APPENDED),
        "poisoned": {name: tensor.clone() for name, tensor in tapped.items()},
    }
    return Results(**(fields | changes))


def _text(verdict):
    return None if verdict is None else verdict.reason


def test_every_tap_is_judged_inside_the_model_and_alone():
    comparison = compare(_evidence(), _results())
    assert [(tap.tap, tap.path, tap.kind) for tap in comparison.taps] == [
        ("bias", "bias", "Bias"),
        ("block.inner", "block.inner", "Block.Inner"),
        ("block", "block", "Block"),
        (APPENDED, "block", "Block"),
        (OUTPUT, OUTPUT, MODEL_OUTPUT),
    ]
    inside = {tap.tap: tap.accumulated for tap in comparison.taps}
    alone = {tap.tap: tap.isolated for tap in comparison.taps}
    assert inside.pop(APPENDED) is None
    assert alone.pop(OUTPUT) is None
    modules = {"bias": (1, 1), "block.inner": (4, 2), "block": (15, 3), OUTPUT: (11, 3)}
    for name, verdict in inside.items():
        terms, count = modules[name]
        valid = None if name == OUTPUT else VALID[:, :, None]
        if name == "bias":
            valid = VALID[:, :, None] & VALID[:, None, :]
        exact = TENSORS[name]
        expected = judge(exact.double(), exact, exact, FP32, terms, valid, modules=count)
        assert repr(verdict) == repr(expected)
    for name, verdict in alone.items():
        assert verdict.bound == bound_for(FP32, SUMS[name.removeprefix("append:")], 1)
        assert (verdict.status, verdict.margin) == ("PASS", 0.0)
    assert comparison == Comparison(comparison.taps, {}, "", 0.0, Diagnosis())
    assert comparison.passed
    assert comparison.tap("block") is comparison.taps[2]
    assert comparison.tap("other") is None


def test_a_runner_without_taps_is_judged_by_its_outputs():
    results = Results(untapped=_copies(OUTPUT), taps_modules=False, appends=False)
    evidence = _evidence(reference_incremental={CHECK: TENSORS[OUTPUT]})
    comparison = compare(evidence, results)
    assert [(tap.tap, tap.kind, tap.status) for tap in comparison.taps] == [(OUTPUT, MODEL_OUTPUT, "PASS")]
    assert (comparison.checks, comparison.padding_leak, comparison.observer_difference) == ({}, "", 0.0)
    more = dataclasses.replace(results, untapped=_copies(OUTPUT) | {"z": torch.ones(1), "a": torch.ones(1)})
    extra = compare(evidence, more).taps
    assert [(tap.tap, tap.kind, _text(tap.accumulated)) for tap in extra] == [
        (OUTPUT, MODEL_OUTPUT, ""),
        ("z", "unknown", "extra: the reference has no such module or output"),
        ("a", "unknown", "extra: the reference has no such module or output"),
    ]
    assert repr(extra[1].accumulated) == repr(
        failure("extra: the reference has no such module or output", bound_for(FP32, 1))
    )
    missing = compare(evidence, dataclasses.replace(results, untapped={}))
    assert [_text(tap.accumulated) for tap in missing.taps] == [
        "missing: the port has no such module or output"
    ]


def test_taps_of_one_side_only():
    results = _results()
    results.tapped["z"] = results.isolated["y"] = results.untapped["score.x"] = torch.ones(1)
    taps = compare(_evidence(), results).taps
    assert [(tap.tap, tap.kind) for tap in taps[len(TENSORS) :]] == [
        ("score.x", MODEL_OUTPUT),
        ("y", "unknown"),
        ("z", "unknown"),
    ]
    assert {_text(tap.accumulated) for tap in taps[len(TENSORS) :]} == {
        "extra: the reference has no such module or output"
    }
    assert {tap.isolated for tap in taps[len(TENSORS) :]} == {None}


@pytest.mark.parametrize("changes", [{"appends": False}, {"isolated_oracle": {}}], ids=["runner", "oracle"])
def test_the_incremental_forward_needs_both_sides(changes):
    isolated = changes.pop("isolated_oracle", None)
    evidence = _evidence() if isolated is None else _evidence(oracle_isolated=isolated)
    names = [tap.tap for tap in compare(evidence, _results(**changes)).taps]
    assert APPENDED not in names[: len(TENSORS) - 1]
    # Its results are extra then.
    assert names[len(TENSORS) - 1 :] == []


def test_without_an_isolated_oracle_no_module_is_judged_alone():
    comparison = compare(_evidence(oracle_isolated={}), _results(isolated={}))
    assert {tap.isolated for tap in comparison.taps} == {None}
    assert comparison.passed


MISSING = "missing: the port has no such module or output"
NO_ORACLE = "missing: the oracle has no such tap"


def test_what_is_missing_on_a_side():
    results = _results()
    del results.tapped["bias"], results.isolated["block"]
    evidence = _evidence()
    del evidence.oracle["block.inner"], evidence.oracle_isolated["bias"]
    taps = {tap.tap: tap for tap in compare(evidence, results).taps}
    inside = {name: tap.accumulated.reason for name, tap in taps.items() if tap.accumulated}
    alone = {name: tap.isolated.reason for name, tap in taps.items() if tap.isolated}
    assert inside == {"bias": MISSING, "block.inner": NO_ORACLE, "block": "", OUTPUT: ""}
    assert alone == {"bias": NO_ORACLE, "block.inner": "", "block": MISSING, APPENDED: ""}
    assert repr(taps["bias"].accumulated) == repr(failure(MISSING, bound_for(FP32, 1, 1)))
    assert repr(taps["block.inner"].accumulated) == repr(failure(NO_ORACLE, bound_for(FP32, 4, 2)))
    assert repr(taps["block"].isolated) == repr(failure(MISSING, bound_for(FP32, 11, 1)))


def test_a_module_that_raised():
    results = _results(isolated_problems={"block": "ValueError: no"})
    tap = compare(_evidence(), results).tap("block")
    assert repr(tap.isolated) == repr(failure("the module failed: ValueError: no", bound_for(FP32, 1)))


@pytest.mark.parametrize(("port", "fused"), [(True, False), (False, True), (True, True)])
def test_a_gap_of_the_port_or_of_a_fused_runner(port, fused):
    results = _results(fused={"Block.Inner": "inside Block"} if fused else {})
    del results.tapped["block.inner"], results.isolated["block.inner"], results.poisoned["block.inner"]
    comparison = compare(_evidence(gaps={"Block.Inner": "no such operation"} if port else {}), results)
    gap = comparison.tap("block.inner")
    assert (gap.gap, gap.path, gap.kind) == (
        "no such operation" if port else "inside Block",
        "block.inner",
        "Block.Inner",
    )
    assert (gap.accumulated, gap.isolated, gap.status) == (None, None, "GAP")
    assert comparison.passed


@pytest.mark.parametrize("side", ["tapped", "isolated"])
def test_a_tensor_of_a_module_with_a_gap_is_judged(side):
    results = _results(fused={"Block.Inner": "inside Block"})
    del getattr(results, side)["block.inner"]
    tap = compare(_evidence(), results).tap("block.inner")
    assert (tap.gap, tap.status) == ("", "FAIL")


def test_outputs_of_the_untapped_run_are_judged():
    results = _results()
    results.tapped[OUTPUT] = results.tapped[OUTPUT] + 7.0
    results.poisoned[OUTPUT] = results.tapped[OUTPUT].clone()
    comparison = compare(_evidence(), results)
    assert comparison.passed
    assert comparison.observer_difference == pytest.approx(7.0, rel=1e-6)
    results.untapped[OUTPUT] = results.tapped[OUTPUT]
    assert compare(_evidence(), results).diagnosis.tap == OUTPUT


def test_the_observer_difference_is_the_largest_of_all_outputs():
    results = _results()
    plain = {"score.a": torch.zeros(3), "score.b": torch.zeros(3), "score.c": torch.zeros(0)}
    results.untapped |= plain | {"score.d": torch.zeros(2), "score.e": torch.zeros(2)}
    results.tapped |= {"score.a": torch.tensor([0.0, -3.0, 1.0]), "score.b": torch.tensor([2.0, 0.0, 0.0])}
    results.tapped |= {"score.c": torch.zeros(0), "score.d": torch.full((3,), 9.0)}
    assert compare(_evidence(), results).observer_difference == 3.0


# Elements that depend on a discontinuity


@pytest.mark.parametrize(("count", "passes"), [(1, True), (2, False)])
def test_the_share_of_elements_at_a_discontinuity(count, passes):
    assert MAX_BOUNDARY_FRACTION == 0.01
    tensor = _tensor(6, 10, 10)
    reference = Capture({"bias": tensor}, [_call("bias")], longest_sums=SUMS, longest_sums_before={"bias": 1})
    boundary = np.zeros((10, 10), bool)
    boundary[3, :count] = True
    exact = {"bias": tensor.double()}
    evidence = _evidence(
        reference=reference, oracle=exact, oracle_isolated=exact, boundary={"bias": boundary}, valid={}
    )
    port = {"bias": tensor}
    comparison = compare(evidence, Results({}, tapped=port, isolated=port, poisoned=port))
    assert comparison.passed is passes
    tap = comparison.tap("bias")
    for verdict in (tap.accumulated, tap.isolated):
        if passes:
            assert (verdict.boundary, verdict.checked) == (1, 99)
        else:
            reason = "2 elements depend on a discontinuity, more than 1% of all"
            assert repr(verdict) == repr(failure(reason, bound_for(FP32, 1)))


def _flipped(places, **changes):
    """A runner whose bias differs from the reference's at a discontinuity, and the rows behind, too."""
    boundary = np.zeros((B, N, D), bool)
    results = _results()
    for place in places:
        boundary[place] = True
        results.tapped["bias"][place] += 1.0
    # The share at a discontinuity is judged by itself.
    evidence = _evidence(boundary={"bias": boundary}, **changes)
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
    # Of the bias itself, more than a hundredth is at the discontinuity, and it fails without numbers.
    assert _left_out(evidence, results) == {
        "bias": [0, 0],
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


def test_a_flip_inside_a_module_reaches_the_module_alone():
    evidence, results = _flipped([])
    evidence.boundary = {"block.inner": np.zeros((B, N, 3), bool)}
    evidence.boundary["block.inner"][0, 3, 0] = True
    results.tapped["block.inner"][0, 3, 0] += 1.0
    assert _left_out(evidence, results)["block"] == [4, 4]
    assert _left_out(evidence, results)["bias"] == [2 * D, 0]


@pytest.mark.parametrize(("rows", "passes"), [(2, True), (3, False)])
def test_the_share_of_rows_behind_flips(rows, passes):
    assert MAX_FLIPPED_FRACTION == 0.5
    evidence, results = _flipped([(row, 0, 0) for row in range(rows)], valid={})
    boundary = np.zeros((B, N, 500), bool)
    for row in range(rows):
        boundary[row, 0, 0] = True
    # A wide tap, of which the flips are less than a hundredth.
    evidence.reference.tensors["bias"] = _tensor(1, B, N, 500)
    evidence.boundary = {"bias": boundary}
    for tensors in (evidence.oracle, evidence.oracle_isolated):
        tensors["bias"] = evidence.reference.tensors["bias"].double()
    for tensors in (results.tapped, results.isolated):
        tensors["bias"] = evidence.reference.tensors["bias"].clone()
    results.tapped["bias"][boundary] += 1.0
    results.poisoned = results.tapped
    comparison = compare(evidence, results)
    assert comparison.passed is passes
    if passes:
        assert comparison.tap("block").accumulated.boundary == rows * N * 2
    else:
        reason = f"{rows * N * 2} elements depend on a discontinuity, more than 50% of all"
        assert comparison.tap("block").accumulated.reason == reason


def test_a_tap_without_the_batch_is_never_behind_a_flip():
    evidence, results = _flipped([(0, 0, 0)])
    for name, shape in {"block": (B + 1, N), "block.inner": ()}.items():
        tensor = _tensor(9, *shape)
        evidence.reference.tensors[name] = tensor
        evidence.oracle[name] = evidence.oracle_isolated[name] = tensor.double()
        results.tapped[name] = results.isolated[name] = tensor.clone()
    left_out = _left_out(evidence, results)
    assert (left_out["block"], left_out["block.inner"]) == ([0, 0], [0, 0])


# Checks of the incremental forward


def test_incremental_outputs_equal_the_full_forward():
    evidence = _evidence(reference_incremental={CHECK: TENSORS[OUTPUT]})
    right = compare(evidence, _results(incremental={CHECK: TENSORS[OUTPUT].clone()}))
    exact = TENSORS[OUTPUT]
    expected = judge(exact.double(), exact, exact, FP32, 11, modules=3)
    assert {name: repr(verdict) for name, verdict in right.checks.items()} == {CHECK: repr(expected)}
    wrong = compare(evidence, _results(incremental={CHECK: exact * 1.5}))
    assert not wrong.passed
    assert (wrong.diagnosis.kind, wrong.diagnosis.tap) == ("check", CHECK)
    missing = compare(evidence, _results())
    assert missing.checks[CHECK].reason == MISSING
    assert compare(evidence, _results(appends=False)).checks == {}
    evidence.oracle = {name: tensor for name, tensor in evidence.oracle.items() if name != OUTPUT}
    assert compare(evidence, _results(incremental={CHECK: exact})).checks[CHECK].reason == NO_ORACLE


def test_incremental_outputs_behind_a_flip_are_left_out():
    evidence, results = _flipped([(0, 2, 1)], reference_incremental={CHECK: TENSORS[OUTPUT]})
    results.incremental = {CHECK: TENSORS[OUTPUT].clone()}
    results.incremental[CHECK][0] += 3.0
    assert compare(evidence, results).checks[CHECK].boundary == 7


def test_rounding_samples_belong_to_their_tap_and_place():
    def samples(name, size):
        signs = torch.tensor([1.0, -1.0] * 4, dtype=torch.float64).reshape(-1, *[1] * TENSORS[name].ndim)
        return TENSORS[name].double() * (1 + size * signs)

    oracle = _wide(TENSORS) | {f"rounding_samples:{OUTPUT}": samples(OUTPUT, 1e-3)}
    alone = _wide(_copies("bias", "block.inner", "block", APPENDED))
    alone["rounding_samples:block"] = samples("block", 1e-2)
    evidence = _evidence(oracle=oracle, oracle_isolated=alone, reference_incremental={CHECK: TENSORS[OUTPUT]})
    comparison = compare(evidence, _results(incremental={CHECK: TENSORS[OUTPUT].clone()}))
    limits = {tap.tap: {name: v.limit.l2 for name, v in tap.verdicts.items()} for tap in comparison.taps}
    assert limits[OUTPUT]["accumulated"] > 1e-3
    assert comparison.checks[CHECK].limit.l2 == limits[OUTPUT]["accumulated"]
    assert limits["block"]["isolated"] > 1e-2 > 1e-3 > limits["block"]["accumulated"]
    assert limits["bias"]["isolated"] < 1e-3
    exact = TENSORS[OUTPUT]
    sampled = RoundingSamples(samples(OUTPUT, 1e-3))
    expected = judge(exact.double(), exact, exact, FP32, 11, modules=3, rounding_samples=sampled)
    assert repr(comparison.tap(OUTPUT).accumulated) == repr(expected)


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
    results = _results()
    results.poisoned[tap][place] = math.nan
    comparison = compare(_evidence(), results)
    assert comparison.padding_leak == leak
    assert comparison.passed is not bool(leak)
    assert compare(_evidence(has_padding=False), results).padding_leak == ""


def test_the_first_leak_counts_and_a_missing_twin_is_one():
    results = _results()
    results.poisoned["block"][0, 0, 0] += 1.0
    results.poisoned[OUTPUT][0, 0] += 1.0
    assert compare(_evidence(), results).padding_leak == "block"
    results.poisoned["block.inner"] = results.poisoned["block.inner"][:2]
    assert compare(_evidence(), results).padding_leak == "block.inner"
    del results.poisoned["bias"]
    assert compare(_evidence(), results).padding_leak == "bias"
    clean = dict(results.tapped)
    del clean["bias"]
    assert compare(_evidence(), dataclasses.replace(results, tapped=clean)).padding_leak == "block.inner"
    results = _results()
    del results.tapped["block"]
    assert compare(_evidence(), results).padding_leak == "block"


def test_a_signed_zero_is_a_leak():
    results = _results()
    for side, zero in ((results.tapped, 0.0), (results.poisoned, -0.0)):
        side["block"][0, 0, 0] = zero
    assert compare(_evidence(), results).padding_leak == "block"
