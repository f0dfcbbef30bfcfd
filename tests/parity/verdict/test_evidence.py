"""The basis of verdicts: which sums and modules stand behind a tap, and which elements count."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.capture.captures import Capture, ModuleCall
from parity.verdict.bound import bound_for
from parity.verdict.evidence import Evidence, Results

VALID = np.array([[True, True, False], [True, False, False]])


def _call(path, tap="", outputs=()):
    return ModuleCall(path, tap or path, path.title(), [], {}, outputs or (tap or path,))


CALLS = [
    _call("table"),
    _call("first", outputs=("first[0]", "first[1]")),
    _call("mask"),
    _call("first", "append:first"),
    _call("second"),
]


def _evidence(calls=(), **fields):
    sums = {"table": 0, "first": 7, "mask": 0, "second": 3}
    reference = Capture(
        calls=list(calls),
        longest_sums={call.path: sums[call.path] for call in calls},
        longest_sums_before={name: 10 + place for place, call in enumerate(calls) for name in call.outputs},
    )
    defaults = {"oracle": {}, "oracle_isolated": {}, "reference_incremental": {}, "incremental_outputs": {}}
    return Evidence(
        **{
            "precision": PRECISIONS["fp32"],
            "entry": "score",
            "reference": reference,
            "valid": {3: VALID},
            "batch_size": 2,
            **defaults,
            **fields,
        }
    )


def test_the_defaults_are_strict():
    evidence = _evidence()
    assert evidence.has_padding is True
    assert evidence.causal is True
    assert (dict(evidence.boundary), dict(evidence.gaps)) == ({}, {})


def test_the_modules_before_a_tap_are_those_with_arithmetic():
    evidence = _evidence(CALLS)
    taps = ("table", "first[0]", "first[1]", "mask", "append:first", "second", "score.out")
    assert [evidence.modules(tap, isolated=False) for tap in taps] == [1, 1, 1, 1, 1, 2, 2]
    assert [evidence.modules(tap, isolated=True) for tap in taps] == [1] * 7
    assert _evidence().modules("score.out", isolated=False) == 1


def test_the_longest_sum_is_the_modules_own_or_that_of_all_before_it():
    evidence = _evidence(CALLS)
    taps = ("table", "first[0]", "first[1]", "append:first", "second")
    assert [evidence.longest_sum(tap, isolated=True) for tap in taps] == [0, 7, 7, 7, 3]
    assert [evidence.longest_sum(tap, isolated=False) for tap in taps] == [10, 11, 11, 13, 14]
    # An output of the model has the longest of all modules.
    assert [evidence.longest_sum("score.out", isolated) for isolated in (True, False)] == [7, 7]
    assert _evidence().longest_sum("score.out", isolated=False) == 1


def test_calls_by_tap():
    kinds = _evidence(CALLS).kinds
    assert {name: call.kind for name, call in kinds.items()} == {
        "table": "Table",
        "first[0]": "First",
        "first[1]": "First",
        "mask": "Mask",
        "append:first": "First",
        "second": "Second",
    }


def test_the_exact_taps_are_those_of_integers_and_booleans():
    tensors = {
        "ids": torch.zeros(2, dtype=torch.int32),
        "scores": torch.zeros(2, dtype=torch.bfloat16),
        "mask": torch.zeros(2, dtype=torch.bool),
    }
    assert _evidence(reference=Capture(tensors=tensors)).exact_taps == {"ids", "mask"}


def test_rounding_samples_by_tap_and_by_place():
    inside, alone = torch.ones(5, 2, 3, dtype=torch.float64), torch.zeros(5, 2, 3, dtype=torch.float64)
    oracle = {"block": inside[0], "rounding_samples:block": inside}
    isolated = {"block": alone[0], "rounding_samples:block": alone, "rounding_samples:only": alone}
    evidence = _evidence(oracle=oracle, oracle_isolated=isolated)
    samples = {
        (tap, place): evidence.rounding_samples(tap, isolated=place)
        for tap in ("block", "only", "other")
        for place in (False, True)
    }
    present = [key for key, value in samples.items() if value is not None]
    assert present == [("block", False), ("block", True), ("only", True)]
    assert samples["block", False] is not samples["block", True]


@pytest.mark.parametrize("boundary", [False, True])
def test_compared_elements_are_neither_padding_nor_at_a_discontinuity(boundary):
    at = np.zeros((2, 3), bool)
    at[0, 1] = at[1, 2] = True
    evidence = _evidence(boundary={"block": at} if boundary else {})
    expected = VALID & ~at if boundary else VALID
    assert np.array_equal(evidence.counted("block", (2, 3)), expected)
    assert np.array_equal(evidence.counted("other", (2, 3)), VALID)
    assert evidence.counted("other", (2, 4)).dtype == bool
    assert evidence.counted("other", (2, 4)).all()
    assert np.array_equal(evidence.counted("other", (2, 3, 5)), np.repeat(VALID[:, :, None], 5, axis=2))
    evidence.counted("other", (2, 3))[:] = False
    assert np.array_equal(evidence.valid[3], VALID)
    assert VALID.any()


@pytest.mark.parametrize(
    ("appends", "alone", "incremental", "has"),
    [
        (True, True, False, True),
        (True, False, True, True),
        (True, False, False, False),
        (False, True, True, False),
    ],
)
def test_a_form_has_appends_where_it_has_their_outputs(appends, alone, incremental, has):
    outputs = {"incremental.out": torch.zeros(1)} if incremental else {}
    results = Results({}, appends=appends, appends_alone=alone, incremental=outputs)
    assert results.has_appends is has


def test_the_truth_of_numbers_that_only_move_is_the_references():
    exact, ids = torch.tensor([1.001, 2.0]).double(), torch.tensor([1, 2])
    evidence = _evidence(CALLS, oracle={"table": exact, "mask": ids, "own": exact})
    rounded = {"table": exact.bfloat16(), "mask": ids + 1}
    evidence.reference.tensors = rounded
    moves, computes = (bound_for(PRECISIONS["bf16"], terms) for terms in (0, 7))
    assert evidence.truth_inside("table", moves) is rounded["table"]
    assert evidence.truth_inside("table", computes) is exact
    # Integers have no rounding, and a result without a reference or an oracle has what there is.
    assert evidence.truth_inside("mask", moves) is ids
    assert evidence.truth_inside("own", moves) is exact
    assert evidence.truth_inside("elsewhere", moves) is evidence.truth_inside("elsewhere", computes) is None


def test_other_programs_of_a_module_alone_have_the_inputs_that_it_ran_on():
    """The reference's second run, under the port's choices, may have others."""
    asked = []

    def programs(call, inputs):
        asked.append((call.path, inputs))
        return {"first[0]": torch.ones(3, 2)}

    own, again = {"key": torch.zeros(2)}, {"key": torch.ones(2)}
    evidence = _evidence(CALLS, replays=SimpleNamespace(programs=programs))
    evidence.reference.call_inputs.update(again)
    assert evidence.call_inputs is evidence.reference.call_inputs
    evidence.inputs_isolated = own
    assert evidence.programs("first[0]", isolated=True) is not None
    assert evidence.programs("first[1]", isolated=True) is None
    (((path, inputs),), expected) = asked, own
    assert (path, inputs is expected) == ("first", True)
