"""Reports that no run can have written are refused, with the place of the contradiction."""

import json
import math

import pytest

from parity.base.errors import UserError
from parity.report.files import read_report, write_report
from tests.parity import made_reports

LISTS = {
    "case hstu_tiny is there twice": ("cases",),
    "batch typical is there twice": ("cases", 0, "batches"),
    "precision fp32 is there twice": ("cases", 0, "precisions"),
    "runner torch is there twice": ("cases", 0, "precisions", 0, "runners"),
    "module _item_emb is there twice": ("cases", 0, "precisions", 0, "runners", 1, "modules"),
}
MODULE = ("cases", 0, "precisions", 0, "runners", 1, "modules", 0)
EMPTY = {
    "it has no case": ("cases",),
    "has no precision": ("cases", 0, "precisions"),
    "has no runner": ("cases", 0, "precisions", 0, "runners"),
}


def _at(document, path):
    for part in path:
        document = document[part]
    return document


@pytest.fixture
def document(tmp_path):
    path = tmp_path / "report.json"
    write_report(made_reports.passing(), path)
    return json.loads(path.read_text())


def _refusal(document, tmp_path):
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(document))
    with pytest.raises(UserError) as error:
        read_report(path)
    return str(error.value)


@pytest.mark.parametrize(
    "report", [made_reports.passing(), made_reports.failing(), made_reports.everything()]
)
def test_a_report_of_a_run_is_read(report, tmp_path):
    write_report(report, tmp_path / "report.json")
    assert read_report(tmp_path / "report.json").exit_code == report.exit_code


@pytest.mark.parametrize(("message", "path"), LISTS.items(), ids=[path[-1] for path in LISTS.values()])
def test_a_doubled_entry_is_refused(document, tmp_path, message, path):
    entries = _at(document, path)
    entries.append(entries[0])
    assert message in _refusal(document, tmp_path)


@pytest.mark.parametrize(("message", "path"), EMPTY.items(), ids=[path[-1] for path in EMPTY.values()])
def test_an_empty_part_is_refused(document, tmp_path, message, path):
    _at(document, path).clear()
    assert message in _refusal(document, tmp_path)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, "NaN"])
def test_a_pass_has_errors_that_are_sizes(document, tmp_path, value):
    _at(document, MODULE)["isolated"]["err_port_l2"] = value
    assert "it passes with errors that are no sizes" in _refusal(document, tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("err_port_l2", 0.0, "its margin 0.2 is not the largest ratio"),
        ("limit_l2", 1.0, "its margin 0.2 is not the largest ratio"),
        ("margin", 0.1, "its margin 0.1 is not the largest ratio"),
    ],
)
def test_the_margin_follows_from_errors_and_limits(document, tmp_path, field, value, message):
    _at(document, MODULE)["isolated"][field] = value
    assert message in _refusal(document, tmp_path)


def test_a_pass_is_within_its_limit(document, tmp_path):
    verdict = _at(document, MODULE)["isolated"]
    verdict |= {"margin": 2.0, "err_port_l2": 2.0 * verdict["limit_l2"]}
    assert "it passes with the margin 2" in _refusal(document, tmp_path)


@pytest.mark.parametrize(
    ("field", "value"), [("median", 0.0), ("median", math.nan), ("p25", 1.0), ("runs", 0)]
)
def test_times_are_quantiles(document, tmp_path, field, value):
    _at(document, MODULE)["latency"][field] = value
    assert "_item_emb: its times are no quantiles of times" in _refusal(document, tmp_path)


def test_times_of_three_runs_are_read(document, tmp_path):
    """Their deciles lie inside their quartiles."""
    _at(document, MODULE)["latency"] |= {
        "p10": 8.6e-6,
        "p25": 7.9e-6,
        "median": 1.1e-5,
        "p75": 1.7e-5,
        "p90": 1.6e-5,
    }
    _at(document, MODULE)["latency"] |= {"runs": 3}
    path = tmp_path / "three.json"
    path.write_text(json.dumps(document))
    assert read_report(path).exit_code == 0


@pytest.mark.parametrize("value", [[], None, {}, "x", True])
def test_a_number_of_another_type_is_refused(document, tmp_path, value):
    _at(document, MODULE)["isolated"]["err_port_l2"] = value
    refusal = _refusal(document, tmp_path)
    assert "is not a report of schema" in refusal or "contradicts itself" in refusal
