"""Errors that the padding carries are named at the call whose padding differs."""

import functools
from dataclasses import replace

import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.in_process import CleanRun
from parity.runners.torch.eager import TorchRunner
from parity.verdict.bound import bound_for, half_of_digits
from parity.verdict.comparison import compare
from parity.verdict.distances import Distance
from parity.verdict.judgement import Diagnosis, TapJudgement
from parity.verdict.padding import first_padding_leak, through_padding
from parity.verdict.rule import failure
from tests.parity.comparisons import FP32, evidence_with, normal, results_with
from tests.parity.comparisons import N as LENGTH
from tests.parity.judgements import tap, verdict
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
    amplified = None
    if error is not None:
        amplified = replace(failure("larger", bound_for(FP32, 1)), port=Distance(error, error, 0.0))
    tap = TapJudgement(AMPLIFIED.tap, "block.inner", "Module", amplified, None)
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


@pytest.mark.parametrize("later", ["block.inner@1", "block@1"])
def test_a_call_behind_the_failing_one_is_not_asked(later):
    """It may receive what the error has changed."""
    assert carried({"block": {"x": X}, "block.inner": {"x": X}, later: {"x": PADDED}}) is AMPLIFIED
    assert carried({"block.inner@1": {"x": PADDED}}) is AMPLIFIED


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


PASSES, FAILS = verdict(), verdict(2.0)
INNER, BLOCK = (tap(path, "Module", isolated=PASSES) for path in ("block.inner", "block"))


def behind(diagnosis, *taps, call="block", error=1.0, is_alone=None):
    """The diagnosis of an error at "block.inner.part", with another padding of `x` at a call."""
    reference, port = (capture((call, {"x": x})) for x in (X, PADDED))
    evidence, results = evidence_with(), results_with(received=port)
    evidence.reference.arguments, evidence.reference.call_inputs = reference.arguments, reference.call_inputs
    error = replace(FAILS, port=replace(FAILS.port, l2=error))
    part = tap("block.inner.part", "Module", accumulated=error, isolated=is_alone)
    return through_padding(evidence, results, [part, *taps], diagnosis)


INSIDE = Diagnosis("module", "block.inner.part", "block.inner.part (Module): exceeds")
BETWEEN = Diagnosis("between", "block.inner.part", "a wrong argument", code="block.inner")
"""Diagnoses of a module that does not run alone, and of the code around it."""


@pytest.mark.parametrize("diagnosis", [INSIDE, BETWEEN])
@pytest.mark.parametrize("taps", [(INNER, BLOCK), (BLOCK, INNER)])
def test_the_padding_of_the_innermost_module_that_is_right_alone_is_named(diagnosis, taps):
    found = behind(diagnosis, *taps)
    assert (found.kind, found.tap, found.code, found.argument) == (
        "between",
        "block.inner",
        "block",
        "block(x)",
    )
    assert found.text == (
        "block receives another x in its padding: 3 of 21 elements, all at the batch 2; at axis 1 3; "
        "block.inner passes on its own, and no other difference reaches block.inner; "
        "the code of block makes the argument"
    )
    assert behind(diagnosis, *taps, call="block.inner").argument == "block.inner(x)"
    assert behind(diagnosis, *taps, call="block.inner.part") is diagnosis


def test_the_code_that_makes_a_wrong_argument_tells_the_module():
    block = replace(BETWEEN, code="block")
    found = behind(block, INNER, BLOCK)
    assert (found.tap, found.argument) == ("block", "block(x)")
    assert behind(block, INNER, BLOCK, call="block.inner") is block
    # The code of the entry is in no module, and the module of a wrong argument may be right alone.
    entry = replace(BETWEEN, code="")
    assert behind(entry, INNER, BLOCK) is entry
    assert behind(BETWEEN, INNER, BLOCK, is_alone=PASSES).tap == "block.inner"


@pytest.mark.parametrize("diagnosis", [INSIDE, BETWEEN])
def test_without_a_module_around_that_is_right_alone_the_diagnosis_stays(diagnosis):
    wrong = tap("block.inner", "Module", isolated=FAILS)
    unknown = tap("block.inner", "Module", isolated=None)
    beside = tap("block.in", "Module"), tap("other", "Module"), tap("block.inner.part.x", "Module")
    for taps in ((), (wrong,), (wrong, BLOCK), (unknown,), beside):
        assert behind(diagnosis, *taps) is diagnosis
    assert behind(diagnosis, unknown, BLOCK).tap == "block"
    # Nor where the error is one of rounding, or the place has no result.
    assert behind(diagnosis, INNER, error=LIMIT) is diagnosis
    other = replace(diagnosis, tap="elsewhere")
    assert behind(other, INNER) is other


@pytest.mark.parametrize("alone", [PASSES, FAILS])
def test_a_module_that_is_judged_alone_is_not_told_by_those_around_it(alone):
    assert behind(INSIDE, INNER, BLOCK, is_alone=alone) is INSIDE


def test_every_module_passes_on_its_own_where_an_error_grows():
    text = carried({"block": {"x": PADDED}}).text
    assert text == (
        "block receives another x in its padding: 3 of 21 elements, all at the batch 2; at axis 1 3; "
        "every module passes on its own, and no other difference reaches block.inner; "
        "the code of block makes the argument"
    )
