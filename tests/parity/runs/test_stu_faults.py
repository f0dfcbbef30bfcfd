"""Faults made by hand in the ported production STU: the suite says so, and in the right place."""

import pytest

from parity.studies.fault_injection.handwritten import handwritten
from tests.parity.fault_runs import RUNNER, TENSORS, Fault, assert_found_and_named, on_weights

FAULTS = [
    *(Fault.of(edit) for edit in handwritten() if edit.case.startswith("stu")),
    Fault(
        "weights_of_two_layers_swapped",
        RUNNER,
        TENSORS,
        on_weights(
            'swap = {"layers.0": "layers.1", "layers.1": "layers.0"}; import re; tensors = '
            '{re.sub(r"layers.[01]", lambda m: swap[m[0]], n): t for n, t in tensors.items()}'
        ),
        "_stu_module._stu_layers.0",
        case="stu_tiny",
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_found_and_named(fault, tmp_path):
    assert_found_and_named(fault, tmp_path)
