"""Kills of verbs that write, by the command's own code, and what it counts as not survived."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

import pytest

from benchmarks.kills import leftovers
from benchmarks.kills.__main__ import table
from benchmarks.kills.trial import PATIENCE, Bench, Finding, Kill
from benchmarks.kills.verbs import VERBS


@pytest.fixture(scope="module")
def bench():
    """Paths of sockets are short, and so is this folder's. The benchmark judges the seconds, not a test."""
    with tempfile.TemporaryDirectory(prefix="k") as name:
        yield Bench(Path(name), prompt=PATIENCE)


@pytest.mark.full
@pytest.mark.xdist_group("kills")
@pytest.mark.parametrize(
    ("verb", "kill"),
    [
        ("new", Kill(signal.SIGKILL)),
        ("new", Kill(signal.SIGINT)),
        ("shrink", Kill(signal.SIGTERM)),
        ("precision", Kill(signal.SIGKILL)),
        ("self-test", Kill(signal.SIGINT, whole_group=True)),
        ("serve", Kill(signal.SIGTERM)),
        ("compare", Kill(signal.SIGINT)),
        ("train", Kill(signal.SIGTERM, whole_group=True)),
        ("train", Kill(signal.SIGKILL)),
    ],
    ids=str,
)
def test_a_killed_verb_goes_on(bench, verb, kill):
    assert bench.kill(verb, kill, bench.seconds(verb) / 2).problems == []


def test_two_undisturbed_comparisons_are_equal_and_another_result_is_not(tmp_path):
    results = []
    for moment, text in (
        ("20260101-000000-000001", "{}"),
        ("20260101-000000-000002", "{}"),
        ("20260102", "[]"),
    ):
        folder = tmp_path / moment
        written = folder / "parity_reports" / moment / "compare.json"
        written.parent.mkdir(parents=True)
        written.write_text(text)
        out = f"NOTHING MOVED\nreport: parity_reports/{moment}/compare.json\n"
        results.append(VERBS["compare"].result(folder, out))
    assert results[0] == results[1] != results[2]
    assert VERBS["compare"].result(folder, "MOVED") != results[2]
    assert VERBS["compare"].saves(folder)


def test_half_a_file_is_damaged(tmp_path):
    whole = {"a.json": "{}", "b.jsonl": '{}\n{"a', "c.md": "x\n", "d.py": "x = 1\n", "report.html": "</html>"}
    half = {"e.json": "{", "f.jsonl": '{"a\n{}\n', "g.md": "x", "h.py": "x = (", "i.pt": "PK"}
    for name, text in (whole | half).items():
        (tmp_path / name).write_text(text)
    assert [problem.partition(":")[0] for problem in leftovers.damaged(tmp_path)] == [
        str(tmp_path / name) for name in half
    ]


def test_temporary_names_are_unfinished(tmp_path):
    for name in (".a.json.12.345", ".b.part", ".lock", "c.12.3"):
        (tmp_path / name).touch()
    (tmp_path / ".d.unfinished").mkdir()
    (tmp_path / ".d.unfinished" / "e.json").write_text("{")
    names = (".a.json.12.345", ".b.part", ".d.unfinished")
    assert leftovers.unfinished(tmp_path) == [str(tmp_path / name) for name in names]
    assert leftovers.damaged(tmp_path) == []


def test_the_table_counts_survivors():
    findings = [Finding("new", "SIGINT", 0.1, 0.2), Finding("new", "SIGINT", 0.1, 0.4, problems=["locked"])]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table(findings).splitlines()[2:]]
    assert rows == [["all", "all", "2", "1", "0.3", "0.4"], ["new", "SIGINT", "2", "1", "0.3", "0.4"]]
