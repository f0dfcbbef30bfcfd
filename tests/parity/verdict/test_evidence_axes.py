"""Results of modules whose axes the port has in another order, such as channels behind the positions."""

import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.capture.arguments import Argument, Received
from parity.capture.captures import Capture, ModuleCall
from parity.verdict.evidence import Evidence, Results, axes_order, with_axes


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
    aligned = evidence.aligned(results)
    assert torch.equal(aligned.tapped["mix"], expected)
    assert torch.equal(aligned.poisoned["mix"], expected)
    # Alone, the module receives the reference's tensor.
    assert aligned.isolated is results.isolated
    assert aligned.other_axes == {"mix": CHANNELS_FIRST}
    assert aligned.regrouped == {}


def test_one_argument_in_another_order_is_enough_and_may_have_another_place():
    values, weights = torch.randn(2, 7, 5), torch.randn(4)
    evidence, results = sides(
        {"w": weights, "x": values}, {"x": values.transpose(1, 2), "w": weights}, ("w", "x")
    )
    assert evidence.aligned(results).other_axes == {"mix": CHANNELS_FIRST}


LEFT = {
    "the reference's order": {"x": torch.zeros(2, 7, 5)},
    "no tensors": {},
    "other sizes": {"x": torch.zeros(2, 5, 8)},
    "integers": {"x": torch.zeros(2, 5, 7, dtype=torch.int64)},
}


@pytest.mark.parametrize("name", LEFT)
def test_a_result_of_other_axes_is_a_failure_where_the_call_receives_none(name):
    evidence, results = sides({"x": torch.zeros(2, 7, 5)}, LEFT[name])
    assert evidence.aligned(results) is results


def test_integers_of_the_reference_are_no_such_argument():
    evidence, results = sides({"x": torch.zeros(2, 7, 5, dtype=torch.int64)}, {"x": torch.zeros(2, 5, 7)})
    assert evidence.aligned(results) is results


def test_a_call_without_recorded_arguments_keeps_its_axes():
    evidence, results = sides({"x": torch.zeros(2, 7, 5)}, {"x": torch.zeros(2, 5, 7)})
    results.received.arguments.clear()
    assert evidence.aligned(results) is results
    evidence.reference.arguments.clear()
    assert evidence.aligned(results) is results


def test_outputs_of_the_model_and_taps_of_one_side_keep_their_axes():
    evidence, results = sides({"x": torch.zeros(2, 7, 5)}, {"x": torch.zeros(2, 5, 7)})
    other = torch.zeros(CHANNELS_LAST)
    results.tapped |= {"score.out": other, "extra": other}
    aligned = evidence.aligned(results)
    assert aligned.tapped["score.out"] is aligned.tapped["extra"] is other
    assert aligned.other_axes == {"mix": CHANNELS_FIRST}


def test_a_result_in_the_references_order_is_not_moved():
    evidence, results = sides({"x": torch.zeros(2, 7, 5)}, {"x": torch.zeros(2, 5, 7)}, result=CHANNELS_LAST)
    assert evidence.aligned(results) is results


def test_a_run_may_lack_a_result_that_another_run_has_in_another_order():
    evidence, results = sides({"x": torch.zeros(2, 7, 5)}, {"x": torch.zeros(2, 5, 7)})
    later = ModuleCall("later", "later", "Conv1d", [], {}, ("later",))
    evidence.kinds["later"] = later
    evidence.reference.tensors["later"] = evidence.reference.tensors["mix"]
    for run in (evidence.reference, results.received):
        run.arguments["later"] = run.arguments["mix"]
    results.poisoned = {"later": results.poisoned["mix"]}
    assert evidence.aligned(results).other_axes == {"mix": CHANNELS_FIRST, "later": CHANNELS_FIRST}
