"""Faults made by hand in the port: the suite says so, and in the right place.

Each one is judged in this process, on a bench that the tests of a case share. A few are judged by the
command, too, as an edit in a scratch copy of the project: one of each case, and all that exchange weights.
"""

import pytest
import torch

from parity.studies.fault_injection.faults import Outcome
from parity.studies.fault_injection.handwritten import handwritten
from parity.studies.fault_injection.trial import try_fault
from parity.studies.fault_injection.weight_faults import WeightFault
from tests.parity.case_runs import bench_of, on_bench
from tests.parity.fault_runs import (
    HANDWRITTEN,
    RUNNER,
    TENSORS,
    Fault,
    assert_found_and_named,
    on_weights,
    run,
    runner,
    scratch,
)

# A port with a fault may fail inside nvtripy, which then leaves its temporary file to the garbage collector.
pytestmark = [
    pytest.mark.usefixtures("without_call_stacks"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

BLOCKS = "tripy_port/transduction_dense.py"
LAYER = "_hstu._attention_layers"
SWAPPED_LAYERS = (
    'swap = {"layers.0": "layers.1", "layers.1": "layers.0"}; import re; tensors = '
    '{re.sub(r"layers.[01]", lambda m: swap[m[0]], n): t for n, t in tensors.items()}'
)

IN_SOURCE = {f"{edit.case}-{edit.detail}": edit for edit in handwritten(HANDWRITTEN)}
# A statement on the port's weights `tensors`, the case, and the tap that must be named.
IN_WEIGHTS = {
    # The public widths: the projection is square and its transpose fits.
    "output_projection_transposed": (
        f'tensors["{LAYER}.1._o.weight"] = tensors["{LAYER}.1._o.weight"].T',
        "hstu_ml1m",
        f"{LAYER}.1._o",
    ),
    "one_weight_scaled": (
        f'tensors["{LAYER}.1._o.weight"] = tensors["{LAYER}.1._o.weight"] * 1.001',
        "hstu_tiny",
        f"{LAYER}.1._o",
    ),
    "weights_of_two_blocks_swapped": (SWAPPED_LAYERS, "hstu_tiny", f"{LAYER}.0._rel_attn_bias"),
    "weights_of_two_layers_swapped": (SWAPPED_LAYERS, "stu_tiny", "_stu_module._stu_layers.0"),
    "weights_of_two_tables_swapped": (
        'a, b = "emb_l.0.weight", "emb_l.2.weight"; tensors[a], tensors[b] = tensors[b], tensors[a]',
        "dlrm_tiny",
        "emb_l.0",
    ),
}
# Values that a module makes when it is imported: no function of the port can be exchanged for them.
WHEN_IMPORTED = ("stu_tiny-minutes_are_seconds_by_61", "stu_tiny-a_turn_is_two_pi")
QUICK = "weights_of_two_tables_swapped"
"""The fault that the command judges in `make test`."""


def assert_detected(fault, case, named):
    finding = try_fault(bench_of(case), fault)
    assert (finding.outcome, finding.named, finding.localised) == (Outcome.DETECTED, named, True)
    assert finding.kind in ("module", "between")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=on_bench(e.case))
        for name, e in IN_SOURCE.items()
        if name not in WHEN_IMPORTED
    ],
)
def test_an_edit_is_found_and_named(name):
    edit = IN_SOURCE[name]
    assert_detected(edit, edit.case, edit.named)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=on_bench(case)) for name, (_, case, _) in IN_WEIGHTS.items()]
)
def test_wrong_weights_are_found_and_named(name):
    statement, case, named = IN_WEIGHTS[name]

    def change(weights):
        scope = {"tensors": dict(weights)}
        exec(statement, scope)
        return scope["tensors"]

    weights = bench_of(case).weights
    changed = change(weights)
    names = tuple(key for key in weights if not torch.equal(weights[key], changed[key]))
    assert names
    assert_detected(WeightFault("by hand: weights", names[0], name, change, names), case, named)


def by_the_command():
    """The faults that the command judges, too, where it names the same tap as the bench."""
    first_of_cases = {edit.case: name for name, edit in reversed(IN_SOURCE.items())}
    faults = {name: Fault.of(IN_SOURCE[name]) for name in (*first_of_cases.values(), *WHEN_IMPORTED)}
    return faults | {
        name: Fault(name, RUNNER, TENSORS, on_weights(statement), named, case)
        for name, (statement, case, named) in IN_WEIGHTS.items()
    }


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        pytest.param(name, fault, id=name, marks=() if name == QUICK else pytest.mark.full)
        for name, fault in by_the_command().items()
    ],
)
def test_the_command_finds_and_names_a_fault(name, fault, tmp_path):
    assert_found_and_named(fault, tmp_path)


@pytest.mark.full
def test_no_fault_no_failure(tmp_path):
    folder = scratch(tmp_path, BLOCKS, "Turns the model's boolean mask", "Turns the boolean mask")
    code, report, _ = run(folder, "--case", "hstu_tiny", "--runners", "tripy")
    assert code == 0
    assert runner(report, "tripy").verdict == "PASS"


BREAKS = {
    "crash": ('__import__("os").abort()', "CRASHED", "SIGABRT"),
    "hang": ("import time; open('STARTS', 'a').write('x'); time.sleep(3600)", "TIMED OUT", "within 20 s"),
    "memory": ("import numpy; numpy.ones(1 << 60, numpy.int8)", "OUT OF MEMORY", ""),
    "exception": ('raise RuntimeError("no such luck")', "ERROR", "no such luck"),
}


@pytest.mark.full
@pytest.mark.parametrize("kind", BREAKS)
def test_a_runner_that_breaks_is_a_row_and_the_others_finish(kind, tmp_path):
    statement, status, reason = BREAKS[kind]
    starts = tmp_path / "starts"
    statement = statement.replace("STARTS", str(starts))
    line = "        self.case = case\n"
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
    # Each batch of the plan would take the whole time.
    assert kind != "hang" or starts.read_text() == "x"
