"""Errors that the padding carries are named at the call whose padding differs."""

import functools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.in_process import CleanRun
from parity.runners.torch.eager import TorchRunner
from parity.verdict.bound import half_of_digits
from parity.verdict.comparison import compare
from parity.verdict.judgement import Diagnosis, TapJudgement
from parity.verdict.padding import first_padding_leak, through_padding
from tests.parity.comparisons import FP32, evidence_with, normal, results_with
from tests.parity.comparisons import N as LENGTH
from tests.parity.verdict.received_calls import capture
from tests.parity.verdict.test_arguments import Block, Glue, Model, N


class ReadsPadding(Model):
    """Every position attends to all, padding included."""

    def mask(self, ids):
        return torch.ones(N, N, dtype=torch.bool, device=ids.device)


def judged(precision, model=ReadsPadding, **changes):
    """The comparison of a changed model; the reference is `model`."""
    run, runner = CleanRun(Glue(model), PRECISIONS[precision]), TorchRunner()
    faulty = functools.partial(type("Faulty", (model,), changes), Block)
    runner.load(Glue(faulty), run.precision, run.weights)
    return compare(run.evidence, run.results(runner))


def other_padding(self, x):
    """`Model.entering`, and other numbers in the second row behind its two items."""
    x = Model.entering(self, x)
    x[1, 4] += 9
    return x


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_argument_whose_padding_is_read_is_named(precision):
    diagnosis = judged(precision, entering=other_padding).diagnosis
    assert (diagnosis.kind, diagnosis.tap, diagnosis.code) == ("between", "block.attention", "")
    assert diagnosis.argument == "block(x)"
    assert diagnosis.text.startswith("block receives another x in its padding: ")
    assert "8 of 64 elements" in diagnosis.text
    assert "no other difference reaches block.attention; the code of forward makes" in diagnosis.text


def test_padding_that_nothing_reads_is_no_difference():
    assert judged("fp32", Model, entering=other_padding).diagnosis.kind == "none"


def test_a_wrong_argument_goes_before_its_padding():
    diagnosis = judged("fp32", entering=other_padding, mask=Model.mask).diagnosis
    assert diagnosis.argument == "block(mask)"


AMPLIFIED = Diagnosis("amplification", "block.inner", "an error grows")
LIMIT = half_of_digits(FP32.unit_roundoff)
X, WHOLE = normal(8, 4, LENGTH, 3), normal(9, 4, 7)
PADDED = X.clone()
PADDED[2, 3] += 1  # the third sequence has one item


def carried(calls, error=1.0, **origins):
    """The diagnosis of an amplified error behind calls, by name with the port's arguments."""
    facts = {"origins": origins}
    theirs = {call: {name: X if name == "x" else WHOLE for name in values} for call, values in calls.items()}
    reference, port = (
        capture(*((call, values, facts) for call, values in side.items())) for side in (theirs, calls)
    )
    evidence, results = evidence_with(), results_with(received=port)
    evidence.reference.arguments, evidence.reference.call_inputs = reference.arguments, reference.call_inputs
    verdict = SimpleNamespace(
        passed=False, port=SimpleNamespace(l2=error), bound=SimpleNamespace(unit_roundoff=FP32.unit_roundoff)
    )
    tap = TapJudgement(AMPLIFIED.tap, "block.inner", "Module", None if error is None else verdict, None)
    return through_padding(evidence, results, [tap], AMPLIFIED)


@pytest.mark.parametrize("call", ["block", "block.inner"])
def test_the_failing_module_and_those_around_it_are_asked(call):
    own = carried({call: {"x": PADDED}})
    assert (own.kind, own.tap, own.argument) == ("between", AMPLIFIED.tap, f"{call}(x)")
    assert own.explanation[0] == "3 of 21 wrong elements, all at the batch 2; at axis 1 3"


def test_the_same_result_before_the_call_may_have_another_padding():
    own = carried({"block": {"x": PADDED}}, x="bias")
    assert own.argument == "block(x)"
    assert "in place of" not in "".join(own.explanation)


@pytest.mark.parametrize("call", ["bias", "block.other", "block.inner.part", "blocks", "block@1.inner"])
def test_other_modules_are_not(call):
    assert carried({call: {"x": PADDED}}) is AMPLIFIED
    assert carried({call: {"x": PADDED}, "block": {"x": PADDED}}).argument == "block(x)"


def test_only_tensors_with_padding_count():
    assert carried({"block": {"whole": WHOLE + 1}}) is AMPLIFIED
    assert carried({"block": {"whole": WHOLE + 1, "x": PADDED}}).argument == "block(x)"
    assert carried({"block": {"whole": 2.0}, "block.inner": {"x": PADDED}}).argument == "block.inner(x)"


@pytest.mark.parametrize(("error", "told"), [(None, False), (LIMIT, False), (1.001 * LIMIT, True)])
def test_rounding_is_not_carried_by_the_padding(error, told):
    assert (carried({"block": {"x": PADDED}}, error) is not AMPLIFIED) is told


def test_a_leak_of_an_output_without_a_padded_axis_counts():
    """A mask of the case may have all elements of an output count, whatever its shape."""
    evidence = evidence_with(whole_outputs=frozenset({"block"}))
    results = results_with()
    results.poisoned["block"][2, 3] += 1
    assert first_padding_leak(evidence_with(), results) == ""
    assert first_padding_leak(evidence, results) == ""
    results.poisoned["score.out"][0, 0] += 1
    assert first_padding_leak(evidence, results) == "block"
    assert first_padding_leak(replace(evidence, whole_outputs=frozenset()), results) == "score.out"
