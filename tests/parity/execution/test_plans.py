"""A plan in a run: which batches run where, what an executable serves, and how a fault is named."""

from pathlib import Path

import pytest

from cases.shipped import load_case
from parity.base.precision import PRECISIONS
from parity.inputs.arrays import batches_in, make_inputs
from parity.inputs.weights import case_weights
from parity.report.files import read_report
from parity.runners import make_runner
from tests.parity.saved_runs import quick_runs


def test_a_plan_runs_in_the_first_precision_and_its_typical_batch_in_all():
    batches = make_inputs(load_case("dlrm_tiny")).batches
    assert batches_in(batches, "fp32", ("fp32", "bf16")) == batches
    assert batches_in(batches, "bf16", ("fp32", "bf16")) == batches[:1]


@pytest.fixture(scope="module")
def port():
    case = load_case("dlrm_tiny")
    runner = make_runner("tripy")
    runner.load(case, PRECISIONS["fp32"], case_weights(case)[0])
    return case, runner


def test_the_executable_of_the_typical_batch_serves_smaller_ones(port):
    case, runner = port
    batches = {batch.name: batch.inputs for batch in make_inputs(case).batches}
    for name in ("typical", "one row", "empty bags", "one index"):
        outputs = runner.run(batches[name].arrays)
        assert outputs["predict.click"].shape == (case.batch_size_of(batches[name]), 1)
    assert len(runner._executables["_entry"]) == 1


def test_a_larger_batch_has_an_executable_of_its_own(port):
    case, runner = port
    larger = case.with_overrides(batch_size=case.batch_size + 1).make_inputs().inputs[0]
    before = len(runner._executables.get("_entry", []))
    runner.run(larger.arrays)
    assert len(runner._executables["_entry"]) == before + 1


def test_modules_run_alone_in_the_typical_batch(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ("--case", "dlrm_tiny", "--precision", "fp32", "--runners", "torch")
    with quick_runs():
        ended = command(*arguments, "--save", tmp_path / "run")
    assert ended.code in (0, 1), ended
    (case,) = read_report(tmp_path / "run" / "report.json").cases
    stem = tmp_path / "run" / "dlrm_tiny"
    assert {path.name for path in stem.glob("batch_*")} == {
        f"batch_{number:04d}" for number in range(len(case.batches))
    }
    # Modules run alone in the typical batch only.
    assert not Path(stem / "batch_0001" / "fp32" / "oracle" / "isolated.json").exists()
    assert Path(stem / "batch_0000" / "fp32" / "oracle" / "isolated.json").exists()
