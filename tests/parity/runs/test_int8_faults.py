"""Mistakes that a port of tables in 8 bits could make, from a frozen catalogue: detected, and named."""

import pytest

from parity.studies.fault_injection.faults import Outcome
from parity.studies.fault_injection.handwritten import handwritten
from parity.studies.fault_injection.trial import try_fault
from tests.locations import ROOT
from tests.parity.case_runs import bench_of, on_bench

CASE = "dlrm_tiny_int8"
EDITS = {edit.detail: edit for edit in handwritten(ROOT / "cases/faults/int8_rows.yaml")}
NOT_ASKED = ("codes_round_half_up", "codes_do_not_saturate")
"""No number of the drawn tables lies at a tie, and no row's code leaves the type's range: no bit changes."""

pytestmark = [
    pytest.mark.usefixtures("without_call_stacks"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    on_bench(CASE),
]


@pytest.mark.parametrize("name", [name for name in EDITS if name not in NOT_ASKED])
def test_every_fault_is_detected_and_named(name):
    finding = try_fault(bench_of(CASE), EDITS[name])
    assert finding.outcome is Outcome.DETECTED
    assert finding.localised, (finding.named, finding.homes)


@pytest.mark.full
@pytest.mark.parametrize("name", NOT_ASKED)
def test_the_drawn_tables_do_not_ask_for_these(name):
    finding = try_fault(bench_of(CASE), EDITS[name])
    assert finding.outcome is Outcome.EQUIVALENT
    assert finding.proof == "not one bit of any result changes"
