"""Results with the axes of the reference's: merged ones, ones of 1, and axes in another order."""

import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.capture.arguments import Argument, Received
from parity.capture.captures import Capture, ModuleCall
from parity.verdict.axes import aligned, axes_order, has_other_ones, is_regrouped, with_axes
from parity.verdict.evidence import Evidence, Results


@pytest.mark.parametrize(
    ("shape", "other", "expected"),
    [
        # Equal first axes stay first, whatever sizes follow.
        ((2, 5, 3), (2, 3, 5), (0, 2, 1)),
        ((2, 3, 5, 7), (2, 7, 3, 5), (0, 3, 1, 2)),
        ((2, 5, 2), (2, 2, 5), (0, 2, 1)),
        # Other first axes move, too.
        ((3, 5), (5, 3), (1, 0)),
        ((5, 3, 7), (3, 7, 5), (1, 2, 0)),
        # Axes of 1 say nothing.
        ((2, 5, 1, 3), (2, 3, 5), (0, 2, 1)),
        ((1, 5, 3), (3, 1, 5), (1, 0)),
        # No other order.
        ((2, 3, 5), (2, 3, 5), ()),
        ((2, 3), (2, 1, 3), ()),
        ((), (), ()),
        ((), (1,), ()),
        # Other sizes.
        ((2, 3, 5), (2, 3, 7), ()),
        ((2, 15), (2, 3, 5), ()),
        ((6,), (2, 3), ()),
        # Two orders would do.
        ((2, 4, 4, 3), (2, 3, 4, 4), ()),
        ((4, 3, 4), (3, 4, 4), ()),
    ],
)
def test_the_order_of_the_axes_is_told_where_it_is_the_only_one(shape, other, expected):
    assert axes_order(shape, other) == expected


def test_an_element_keeps_its_places_in_the_other_order():
    tensor = torch.arange(30).reshape(2, 5, 1, 3)
    moved = with_axes(tensor, axes_order((2, 5, 1, 3), (2, 3, 1, 5)), (2, 3, 1, 5))
    assert moved.shape == (2, 3, 1, 5)
    assert torch.equal(moved[:, :, 0], tensor[:, :, 0].transpose(1, 2))


CHANNELS_FIRST, CHANNELS_LAST = (2, 3, 5), (2, 5, 3)


def received(*names):
    """The arguments of a call: tensors by their names."""
    return Received("", 0, 0, tuple(Argument(name, place, name) for place, name in enumerate(names)))


def sides(theirs, ours, names=("x",), result=CHANNELS_FIRST):
    """The evidence of one module `mix`, and a port's results, whose calls receive some tensors by name."""
    call = ModuleCall("mix", "mix", "Conv1d", [], {}, ("mix",))
    values = torch.arange(30.0)
    tensors = {"mix": values.reshape(result), "score.out": values.reshape(result)}
    reference = Capture(
        tensors, [call], theirs, {"mix": received(*names)}, {"mix": 1}, longest_sums_before={"mix": 1}
    )
    evidence = Evidence(PRECISIONS["fp32"], "score", reference, {}, {}, {}, {}, {}, 2)
    own = {"mix": torch.arange(30.0).reshape(CHANNELS_LAST)}
    port = Capture({}, call_inputs=ours, arguments={"mix": received(*ours)})
    results = Results({}, dict(own), dict(own), poisoned=dict(own), received=port)
    return evidence, results


def test_a_result_is_moved_where_the_call_receives_its_tensor_in_the_ports_order():
    values = torch.randn(2, 7, 5)
    evidence, results = sides({"x": values}, {"x": values.transpose(1, 2)})
    expected = torch.arange(30.0).reshape(CHANNELS_LAST).transpose(1, 2)
    moved = aligned(evidence, results)
    assert torch.equal(moved.tapped["mix"], expected)
    assert torch.equal(moved.poisoned["mix"], expected)
    # Alone, the module receives the reference's tensor.
    assert moved.isolated is results.isolated
    assert moved.other_axes == {"mix": CHANNELS_FIRST}
    assert moved.regrouped == {}


def test_one_argument_in_another_order_is_enough_and_may_have_another_place():
    values, weights = torch.randn(2, 7, 5), torch.randn(4)
    evidence, results = sides(
        {"w": weights, "x": values}, {"x": values.transpose(1, 2), "w": weights}, ("w", "x")
    )
    assert aligned(evidence, results).other_axes == {"mix": CHANNELS_FIRST}


LEFT = {
    "the reference's order": {"x": torch.zeros(2, 7, 5)},
    "no tensors": {},
    "other sizes": {"x": torch.zeros(2, 5, 8)},
    "integers": {"x": torch.zeros(2, 5, 7, dtype=torch.int64)},
}


@pytest.mark.parametrize("name", LEFT)
def test_a_result_of_other_axes_is_a_failure_where_the_call_receives_none(name):
    evidence, results = sides({"x": torch.zeros(2, 7, 5)}, LEFT[name])
    assert aligned(evidence, results) is results


def test_integers_of_the_reference_are_no_such_argument():
    evidence, results = sides({"x": torch.zeros(2, 7, 5, dtype=torch.int64)}, {"x": torch.zeros(2, 5, 7)})
    assert aligned(evidence, results) is results


def test_a_call_without_recorded_arguments_keeps_its_axes():
    evidence, results = sides({"x": torch.zeros(2, 7, 5)}, {"x": torch.zeros(2, 5, 7)})
    results.received.arguments.clear()
    assert aligned(evidence, results) is results
    evidence.reference.arguments.clear()
    assert aligned(evidence, results) is results


def test_outputs_of_the_model_and_taps_of_one_side_keep_their_axes():
    evidence, results = sides({"x": torch.zeros(2, 7, 5)}, {"x": torch.zeros(2, 5, 7)})
    other = torch.zeros(CHANNELS_LAST)
    results.tapped |= {"score.out": other, "extra": other}
    moved = aligned(evidence, results)
    assert moved.tapped["score.out"] is moved.tapped["extra"] is other
    assert moved.other_axes == {"mix": CHANNELS_FIRST}


def test_a_result_in_the_references_order_is_not_moved():
    evidence, results = sides({"x": torch.zeros(2, 7, 5)}, {"x": torch.zeros(2, 5, 7)}, result=CHANNELS_LAST)
    assert aligned(evidence, results) is results


def test_a_run_may_lack_a_result_that_another_run_has_in_another_order():
    evidence, results = sides({"x": torch.zeros(2, 7, 5)}, {"x": torch.zeros(2, 5, 7)})
    later = ModuleCall("later", "later", "Conv1d", [], {}, ("later",))
    evidence.kinds["later"] = later
    evidence.reference.tensors["later"] = evidence.reference.tensors["mix"]
    for run in (evidence.reference, results.received):
        run.arguments["later"] = run.arguments["mix"]
    results.poisoned = {"later": results.poisoned["mix"]}
    assert aligned(evidence, results).other_axes == {"mix": CHANNELS_FIRST, "later": CHANNELS_FIRST}


def evidence_of(tensors, **fields):
    """The evidence of a reference with tensors and without calls."""
    return Evidence(PRECISIONS["fp32"], "score", Capture(tensors=tensors), {}, {}, {}, {}, {}, 2, **fields)


FIELDS = ("untapped", "tapped", "isolated", "poisoned")


@pytest.mark.parametrize("squeeze", [True, False])
def test_results_have_the_reference_s_leading_axes_where_those_of_1_do_not_count(squeeze):
    evidence = evidence_of({"a": torch.zeros(2, 3), "b": torch.zeros(1, 2)}, squeeze=squeeze)
    values = {"a": torch.arange(6.0).reshape(1, 2, 3), "b": torch.zeros(3), "more": torch.zeros(1, 1)}
    results = Results(
        **{
            field: {name: tensor + place for name, tensor in values.items()}
            for place, field in enumerate(FIELDS)
        }
    )
    moved = aligned(evidence, results)
    for place, field in enumerate(FIELDS):
        tensors = getattr(moved, field)
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
    evidence = evidence_of({"norm": values, "score.out": values})
    outputs = {"score.out": values[..., None]}
    moved = aligned(evidence, Results(outputs, {"norm": values[..., None], **outputs}))
    assert torch.equal(moved.tapped["norm"], values)
    assert moved.regrouped == {"norm": (2, 3)}
    assert moved.tapped["score.out"].shape == moved.untapped["score.out"].shape == (2, 3, 1)


def test_merged_axes_are_the_references_and_others_are_not_read():
    own = {name: torch.zeros(2, 3, 4) for name in ("first", "second", "third", "score.out")}
    evidence = evidence_of(Saved(own))
    values = torch.arange(24)
    tapped = Saved({"first": values.reshape(6, 4), "third": values, "score.out": values, "extra": values})
    tapped.shapes["third"] = (2, 3, 4)
    untapped, poisoned = {"score.out": values}, {"third": values.reshape(2, 3, 4)}
    isolated = {"second": values.reshape(2, 12), "third": values.reshape(3, 2, 4)}
    results = Results(untapped, tapped, isolated, poisoned=poisoned)
    moved = aligned(evidence, results)
    assert moved.regrouped == {"first": (2, 3, 4), "second": (2, 3, 4)}
    assert torch.equal(moved.tapped["first"], values.reshape(2, 3, 4))
    assert torch.equal(moved.isolated["second"], values.reshape(2, 3, 4))
    assert moved.isolated["third"] is isolated["third"]
    assert (moved.untapped, moved.poisoned) == (untapped, poisoned)
    assert (tapped.read, evidence.reference.tensors.read) == (["first"], [])
    assert moved.tapped["score.out"] is values
    plain = Results(untapped, poisoned=poisoned)
    assert aligned(evidence, plain) is plain
