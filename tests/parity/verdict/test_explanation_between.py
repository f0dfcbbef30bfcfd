"""The cause of an error in the code between modules: which tensor is searched, and what may change."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from parity.verdict import explanation
from parity.verdict.comparison import compare
from parity.verdict.explanation import explain_between, with_cause
from parity.verdict.judgement import MODEL_OUTPUT, ArgumentDifference, CallJudgement, Diagnosis
from parity.verdict.port_choices import PortChoices
from parity.verdict.rule import failure
from tests.parity.comparisons import OUTPUT, TENSORS, evidence_with, results_with
from tests.parity.judgements import BOUND, tap, verdict

INPUTS = {"x": torch.zeros(1)}


class Rerun:
    """Stands in for runs of the oracle: the target and the inputs of a run are its result."""

    def __init__(self, running=()):
        self.running = list(running)

    def inputs(self):
        return INPUTS

    def until(self, target, inputs):
        return target, inputs


def calls_of(*values):
    """Calls of `block` that receive other arguments: their names, kinds and tensors."""
    return tuple(
        CallJudgement(call, "", (ArgumentDifference(name, kind, "other", failed=failed),))
        for call, name, kind, failed in values
    )


WRONG = "the wrong tensor"
CALLS = calls_of(
    ("block", "other", "value", "another argument"),
    ("bias", "mask", "value", "another call"),
    ("block", "mask", "form", "another form"),
    ("block@1", "mask", "value", WRONG),
)


def asked(
    monkeypatch,
    diagnosis,
    running=(),
    text="a cause",
    calls=CALLS,
    rerun=True,
    taps=(),
    judged=None,
    **evidence,
):
    """The searches for a cause, and the explanation; `judged` has other judgements on taps of the model."""
    searches = []

    def cause(program, failed, others):
        searches.append((program.run("changed"), program.arguments, failed, program.is_changeable()))
        searches.extend(
            (other.program.run("changed"), other.program.arguments, other.result) for other in others
        )
        for other in others:
            assert other.program.is_changeable() is program.is_changeable()
        assert all(own.choices is evidence.choices for own in (program, *(other.program for other in others)))
        return text

    monkeypatch.setattr(explanation, "cause", cause)
    results = results_with()
    results.untapped[OUTPUT] = 2 * TENSORS[OUTPUT]
    results.tapped["bias"] = 3 * TENSORS["bias"]
    evidence = evidence_with(**evidence)
    evidence.choices = PortChoices({}, {}, {})
    comparison = compare(evidence, results)
    evidence.rerun = Rerun(running) if rerun else None
    present = [(judged or {}).get(tap.tap, tap) for tap in comparison.taps]
    comparison = replace(comparison, diagnosis=diagnosis, calls=calls, taps=(*present, *taps))
    return searches, explain_between(evidence, results, comparison)


ARGUMENT = Diagnosis("between", "block", argument="block@1(mask)")


def test_the_argument_that_the_diagnosis_names_is_searched(monkeypatch):
    searches, texts = asked(monkeypatch, ARGUMENT)
    assert searches == [(("block@1(mask)", "changed"), INPUTS, WRONG, True)]
    assert texts == ("a cause",)


@pytest.mark.parametrize("argument", ["block@2(mask)", "block@1(query)", "block(mask)"])
def test_an_argument_without_a_wrong_tensor_is_not(monkeypatch, argument):
    diagnosis = Diagnosis("between", OUTPUT, argument=argument)
    assert asked(monkeypatch, diagnosis) == ([], ())


def test_an_output_that_the_code_of_the_entry_makes_is_searched(monkeypatch):
    searches, texts = asked(monkeypatch, Diagnosis("between", OUTPUT))
    ((run, inputs, failed, may_change),) = searches
    assert (run, inputs, may_change, texts) == ((OUTPUT, "changed"), INPUTS, True, ("a cause",))
    assert torch.equal(torch.from_numpy(failed.oracle), TENSORS[OUTPUT].double())
    assert torch.equal(torch.from_numpy(failed.port), 2 * TENSORS[OUTPUT].double())
    assert failed.counted.all()


def test_a_cause_leaves_the_right_outputs_of_the_model_as_they_are(monkeypatch):
    right = {OUTPUT: tap(OUTPUT, MODEL_OUTPUT)}
    unjudged = {OUTPUT: tap(OUTPUT, MODEL_OUTPUT, accumulated=None)}
    (_, other), texts = asked(monkeypatch, ARGUMENT, judged=right)
    run, inputs, result = other
    assert texts == ("a cause",)
    assert (run, inputs) == ((OUTPUT, "changed"), INPUTS)
    assert torch.equal(torch.from_numpy(result.oracle), TENSORS[OUTPUT].double())
    assert torch.equal(torch.from_numpy(result.port), 2 * TENSORS[OUTPUT].double())
    assert result.limit == right[OUTPUT].accumulated.limit
    assert len(asked(monkeypatch, ARGUMENT, judged=unjudged)[0]) == 1
    (_, *others), _ = asked(monkeypatch, ARGUMENT, taps=[right[OUTPUT]] * 7)
    assert len(others) == explanation.MOST_OTHERS
    # An operation of a right module is changed for none of them.
    (first, *others), texts = asked(monkeypatch, ARGUMENT, running=["block"], judged=right)
    assert (first[-1], len(others), texts) == (False, 1, ("a cause",))
    boundary = np.zeros(TENSORS[OUTPUT].shape, bool)
    boundary[0, 0] = True
    (_, other), _ = asked(monkeypatch, ARGUMENT, judged=right, boundary={OUTPUT: boundary})
    assert (other[2].counted == ~boundary).all()


def test_elements_of_an_output_at_a_discontinuity_do_not_count(monkeypatch):
    boundary = np.zeros(TENSORS[OUTPUT].shape, bool)
    boundary[0, 0] = True
    (search,), _ = asked(monkeypatch, Diagnosis("between", OUTPUT), boundary={OUTPUT: boundary})
    assert (search[2].counted == ~boundary).all()


def test_an_output_that_passes_or_is_gone_is_not(monkeypatch):
    assert asked(monkeypatch, Diagnosis("between", "block")) == ([], ())
    assert asked(monkeypatch, Diagnosis("between", "gone")) == ([], ())


@pytest.mark.parametrize(
    ("running", "may_change"),
    [([], True), (["wrong", "missing"], True), (["block"], False), (["wrong", "block", "inner"], False)],
)
def test_the_code_of_modules_that_are_right_alone_stays(monkeypatch, running, may_change):
    taps = (
        tap("wrong", isolated=verdict(2.0)),
        tap("missing", isolated=None),
    )
    searches, _ = asked(monkeypatch, ARGUMENT, running, taps=taps)
    assert [change for *_, change in searches] == [may_change]


def test_other_failures_and_batches_without_weights_have_no_search(monkeypatch):
    assert asked(monkeypatch, replace(ARGUMENT, kind="module")) == ([], ())
    assert asked(monkeypatch, ARGUMENT, rerun=False) == ([], ())


NO_RESULT = failure("missing", BOUND)
MODULE = Diagnosis("module", "bias")
FAILS_INSIDE = tap("bias", isolated=None, accumulated=verdict(2.0))


def test_a_module_that_does_not_run_alone_is_searched_by_its_result_inside(monkeypatch):
    searches, texts = asked(monkeypatch, MODULE, judged={"bias": FAILS_INSIDE})
    ((run, inputs, failed, may_change),) = searches
    assert (run, inputs, texts) == (("bias", "changed"), INPUTS, ("a cause",))
    assert torch.equal(torch.from_numpy(failed.oracle), TENSORS["bias"].double())
    assert torch.equal(torch.from_numpy(failed.port), (3 * TENSORS["bias"]).double())
    assert failed.limit == FAILS_INSIDE.accumulated.limit
    assert not may_change, "the code outside of the module stays"


@pytest.mark.parametrize(
    ("running", "may_change"), [(["bias"], True), (["bias", "block.inner"], False), (["other"], False)]
)
def test_only_the_code_of_such_a_module_may_change(monkeypatch, running, may_change):
    searches, _ = asked(monkeypatch, MODULE, running, judged={"bias": FAILS_INSIDE})
    assert [change for *_, change in searches] == [may_change]


def test_elements_of_such_a_module_at_a_discontinuity_do_not_count(monkeypatch):
    boundary = np.zeros(TENSORS["bias"].shape, bool)
    boundary[0, 0] = True
    (search,), _ = asked(monkeypatch, MODULE, judged={"bias": FAILS_INSIDE}, boundary={"bias": boundary})
    assert not search[2].counted[0, 0].any()


@pytest.mark.parametrize(
    "changes",
    [
        {"isolated": verdict(2.0), "accumulated": verdict(2.0)},
        {"isolated": verdict(2.0), "accumulated": None},
        {"isolated": None, "accumulated": verdict(0.5)},
        {"isolated": None, "accumulated": None},
    ],
)
def test_a_module_that_is_judged_alone_or_is_right_inside_is_not(monkeypatch, changes):
    assert asked(monkeypatch, MODULE, judged={"bias": tap("bias", **changes)}) == ([], ())


NEVER_CALLED = {"bias": tap("bias", accumulated=NO_RESULT)}


@pytest.mark.parametrize(
    ("running", "may_change"), [([], True), (["bias"], True), (["block"], False), (["block.inner"], False)]
)
def test_a_module_that_the_port_never_calls_is_a_part_of_the_code_of_the_output(
    monkeypatch, running, may_change
):
    searches, texts = asked(monkeypatch, MODULE, running, judged=NEVER_CALLED)
    ((run, inputs, failed, change),) = searches
    assert (run, inputs, change, texts) == ((OUTPUT, "changed"), INPUTS, may_change, ("a cause",))
    assert torch.equal(torch.from_numpy(failed.oracle), TENSORS[OUTPUT].double())
    assert torch.equal(torch.from_numpy(failed.port), 2 * TENSORS[OUTPUT].double())


def test_the_code_of_a_module_that_has_no_verdict_inside_and_is_right_alone_stays(monkeypatch):
    """As of a call while one item is appended, whose full forward is another one."""
    judged = {"bias": tap("bias", accumulated=None)}
    searches, _ = asked(monkeypatch, ARGUMENT, ["bias"], judged=judged)
    assert [change for *_, change in searches] == [False]


def test_a_module_that_is_never_called_has_no_search_where_every_output_is_right(monkeypatch):
    judged = NEVER_CALLED | {OUTPUT: tap(OUTPUT, MODEL_OUTPUT)}
    assert asked(monkeypatch, MODULE, judged=judged) == ([], ())


def test_an_output_is_searched_without_its_elements_at_a_discontinuity(monkeypatch):
    boundary = np.zeros(TENSORS[OUTPUT].shape, bool)
    boundary[0, 0] = True
    (search,), _ = asked(monkeypatch, MODULE, judged=NEVER_CALLED, boundary={OUTPUT: boundary})
    assert (search[2].counted == ~boundary).all()


@pytest.mark.parametrize("kind", ["unknown", MODEL_OUTPUT])
def test_a_tap_of_the_port_alone_has_no_search(monkeypatch, kind):
    extra = tap("extra", kind, isolated=None, accumulated=NO_RESULT)
    assert asked(monkeypatch, Diagnosis("module", "extra"), taps=(extra,)) == ([], ())


def test_a_check_has_no_search(monkeypatch):
    assert asked(monkeypatch, Diagnosis("check", "incremental.out")) == ([], ())


@pytest.mark.parametrize("text", ["", "pow ends the range"])
def test_without_a_known_cause_an_overflow_is_told(monkeypatch, text):
    def overflow(program, failed, dtype):
        assert program.run(INPUTS) == ("block@1(mask)", INPUTS)
        assert (failed, dtype) == (WRONG, torch.float32)
        return text

    monkeypatch.setattr(explanation, "overflow", overflow)
    searches, texts = asked(monkeypatch, ARGUMENT, text="")
    assert (len(searches), texts) == (1, (text,) if text else ())


def test_the_places_of_wrong_elements_are_told_without_a_cause_alone():
    place, pattern = "12 of 40 wrong elements are in row 1", "equals the oracle times 1.5"
    assert explanation.is_place(place)
    assert with_cause((), (place, pattern)) == (place, pattern)
    assert with_cause(("a cause",), (place, pattern)) == ("a cause", pattern)


def test_a_search_that_never_meets_the_tensor_has_no_cause(monkeypatch):
    """Such as a call that another batch makes."""

    def missing(*_, **__):
        raise KeyError("block")

    monkeypatch.setattr(explanation, "cause", missing)
    evidence, wrong = evidence_with(rerun=Rerun()), Diagnosis("between", "block", argument="block(mask)")
    monkeypatch.setattr(explanation, "_between_modules", lambda *_: WRONG)
    comparison = compare(evidence_with(), results_with())
    assert explain_between(evidence, results_with(), replace(comparison, diagnosis=wrong)) == ()
