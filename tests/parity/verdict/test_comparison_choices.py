"""Comparisons under the port's choices: which evidence judges which runner, and who is searched."""

import pytest

from parity.verdict import comparison as comparing
from parity.verdict.comparison import Comparison, compare_runners
from parity.verdict.judgement import CallJudgement, Diagnosis
from tests.parity.comparisons import evidence_with, results_with
from tests.parity.judgements import tap, verdict

FAILS = verdict(2.0)
# Taps of a failing runner, whether it receives other arguments, the taps that fail alone, whether it fails
# inside the model.
ASKED = {
    "alone and inside": ([tap("a", accumulated=FAILS, isolated=FAILS), tap("b")], False, ["a"], True),
    "alone": ([tap("a"), tap("b", isolated=FAILS), tap("c", isolated=FAILS)], False, ["b", "c"], False),
    "inside": ([tap("a"), tap("b", accumulated=FAILS)], False, [], True),
    "other arguments": ([tap("a"), tap("b")], True, [], True),
    "a check": ([tap("a"), tap("b")], False, [], False),
    "no verdicts": ([tap("a", accumulated=None, isolated=None)], False, [], False),
}


def evidence_with_twice(tap):
    """The evidence under another choice, which doubles a result."""
    evidence = evidence_with()
    for tensors in (evidence.oracle, evidence.reference.tensors):
        tensors[tap] = 2 * tensors[tap]
    return evidence


def failing(taps, calls=()):
    return Comparison(tuple(taps), {}, "", 0.0, Diagnosis("check", "", "fails"), tuple(calls))


@pytest.mark.parametrize("name", ASKED)
def test_hidden_choices_are_searched_where_a_runner_fails(monkeypatch, name):
    taps, receives, alone, whole = ASKED[name]
    asked = []
    monkeypatch.setattr(comparing, "under_hidden_choices", lambda *args: asked.append(args) or args[0])
    call = CallJudgement(*(["b"] + [""] * (len(CallJudgement.__slots__) - 1)))
    comparison = failing(taps, [call] if receives else ())
    evidence, natural, results = evidence_with(), evidence_with(), results_with()
    # Without another choice, the comparison stays.
    assert comparing._searched(comparison, evidence, results, natural) is comparison
    ((own, port, before, failing_alone, inside),) = asked
    assert own is evidence
    assert port is results
    assert before is natural
    assert (list(failing_alone), inside) == (alone, whole)


def test_a_runner_that_passes_is_not_searched(monkeypatch):
    monkeypatch.setattr(comparing, "under_hidden_choices", None)
    passed = Comparison((tap("a"),), {}, "", 0.0, Diagnosis())
    assert comparing._searched(passed, evidence_with(), results_with(), evidence_with()) is passed


def test_a_runner_is_judged_under_the_choices_that_a_search_takes(monkeypatch):
    results, evidence = results_with(), evidence_with()
    results.tapped["block"] = 2 * results.tapped["block"]
    chosen = evidence_with_twice("block")
    monkeypatch.setattr(comparing, "under_hidden_choices", lambda *_: chosen)
    left_out, asked = comparing.rows_left_out, []
    monkeypatch.setattr(comparing, "rows_left_out", lambda *given: asked.append(given) or left_out(*given))
    (comparison,) = compare_runners(evidence, [results])
    assert comparison.evidence is chosen
    # Rows that flip under the choices that are taken are those that the oracle's own choices do not have.
    (first, second) = asked
    assert first[0] is evidence
    assert first[2] is None
    assert second[0] is chosen
    assert second[2] is evidence
    assert comparison.tap("block").accumulated.passed


def test_each_runner_has_the_evidence_under_its_own_choices(monkeypatch):
    """Runners without choices of their own share the evidence; the others keep their places."""
    evidence = evidence_with()
    plain, choosing, other = (results_with() for _ in range(3))
    for factor, results in ((2, choosing), (3, other)):
        results.tapped["block"] = factor * results.tapped["block"]
    chosen = evidence_with_twice("block")
    monkeypatch.setattr(
        comparing, "under_port_choices", lambda before, results: chosen if results is choosing else before
    )
    searched = []
    monkeypatch.setattr(
        comparing,
        "under_hidden_choices",
        lambda own, results, natural, *_: searched.append((own, results, natural)) or own,
    )
    runners = [choosing, other, plain]
    comparisons = compare_runners(evidence, runners)
    assert [comparison.evidence for comparison in comparisons] == [chosen, evidence, evidence]
    inside = [comparison.tap("block").accumulated.passed for comparison in comparisons]
    assert inside == [True, False, True]
    assert any(own is evidence and results is other for own, results, _ in searched)
    assert not any(results is plain for _, results, _ in searched)
    # Choices count against those of the oracle alone.
    assert all(natural is evidence for *_, natural in searched)
