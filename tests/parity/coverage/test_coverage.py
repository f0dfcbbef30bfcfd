"""What inputs ask of a small port."""

from __future__ import annotations

import ast
import contextlib
import sys
from pathlib import Path

import numpy as np
import nvtripy as tp
import pytest
import torch
from coverage.parser import PythonParser

from parity.base.errors import UserError
from parity.coverage import lines
from parity.coverage.lines import Lines
from parity.coverage.places import PROBE, Form, with_probes
from parity.coverage.probes import Probing
from parity.coverage.questions import Coverage, Kind, Question
from parity.coverage.sizes import VARIES, asked_sizes
from parity.report.coverage import in_words, reported
from parity.runners.tripy.survey import _Probed
from tests.parity.coverage import small_port

SOURCES = (small_port.__name__,)
FORWARD = "Small.forward"


def _asked(counts: list[int], limit: int = 3, option: str = "plain") -> Coverage:
    """What one batch asks of the small port."""
    coverage = Coverage()
    running, probing = Lines(SOURCES), Probing(SOURCES, coverage)
    with running.on(), probing.on() as probes:
        model = small_port.Small(limit, option)
        arguments = torch.tensor(counts, dtype=torch.int32)
        graph = _Probed(lambda leaf: {"out": model(leaf)}, arguments, {}, probes)
    running.answer(coverage)
    outputs = graph(tp.copy(tp.Tensor(arguments), tp.device("gpu")))
    assert list(outputs) == ["out"]
    expected = np.minimum(np.where(np.array(counts) < limit, counts, 0), 2) + (limit <= 1)
    if option == "plain":
        np.testing.assert_array_equal(torch.from_dlpack(outputs["out"]).cpu().numpy(), expected)
    return coverage


def _seen(coverage: Coverage, kind: Kind, text: str) -> set[str]:
    (answers,) = (
        answers
        for question, answers in coverage.seen.items()
        if question.kind is kind and question.text == text
    )
    return answers


def test_a_tensor_gives_both_outcomes_and_the_sides_of_a_threshold():
    coverage = _asked([0, 1, 2, 3, 4])
    assert _seen(coverage, Kind.OUTCOME, "counts < self.limit") == {"true", "false"}
    assert _seen(coverage, Kind.THRESHOLD, "counts < self.limit") == {"just below", "at", "just above"}
    assert _seen(coverage, Kind.OUTCOME, "tp.where(is_below, counts, 0)") == {"true", "false"}
    assert _seen(coverage, Kind.THRESHOLD, "tp.minimum(chosen, 2)") == {"just below", "at"}


def test_inputs_far_from_a_threshold_do_not_approach_it():
    coverage = _asked([0, 9])
    assert _seen(coverage, Kind.OUTCOME, "counts < self.limit") == {"true", "false"}
    assert _seen(coverage, Kind.THRESHOLD, "counts < self.limit") == set()


def test_one_outcome_leaves_the_other_one_open():
    missing = dict(_asked([9, 8]).missing())
    (question,) = (q for q in missing if q.kind is Kind.OUTCOME and q.text == "counts < self.limit")
    assert missing[question] == ("true",)
    assert question.identity("true") == f"{SOURCES[0]}:{FORWARD} | counts < self.limit | true"


def test_numbers_in_python_have_sides_too():
    coverage = _asked([1], limit=1)
    assert _seen(coverage, Kind.THRESHOLD, "max(limit, 3)") == {"below"}
    assert _seen(coverage, Kind.THRESHOLD, "self.limit > 1") == {"at"}
    coverage.update(_asked([1], limit=4))
    assert _seen(coverage, Kind.THRESHOLD, "max(limit, 3)") == {"below", "above"}
    assert _seen(coverage, Kind.THRESHOLD, "self.limit > 1") == {"at", "above"}


def test_lines_and_branches_that_ran():
    coverage = _asked([1])
    assert _seen(coverage, Kind.LINE, "counts = counts + counts") == set()
    branch = 'if self.option == "doubled":'
    assert _seen(coverage, Kind.BRANCH, branch) == {"to `is_below = counts < self.limit`"}
    coverage.update(_asked([1], option="doubled"))
    assert _seen(coverage, Kind.LINE, "counts = counts + counts") == {"runs"}
    assert len(_seen(coverage, Kind.BRANCH, branch)) == 2


def test_lines_that_ran_are_the_same_without_pauses(monkeypatch):
    paused = _asked([1, 5], option="doubled")
    monkeypatch.setattr(lines, "reports", {})
    monkeypatch.setattr(lines, "_pauses_in_tripy", lambda recorder: contextlib.nullcontext())
    assert _asked([1, 5], option="doubled").seen == paused.seen


class _Shape(list):
    """A shape that notes the trace function of whoever reads it."""

    recorders: list = []

    def __iter__(self):
        self.recorders.append(sys.gettrace())
        return super().__iter__()


def test_nothing_is_recorded_inside_an_operation_of_tripy(monkeypatch):
    monkeypatch.setattr(_Shape, "recorders", [])
    with Lines(SOURCES).on():
        recorder = sys.gettrace()
        if not hasattr(recorder, "start"):
            pytest.skip("coverage.py records without a trace function on this Python")
        tp.ones(_Shape([2, 3]))
        assert sys.gettrace() is recorder
        with pytest.raises(tp.TripyException):
            tp.reshape(tp.ones((2, 3)), _Shape([-1, -1]))
        assert sys.gettrace() is recorder
    # Tripy compares types before the operation begins.
    assert None in _Shape.recorders


def test_statements_that_only_check_have_no_probe():
    source = Path(small_port.__file__).read_text()
    _, places = with_probes(source)
    assert "limit > 0" not in {place.text for place in places}
    assert {place.form for place in places} == {Form.COMPARISON, Form.SELECTION, Form.CLAMP}


def test_the_port_is_the_same_after_the_probes():
    before = small_port.Small.forward.__code__
    with Probing(SOURCES, Coverage()).on():
        assert small_port.Small.forward.__code__ is not before
        assert hasattr(small_port, PROBE)
    assert small_port.Small.forward.__code__ is before
    assert not hasattr(small_port, PROBE)


@pytest.mark.parametrize(
    "source", ["def f(a, b):\n    return 0 <= a < b", "def f(a):\n    return [x for x in a if x]"]
)
def test_probes_do_not_change_results(source):
    tree, places = with_probes(source)

    class Plain:
        def condition(self, number, value):
            return value

    namespace = {PROBE: Plain()}
    exec(compile(tree, "probed", "exec"), namespace)
    plain: dict = {}
    exec(compile(ast.parse(source), "plain", "exec"), plain)
    arguments = (1, 2) if "b" in source else ([0, 1],)
    assert namespace["f"](*arguments) == plain["f"](*arguments)
    assert places[0].form is Form.CONDITION


def test_a_report_names_what_follows_from_nothing_else():
    report = reported(_asked([0, 1, 2, 3, 4]), {})
    entries = {(entry.kind, entry.place, entry.text) for entry in report.unasked}
    assert ("function", "Small.unused", "") in entries
    # The line follows from the branch before it.
    assert ("branch", FORWARD, 'if self.option == "doubled":') in entries
    assert ("line", FORWARD, "counts = counts + counts") not in entries
    # The other outcome of a check is an error.
    assert "require" not in {entry.place for entry in report.unasked}
    assert in_words(report).startswith("not asked: 1 function, ")


def test_excused_answers_are_told_apart():
    excuses = {f"{SOURCES[0]}:Small.unused": "for people", f"{SOURCES[0]}:{FORWARD}": "all of it"}
    report = reported(_asked([1]), excuses)
    assert {entry.reason for entry in report.excused} == {"for people", "all of it"}
    assert {entry.place for entry in report.unasked} == {"Small.__init__"}


def test_a_module_that_never_runs_is_one_question():
    coverage = Coverage()
    Lines(SOURCES).answer(coverage)
    (entry,) = reported(coverage, {}).unasked
    assert (entry.kind, entry.module) == ("module", SOURCES[0])


def test_sizes_that_vary_in_a_case_are_questions():
    def size(place: str, *sizes: str) -> Coverage:
        return Coverage({Question(kind=Kind.SIZE, place=place, answers=("1", "2", "many")): sizes})

    case = size("a of X.forward(x), axis 0", "1", "211")
    case.update(size("a of X.forward(x), axis 1", "50"))
    case.update(size("b of X.forward(x), axis 1", "25"))
    merged = asked_sizes(case)
    assert [sorted(seen) for seen in merged.seen.values()] == [["1", "many", VARIES], ["many"]]
    assert [entry.place for entry in reported(merged, {}).unasked] == ["X.forward(x), axis 0"]


def test_equal_lines_are_reported_once(monkeypatch):
    reported_paths = []
    report = Lines._report

    def reporting(self, paths):
        reported_paths.extend(paths)
        return report(self, paths)

    monkeypatch.setattr(lines, "reports", {})
    monkeypatch.setattr(Lines, "_report", reporting)
    first = _asked([1, 2])
    assert _asked([1, 2]).seen == first.seen
    assert reported_paths == [small_port.__file__]
    assert _asked([1, 2], option="doubled").seen != first.seen
    assert reported_paths == [small_port.__file__] * 2


def test_questions_and_answers_that_another_one_lacks():
    def question(place: str) -> Question:
        return Question(kind=Kind.OUTCOME, place=place, answers=("false", "true"))

    one = Coverage({question("a"): {"true", "false"}, question("b"): (), question("c"): {"true"}})
    other = Coverage({question("a"): {"true"}, question("c"): {"true"}})
    new = one.without(other)
    assert new.seen == {question("a"): {"false"}, question("b"): set()}
    other.update(new)
    assert other.seen == one.seen
    assert one.without(other).seen == {}


def test_a_file_keeps_questions_and_answers(tmp_path):
    coverage = _asked([1])
    coverage.write(tmp_path / "coverage.json")
    assert Coverage.read(tmp_path / "coverage.json").seen == coverage.seen
    (tmp_path / "damaged.json").write_text("[1]")
    with pytest.raises(UserError, match="is missing or damaged"):
        Coverage.read(tmp_path / "damaged.json")


def test_a_file_is_parsed_once_for_reports_on_other_lines(monkeypatch):
    parsed = []
    parse = PythonParser.parse_source

    def counted(self):
        parsed.append(self.filename)
        parse(self)

    monkeypatch.setattr(PythonParser, "parse_source", counted)
    monkeypatch.setattr(lines, "parsed", {})
    monkeypatch.setattr(lines, "reports", {})
    _asked([0, 1])
    after_another = _asked([0, 5], limit=1)
    assert len(parsed) == 1
    lines.parsed.clear()
    lines.reports.clear()
    assert _asked([0, 5], limit=1).seen == after_another.seen
    assert len(parsed) == 2
