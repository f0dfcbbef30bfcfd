"""The table of task metrics: it fits the terminal, marks what moved, and says why a number is missing."""

import io

import pytest
from rich.console import Console

from parity.report.schema_modules import MetricReport
from parity.report.terminal import render

NUMBERS = {"oracle": 0.5, "reference": 0.512345, "port": 0.512346, "k": 2.0, "floor": 1e-4, "limit": 1e-4}
GOOD = MetricReport(
    name="normalized entropy", rows=1943, **NUMBERS, difference=1e-6, interval=(-3.2e-6, 5.3e-6)
)
SAME = MetricReport(name="AUC", rows=1943, **NUMBERS, difference=0.0, interval=(0.0, 0.0))
MOVED = MetricReport(
    name="MRR", rows=1943, **NUMBERS, difference=-1.5e-3, interval=(-2.5e-3, -1e-4), flagged=True
)
MISSING = MetricReport(name="calibration", rows=1943, reason="all 1943 labels are 0")
NO_INTERVAL = MetricReport(
    name="log loss", rows=1, **NUMBERS, difference=1e-6, no_interval="one row is no sample"
)


@pytest.fixture
def shown(report):
    """Lines of a report in three precisions, with these metrics of one runner."""

    def show(metrics, width=110):
        (case,) = report.cases
        (precision,) = case.precisions
        runners = tuple(
            runner.model_copy(update={"metrics": metrics, "label": "tripy (native TensorRT 10.15)"})
            if runner.runner == "torch_jagged"
            else runner
            for runner in precision.runners
        )
        precisions = tuple(
            precision.model_copy(update={"precision": name, "runners": runners})
            for name in ("fp32", "fp16", "bf16")
        )
        changed = report.model_copy(update={"cases": (case.model_copy(update={"precisions": precisions}),)})
        console = Console(width=width, highlight=False, file=io.StringIO())
        console.print(render(changed, verbose=True))
        return console.file.getvalue().splitlines()

    return show


def _rows(lines, *words):
    return [line.split() for line in lines if all(word in line.split() for word in words)]


@pytest.mark.parametrize("width", [110, 80])
def test_every_number_is_there_and_no_line_is_too_long(shown, width):
    lines = shown((GOOD, MOVED), width)
    assert max(len(line.rstrip()) for line in lines) <= width
    assert not any("…" in line for line in lines)
    for precision in ("fp32", "fp16", "bf16"):
        good, moved = _rows(lines, precision, "1943")
        assert good[-7:] == ["0.512345", "0.512346", "+1.0e-06", "-3.2e-06", "..", "+5.3e-06", "1943"]
        assert moved[-6:-1] == ["FAIL", "-1.5e-03", "-2.5e-03", "..", "-1.0e-04"]


def test_no_difference_is_a_plain_zero(shown):
    assert _rows(shown((SAME,)), "AUC", "fp32")[0][-5:] == ["0", "0", "..", "0", "1943"]


def test_what_is_missing_has_its_reason_below(shown):
    lines = shown((MISSING, NO_INTERVAL))
    assert _rows(lines, "calibration", "fp32")[0][-5:] == ["-", "-", "-", "-", "1943"]
    assert _rows(lines, "loss", "fp32")[0][-3:] == ["+1.0e-06", "-", "1"]
    text = " ".join(" ".join(lines).split())
    assert "no calibration: hstu_tiny, fp16, tripy (native TensorRT 10.15): all 1943 labels are 0" in text
    assert (
        "no interval of log loss: hstu_tiny, bf16, tripy (native TensorRT 10.15): one row is no sample"
        in text
    )


def test_without_metrics_there_is_no_table(shown):
    assert not any("task metric" in line for line in shown(()))
    assert any("task metric" in line for line in shown((GOOD,)))
