"""Outcomes of faults over all batches and all cases: places that nothing asks, families, the suite itself."""

from __future__ import annotations

import itertools
import json

import pytest

from parity.coverage.source import functions
from parity.studies.fault_injection.batch import BatchBench
from parity.studies.fault_injection.bench import Bench
from parity.studies.fault_injection.faults import NO_CASE, Finding, Outcome, resolved
from parity.studies.fault_injection.handwritten import Edit, handwritten
from parity.studies.fault_injection.table import markdown, summarise
from parity.studies.fault_injection.trial import try_fault
from tests.parity.case_runs import bench_of, on_bench

pytestmark = [
    pytest.mark.usefixtures("without_call_stacks"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CASE = "dlrm_tiny"
OF_BENCH = on_bench(CASE)


def _finding(outcome: Outcome, case: str = "a", detail: str = "x", **changes: object) -> Finding:
    fields = {
        "case": case,
        "precision": "fp32",
        "operator": "source: comparison",
        "target": "module:function",
        "detail": detail,
        "homes": [],
        "outcome": outcome,
        "kind": "none",
        "named": "",
        "localised": False,
    }
    return Finding(**(fields | changes))


@pytest.mark.parametrize(
    ("elsewhere", "outcome"),
    [
        (Outcome.DETECTED, Outcome.NOT_ASKED),
        (Outcome.EQUIVALENT, Outcome.NOT_ASKED),
        (Outcome.NOT_ASKED, Outcome.MISSED),
        (Outcome.BROKEN, Outcome.MISSED),
    ],
)
def test_a_place_that_no_case_asks_is_missed(elsewhere, outcome):
    first, _ = resolved([_finding(Outcome.NOT_ASKED), _finding(elsewhere, case="b")], {})
    assert first.outcome is outcome


def test_a_line_that_no_case_runs_is_missed():
    unreached = {"fp32": [("source: comparison", "module:function", detail) for detail in ("x", "y")]}
    final = resolved([_finding(Outcome.DETECTED)], unreached)
    assert [(one.case, one.detail, one.outcome) for one in final] == [
        ("a", "x", Outcome.DETECTED),
        (NO_CASE, "y", Outcome.MISSED),
    ]
    assert summarise(final)["all"].missed == 1
    assert "no input runs its line" in markdown(final, [])


def test_one_case_of_a_family_has_to_detect():
    several = [_finding(Outcome.MISSED, of_family=True), _finding(Outcome.DETECTED, "b", of_family=True)]
    assert [one.case for one in resolved(several, {})] == ["b"]
    assert len(resolved(several[:1], {})) == 1
    unasked = [_finding(Outcome.NOT_ASKED, of_family=True), _finding(Outcome.EQUIVALENT, "b", of_family=True)]
    assert [one.outcome for one in resolved(unasked, {})] == [Outcome.EQUIVALENT]
    assert [one.outcome for one in resolved(unasked[:1], {})] == [Outcome.MISSED]
    worse = [*unasked, _finding(Outcome.MISSED, "c", of_family=True)]
    assert [one.outcome for one in resolved(worse, {})] == [Outcome.MISSED]


def _edit(**fields: str) -> Edit:
    names = {"class": "of_class"}
    fields = {names.get(name, name): value for name, value in fields.items()}
    return Edit("by hand: test", "module", "an edit", **fields)


@OF_BENCH
def test_a_family_names_a_class():
    bench = bench_of(CASE)
    edit = _edit(
        module="tripy_port.dlrm_layers",
        old="for column in range(row + 1 if self.itself else row)",
        new="for column in range(row + 1)",
        family="dlrm",
        **{"class": "FeatureInteraction"},
    )
    finding = try_fault(bench, edit)
    assert (finding.outcome, finding.homes) == (Outcome.DETECTED, ["interaction"])
    assert finding.localised
    assert finding.of_family
    assert finding.batch == "typical"
    other = _edit(module=edit.module, old=edit.old, new=edit.new, family="dlrm", **{"class": "MLP"})
    # Its lines tell its place, too.
    assert try_fault(bench, other).localised
    assert "interaction" in try_fault(bench, other).homes


@OF_BENCH
def test_a_fault_without_an_effect_at_a_place_with_one_outcome_is_not_asked():
    bench = bench_of(CASE)
    edit = _edit(
        module="tripy_port.dlrm", old="if self.loss_threshold > 0.0:", new="if self.loss_threshold > 1.0:"
    )
    finding = try_fault(bench, edit)
    assert finding.outcome is Outcome.NOT_ASKED
    assert finding.proof.startswith("no batch asks line ")
    assert "self.loss_threshold > 0.0" in finding.proof


@OF_BENCH
def test_every_batch_of_the_plan_and_the_fuzzed_set_has_the_proof(monkeypatch):
    bench = bench_of(CASE)
    edit = _edit(
        module="tripy_port.dlrm_layers",
        old="tp.cast(tp.maximum(counts_BC, 0) + 1, tp.float32)",
        new="tp.cast(tp.maximum(counts_BC, 0) + 1, tp.float32) * 1.0",
    )
    names = []
    run_isolated = BatchBench.run_isolated

    def noted(batch, *arguments):
        names.append(batch.name)
        return run_isolated(batch, *arguments)

    monkeypatch.setattr(BatchBench, "run_isolated", noted)
    assert try_fault(bench, edit).outcome is Outcome.EQUIVALENT
    expected = {batch.name for batch in (*itertools.chain(*bench.batches()), *bench.fuzzed)}
    assert len(expected) > 4
    assert expected <= set(names)


@pytest.mark.full
@OF_BENCH
def test_the_other_batches_run_clean_while_no_fault_is_applied(monkeypatch):
    bench = bench_of(CASE)
    log_counts = functions("tripy_port.dlrm_layers")["LogCounts.forward"]
    without, codes = log_counts.__code__, []
    runs_of = Bench._runs_of

    def noted(*arguments):
        codes.append(log_counts.__code__)
        return runs_of(*arguments)

    monkeypatch.setattr(Bench, "_runs_of", noted)
    for name in ("_others", "fuzzed"):
        monkeypatch.delitem(vars(bench), name, raising=False)
    edit = _edit(module="tripy_port.dlrm_layers", old="counts_BC, 0) + 1", new="counts_BC, 0) + 1 + 0")
    assert try_fault(bench, edit).outcome is Outcome.EQUIVALENT
    assert codes == [without, without]


def test_a_catalogue_has_edits_for_families(tmp_path):
    path = tmp_path / "independent.yaml"
    entry = {
        "name": "an edit",
        "module": "tripy_port.dlrm",
        "family": "dlrm",
        "class": "DLRM_Net",
        "old": "not there",
        "new": "",
        "source": "a paper",
    }
    path.write_text(json.dumps([entry]))
    (edit,) = handwritten(path)
    assert (edit.family, edit.of_class, edit.case) == ("dlrm", "DLRM_Net", "")
    assert edit.is_stale
    with pytest.raises(LookupError, match="'not there' is not in"):
        edit.tree()
