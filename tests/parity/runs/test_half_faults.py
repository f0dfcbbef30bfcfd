"""Faults of an independent catalogue that exist in half types alone: detected, and named.

Most send a whole number through float16 or bfloat16, which hold none beyond 2048 or 256 exactly. They show
only where a case has larger ids, positions, or places in its flattened batch.
"""

import functools

import pytest

from cases.shipped import load_case
from parity.base.precision import PRECISIONS
from parity.runners.tripy.lean_traces import lean_traces
from parity.studies.fault_injection.bench import Bench
from parity.studies.fault_injection.faults import Outcome
from parity.studies.fault_injection.handwritten import handwritten
from parity.studies.fault_injection.other_forms import OtherForms, try_in_every_form
from tests.locations import ROOT

EDITS = {edit.detail: edit for edit in handwritten(ROOT / "cases/faults/independent_half.yaml")}
ASKED_BY = {
    ("hstu_tiny_positional", "bf16"): (
        "positional_index_in_weight_type",
        "ratings_index_plus_position_in_half",
        "item_ids_in_table_type",
        "flat_gather_index_in_half",
    ),
    ("hstu_tiny_positional", "fp16"): ("item_ids_in_table_type",),
    ("hstu_tiny_rated", "bf16"): ("row_offsets_in_half",),
    ("hstu_tiny_softmax", "fp16"): ("softmax_without_max",),
    ("stu_tiny_history", "bf16"): ("mask_distance_in_half",),
    ("dlrmv3_tiny", "fp16"): ("actions_cast_to_table_type",),
    ("dlrm_tiny_fixed", "bf16"): ("padded_places_in_half",),
    ("stu_tiny_quantised", "bf16"): ("input_steps_in_half_runs",),
    ("dlrm_lecture_tiny", "fp16"): ("sigmoid_as_exp_ratio",),
}

pytestmark = [
    pytest.mark.full,
    pytest.mark.usefixtures("without_call_stacks"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@functools.lru_cache(maxsize=1)
def _bench(case: str, precision: str) -> Bench:
    with lean_traces():
        return Bench(load_case(case), PRECISIONS[precision])


@pytest.mark.parametrize(
    ("case", "precision", "name"),
    [
        pytest.param(case, precision, name, marks=pytest.mark.xdist_group(f"bench-{case}-{precision}"))
        for (case, precision), names in ASKED_BY.items()
        for name in names
    ],
)
def test_every_fault_is_detected_and_named(case, precision, name):
    bench, edit = _bench(case, precision), EDITS[name]
    finding = try_in_every_form(bench, lambda: OtherForms(bench, [edit.module]), edit)
    assert finding.outcome is Outcome.DETECTED
    assert finding.localised, (finding.named, finding.homes)
