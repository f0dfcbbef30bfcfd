"""A call that one side alone makes is a gap, except where it may cause the first other failure."""

from dataclasses import replace

import pytest

from parity.capture.arguments import Received
from parity.capture.captures import Capture, ModuleCall
from parity.capture.names import TapName
from parity.verdict.calls import without_spare_calls
from parity.verdict.comparison import compare
from parity.verdict.judgement import TapJudgement
from tests.parity.comparisons import (
    APPENDED,
    OUTPUT,
    SUMS,
    TENSORS,
    copies,
    evidence_with,
    module_call,
    results_with,
    wide,
)
from tests.parity.judgements import tap as made_tap
from tests.parity.judgements import verdict

AGAIN = str(TapName("block", 1))
OTHER = TENSORS["block"] - 0.5
"""The result of the second call: another one than that of the first."""


def stated(path, kind):
    return f"{path} of {kind}"


def of_reference(absence=stated, again=OTHER):
    """The evidence of a reference that calls `block` twice."""
    tensors = copies("bias", "block.inner", "block")
    tensors[AGAIN] = again.clone()
    tensors |= copies(APPENDED, OUTPUT)
    calls = [module_call(tap) for tap in tensors if tap not in (OUTPUT, AGAIN)]
    calls.insert(3, ModuleCall("block", AGAIN, "Block", [], {}, (AGAIN,)))
    reference = Capture(
        tensors=tensors,
        calls=calls,
        longest_sums=SUMS,
        longest_sums_before={"bias": 1, "block.inner": 4, "block": 15, AGAIN: 15, APPENDED: 15},
    )
    isolated = wide({tap: tensor for tap, tensor in tensors.items() if tap != OUTPUT})
    return evidence_with(reference=reference, oracle=wide(tensors), oracle_isolated=isolated, absence=absence)


def once(again=OTHER):
    """The results of a port that calls `block` once; alone, its module runs on both calls."""
    results = results_with()
    results.isolated[AGAIN] = again.clone()
    return results


def judged(evidence, results, tap=AGAIN):
    return compare(evidence, results).tap(tap)


def gap(side, kind="Block"):
    return TapJudgement(AGAIN, "block", kind, None, None, f"the {side} alone makes this call")


def test_a_call_of_the_reference_alone():
    comparison = compare(of_reference(), once())
    assert comparison.tap(AGAIN) == gap("reference")
    assert comparison.passed
    assert all(tap.gap == "" and tap.passed for tap in comparison.taps if tap.tap != AGAIN)


def test_a_call_that_one_side_may_have_is_told_by_its_path_and_kind():
    def of_block(path, kind):
        return "stated" if (path, kind) == ("block", "Block") else ""

    assert judged(of_reference(of_block), once()) == gap("reference")


@pytest.mark.parametrize(
    ("accumulated", "is_gap"), [(verdict(0.5), True), (verdict(2.0), False), (None, False)]
)
def test_a_call_has_no_effect_where_the_module_that_makes_it_is_right(accumulated, is_gap):
    evidence, results = of_reference(), once()
    received = Received(parent="outer", finished=0, longest_sum_before=0, arguments=())
    evidence.reference.arguments = {AGAIN: received}
    missing = TapJudgement(AGAIN, "block", "Block", verdict(2.0), None)
    outer = made_tap("outer", accumulated=accumulated, isolated=verdict(0.5))
    taps = (missing, outer, made_tap("later", accumulated=verdict(2.0)))
    found = without_spare_calls(evidence, results, taps)
    assert found == ((gap("reference") if is_gap else missing), *taps[1:])


def test_a_call_of_the_port_alone():
    results = results_with()
    results.tapped[AGAIN] = TENSORS["block"].clone()
    comparison = compare(evidence_with(absence=stated), results)
    own = comparison.tap(AGAIN)
    assert (own.gap, own.status) == ("the port alone makes this call", "GAP")
    assert comparison.passed
    # It has the result of the other call, and causes no failure.
    results.tapped["bias"] += 1.0
    assert judged(evidence_with(absence=stated), results).status == "GAP"
    # The place of another result among the reference's calls is unknown, so it may cause any failure.
    results.tapped[AGAIN] += 1.0
    assert judged(evidence_with(absence=stated), results).status == "FAIL"
    # The result of a further call that the port alone makes says nothing.
    further = str(TapName("block", 2))
    results.tapped[further] = results.tapped[AGAIN].clone()
    assert judged(evidence_with(absence=stated), results).status == "FAIL"


@pytest.mark.parametrize(("named", "status"), [("block", "GAP"), ("bias", "FAIL")])
def test_a_call_of_the_reference_alone_with_the_result_of_another_one_causes_no_failure(named, status):
    """A right port may use the result of one call twice. The results behind it are judged."""
    again = TENSORS[named]
    evidence, results = of_reference(again=again), once(again)
    results.untapped[OUTPUT] = results.untapped[OUTPUT] + 1.0
    assert judged(evidence, results).status == status
    assert judged(evidence, results, OUTPUT).status == "FAIL"
    del results.tapped["block"]
    assert judged(evidence, results).status == "FAIL"


@pytest.mark.parametrize(("failing", "status"), [("bias", "GAP"), ("block", "GAP"), (OUTPUT, "FAIL")])
def test_a_call_of_the_reference_may_cause_a_later_failure_and_no_earlier_one(failing, status):
    results = once()
    side = results.untapped if failing == OUTPUT else results.tapped
    side[failing] = side[failing] + 1.0
    assert judged(of_reference(), results).status == status
    assert judged(of_reference(), results, failing).status == "FAIL"


@pytest.mark.parametrize(("caller", "status"), [("block.inner", "GAP"), ("", "FAIL"), ("other", "FAIL")])
def test_a_call_of_a_module_whose_result_is_right_causes_no_failure(caller, status):
    evidence, results = of_reference(), once()
    received = Received(parent=caller, finished=0, longest_sum_before=0, arguments=())
    evidence.reference.arguments[AGAIN] = received
    results.untapped[OUTPUT] = results.untapped[OUTPUT] + 1.0
    assert judged(evidence, results).status == status
    results.tapped["block.inner"] = results.tapped["block.inner"] + 1.0
    evidence.reference.arguments[AGAIN] = replace(received, parent="block.inner")
    assert judged(evidence, results).status == "GAP"  # The failure is before the call.


def test_the_result_behind_a_call_of_one_side_is_named_beside_it():
    results = once()
    results.untapped[OUTPUT] = results.untapped[OUTPUT] + 1.0
    text = compare(of_reference(), results).diagnosis.text
    assert text.startswith(f"{AGAIN}: missing: ")
    assert text.endswith(f"; {OUTPUT} is the first result with other numbers")


def test_the_case_must_allow_that_one_side_lacks_a_call():
    assert judged(of_reference(lambda path, kind: ""), once()).status == "FAIL"
    received = []
    judged(of_reference(lambda path, kind: received.append((path, kind)) or "so"), once())
    assert ("block", "Block") in received


def test_a_module_that_fails_alone_is_no_spare_call():
    results = once()
    results.isolated[AGAIN] += 1.0
    assert judged(of_reference(), results).status == "FAIL"


def test_a_call_of_both_sides_is_no_spare_call():
    results = once()
    results.tapped[AGAIN] = TENSORS["block"] + 1.0
    assert judged(of_reference(), results).status == "FAIL"


def test_an_output_is_no_spare_call():
    results = once()
    del results.tapped[OUTPUT], results.untapped[OUTPUT]
    assert judged(of_reference(), results, OUTPUT).status == "FAIL"


def test_a_comparison_has_its_evidence():
    evidence = evidence_with()
    assert compare(evidence, results_with()).evidence is evidence
    arguments = {"block": Received(parent="", finished=0, longest_sum_before=0, arguments=())}
    with_arguments = results_with(received=Capture(arguments=arguments))
    assert compare(evidence, with_arguments).evidence is evidence
