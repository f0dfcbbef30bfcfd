"""A run draws more rows for checks that could not notice 1 %, until they can, within its bound."""

import json
import shutil
from types import SimpleNamespace

import pytest

import parity.pipeline
from cases.shipped import load_case
from parity.base.errors import UserError
from parity.execution.folder import RunFolder
from parity.execution.manifest import read_manifest
from parity.inputs.arrays import make_inputs
from parity.report.files import read_report
from parity.verdict.sensitivity import INSENSITIVE_ABOVE, multiples
from tests.parity.saved_runs import manifest, seal

FEW_ROWS = ("--case", "dlrm_tiny", "--batch", "1", "--precision", "bf16", "--runners", "torch,tripy")


class Judge:
    """A judge whose checks are sensitive after some further batches, of which it asks for `step` at once."""

    def __init__(self, enough, step=1):
        self.enough, self.step = enough, step
        self.names = []

    def batches_needed(self):
        return {} if len(self.names) >= self.enough else {"torch": 1, "tripy": self.step}

    def add_more_rows(self, drawn, folder):
        self.names.append(drawn.name)
        assert drawn.name == f"more rows {drawn.further}"


class Collection:
    """Notes the batches that would run."""

    def __init__(self):
        self.collected = []

    def collect_more_rows(self, number, batch, names):
        self.collected.append((number, batch.name, names))
        return f"folder {number}"


@pytest.mark.parametrize(("enough", "drawn"), [(0, 0), (1, 1), (2, 2), (99, 99)])
def test_rows_are_drawn_until_they_are_enough(enough, drawn):
    case = load_case("dlrm_tiny")
    times = list(multiples(case.batch_size))
    drawn = min(drawn, len(times))
    prepared = SimpleNamespace(case=case, inputs=make_inputs(case))
    judge, collection = Judge(enough), Collection()
    further = parity.pipeline._with_more_rows(prepared, collection, judge)
    plan, few = len(prepared.inputs.batches), case.batch_size
    assert [batch.name for batch in further] == judge.names == [f"more rows {n + 1}" for n in range(drawn)]
    rows = [case.batch_size_of(batch.inputs) for batch in further]
    assert rows == [number * few for number in times[:drawn]]
    expected = [(plan + n, f"more rows {n + 1}", ("torch", "tripy")) for n in range(drawn)]
    assert collection.collected == expected


@pytest.mark.parametrize(("step", "numbers"), [(2, [2, 4, 5]), (3, [3, 5]), (9, [5])])
def test_batches_that_would_not_be_enough_are_left_out(step, numbers):
    case = load_case("dlrm_tiny").with_overrides(batch_size=8)
    times = list(multiples(8))
    prepared = SimpleNamespace(case=case, inputs=make_inputs(case))
    judge = Judge(99, step)
    further = parity.pipeline._with_more_rows(prepared, Collection(), judge)
    assert judge.names == [batch.name for batch in further] == [f"more rows {n}" for n in numbers]
    assert [case.batch_size_of(batch.inputs) for batch in further] == [8 * times[n - 1] for n in numbers]


@pytest.mark.parametrize("number", [0, 1])
def test_only_a_further_batch_of_a_saved_run_may_lack_a_runner(saved_run, tmp_path, number):
    """Its number says that it is one; a name that begins as theirs do is no sign."""
    run = tmp_path / "run"
    shutil.copytree(saved_run.folder, run)
    (case,) = manifest(run)["cases"]
    record = run / case["case"]["name"] / "batch_0001" / "fp32" / "record.json"
    content = json.loads(record.read_text())
    del content["runners"]["torch_jagged"]
    record.write_text(json.dumps(content))
    case["batches"][1].update(name="more rows of mine", further=number)
    seal(run, cases=[case])
    if number:
        assert read_manifest(RunFolder(run)).cases[0].batches[1].further == number
        return
    with pytest.raises(UserError, match="record.json is not as the run wrote it"):
        read_manifest(RunFolder(run))


@pytest.mark.full
def test_a_case_with_few_rows_draws_more_and_passes_and_so_does_its_replay(command, tmp_path):
    assert command(*FEW_ROWS, "--save", tmp_path / "run").code == 0
    report = read_report(tmp_path / "run" / "report.json")
    (case,) = report.cases
    further = [batch for batch in case.batches if batch.name.startswith("more rows")]
    assert further
    assert {batch.precisions for batch in further} == {("bf16",)}
    replayed = command("replay", tmp_path / "run")
    assert replayed.code == 0
    modules = [module for entry in case.precisions[0].runners for module in entry.modules]
    judged = [module for module in modules if module.status == "PASS" and not module.by_nature]
    assert judged
    assert any(module.worst_batch.startswith("more rows") for module in judged)


@pytest.mark.full
def test_a_check_that_stays_insensitive_ends_with_1(command, monkeypatch):
    """Without further batches, the same run fails."""
    monkeypatch.setattr(parity.pipeline, "multiples", lambda rows: ())
    ended = command(*FEW_ROWS)
    assert ended.code == 1
    assert "the inputs have too few rows; give about " in " ".join(ended.out.split())


@pytest.mark.full
def test_a_runner_without_taps_in_bf16_passes_and_says_it(command):
    few = (
        "--case",
        "hstu_tiny",
        "--batch",
        "2",
        "--precision",
        "bf16",
        "--runners",
        "torch,torch_compile",
        "-v",
    )
    ended = command(*few)
    text = " ".join(ended.out.split())
    assert ended.code == 0, text
    assert f"no batch of a run detects every error of {INSENSITIVE_ABOVE:.0%}" in text
    assert "cannot detect 1 % in any batch of a run" in text
