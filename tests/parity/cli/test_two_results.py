"""The verbs that compare two results: `compare` of saved runs, and `bisect`; no job runs."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from parity.cli import reports
from parity.report import differences, files
from parity.studies.bisect import command as bisect_command
from parity.studies.movement import command as movement_command


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("changes", [None, "changed verdicts"])
def test_two_saved_runs_end_with_the_code_of_their_comparison(command, monkeypatch, code, changes):
    result = SimpleNamespace(
        report="movements", changes=changes, not_changes="other precisions", exit_code=code
    )
    calls, written = [], []
    monkeypatch.setattr("sys.argv", ["/bin/parity", "compare", "a", "b"])
    monkeypatch.setattr("parity.studies.movement.runs.is_saved_run", lambda path: str(path) in ("a", "b"))
    monkeypatch.setattr(movement_command, "compare", lambda *given: calls.append(given) or result)
    monkeypatch.setattr(
        movement_command, "write", lambda *given: written.append(given) or Path("parity_reports/it")
    )
    monkeypatch.setattr("parity.studies.movement.terminal.render", lambda report: f"all {report}")
    monkeypatch.setattr("parity.report.terminal_differences.render_changes", lambda found: f"all {found}")
    ended = command("compare", "a", "b")
    besides = "errors and latencies: other precisions" if changes is None else "all changed verdicts"
    assert ended.code == code
    assert ended.out.splitlines() == ["all movements", besides, "report: parity_reports/it"]
    ((old, new, typed, advance),) = calls
    assert (old, new, typed) == (Path("a"), Path("b"), "parity compare a b")
    assert callable(advance)
    ((report, target),) = written
    assert (report, target.parent) == ("movements", Path("parity_reports").absolute())


@pytest.mark.parametrize("saved", [("a",), ("b",), ()])
def test_reports_are_compared_unless_both_are_saved_runs(command, monkeypatch, saved):
    changes = SimpleNamespace(worse=False, not_comparable=False)
    shown = []
    monkeypatch.setattr("parity.studies.movement.runs.is_saved_run", lambda path: str(path) in saved)
    monkeypatch.setattr(reports, "_compare_runs", None)
    monkeypatch.setattr(files, "read_report", str)
    monkeypatch.setattr(differences, "compare_reports", lambda old, new: changes)
    monkeypatch.setattr(
        "parity.report.terminal_differences.render_changes", lambda it: shown.append(it) or ""
    )
    ended = command("compare", "a", "b")
    assert (ended.code, shown) == (0, [changes])
    told = [f"{name} alone is a saved run: reports are compared, and no results" for name in saved]
    assert ended.out.split("\n")[1:] == [*told, ""]


@pytest.mark.parametrize("code", [0, 1])
def test_a_search_for_a_commit_ends_with_its_result_s_code(command, monkeypatch, code):
    result = SimpleNamespace(exit_code=code)
    calls = []
    monkeypatch.setattr(bisect_command, "bisect", lambda *given: calls.append(given) or result)
    monkeypatch.setattr(bisect_command, "render", lambda it: ["the [b]first[/b]", str(it is result)])
    ended = command("bisect", "v1", "HEAD", "--code", "parity,cases", "--", "make", "-k")
    assert (ended.code, ended.out.splitlines()) == (code, ["the [b]first[/b]", "True"])
    ((good, bad, words, code_paths, advance),) = calls
    assert (good, bad, words, code_paths) == ("v1", "HEAD", ("make", "-k"), ("parity", "cases"))
    assert callable(advance)


def test_a_list_tells_what_runs_by_default(command, monkeypatch):
    listed = []
    monkeypatch.setattr("parity.report.terminal.render_list", lambda *parts: listed.append(parts) or "")
    monkeypatch.setattr("parity.runners.default_runners", lambda: ("torch", "tripy"))
    assert command("list").code == 0
    ((_, runners, precisions),) = listed
    assert [name for name, default, _ in runners if default] == ["torch", "tripy"]
    assert [name for name, default, _ in precisions if default] == ["fp32", "fp16", "bf16"]
