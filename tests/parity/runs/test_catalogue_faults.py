"""Mistakes that a port of DLRMv3 could make, from two catalogues: detected, and named."""

import pytest

from parity.studies.fault_injection.faults import Outcome
from parity.studies.fault_injection.handwritten import handwritten
from parity.studies.fault_injection.trial import try_fault
from tests.locations import ROOT
from tests.parity.case_runs import bench_of, on_bench

CASE = "dlrmv3_tiny"
EDITS = {
    edit.detail: edit
    for catalogue in ("independent_dlrmv3", "independent_second")
    for edit in handwritten(ROOT / f"cases/faults/{catalogue}.yaml")
    if edit.family == "dlrmv3"
}

pytestmark = [
    pytest.mark.full,
    pytest.mark.usefixtures("without_call_stacks"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    on_bench(CASE),
]


@pytest.mark.parametrize("name", EDITS)
def test_every_fault_is_detected_and_named(name):
    finding = try_fault(bench_of(CASE), EDITS[name])
    assert finding.outcome is Outcome.DETECTED
    assert finding.localised, (finding.named, finding.homes)
