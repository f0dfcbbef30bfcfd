"""Two saved runs: what moved, what rounding explains, what is refused."""

import dataclasses
import shutil

import pytest
import torch

from parity.base.errors import UserError
from parity.studies.movement.report import ComparisonReport
from parity.studies.movement.runs import left_out, open_run, require_same
from tests.parity import moving_runs

pytestmark = pytest.mark.xdist_group("movement")


RUNS = {
    "before": ("before", (), 1),
    "fault": ("fault", (), 1),
    "function": ("function", (), 1),
    # Really another environment: PyTorch has another number of threads.
    "order": ("order", (), 2),
    "seed": ("before", ("--seed", "1"), 1),
}
"""State of the code, options of the command and number of threads of each saved run."""


class Runs(dict):
    """The saved runs by name. Each is made when a test first asks for it."""

    def __init__(self, folder):
        super().__init__()
        self._folder = folder

    def __missing__(self, name):
        state, options, threads = RUNS[name]
        self[name] = moving_runs.save(self._folder, state, *options, threads=threads)
        return self[name]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("moving"))


@pytest.fixture
def compared(runs, command, tmp_path, monkeypatch):
    """`compared(old, new)` is the end of the command, and its report; it runs beside the first code."""

    def compare(old, new):
        monkeypatch.chdir(runs["before"].code)
        ended = command("compare", runs[old].run, runs[new].run)
        (written,) = runs["before"].code.glob("parity_reports/*/compare.json")
        report = ComparisonReport.model_validate_json(written.read_text(), strict=True)
        markdown = written.with_name("compare.md").read_text()
        shutil.rmtree(runs["before"].code / "parity_reports")
        return ended, report, markdown

    return compare


def modules(report, runner="tripy"):
    (one,) = (one for one in report.runners if one.runner == runner)
    return one, {module.tap: module for module in one.modules}


@pytest.mark.full
def test_a_run_equals_itself(compared):
    ended, report, _ = compared("before", "before")
    assert ended.code == 0
    assert report.differing == ()
    assert [one.runner for one in report.runners] == ["oracle", "torch", "tripy"]
    for one in report.runners:
        assert [module.tap for module in one.modules] == ["first", "second", "forward.output"]
        assert {module.status for module in one.modules} == {"equal"}
    assert "NOTHING MOVED: 9 results compared: 9 equal to the bit" in ended.words


@pytest.mark.full
def test_another_order_of_a_sum_is_within_rounding(compared):
    ended, report, _ = compared("before", "order")
    assert ended.code == 0
    one, taps = modules(report)
    assert {tap: module.status for tap, module in taps.items()} == dict.fromkeys(taps, "within")
    first = taps["first"]
    assert 0 < first.alone.by.l2 <= first.alone.explained.l2
    assert 0 < one.ratio <= 1
    assert (one.first, first.origin, first.inputs) == ("", "", {})
    assert all(module.status == "equal" for module in modules(report, "torch")[1].values())
    assert ended.out.splitlines()[-1].startswith("report: parity_reports/")


@pytest.mark.full
def test_the_differences_of_environment_and_code_are_listed(compared):
    ended, report, markdown = compared("before", "order")
    facts = {fact.name: (fact.old, fact.new) for fact in report.differing}
    assert facts.keys() == {"threads", f"code {moving_runs.NAME}"}
    assert facts["threads"] == ("1", "2")
    old, new = facts[f"code {moving_runs.NAME}"]
    assert len(old) == len(new) == 12
    assert all(text in ended.out for text in ("threads", old, new))
    assert f"`{old}`" in markdown
    assert report.old.changed_code == ()
    assert report.new.changed_code == (moving_runs.NAME,)


@pytest.mark.parametrize(
    ("old", "new", "nearer"),
    [("before", "fault", "old"), pytest.param("fault", "before", "new", marks=pytest.mark.full)],
)
def test_a_fault_is_named_at_its_module_with_its_direction(compared, old, new, nearer):
    ended, report, markdown = compared(old, new)
    assert ended.code == 1
    one, taps = modules(report)
    first, second = taps["first"], taps["second"]
    assert one.first == "first"
    assert (first.origin, first.alone.status, first.inside.status) == ("root", "moved", "moved")
    assert first.inputs == {"x": "equal"}
    assert first.alone.by.l2 == pytest.approx(0.01, rel=1e-3)
    assert first.alone.explained.l2 < 1e-6
    assert first.alone.nearer == nearer
    errors = first.alone.old_error.l2, first.alone.new_error.l2
    assert max(errors) == pytest.approx(0.01, rel=1e-3)
    assert min(errors) < 1e-6
    # The other modules only pass the movement on: alone they have the reference's inputs.
    assert (second.origin, second.alone.status, second.inside.status) == ("carried", "equal", "moved")
    assert taps["forward.output"].origin == "carried"
    for runner in ("oracle", "torch"):
        assert modules(report, runner)[0].first == ""
    assert "first: first (Linear), batch typical" in ended.words
    assert f"nearer to the float64 oracle: {nearer}" in ended.words
    device = "cuda" if torch.cuda.is_available() else "cpu"
    assert f"**moving, fp32, tripy (portable, {device})**" in markdown
    # Of the verdicts, only the whole model's is told beside the movements.
    told = [line for line in ended.out.splitlines() if " verdict " in line or " error " in line]
    assert len(told) == 1, told
    assert told[0].split()[:3] == ["whole", "model", "verdict"]
    assert max(map(len, ended.out.splitlines()[:-1])) <= 80


@pytest.mark.full
def test_a_reference_that_changes_with_its_port_is_another_function(compared):
    ended, report, _ = compared("before", "function")
    assert ended.code == 1
    for runner in ("oracle", "torch", "tripy"):
        one, taps = modules(report, runner)
        assert one.first == "second"
        assert taps["first"].status == "equal"
    # Alone, each run's module has its own reference's inputs: against the own oracle nothing moved.
    _, taps = modules(report)
    assert (taps["second"].origin, taps["second"].alone.status) == ("carried", "within")
    assert taps["second"].inputs == {"x": "differs"}
    assert taps["second"].inside.by.l2 == pytest.approx(0.5, rel=0.5)
    assert "the reference computes another function" in ended.words
    # The present code is that of the old run, so it has no say on choices of the new one.
    assert any(note.startswith("moving, fp32: choices of the new run") for note in report.not_compared)


@pytest.mark.full
def test_other_weights_and_inputs_are_refused(runs, refused):
    message = " ".join(refused("compare", runs["before"].run, runs["seed"].run).split())
    assert "moving has other weights (initial, seed 0 and initial, seed 1)" in message
    assert "moving: batch typical has other inputs" in message


def changed(run, **facts):
    """A run with other facts about its case, as in another manifest."""
    (case,) = run.manifest.cases
    manifest = run.manifest.model_copy(update={"cases": (case.model_copy(update=facts),)})
    return dataclasses.replace(run, manifest=manifest)


def test_every_difference_of_the_runs_is_named(runs):
    run = open_run(runs["before"].run)
    (case,) = run.manifest.cases
    (typical,) = (batch for batch in case.batches if batch.name == "typical")
    renamed = case.case.model_copy(update={"name": "other"})
    for facts, words in (
        ({"weights_digest": "0"}, "moving has other weights"),
        ({"precisions": ("fp32", "bf16")}, "moving: precision bf16 is in the new run alone"),
        ({"case": renamed}, "case moving is in the old run alone; case other is in the new run alone"),
        ({"batches": (typical.model_copy(update={"digest": "0"}),)}, "batch typical has other inputs"),
        ({"batches": (typical.model_copy(update={"name": "x"}),)}, "batch x is in the new run alone"),
    ):
        with pytest.raises(UserError) as refusal:
            require_same(run, changed(run, **facts))
        assert words in str(refusal.value)
    require_same(run, run)


def test_more_rows_of_one_run_alone_are_left_out(runs):
    run = open_run(runs["before"].run)
    (case,) = run.manifest.cases
    more = case.batches[0].model_copy(update={"name": "larger", "further": 1})
    other = changed(run, batches=(*case.batches, more))
    require_same(run, other)
    assert left_out(run, other) == ["moving, fp32: batch larger is in the new run alone"]
    assert left_out(run, run) == []
    # A batch of the plan is none of them, whatever its name.
    planned = case.batches[0].model_copy(update={"name": "more rows of mine"})
    with pytest.raises(UserError, match="batch more rows of mine is in the new run alone"):
        require_same(run, changed(run, batches=(*case.batches, planned)))


def test_a_file_that_the_run_did_not_write_so_is_refused(runs, refused, tmp_path):
    run = tmp_path.parent / f"{tmp_path.name}_changed"
    shutil.copytree(runs["before"].run, run)
    path = next(run.glob("*/batch_0000/fp32/tripy/tapped.safetensors"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    message = refused("compare", runs["before"].run, run)
    assert message.startswith("compare: ")
    assert f"{path} is not as the run wrote it" in message


def test_a_part_of_a_saved_run_is_no_report_alone(runs, refused, tmp_path):
    """As of a copy that stopped: its report is there, and its results are not all."""
    part = tmp_path / "part"
    shutil.copytree(runs["before"].run, part)
    (part / "manifest.json").unlink()
    assert (part / "report.json").is_file()
    for pair in ((runs["before"].run, part), (part, runs["before"].run)):
        assert refused("compare", *pair).startswith(f"compare: {part} holds no complete saved run")


def test_a_saved_run_and_a_report_are_compared_as_reports(runs, command, monkeypatch):
    monkeypatch.chdir(runs["before"].code)
    ended = command("compare", runs["before"].run, runs["before"].run / "report.json")
    assert ended.code == 0
    assert ended.words.startswith("NO REGRESSION")
