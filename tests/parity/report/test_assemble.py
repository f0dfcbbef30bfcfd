"""Every fact of a judgement and of its record is in the report, under its own name."""

import dataclasses

import pytest

from parity.execution.record import ORACLE, REFERENCE, BuildRecord, RunnerRecord, Status
from parity.report.assemble import latency_report, precision_report, runner_report, verdict_report
from parity.report.schema_modules import (
    DiagnosisReport,
    ElementReport,
    ErrorMapReport,
    MetricReport,
    RooflineReport,
    RowReport,
)
from parity.timing.least_time import Roofline
from parity.timing.roofline import Rooflines
from parity.verdict.distances import Distance
from parity.verdict.elements import Element
from parity.verdict.judgement import Diagnosis, MetricJudgement, MetricValues, RowJudgement
from parity.verdict.judging import PrecisionJudgement
from parity.verdict.row_errors import RowErrors
from tests.parity.judgements import BOUND, DIAGONAL, runner, tap, verdict

ROOFLINES = Rooflines(
    gpu="NVIDIA H200",
    reason="no work of the head",
    by_tap={"": Roofline(0.5, "flops"), "block": Roofline(0.125, "memory")},
)
GPU_RECORD = RunnerRecord(
    label="tripy (portable, cuda)",
    seconds=[4.0, 1.0, 2.0, 3.0],
    module_seconds={"block": [8.0]},
    replay_seconds=[0.75, 0.25],
    module_replay_seconds={"block": [6.0]},
)


def test_quantiles_of_many_times():
    times = latency_report([11.0, 1.0, 6.0, 5.0, 2.0, 4.0, 3.0, 9.0, 8.0, 7.0, 10.0], [5.0, 7.0])
    assert (times.median, times.runs) == (6.0, 11)
    assert (times.p10, times.p25, times.p75, times.p90) == (2.0, 3.0, 9.0, 10.0)
    assert times.replay == latency_report([5.0, 7.0])
    assert times.replay.replay is None


def test_quantiles_of_few_times_lie_between_them():
    one = latency_report([3.0])
    assert (one.p10, one.p25, one.median, one.p75, one.p90, one.runs) == (3.0,) * 5 + (1,)
    two = latency_report([1.0, 3.0])
    assert (two.p10, two.p25, two.median, two.p75, two.p90) == (1.2, 1.5, 2.0, 2.5, 2.8)
    three = latency_report([1.0, 2.0, 4.0])
    assert (three.p25, three.p75) == (1.0, 4.0)


def test_times_and_their_least_on_a_gpu():
    report = runner_report("tripy", runner(tap("block"), tap("block.1"), record=GPU_RECORD), ROOFLINES)
    whole = latency_report(GPU_RECORD.seconds, GPU_RECORD.replay_seconds)
    assert whole.replay == latency_report([0.75, 0.25])
    assert report.latency == whole.model_copy(
        update={"roofline": RooflineReport(seconds=0.5, ceiling="flops")}
    )
    first, second = report.modules
    assert first.latency == latency_report([8.0], [6.0]).model_copy(
        update={"roofline": RooflineReport(seconds=0.125, ceiling="memory")}
    )
    assert second.latency is None


def test_a_module_with_two_outputs_has_its_time_once():
    judged = runner(tap("block[0]"), tap("block[1]"), record=GPU_RECORD)
    first, second = runner_report("tripy", judged).modules
    assert first.latency == latency_report([8.0], [6.0])
    assert second.latency is None


@pytest.mark.parametrize(
    ("label", "rooflines"), [("tripy (portable, cpu)", ROOFLINES), ("tripy (portable, cuda)", None)]
)
def test_the_gpu_does_not_limit_what_does_not_run_on_it(label, rooflines):
    record = GPU_RECORD.model_copy(update={"label": label})
    report = runner_report(REFERENCE, runner(tap("block"), record=record), rooflines)
    assert report.latency.roofline is None
    assert report.modules[0].latency.roofline is None
    assert report.roofline_reason == ""


def test_the_reference_states_why_least_times_are_missing():
    judged = {name: runner(tap("block"), record=GPU_RECORD) for name in (ORACLE, REFERENCE, "tripy")}
    report = precision_report(PrecisionJudgement("fp32", judged, {"clock": "1 GHz"}, ROOFLINES, None))
    assert (report.precision, report.gpu) == ("fp32", {"clock": "1 GHz"})
    assert {one.runner: one.roofline_reason for one in report.runners} == {
        ORACLE: "",
        REFERENCE: "no work of the head",
        "tripy": "",
    }
    assert all(one.latency.roofline.seconds == 0.5 for one in report.runners)
    untimed = runner(tap("block"), record=RunnerRecord(label="torch (cuda)"))
    assert runner_report(REFERENCE, untimed, ROOFLINES).roofline_reason == ""


def test_the_facts_of_a_runner():
    build = BuildRecord(
        shape="static",
        library="TensorRT",
        layers=3,
        engine_layers=2,
        bytes=8,
        seconds=0.5,
        dtypes=("Half",),
        key="k",
    )
    record = RunnerRecord(
        label="tripy (portable, cpu)",
        timing_reason="a busy machine",
        replay_reasons={"block": "it copies to the host"},
        peak_bytes=4096,
        builds=[build],
    )
    judged = runner(
        tap("block"),
        record=record,
        status=Status.CRASHED,
        reason="a reason",
        padding_leak="block",
        observer_difference=0.25,
        rows=(RowJudgement("in a permuted batch", 5, "block", 0.5, "head", "tail", "it differs"),),
        metrics=(MetricJudgement("auc", 3, reason="one class"),),
    )
    report = runner_report("tripy", judged)
    assert (report.runner, report.label) == ("tripy", record.label)
    assert (report.status, report.reason) == (Status.CRASHED.value, "a reason")
    assert (report.padding_leak, report.observer_difference) == ("block", 0.25)
    assert (report.timing_reason, report.peak_bytes) == ("a busy machine", 4096)
    assert report.replay_reasons == {"block": "it copies to the host"}
    assert report.builds == (build,)
    assert report.latency is None
    assert report.checks["incremental.current"].margin == pytest.approx(0.2)
    assert report.metrics == (MetricReport(name="auc", rows=3, reason="one class"),)
    assert report.rows == (
        RowReport(
            kind="in a permuted batch",
            rows=5,
            first="block",
            largest=0.5,
            largest_tap="head",
            excess="tail",
            reason="it differs",
        ),
    )


def test_a_runner_without_a_label_has_its_name():
    assert runner_report("tripy", runner(record=RunnerRecord())).label == "tripy"


def test_the_values_of_a_metric():
    values = MetricValues(0.5, 0.625, 0.75, (-0.25, 0.5), "", 2.0, 0.0625, 0.3125, True)
    (metric,) = runner_report(
        "tripy", runner(tap("block"), metrics=(MetricJudgement("auc", 3, "", values),))
    ).metrics
    assert metric == MetricReport(
        name="auc",
        rows=3,
        oracle=0.5,
        reference=0.625,
        port=0.75,
        difference=0.125,
        interval=(-0.25, 0.5),
        k=2.0,
        floor=0.0625,
        limit=0.3125,
        flagged=True,
    )
    unknown = dataclasses.replace(values, interval=None, no_interval="one class", flagged=False)
    (metric,) = runner_report(
        "tripy", runner(tap("block"), metrics=(MetricJudgement("auc", 3, "", unknown),))
    ).metrics
    assert (metric.interval, metric.no_interval, metric.flagged) == (None, "one class", False)


def test_the_facts_of_a_tap():
    errors = RowErrors(
        rows=40, port=90.0, reference=40.0, port_squares=210.0, reference_squares=41.0, products=91.0
    )
    judged = tap(
        "block",
        path="layers.0",
        kind="Linear",
        batch="one row",
        min_detectable_error=0.25,
        by_nature=True,
        error_maps={"isolated": DIAGONAL},
        notes=("a note",),
        row_errors=errors,
        accumulated=verdict(0.5),
        isolated=verdict(0.25),
    )
    (module,) = runner_report("tripy", runner(judged)).modules
    assert (module.tap, module.path, module.kind) == ("block", "layers.0", "Linear")
    assert (module.status, module.gap, module.worst_batch) == ("PASS", "", "one row")
    assert (module.min_detectable_error, module.by_nature, module.notes) == (0.25, True, ("a note",))
    assert module.accumulated.margin == pytest.approx(0.5)
    assert module.isolated.margin == pytest.approx(0.25)
    assert module.error_maps == {
        "isolated": ErrorMapReport(axes=("batch", "position"), shape=(4, 5), cells=DIAGONAL.cells)
    }
    assert module.rounding.factor == 1.5
    assert module.rounding.interval == errors.interval()
    assert module.rounding.interval is not None
    assert (module.rounding.rows, module.rounding.noted) == (40, errors.is_noted)
    assert module.rounding.text == errors.text()


def test_the_facts_of_a_gap():
    (module,) = runner_report(
        "tripy", runner(tap("block", accumulated=None, isolated=None, gap="fused"))
    ).modules
    assert (module.status, module.gap) == ("GAP", "fused")
    assert (module.accumulated, module.isolated, module.rounding) == (None, None, None)
    assert module.error_maps == {}


def test_the_numbers_of_a_verdict():
    judged = dataclasses.replace(
        verdict(2.0),
        reference=Distance(0.5, 0.25, 0.125),
        port=Distance(3.0, 2.0, -1.0),
        limit=Distance(1.5, 4.0, 8.0),
        min_detectable_error=0.0625,
        checked=7,
        boundary=3,
        worst=(Element((1, 2), 0.1, 0.2, 0.3),),
        tolerated="hidden",
        ties=5,
    )
    report = verdict_report(judged)
    assert (report.status, report.reason) == ("FAIL", "exceeds")
    assert (report.err_ref_l2, report.err_ref_max, report.scale_error_ref) == (0.5, 0.25, 0.125)
    assert (report.err_port_l2, report.err_port_max, report.scale_error_port) == (3.0, 2.0, -1.0)
    assert (report.limit_l2, report.limit_max, report.limit_scale_error) == (1.5, 4.0, 8.0)
    assert (report.margin, report.min_detectable_error) == (2.0, 0.0625)
    assert (report.checked, report.boundary, report.ties, report.tolerated) == (7, 3, 5, "hidden")
    assert (report.k, report.floor, report.longest_sum) == (BOUND.k, BOUND.floor, BOUND.longest_sum)
    assert report.bound == BOUND.explain()
    assert report.worst == (ElementReport(index=(1, 2), oracle=0.1, reference=0.2, port=0.3),)


def test_the_facts_of_a_diagnosis():
    diagnosis = Diagnosis(
        "between", "block", "in words", 3.5, ("a cause",), "one row", "layers", "mask", "port.py:3"
    )
    report = runner_report("tripy", runner(tap("block"), diagnosis=diagnosis)).diagnosis
    assert report == DiagnosisReport(
        kind="between",
        tap="block",
        text="in words",
        amplification=3.5,
        explanation=("a cause",),
        batch="one row",
        code="layers",
        argument="mask",
        source="port.py:3",
    )
