"""Faults made by hand in the ported DLRM: the suite says so, and in the right place."""

import pytest

from parity.studies.fault_injection.handwritten import handwritten
from tests.parity.fault_runs import RUNNER, TENSORS, Fault, assert_found_and_named, on_weights

FAULTS = [
    *(Fault.of(edit) for edit in handwritten() if edit.case.startswith("dlrm")),
    Fault(
        "weights_of_two_tables_swapped",
        RUNNER,
        TENSORS,
        on_weights(
            'a, b = "emb_l.0.weight", "emb_l.2.weight"; tensors[a], tensors[b] = tensors[b], tensors[a]'
        ),
        "emb_l.0",
        case="dlrm_tiny",
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_found_and_named(fault, tmp_path):
    assert_found_and_named(fault, tmp_path)
