"""The cause of an error in the code between modules: which tensor is searched, and what may change."""

from dataclasses import replace

import pytest
import torch

from parity.verdict import explanation
from parity.verdict.comparison import compare
from parity.verdict.explanation import explain_between, with_cause
from parity.verdict.judgement import ArgumentDifference, CallJudgement, Diagnosis
from tests.parity.comparisons import OUTPUT, TENSORS, evidence_with, results_with
from tests.parity.judgements import tap, verdict

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


def asked(monkeypatch, diagnosis, running=(), text="a cause", calls=CALLS, rerun=True, taps=()):
    """The searches for a cause, and the explanation."""
    searches = []

    def cause(run, inputs, failed, may_change):
        searches.append((run("changed"), inputs, failed, may_change()))
        return text

    monkeypatch.setattr(explanation, "cause", cause)
    results = results_with()
    results.untapped[OUTPUT] = 2 * TENSORS[OUTPUT]
    evidence = evidence_with()
    comparison = compare(evidence, results)
    evidence.rerun = Rerun(running) if rerun else None
    comparison = replace(comparison, diagnosis=diagnosis, calls=calls, taps=(*comparison.taps, *taps))
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


def test_no_known_cause_is_no_text(monkeypatch):
    searches, texts = asked(monkeypatch, ARGUMENT, text="")
    assert (len(searches), texts) == (1, ())


def test_the_places_of_wrong_elements_are_told_without_a_cause_alone():
    place, pattern = "12 of 40 wrong elements are in row 1", "equals the oracle times 1.5"
    assert explanation.is_place(place)
    assert with_cause((), (place, pattern)) == (place, pattern)
    assert with_cause(("a cause",), (place, pattern)) == ("a cause", pattern)
