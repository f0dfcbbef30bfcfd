"""Faults made by hand in a scratch copy of the project: the suite says so, and in the right place.

Each fault is an edit of one file, made in a copy; the run is the one that a user types.
"""

import pytest

from parity.studies.fault_injection.handwritten import handwritten
from tests.parity.fault_runs import (
    RUNNER,
    TENSORS,
    Fault,
    assert_found_and_named,
    on_weights,
    run,
    runner,
    scratch,
)

BLOCKS = "tripy_port/transduction_dense.py"
LAYER = "_hstu._attention_layers"


FAULTS = [
    *(Fault.of(edit) for edit in handwritten() if edit.case.startswith("hstu")),
    Fault(
        "output_projection_transposed",
        RUNNER,
        TENSORS,
        on_weights(f'tensors["{LAYER}.1._o.weight"] = tensors["{LAYER}.1._o.weight"].T'),
        f"{LAYER}.1._o",
        # The public widths: the projection is square and its transpose fits.
        case="hstu_ml1m",
    ),
    Fault(
        "one_weight_scaled",
        RUNNER,
        TENSORS,
        on_weights(f'tensors["{LAYER}.1._o.weight"] *= 1.001'),
        f"{LAYER}.1._o",
    ),
    Fault(
        "weights_of_two_blocks_swapped",
        RUNNER,
        TENSORS,
        on_weights(
            'swap = {"layers.0": "layers.1", "layers.1": "layers.0"}; import re; tensors = '
            '{re.sub(r"layers.[01]", lambda m: swap[m[0]], n): t for n, t in tensors.items()}'
        ),
        f"{LAYER}.0._rel_attn_bias",
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_found_and_named(fault, tmp_path):
    assert_found_and_named(fault, tmp_path)


def test_no_fault_no_failure(tmp_path):
    folder = scratch(tmp_path, BLOCKS, "Turns the model's boolean mask", "Turns the boolean mask")
    code, report, _ = run(folder, "--case", "hstu_tiny", "--runners", "tripy")
    assert code == 0
    assert runner(report, "tripy").verdict == "PASS"


BREAKS = {
    "crash": ('__import__("os").abort()', "CRASHED", "SIGABRT"),
    "hang": ("import time; time.sleep(3600)", "TIMED OUT", "within 20 s"),
    "memory": ("import numpy; numpy.ones(1 << 60, numpy.int8)", "OUT OF MEMORY", ""),
    "exception": ('raise RuntimeError("no such luck")', "ERROR", "no such luck"),
}


@pytest.mark.parametrize("kind", BREAKS)
def test_a_runner_that_breaks_is_a_row_and_the_others_finish(kind, tmp_path):
    statement, status, reason = BREAKS[kind]
    line = "        self.family = get_family(case.family)\n"
    folder = scratch(tmp_path, RUNNER, line, f"        {statement}\n{line}")
    code, report, shown = run(
        folder, "--case", "hstu_tiny", "--runners", "torch_jagged,tripy", "--time-limit", "20"
    )
    entry = runner(report, "tripy")
    assert code == 1
    assert (entry.status, entry.verdict) == (status, "NONE")
    assert reason in entry.reason
    assert status in shown
    assert runner(report, "torch_jagged").verdict == "PASS"
