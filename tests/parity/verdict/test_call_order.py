"""Calls of a shared module in another order: every tensor of a call moves with it."""

import pytest
import torch

from parity.capture.captures import Capture
from parity.capture.names import TapName
from parity.verdict.call_order import in_order
from parity.verdict.evidence import Results
from tests.parity.comparisons import evidence_with
from tests.parity.verdict.received_calls import capture, tensor

USERS, ITEMS, OTHERS = (tensor(4, 3, seed=seed) for seed in (1, 2, 3))
SCORES = tensor(4, 2, seed=4)


def side(first, second, origins=("encoder", "encoder@1")):
    """A capture: two calls of an encoder, two of a scale, and one of a head that receives both results."""
    made = capture(
        ("encoder", {"x": first}),
        ("encoder@1", {"x": second}),
        ("scale", {"x": USERS}),
        ("scale@1", {"x": ITEMS}),
        ("head", {"users": USERS, "items": ITEMS}, {"origins": {"users": origins[0], "items": origins[1]}}),
    )
    made.tensors = {"encoder": first, "encoder@1": second, "scale": USERS, "scale@1": ITEMS, "head": SCORES}
    return made


def ordered(reference, port, **results):
    evidence = evidence_with(reference=reference)
    given = Results({}, tapped=dict(port.tensors), received=port, **results)

    def is_same(call, theirs, ours):
        assert reference.arguments[call] is theirs
        pairs = zip(theirs.arguments, ours.arguments, strict=True)
        return all(torch.equal(reference.argument(a), port.argument(b)) for a, b in pairs)

    moved = in_order(evidence, given, is_same)
    return given, moved


@pytest.fixture
def exchanged():
    """The results of a port that encodes items first; its head receives users first all the same."""
    reference, port = side(USERS, ITEMS), side(ITEMS, USERS, ("encoder@1", "encoder"))
    poisoned = side(ITEMS, OTHERS, ("encoder@1", "encoder"))
    poisoned.padded |= {"encoder@1", "head"}
    return ordered(
        reference,
        port,
        poisoned=dict(port.tensors),
        received_poisoned=poisoned,
        regrouped={"encoder@1": (4, 3), "head": (4, 2)},
        other_axes={"encoder": (3, 4)},
    )


def test_calls_in_the_references_order_stay():
    given, moved = ordered(side(USERS, ITEMS), side(USERS, ITEMS))
    assert moved is given


def test_one_call_with_another_argument_stays():
    given, moved = ordered(side(USERS, ITEMS), side(USERS, OTHERS))
    assert moved is given


@pytest.mark.parametrize("part", ["tapped", "poisoned"])
def test_results_take_the_references_number(exchanged, part):
    _, moved = exchanged
    found = dict(getattr(moved, part))
    expected = side(USERS, ITEMS).tensors
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert dict(moved.received.tensors).keys() == expected.keys()
    assert torch.equal(moved.received.tensors["encoder"], USERS)


def test_the_moved_calls_are_told(exchanged):
    assert exchanged[1].reordered == {"encoder", "encoder@1"}


def test_arguments_move_and_keep_their_tensors(exchanged):
    received = exchanged[1].received
    (argument,) = received.arguments["encoder"].arguments
    assert torch.equal(received.argument(argument), USERS)
    origins = [argument.origin for argument in received.arguments["head"].arguments]
    assert origins == ["encoder", "encoder@1"]
    assert [argument.origin for argument in received.arguments["scale"].arguments] == [""]


def test_the_run_with_garbage_in_the_padding_moves_too(exchanged):
    received = exchanged[1].received_poisoned
    (argument,) = received.arguments["encoder"].arguments
    assert torch.equal(received.argument(argument), OTHERS)
    assert [argument.origin for argument in received.arguments["head"].arguments] == ["encoder", "encoder@1"]
    assert torch.equal(received.tensors["encoder"], OTHERS)
    assert received.padded == {"encoder", "head"}


def test_other_shapes_and_axes_move(exchanged):
    _, moved = exchanged
    assert moved.regrouped == {"encoder": (4, 3), "head": (4, 2)}
    assert moved.other_axes == {"encoder@1": (3, 4)}


def test_a_module_without_calls_stays():
    given, moved = ordered(Capture(), side(USERS, ITEMS))
    assert moved is given


def of_calls(*arguments):
    """A capture of calls of one module with these arguments."""
    names = [str(TapName("encoder", number)) for number in range(len(arguments))]
    made = capture(*((name, {"x": argument}) for name, argument in zip(names, arguments, strict=True)))
    made.tensors = dict(zip(names, arguments, strict=True))
    return made


@pytest.mark.parametrize(
    ("theirs", "ours", "numbers"),
    [
        ((USERS, USERS, ITEMS), (USERS, ITEMS), (0, 2)),
        ((USERS, ITEMS), (USERS, USERS, ITEMS), (0, 2, 1)),
        ((ITEMS,), (USERS, ITEMS), (1, 0)),
        ((USERS, USERS, ITEMS, OTHERS), (USERS, ITEMS, OTHERS), (0, 2, 3)),
        # A call without a partner leaves all as they are, unless the port makes more calls.
        ((USERS, USERS, ITEMS), (USERS, OTHERS), (0, 1)),
        ((USERS, ITEMS), (USERS, OTHERS, OTHERS), (0, 1, 2)),
        ((USERS, USERS), (USERS, USERS, ITEMS), (0, 1, 2)),
        ((USERS, USERS, ITEMS), (USERS, USERS), (0, 1)),
        ((USERS,), (ITEMS,), (0,)),
        ((USERS, ITEMS), (ITEMS,), (1,)),
    ],
)
def test_calls_behind_one_of_a_single_side_take_the_references_numbers(theirs, ours, numbers):
    given, moved = ordered(of_calls(*theirs), of_calls(*ours))
    assert (moved is given) == (numbers == tuple(range(len(ours))))
    found = dict(moved.tapped)
    names = [str(TapName("encoder", number)) for number in numbers]
    assert all(found[name] is own for name, own in zip(names, ours, strict=True))
    assert len(found) == len(ours)
    assert moved.reordered == frozenset()


def test_calls_in_another_order_are_told_beside_one_of_a_single_side():
    _, moved = ordered(of_calls(USERS, USERS, ITEMS, OTHERS), of_calls(USERS, OTHERS, ITEMS))
    assert moved.reordered == {str(TapName("encoder", 3))}


def test_calls_of_two_modules_move_each_by_its_own():
    """Both are told: an encoder whose calls exchange, and a scale whose calls do."""

    def of_both(first, second):
        names = ("encoder", "scale", "encoder@1", "scale@1")
        arguments = (first, 2 * first, second, 2 * second)
        made = capture(*((name, {"x": own}) for name, own in zip(names, arguments, strict=True)))
        made.tensors = dict(zip(names, arguments, strict=True))
        return made

    _, moved = ordered(of_both(USERS, ITEMS), of_both(ITEMS, USERS))
    assert moved.reordered == {"encoder", "scale", "encoder@1", "scale@1"}
    assert torch.equal(moved.tapped["scale@1"], 2 * ITEMS)


def test_a_call_has_no_number_of_another_module():
    """The encoder receives what a call of the scale receives that the port does not make."""
    reference = capture(("encoder", {"x": USERS}), ("scale", {"x": ITEMS}), ("scale@1", {"x": OTHERS}))
    port = capture(("encoder", {"x": OTHERS}), ("scale", {"x": ITEMS}))
    given, moved = ordered(reference, port)
    assert moved is given
