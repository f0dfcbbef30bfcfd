"""Faults in the port's code between modules: the diagnosis names the call that gets the wrong argument."""

import pytest

from parity.studies.fault_injection.faults import Outcome
from parity.studies.fault_injection.handwritten import Edit
from parity.studies.fault_injection.trial import try_fault
from tests.parity.case_runs import bench_of, on_bench

pytestmark = [
    pytest.mark.usefixtures("without_call_stacks"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

HSTU = "tripy_port.hstu_dense"
FAULTS = {
    "mask_transposed": (
        HSTU,
        "self._valid_attn_mask(self._attn_mask, x)",
        "tp.transpose(self._valid_attn_mask(self._attn_mask, x), 0, 1)",
        "_hstu",
    ),
    "ids_shifted_by_one": (
        HSTU,
        "self.get_item_embeddings(past_ids)",
        "self.get_item_embeddings(tp.minimum(past_ids + 1, 3))",
        "_embedding_module",
    ),
    "padded_timestamps_count": (
        HSTU,
        "all_timestamps = clear_padded_timestamps(all_timestamps, x_lengths)",
        "all_timestamps = all_timestamps + tp.cast(tp.unsqueeze(x_lengths, 1), tp.int64)",
        "_hstu",
    ),
    # The last one of a row lies where the mask of the items has padding.
    "last_timestamp_is_cleared": (
        "tripy_port.sequence_utils",
        "_positions(all_timestamps) <= _column(lengths)",
        "_positions(all_timestamps) < _column(lengths)",
        "_hstu",
    ),
    "output_scaled": (
        HSTU,
        "return encoded, current, self.similarity_fn(current, item_ids)",
        "return encoded * 1.01, current, self.similarity_fn(current, item_ids)",
        "score.encoded",
    ),
}


@pytest.mark.full
@on_bench("dlrmv3_tiny")
def test_a_mask_by_a_product_leaks_what_is_not_a_number():
    """Zero times NaN is NaN: padded rows are set to zero, whatever they held."""
    module = "tripy_port.sequence_utils"
    old, new = "tp.where(valid_BN1, x, 0.0)", "x * tp.cast(valid_BN1, x.dtype)"
    fault = Edit("by hand: between", module, "mask_by_product", module, old, new, "dlrmv3_tiny", "")
    finding = try_fault(bench_of("dlrmv3_tiny"), fault)
    assert finding.outcome is Outcome.DETECTED
    assert finding.kind == "between"
    # The stack of layers clears its rows in front of the first layer.
    assert finding.named == "_hstu_transducer._stu_module._stu_layers.0"


@pytest.mark.parametrize("name", [pytest.param(name, marks=on_bench("hstu_tiny")) for name in FAULTS])
def test_code_of_the_entry_is_named_by_the_call_that_it_feeds(name):
    module, old, new, named = FAULTS[name]
    fault = Edit("by hand: between", module, name, module, old, new, "hstu_tiny", named)
    finding = try_fault(bench_of("hstu_tiny"), fault)
    assert finding.outcome is Outcome.DETECTED
    assert (finding.kind, finding.localised) == ("between", True)
    assert finding.named.startswith(named)
