"""`compare` where a side has calls or results of its own, another form of values, or a form of its own."""

from dataclasses import replace

import pytest
import torch

from parity.verdict.comparison import compare
from parity.verdict.judgement import TapJudgement
from tests.parity.comparisons import (
    APPENDED,
    OUTPUT,
    SUMS,
    TENSORS,
    B,
    N,
    evidence_with,
    module_call,
    normal,
    results_with,
    wide,
)
from tests.parity.verdict.received_calls import capture

SECOND = "block[1]"
LAST = normal(11, B, N, 3)


def absence(path, kind):
    """The case allows modules of one side, and tells the path and kind that it is asked for."""
    return f"{path} of {kind}"


def of_two_results(evidence, side):
    """A second result of `block` that one side alone returns; it runs alone on both."""
    reference = evidence.reference
    calls = [
        module_call("block", ("block", SECOND) if side == "reference" else ("block",))
        if call.tap == "block"
        else call
        for call in reference.calls
    ]
    before = reference.longest_sums_before | {SECOND: 15}
    tensors = dict(reference.tensors)
    if side == "reference":
        tensors = {tap: TENSORS[tap] for tap in TENSORS if tap != OUTPUT} | {
            SECOND: LAST,
            OUTPUT: TENSORS[OUTPUT],
        }
    return replace(
        evidence, reference=replace(reference, calls=calls, tensors=tensors, longest_sums_before=before)
    )


@pytest.mark.parametrize("side", ["reference", "port"])
def test_a_result_that_one_side_alone_returns_is_a_gap_where_the_case_allows_it(side):
    evidence, results = of_two_results(evidence_with(absence=absence), side), results_with()
    if side == "port":
        results.tapped[SECOND] = results.poisoned[SECOND] = LAST
    comparison = compare(evidence, results)
    kind = "Block" if side == "reference" else "unknown"
    gap = TapJudgement(SECOND, "block", kind, None, None, f"the {side} alone returns its result [1]")
    assert (comparison.tap(SECOND), comparison.passed) == (gap, True)
    strict = compare(replace(evidence, absence=lambda path, kind: ""), results)
    assert (strict.passed, strict.diagnosis.tap) == (False, SECOND)


@pytest.mark.parametrize(("allows", "passed"), [(absence, True), (lambda path, kind: "", False)])
def test_a_module_of_the_port_alone_is_a_gap_where_the_case_allows_it(allows, passed):
    results = results_with()
    for part in (results.tapped, results.poisoned, results.isolated):
        part["dropout[0]"] = LAST
    comparison = compare(evidence_with(absence=allows), results)
    own = comparison.tap("dropout[0]")
    assert (comparison.passed, own.passed, own.kind) == (passed, passed, "unknown")
    assert own.gap == ("dropout of unknown" if passed else "")
    if passed:
        assert own.path == "dropout"
    else:
        assert own.accumulated.reason == "extra: the reference never calls dropout"


def test_a_further_result_of_a_module_that_the_reference_calls_is_no_module_of_the_port_alone():
    results = results_with()
    results.tapped = {tap: tensor for tap, tensor in results.tapped.items() if tap != "bias"}
    results.tapped["bias[1]"] = LAST
    comparison = compare(evidence_with(absence=absence), results)
    assert not comparison.tap("bias[1]").passed
    assert not comparison.passed


def looked_up(rows, absence=absence, kind="EmbeddingBag"):
    """The comparison of a bag `block` whose rows the port looks up."""
    evidence, results = evidence_with(absence=absence), results_with()
    calls = [replace(call, kind=kind) if call.tap == "block" else call for call in evidence.reference.calls]
    evidence = replace(evidence, reference=replace(evidence.reference, calls=calls))
    results.tapped["block"] = results.poisoned["block"] = rows
    return compare(evidence, results)


def test_a_bag_whose_rows_the_port_looks_up_is_a_gap():
    rows = normal(12, B, N, 6, 2)
    text = "the port looks its rows up alone; the results behind them are judged"
    comparison = looked_up(rows)
    assert (comparison.tap("block"), comparison.passed) == (
        TapJudgement("block", "block", "EmbeddingBag", None, None, text),
        True,
    )
    for other in (
        looked_up(rows, lambda path, kind: ""),
        looked_up(rows, kind="Embedding"),
        looked_up(normal(12, B, N, 6, 3)),
        looked_up(normal(12, B, 6, 2)),
    ):
        assert not other.passed
        assert not other.tap("block").passed


@pytest.mark.parametrize("form", ["", "PyTorch returns a sparse tensor, compared as a dense one"])
def test_the_form_of_a_result_is_told_with_the_reason_of_its_failure(form):
    evidence, results = evidence_with(), results_with()
    evidence.reference.forms.update({OUTPUT: form} if form else {})
    results.untapped[OUTPUT] = results.untapped[OUTPUT][:, :3]
    reason = compare(evidence, results).tap(OUTPUT).accumulated.reason
    assert reason.endswith(f"; {form}") is bool(form)
    assert "shape" in reason
    assert compare(evidence, results_with()).tap(OUTPUT).passed


def test_a_call_with_its_axes_in_another_order_passes_with_results_in_the_reference_s():
    x = normal(7, B, N, N)
    evidence = evidence_with(oracle_received=capture(("bias", {"x": x.double()})), valid={})
    own, port = capture(("bias", {"x": x})), capture(("bias", {"x": x.transpose(1, 2)}))
    evidence.reference.arguments, evidence.reference.call_inputs = own.arguments, own.call_inputs
    results = results_with(received=port)
    for part in (results.tapped, results.poisoned):
        part["bias"] = TENSORS["bias"].transpose(1, 2)
    comparison = compare(evidence, results)
    assert comparison.passed
    assert comparison.results.in_forms == {"bias": "they have their axes in another order"}
    assert torch.equal(comparison.results.tapped["bias"], TENSORS["bias"])
    # Without arguments nothing tells a form.
    assert not compare(evidence, replace(results, received=capture())).passed
    assert compare(evidence, results_with(received=own)).results is None


def test_calls_without_a_partner_are_told_with_the_comparison():
    """The reference calls `block` twice, and the port once for both, with results of another shape."""
    again = "block@1"
    tensors = {tap: TENSORS[tap] for tap in ("bias", "block.inner", "block")}
    tensors |= {again: TENSORS["block"], OUTPUT: TENSORS[OUTPUT]}
    evidence = evidence_with(absence=absence)
    calls = [call for call in evidence.reference.calls if call.tap != APPENDED]
    calls.append(replace(module_call("block", (again,)), tap=again))
    reference = replace(
        evidence.reference,
        tensors=tensors,
        calls=calls,
        longest_sums=SUMS,
        longest_sums_before=evidence.reference.longest_sums_before | {again: 15},
    )
    isolated = {tap: tensor.double() for tap, tensor in tensors.items() if tap != OUTPUT}
    evidence = replace(evidence, reference=reference, oracle=wide(tensors), oracle_isolated=isolated)
    results = results_with()
    del results.isolated[APPENDED]
    results.isolated[again] = TENSORS["block"].clone()
    for part in (results.tapped, results.poisoned):
        part["block"] = normal(13, 2 * B, N, 2)
    comparison = compare(evidence, results)
    counts = "the port calls block once, the reference 2 times"
    assert comparison.without_partner == {"block": counts}
    assert comparison.passed, comparison.diagnosis
    assert compare(evidence, replace(results, received=capture(("bias", {"x": 2.0})))).without_partner == {
        "block": counts
    }
