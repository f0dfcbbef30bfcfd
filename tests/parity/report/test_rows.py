"""Rows in other batches and a second run: a line a runner in every form of the report, and a failure."""

import json
import re
import shutil

import pytest

from parity.capture.rows import Trial
from parity.report.html import render_html
from parity.report.markdown import render_markdown
from parity.report.overview import row_lines
from parity.report.schema_modules import RowReport

EQUAL = "fp32: rows are equal bit for bit in any batch, a second run is equal bit for bit"


@pytest.fixture
def with_trials(saved_run, replayed, runners_of, tmp_path, beside_another_report):
    """`with_trials(kind, rows, taps)` replays the saved run with these differences in one kind of trial."""

    def replay(kind, rows, taps):
        folder = tmp_path / "run"
        shutil.copytree(saved_run.folder, folder)
        (path,) = folder.glob("hstu_tiny/batch_0000/fp32/record.json")
        record = json.loads(path.read_text())
        record["runners"]["torch_jagged"]["row_trials"] = [
            {"kind": one.value, "rows": rows, "taps": taps if one is kind else {}} for one in Trial
        ]
        path.write_text(json.dumps(record))
        code, report, out = replayed(folder)
        return code, report, " ".join(out.split()), runners_of(report)["torch_jagged"]

    return replay


def test_a_run_tries_rows_of_every_runner_with_taps(saved_run, report, runners_of):
    out = " ".join(saved_run.ended.out.split())
    for runner in runners_of(report).values():
        assert [row.kind for row in runner.rows] == [kind.value for kind in Trial]
        assert f"rows: {runner.label}: fp32: " in out
    assert "a second run is equal bit for bit" in out


def test_equal_rows_are_told_in_every_form(with_trials):
    code, report, out, runner = with_trials(Trial.PERMUTED, [0, 1], {})
    assert code == 0
    assert f"rows: {runner.label}: {EQUAL}" in out
    assert row_lines(report.cases[0])[runner.label] == EQUAL
    assert f"{EQUAL}" in render_html(report)
    assert f"hstu\\_tiny, {runner.label}: {EQUAL}" in render_markdown(report)
    assert not any(row.first for row in runner.rows)


def test_a_difference_within_the_limit_is_told_with_its_module_and_passes(with_trials):
    code, _, out, runner = with_trials(Trial.PERMUTED, [0, 1], {"_hstu": [0.0, 1e-9]})
    assert code == 0
    assert runner.verdict == "PASS"
    told = re.search(
        r"a row differs in a permuted batch by (\S+) of the largest element, first at _hstu,", out
    )
    assert 0.0 < float(told[1]) < 1e-8


def test_a_difference_beyond_the_limit_fails(with_trials):
    code, report, out, runner = with_trials(Trial.NEIGHBOURS, [1, 2], {"_hstu": [0.0, 0.5]})
    assert code == 1
    assert (runner.verdict, runner.diagnosis.kind, runner.diagnosis.tap) == ("FAIL", "check", "_hstu")
    assert "row 2 beside other rows differs from itself in the batch by" in out
    assert "row 2 beside other rows differs" in render_html(report)


def test_a_second_run_with_other_bits_is_told(with_trials):
    code, _, out, runner = with_trials(Trial.AGAIN, [0, 1], {"_hstu": [1e-9, 0.0]})
    assert code == 0
    assert "a second run differs by up to" in out
    assert "first at _hstu" in out


def test_rows_that_cannot_be_separated_are_told(report, runners_of):
    (case,) = report.cases
    label = runners_of(report)["torch_jagged"].label
    again = RowReport(
        kind=Trial.AGAIN.value, rows=3, first="", largest=0.0, largest_tap="", excess="", reason=""
    )
    (precision,) = case.precisions
    runners = tuple(runner.model_copy(update={"rows": (again,)}) for runner in precision.runners)
    case = case.model_copy(update={"precisions": (precision.model_copy(update={"runners": runners}),)})
    assert row_lines(case)[label] == "fp32: rows cannot be separated, a second run is equal bit for bit"
