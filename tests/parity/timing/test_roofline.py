"""Rooflines beside latencies: for the GPU at hand, saved with a run, shown as a factor."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from cases.shipped import load_case
from parity.base.errors import UserError
from parity.base.precision import PRECISIONS
from parity.case import Case
from parity.inputs.arrays import make_inputs
from parity.report.html.page import render_html
from parity.report.latencies import milliseconds, times_the_roofline
from parity.report.schema_modules import LatencyReport, RooflineReport
from parity.timing import roofline as rooflines
from parity.timing.ceilings import CeilingsError
from parity.timing.least_time import roofline
from parity.timing.roofline import find_rooflines, read_rooflines, write_rooflines
from perf_model.work.model import appending_work, case_work
from tests.parity import made_reports
from tests.parity.hidden_gpu import without_gpu
from tests.parity.timing.made_ceilings import h200

CASE = load_case("hstu_tiny")
BLOCK = "_hstu._attention_layers.0"


@pytest.fixture(scope="module")
def inputs():
    return make_inputs(CASE).typical


@pytest.fixture
def on_h200(monkeypatch):
    """This process believes that it has an H200."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(rooflines, "this_gpu", lambda: h200().gpu)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_every_module_and_the_model_have_the_limit_of_their_work(inputs, precision):
    actual = find_rooflines(CASE, PRECISIONS[precision], inputs, h200().gpu)
    shapes = {name: array.shape for name, array in inputs.arrays.items()}
    item = 2 if precision == "bf16" else 4
    works = case_work(CASE.config, shapes, item)
    works |= {f"append:{tap}": work for tap, work in appending_work(CASE.config, shapes, item).items()}
    assert actual.reason == ""
    assert set(actual.by_tap) == set(works)
    for tap, work in works.items():
        assert actual.by_tap[tap] == roofline(work, precision, h200())


def test_another_gpu_has_a_reason_and_no_limits(inputs):
    other = h200().gpu.model_copy(update={"name": "NVIDIA B200"})
    actual = find_rooflines(CASE, PRECISIONS["fp32"], inputs, other)
    assert actual.by_tap == {}
    assert "ceilings of this NVIDIA B200 are not known" in actual.reason
    assert (
        "run in a checkout: python -m perf_model.measure.ceilings --output parity/timing/ceilings/b200.json"
        in actual.reason
    )


def test_damaged_ceilings_are_a_reason_and_no_crash(inputs, monkeypatch):
    def damaged(gpu):
        raise CeilingsError("ceilings.json: holds no ceilings")

    monkeypatch.setattr(rooflines, "find_ceilings", damaged)
    actual = find_rooflines(CASE, PRECISIONS["fp32"], inputs, h200().gpu)
    assert (actual.by_tap, actual.reason) == ({}, "ceilings.json: holds no ceilings")


def test_a_case_without_counts_has_a_reason_and_no_limits(inputs, monkeypatch):
    # As a case that does not override it.
    monkeypatch.setattr(type(CASE), "work", Case.work)
    actual = find_rooflines(CASE, PRECISIONS["fp32"], inputs, h200().gpu)
    assert actual.by_tap == {}
    assert actual.reason == "hstu_tiny has no counts of FLOPs and bytes"


def test_without_a_gpu_nothing_is_saved(inputs, tmp_path):
    with without_gpu():
        write_rooflines(CASE, PRECISIONS["fp32"], inputs, tmp_path / "roofline.json")
    assert not list(tmp_path.iterdir())


def test_what_is_saved_is_what_was_found(inputs, tmp_path, on_h200):
    write_rooflines(CASE, PRECISIONS["fp32"], inputs, tmp_path / "roofline.json")
    actual = find_rooflines(CASE, PRECISIONS["fp32"], inputs, h200().gpu)
    assert rooflines.Rooflines.model_validate_json((tmp_path / "roofline.json").read_text()) == actual


def test_a_batch_without_a_gpu_has_no_limits(tmp_path):
    assert read_rooflines(tmp_path / "roofline.json") is None


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "roofline.json").write_text("{}")
    with pytest.raises(UserError, match="is damaged"):
        read_rooflines(tmp_path / "roofline.json")


@pytest.fixture
def gpu_run(saved_run, inputs, tmp_path, beside_another_report):
    """The saved run, as if its reference had run on an H200; the jagged runner stays on the processor."""
    folder = tmp_path / "gpu_run"
    shutil.copytree(saved_run.folder, folder)
    batch = folder / "hstu_tiny" / "batch_0000" / "fp32"
    record = json.loads((batch / "record.json").read_text())
    record["runners"]["torch"]["label"] = "torch dense (eager, cuda)"
    record["runners"]["torch_jagged"]["label"] = "torch jagged (eager, cpu)"
    (batch / "record.json").write_text(json.dumps(record))
    actual = find_rooflines(CASE, PRECISIONS["fp32"], inputs, h200().gpu)
    (batch / "roofline.json").write_text(actual.model_dump_json())
    return folder


def test_a_replayed_run_keeps_its_limits(gpu_run, replayed, runners_of):
    code, report, shown = replayed(gpu_run)
    assert code == 0
    reference = runners_of(report)["torch"]
    assert reference.latency.roofline is not None
    timed = {module.tap: module.latency for module in reference.modules if module.latency is not None}
    assert timed[f"{BLOCK}._attn"].roofline.ceiling == "launch"
    assert timed["append:_hstu@1"].roofline.ceiling == "launch"
    assert all(latency.roofline is not None for latency in timed.values())
    # What leaves the preprocessor is three tensors, timed in the first one's row.
    assert timed["_input_features_preproc[0]"].roofline is not None
    assert has_limits(shown)


def test_a_runner_on_the_processor_has_none(gpu_run, replayed, runners_of):
    _, report, _ = replayed(gpu_run)
    jagged = runners_of(report)["torch_jagged"]
    assert jagged.label.endswith("cpu)")
    assert jagged.latency.roofline is None
    assert all(module.latency is None or module.latency.roofline is None for module in jagged.modules)


def test_a_gpu_without_ceilings_is_said_once(gpu_run, replayed, inputs):
    path = gpu_run / "hstu_tiny" / "batch_0000" / "fp32" / "roofline.json"
    other = h200().gpu.model_copy(update={"name": "NVIDIA B200"})
    path.write_text(find_rooflines(CASE, PRECISIONS["fp32"], inputs, other).model_dump_json())
    code, report, shown = replayed(gpu_run)
    assert code == 0
    assert shown.count("no rooflines: ") == 1
    assert render_html(report).count("No rooflines: the ceilings of this NVIDIA B200") == 1
    assert "not known" in shown
    assert not has_limits(shown)


def has_limits(shown: str) -> bool:
    """Whether the table has a column of rooflines."""
    return any(line.rstrip().endswith(" least") for line in shown.splitlines() if "err/limit" in line)


def made(median: float, **more: object) -> LatencyReport:
    return made_reports.latency(median, median, median, 7, **more)


def test_the_factor_is_of_replays_where_there_are_any():
    least = RooflineReport(seconds=1e-5, ceiling="memory")
    assert times_the_roofline(made(1e-3)) is None
    assert times_the_roofline(made(1e-3, roofline=least)) == pytest.approx(100)
    assert times_the_roofline(made(1e-3, roofline=least, replay=made(3e-5))) == pytest.approx(3)


def test_the_factor_stands_before_the_milliseconds():
    least = RooflineReport(seconds=1e-5, ceiling="flops")
    assert milliseconds(made(1e-3, roofline=least)) == "100x roofline: 1.00 ±0%"
    shown = milliseconds(made(1e-3, roofline=least, replay=made(3.14e-5)))
    assert shown == "3.1x roofline: 1.00 ±0%, graph 0.0314 ±0%"
    assert "roofline" not in milliseconds(made(1e-3))
