"""The basis of verdicts: which sums and modules stand behind a tap, and which elements count."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.capture.captures import Capture, ModuleCall
from parity.verdict.bound import bound_for
from parity.verdict.evidence import Evidence, Results, has_other_ones, is_regrouped

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


FIELDS = ("untapped", "tapped", "isolated", "poisoned")


@pytest.mark.parametrize("squeeze", [True, False])
def test_results_have_the_reference_s_leading_axes_where_those_of_1_do_not_count(squeeze):
    reference = Capture(tensors={"a": torch.zeros(2, 3), "b": torch.zeros(1, 2)})
    evidence = _evidence(reference=reference, squeeze=squeeze)
    values = {"a": torch.arange(6.0).reshape(1, 2, 3), "b": torch.zeros(3), "more": torch.zeros(1, 1)}
    results = Results(
        **{
            field: {name: tensor + place for name, tensor in values.items()}
            for place, field in enumerate(FIELDS)
        }
    )
    aligned = evidence.aligned(results)
    for place, field in enumerate(FIELDS):
        tensors = getattr(aligned, field)
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        assert shapes == {"a": (2, 3) if squeeze else (1, 2, 3), "b": (3,), "more": (1, 1)}
        assert torch.equal(tensors["a"].reshape(-1), torch.arange(6.0) + place)


@pytest.mark.parametrize(
    ("shape", "other", "expected"),
    [
        ((70, 6), (10, 7, 6), True),
        ((10, 7, 6), (10, 42), True),
        ((6, 4), (2, 3, 4), True),
        ((2, 12), (2, 3, 4), True),
        ((24,), (2, 3, 4), True),
        ((6, 4), (2, 3, 2, 2), True),
        ((6, 2, 2), (2, 3, 4), True),
        ((1, 6), (2, 1, 3), True),
        ((2, 3, 4), (2, 3, 4), False),
        ((1, 6), (6, 1), False),
        ((6, 10), (10, 6), False),
        ((2, 3, 4), (3, 2, 4), False),
        ((8, 3), (2, 3, 4), False),
        ((4, 6, 5), (6, 4, 5), False),
        ((10, 6), (1, 10, 6), False),
        ((4, 9), (6, 6), False),
        ((70, 6), (10, 7, 5), False),
        ((6, 4), (2, 3, 5), False),
        ((), (1,), False),
        # Nothing tells apart the axes of tensors without elements.
        ((0, 6), (0, 2, 3), False),
        ((0, 4), (0, 2, 2), False),
        ((4, 0), (2, 2, 0), False),
        ((0,), (2, 0), False),
    ],
)
def test_axes_are_merged_or_split_where_all_products_agree(shape, other, expected):
    assert is_regrouped(shape, other) is expected
    assert is_regrouped(other, shape) is expected


@pytest.mark.parametrize(
    ("shape", "other", "expected"),
    [
        ((20, 6), (20, 6, 1), True),
        ((20, 1, 6), (20, 6), True),
        ((20, 1, 6), (20, 6, 1), True),
        ((20, 6), (20, 6), False),
        ((20, 6), (1, 20, 6), False),
        ((20, 6), (20, 7, 1), False),
        ((20, 6, 5), (20, 5, 6), False),
        ((), (1,), False),
        ((1,), (1, 1), True),
    ],
)
def test_axes_of_1_behind_the_first_axis_do_not_count(shape, other, expected):
    """As of BatchNorm, which takes no matrix in Tripy."""
    assert has_other_ones(shape, other) is expected
    assert has_other_ones(other, shape) is expected


class Saved(dict):
    """Tensors of a capture on the disk, which tells shapes without reading."""

    def __init__(self, tensors):
        super().__init__(tensors)
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        self.read = []

    def __getitem__(self, name):
        self.read.append(name)
        return super().__getitem__(name)


def test_a_result_with_an_axis_of_1_more_has_the_references_shape():
    values = torch.arange(6).reshape(2, 3)
    evidence = _evidence(reference=Capture(tensors={"norm": values, "score.out": values}))
    outputs = {"score.out": values[..., None]}
    aligned = evidence.aligned(Results(outputs, {"norm": values[..., None], **outputs}))
    assert torch.equal(aligned.tapped["norm"], values)
    assert aligned.regrouped == {"norm": (2, 3)}
    assert aligned.tapped["score.out"].shape == aligned.untapped["score.out"].shape == (2, 3, 1)


def test_merged_axes_are_the_references_and_others_are_not_read():
    own = {name: torch.zeros(2, 3, 4) for name in ("first", "second", "third", "score.out")}
    evidence = _evidence()
    evidence.reference.tensors = Saved(own)
    values = torch.arange(24)
    tapped = Saved({"first": values.reshape(6, 4), "third": values, "score.out": values, "extra": values})
    tapped.shapes["third"] = (2, 3, 4)
    untapped, poisoned = {"score.out": values}, {"third": values.reshape(2, 3, 4)}
    isolated = {"second": values.reshape(2, 12), "third": values.reshape(3, 2, 4)}
    results = Results(untapped, tapped, isolated, poisoned=poisoned)
    aligned = evidence.aligned(results)
    assert aligned.regrouped == {"first": (2, 3, 4), "second": (2, 3, 4)}
    assert torch.equal(aligned.tapped["first"], values.reshape(2, 3, 4))
    assert torch.equal(aligned.isolated["second"], values.reshape(2, 3, 4))
    assert aligned.isolated["third"] is isolated["third"]
    assert (aligned.untapped, aligned.poisoned) == (untapped, poisoned)
    assert (tapped.read, evidence.reference.tensors.read) == (["first"], [])
    assert aligned.tapped["score.out"] is values
    plain = Results(untapped, poisoned=poisoned)
    assert evidence.aligned(plain) is plain


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
