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


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, "nan"])
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


RUNNER = MODULE[:-2]
VERDICT = (*MODULE, "isolated")
METRIC = {
    "name": "AUC",
    "rows": 9,
    "oracle": 0.5,
    "reference": 0.5,
    "port": 0.4,
    "difference": -0.1,
    "interval": [-0.2, -0.05],
    "k": 2.0,
    "floor": 0.001,
    "limit": 0.001,
    "flagged": True,
}
STREAM = {
    "precision": "fp32",
    "side": "tripy (cpu)",
    "steps": 3,
    "items": 9,
    "cache_margin": 0.2,
    "output_margin": 0.1,
}
ROW = {
    "kind": "alone",
    "rows": 3,
    "first": "",
    "largest": 0.0,
    "largest_tap": "",
    "excess": "_o",
    "reason": "too far",
}
FORGED = {
    "a failing module in a PASS": (VERDICT, {"status": "FAIL", "reason": "r"}, "is not that of its verdicts"),
    "a failing module's status in a PASS": (MODULE, {"status": "FAIL"}, "_item_emb fails"),
    "a gap without a reason": (MODULE, {"status": "GAP"}, "its status GAP is not that of its verdicts"),
    "a module without a verdict": (MODULE, {"isolated": None, "accumulated": None}, "is not that of its"),
    "an insensitive module in a PASS": (
        MODULE,
        {"status": "INSENSITIVE", "min_detectable_error": 0.5},
        "1 modules are INSENSITIVE",
    ),
    "a module that detects no number": (MODULE, {"min_detectable_error": "nan"}, "it passes and detects nan"),
    "a batch that is none": (MODULE, {"worst_batch": "none"}, "has verdicts on 'none', which is no batch"),
    "a runner that crashed": (
        RUNNER,
        {"status": "CRASHED"},
        "its verdict is PASS, and its status is CRASHED",
    ),
    "a status that is none": (RUNNER, {"status": "FINE"}, "its status is 'FINE', which no runner has"),
    "a leak": (RUNNER, {"padding_leak": "_o"}, "padding leaks at _o"),
    "a row": (RUNNER, {"rows": [ROW]}, "a row alone differs at _o"),
    "a metric that moves": (RUNNER, {"metrics": [METRIC]}, "AUC moves"),
    "a metric whose flag is gone": (
        RUNNER,
        {"metrics": [METRIC | {"flagged": False}]},
        "its flag does not follow",
    ),
    "a metric with half of its values": (
        RUNNER,
        {"metrics": [METRIC | {"port": None, "flagged": False}]},
        "some of its values",
    ),
    "a metric's difference": (
        RUNNER,
        {"metrics": [METRIC | {"difference": 0.0, "flagged": False}]},
        "its difference is not",
    ),
    "a verdict without modules": (RUNNER, {"modules": []}, "its verdict is PASS without a module"),
    "no verdict beside results": (RUNNER, {"verdict": "NONE"}, "it has results and no verdict"),
    "a failure without a diagnosis": (RUNNER, {"verdict": "FAIL"}, "its diagnosis names no failure"),
    "an insensitive verdict": (RUNNER, {"verdict": "INSENSITIVE"}, "its diagnosis is of the kind 'none'"),
    "a pass with a reason": (VERDICT, {"reason": "too far"}, "it passes with a reason to fail"),
    "a pass of nothing": (VERDICT, {"checked": 0}, "it passes with 0 compared elements"),
    "a limit without end": (VERDICT, {"limit_max": "inf"}, "it passes with limits that are no sizes"),
    "a floor below 0": (VERDICT, {"floor": -1.0}, "it passes with limits that are no sizes"),
    "a verdict that detects no number": (
        VERDICT,
        {"min_detectable_error": "nan"},
        "it passes and detects nan",
    ),
    "an element that is no number": (
        (*VERDICT, "worst", 0),
        {"port": "nan"},
        "it passes with an element that is no number",
    ),
    "a stream beyond its limit": (
        ("cases", 0),
        {"streams": [STREAM | {"cache_margin": 9.0}]},
        "it passes beyond its limit",
    ),
    "a stream without a step": (
        ("cases", 0),
        {"streams": [STREAM | {"steps": 0}]},
        "it passes without a step",
    ),
    "a stream on two devices": (
        ("cases", 0),
        {"streams": [STREAM, STREAM | {"side": "tripy (cuda)"}]},
        "stream fp32 tripy is there twice",
    ),
    "a failing stream and exit code 0": (
        ("cases", 0),
        {"streams": [STREAM | {"failed": "k", "reason": "r"}]},
        "its exit code is 0, and its results give 1",
    ),
    "an exit code": ((), {"exit_code": 1}, "its exit code is 1, and its results give 0"),
}


@pytest.mark.parametrize(("path", "changes", "message"), FORGED.values(), ids=FORGED)
def test_a_contradiction_is_refused(document, tmp_path, path, changes, message):
    _at(document, path).update(changes)
    assert message in _refusal(document, tmp_path)


def test_an_insensitive_module_detects_too_little(document, tmp_path):
    entry = _at(document, RUNNER)
    entry["verdict"], entry["diagnosis"]["kind"] = "INSENSITIVE", "insensitive"
    document["exit_code"] = 1
    assert "and 0 modules are INSENSITIVE" in _refusal(document, tmp_path)
    _at(document, MODULE)["status"] = "INSENSITIVE"
    assert "it is INSENSITIVE and detects" in _refusal(document, tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [("checked", "640"), ("checked", True), ("checked", 640.0), ("err_port_l2", "1e-9"), ("margin", False)],
)
def test_a_value_of_another_type_is_no_report(document, tmp_path, field, value):
    _at(document, VERDICT)[field] = value
    assert "is not a report of schema" in _refusal(document, tmp_path)


@pytest.mark.parametrize("version", ["other/2", 1, None])
def test_another_schema_is_no_report(document, tmp_path, version):
    document["schema_version"] = version
    assert "is not a report of schema parity.report/1" in _refusal(document, tmp_path)


@pytest.mark.parametrize("version", ["parity.report/0", "parity.report/2"])
def test_a_report_of_another_version_names_both(document, tmp_path, version):
    document["schema_version"] = version
    told = f"is of schema {version}, and not of parity.report/1; run again, or use the suite that wrote it"
    assert told in _refusal(document, tmp_path)


def test_a_failure_below_zero_is_refused(tmp_path):
    path = tmp_path / "report.json"
    write_report(made_reports.failing(), path)
    document = json.loads(path.read_text())
    failing = next(m for m in _at(document, RUNNER)["modules"] if m["status"] == "FAIL")
    failing["accumulated"]["err_port_l2"] = -1.0
    assert "it has sizes below 0" in _refusal(document, tmp_path)
    failing["accumulated"] |= {"err_port_l2": 1.0, "reason": ""}
    assert "it fails without a reason" in _refusal(document, tmp_path)
