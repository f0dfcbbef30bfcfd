"""The fuzzer: it tells each kind of mistake, and tries a minute of hostile input of all kinds."""

import os
import sys

import pytest
from hypothesis import Phase, given, settings

import run_parity
from parity import pipeline
from parity.base.errors import UserError
from tests.fuzz.attempt import MAX_CHARACTERS, Accepted, Attempt, tried
from tests.fuzz.campaign import BLOCK, KINDS, End, in_process, seeds
from tests.fuzz.values import changed_documents, places


def _outcome(tmp_path, monkeypatch, main, **fields):
    """The outcome of one input where `main` stands for the program."""
    monkeypatch.setattr(run_parity.main, "main", lambda arguments, prog_name: main(arguments))
    return tried(Attempt(("run", "x"), **fields), tmp_path / "work", {})


def _refuse(text):
    def main(_):
        sys.stderr.write(text)
        sys.exit(2)

    return main


def _raise(error):
    def main(_):
        raise error

    return main


def _write_and_refuse(_):
    with open("left", "w"):
        pass
    _refuse("error: x: 1 is bad; give 2")(_)


@pytest.mark.parametrize(
    ("main", "kind", "problem"),
    [
        (_refuse("error: x: 1 is bad; give 2"), "refused", ""),
        (_raise(Accepted()), "accepted", ""),
        (lambda _: sys.exit(1), "accepted", ""),
        (_raise(KeyError("x")), "finding", "KeyError at "),
        (_raise(UserError("a", "b", "c", "d")), "finding", "UserError at "),
        (lambda _: sys.exit(3), "finding", "run: exit code 3, not 0 or 1 or 2"),
        (_refuse(""), "finding", "run: a refusal without a message"),
        (_refuse("x\n" * 7), "finding", "a long refusal: x x x"),
        (_refuse("x" * (MAX_CHARACTERS + 1)), "finding", "a long refusal: xxx"),
        (_refuse("error: \x1b[31m"), "finding", "control characters: error: "),
        (_refuse("error: memory: too little"), "finding", "refused by allocation: run"),
        (_write_and_refuse, "finding", "a refusal changes files: run"),
    ],
)
def test_each_mistake_is_a_finding(tmp_path, monkeypatch, main, kind, problem):
    outcome = _outcome(tmp_path, monkeypatch, main)
    assert outcome.kind == kind
    assert outcome.problem.startswith(problem)


def test_another_exit_code_than_the_right_ones_is_a_finding(tmp_path, monkeypatch):
    assert _outcome(tmp_path, monkeypatch, lambda _: sys.exit(0), codes=(1, 2)).kind == "finding"


def test_an_endless_input_is_a_finding(tmp_path, monkeypatch):
    def spin(_):
        while True:
            os.getpid()

    monkeypatch.setattr("tests.fuzz.attempt.CPU_SECONDS", 0.2)
    assert _outcome(tmp_path, monkeypatch, spin).problem.startswith("TooSlow")


def test_an_accepted_input_does_no_work(tmp_path):
    finish = pipeline._finish
    outcome = tried(Attempt(("run", "--case", "dlrm_tiny", "--precision", "fp32")), tmp_path / "work", {})
    assert outcome.kind == "accepted"
    assert pipeline._finish is finish


def test_an_input_survives_its_text():
    attempt = Attempt(
        ("run", "\udcff\x1b", "x"),
        {"a/b": b"\0\xff", "c": None, "d": b"plain\n"},
        "base",
        ("e",),
        (1, 2),
    )
    assert Attempt.of(attempt.text()) == attempt


def test_places_are_those_of_all_values():
    assert list(places({"a": [1, {"b": 2}], "c": 3})) == [
        (), ("a",), ("a", 0), ("a", 1), ("a", 1, "b"), ("c",),
    ]  # fmt: skip


def test_places_of_a_document_that_is_deeper_than_the_stack():
    document = value = []
    for _ in range(5 * sys.getrecursionlimit()):
        value.append([])
        value = value[0]
    assert max(map(len, places(document))) == 5 * sys.getrecursionlimit()


def test_a_document_is_changed_at_any_depth():
    deep = tuple("[" * depth + "]" * depth for depth in (400, 900, 980, 2000, 100_000))

    @settings(max_examples=60, database=None, deadline=None, derandomize=True, phases=[Phase.generate])
    @given(changed_documents({"a": {"b": 1}}, deep))
    def change(text):
        assert isinstance(text, str)

    change()


@pytest.mark.parametrize("kind", ["yaml", "checkpoints", "data", "options"])
def test_the_corpus_ends_well(kind, tmp_path):
    for number, attempt in enumerate(seeds(kind)):
        outcome = tried(attempt, tmp_path / str(number), {})
        assert outcome.kind != "finding", f"{attempt.arguments}: {outcome.problem}\n{outcome.message}"


def test_an_end_by_the_system_is_a_finding_besides_the_counts_so_far(tmp_path, monkeypatch):
    class Ended:
        returncode = 7

        def __init__(self, *_, **__):
            (tmp_path / "options.current").write_text(Attempt(("list",)).text())
            (tmp_path / "options.result").write_text('{"outcomes": {"refused": 3}, "findings": {}}')

        def poll(self):
            return self.returncode

    monkeypatch.setattr("tests.fuzz.campaign.subprocess.Popen", Ended)
    counts = in_process("options", End(blocks=1), 0, tmp_path)
    assert counts.outcomes == {"refused": 3, "finding": 1}
    assert list(counts.findings) == ["the process ends with 7"]


@pytest.mark.full
def test_a_process_leaves_its_counts(tmp_path):
    counts = in_process("data", End(blocks=1), 0, tmp_path)
    assert sum(counts.outcomes.values()) == len(seeds("data")) + BLOCK
    assert not counts.findings


BLOCKS = {"yaml": 2, "checkpoints": 4, "saved": 1, "reports": 5, "data": 3, "options": 6, "served": 2}
"""Blocks of each kind, about ten seconds on one core. Their inputs are the same on each machine."""


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_some_inputs_of_a_kind_show_no_mistake(kind, tmp_path):
    counts = in_process(kind, End(blocks=BLOCKS[kind]), 0, tmp_path)
    assert counts.outcomes["refused"] > 0
    assert not counts.findings, "\n".join(f"{p}: {m}\n{t[:500]}" for p, (t, m, _) in counts.findings.items())
