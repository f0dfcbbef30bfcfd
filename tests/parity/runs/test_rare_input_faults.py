"""Faults that only rare inputs show: detected in the cases that have these inputs, and named.

Many exist in half types alone. Most of these send a whole number through float16 or bfloat16, which do not
hold all numbers beyond 2048 or 256. They show only where a case has larger ids, positions, or places in its
flattened batch.
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

FULL_ROW = "a_row_without_a_successor_takes_the_first_timestamp_in_place_of_its_own"
EDITS = {
    edit.detail: edit
    for catalogue in ("independent_half", "independent_second", "rare_inputs")
    for edit in handwritten(ROOT / f"cases/faults/{catalogue}.yaml")
}
ASKED_BY = {
    ("hstu_tiny_positional", "bf16"): (
        "positional_index_in_weight_type",
        "ratings_index_plus_position_in_half",
        "item_ids_in_table_type",
        "flat_gather_index_in_half",
        "place_of_an_appended_item_in_half",
        "stream_positions_start_in_bf16",
    ),
    ("hstu_tiny_positional", "fp16"): ("item_ids_in_table_type",),
    ("hstu_tiny_rated", "bf16"): ("row_offsets_in_half",),
    ("hstu_tiny_softmax", "fp16"): ("softmax_without_max",),
    ("stu_tiny_history", "bf16"): ("mask_distance_in_half", "rows_of_appended_targets_in_half"),
    ("dlrmv3_tiny", "fp16"): ("actions_cast_to_table_type", "sigmoid_of_a_task_as_a_ratio_of_powers"),
    ("dlrm_tiny_fixed", "bf16"): ("padded_places_in_half",),
    ("stu_tiny_quantised", "bf16"): ("input_steps_in_half_runs",),
    ("dlrm_lecture_tiny", "fp16"): ("sigmoid_as_exp_ratio",),
    ("hstu_tiny", "fp32"): (
        FULL_ROW,
        "a_cache_keeps_the_queries_of_the_append_before",
        "an_append_at_the_first_place_fills_the_second_one",
    ),
    ("hstu_tiny_interleaved", "fp32"): (FULL_ROW, "padding_item_takes_the_last_category"),
    ("hstu_tiny_softmax", "fp32"): (FULL_ROW, "layer_norm_of_the_output_has_the_epsilon_of_the_blocks"),
    ("stu_tiny_context", "fp32"): ("silu_as_a_ratio_of_powers_in_float32",),
    ("stu_tiny", "fp32"): (
        "exact_moments_of_a_query",
        "mask_of_an_append_begins_where_all_its_rows_fit",
    ),
    ("dlrmv3_tiny", "fp32"): (
        "sigmoid_of_a_task_as_a_ratio_of_powers",
        "exact_moments_of_a_candidate",
        "a_user_without_candidates_has_one_prediction",
    ),
    ("hstu_tiny_positional", "fp32"): ("pointwise_attention_always_activates_the_projection",),
    ("dlrm_tiny_qr", "fp32"): ("weights_enter_one_side_of_a_product_of_bags",),
    ("dlrm_tiny_int8", "fp32"): ("a_table_in_8_bits_loses_the_weights_of_a_request",),
    ("dlrm_tiny_quantised", "fp32"): (
        "codes_in_4_bits_have_no_lower_bound",
        "codes_in_4_bits_have_no_upper_bound",
        "a_range_of_codes_in_4_bits_is_never_negative",
    ),
    ("dlrm_tiny_quantised", "fp16"): ("codes_in_4_bits_have_no_upper_bound",),
    ("dlrm_tiny_quantised", "bf16"): ("codes_in_4_bits_have_no_upper_bound",),
    ("dlrm_tiny_weighted", "fp32"): (
        "weights_of_a_request_replace_the_learned_ones",
        "learned_weights_of_the_first_table_serve_all_tables",
    ),
    ("dlrm_lecture_index", "fp32"): ("the_last_token_takes_row_0",),
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
