"""Mistakes that a quantised port could make, from a frozen catalogue: detected, and named."""

import pytest

from parity.studies.fault_injection.faults import Outcome
from parity.studies.fault_injection.handwritten import handwritten
from parity.studies.fault_injection.trial import try_fault
from tests.locations import ROOT
from tests.parity.case_runs import bench_of, on_bench

EDITS = {edit.detail: edit for edit in handwritten(ROOT / "cases/faults/quantised.yaml")}
INDEPENDENT = {edit.detail: edit for edit in handwritten(ROOT / "cases/faults/quantised_independent.yaml")}
EQUIVALENT = "table_int4_reciprocal_in_half"
"""No code of the drawn rows lies so near a tie: no bit changes."""
NOT_LOCALISED = "input_is_quantised_twice"
"""Codes of codes are equal. The further call of the quantiser is what differs, and it is named."""

pytestmark = [
    pytest.mark.usefixtures("without_call_stacks"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=on_bench(edit.case)) for name, edit in EDITS.items() if name != NOT_LOCALISED],
)
def test_every_fault_is_detected_and_named(name):
    finding = try_fault(bench_of(EDITS[name].case), EDITS[name])
    assert finding.outcome is Outcome.DETECTED
    assert finding.localised, (finding.named, finding.homes)


@on_bench("stu_tiny_quantised")
def test_a_further_call_is_named():
    finding = try_fault(bench_of("stu_tiny_quantised"), EDITS[NOT_LOCALISED])
    assert finding.outcome is Outcome.DETECTED
    assert finding.named.endswith("_output_product.quantise_input@1[0]")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=on_bench(f"{edit.family}_tiny_quantised"))
        for name, edit in INDEPENDENT.items()
        if name != EQUIVALENT
    ],
)
def test_every_independent_fault_is_detected_and_named(name):
    edit = INDEPENDENT[name]
    finding = try_fault(bench_of(f"{edit.family}_tiny_quantised"), edit)
    assert finding.outcome is Outcome.DETECTED
    assert finding.localised, (finding.named, finding.homes)
