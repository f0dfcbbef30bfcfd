"""Outputs that have numbers for names on one side, and integers that the reference gives no type.

`tests/parity/test_api_results.py` has the names of modules' results.
"""

import pytest
import torch

from parity.capture.captures import Capture, ModuleCall
from parity.capture.outputs import form_of
from parity.verdict.evidence import Results
from parity.verdict.result_names import comparable, names_in_reference, with_reference_names
from tests.parity.comparisons import evidence_with
from tests.parity.verdict.received_calls import capture

PARTS = ("untapped", "tapped", "isolated", "incremental", "poisoned")


def named(ours, theirs):
    """The port's outputs and a module's result in every part, under the reference's names."""
    reference = Capture(tensors={tap: torch.zeros(2) for tap in (*theirs, "block")})
    evidence = evidence_with(reference=reference, oracle={}, oracle_isolated={})
    tensors = {tap: torch.full((2,), float(place)) for place, tap in enumerate((*ours, "block"))}
    results = Results(**{part: dict(tensors) for part in PARTS}, received=capture(("block", {"x": 2.0})))
    return with_reference_names(evidence, results)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (["score.0", "score.1"], ["score.logits", "score.state"]),
        (["score.logits", "score.state"], ["score.0", "score.1"]),
        (["score.out.0", "score.out.1"], ["score.out.mean", "score.out.scale"]),
        # One of them has its name already.
        (["score.logits", "score.1"], ["score.logits", "score.state"]),
    ],
)
def test_numbers_stand_for_the_names_of_outputs_in_their_order(ours, theirs):
    found = named(ours, theirs)
    for part in PARTS:
        own = getattr(found, part)
        assert list(own) == [*theirs, "block"]
        assert [float(own[tap][0]) for tap in own] == [0.0, 1.0, 2.0]
    pairs = zip(theirs, ours, strict=True)
    assert found.numbered == {theirs: ours for theirs, ours in pairs if ours != theirs}
    assert list(found.received.arguments) == ["block"]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        # Two names, or two numbers, are two outputs.
        (["score.first", "score.second"], ["score.logits", "score.state"]),
        (["score.1", "score.2"], ["score.0", "score.1"]),
        (["score.0", "score.second"], ["score.logits", "score.state"]),
        # Another number of outputs, or another depth.
        (["score.0"], ["score.logits", "score.state"]),
        (["score.0", "score.1"], ["score.logits"]),
        (["score.0", "score.1"], ["score.out.logits", "score.out.state"]),
        (["score.out.0", "score.out.1"], ["score.logits", "score.state"]),
        (["score.out.0", "score.out.1"], ["score.other.logits", "score.other.state"]),
        (["score.logits", "score.state"], ["score.logits", "score.state"]),
    ],
)
def test_other_names_of_outputs_stay(ours, theirs):
    found = named(ours, theirs)
    assert all(list(getattr(found, part)) == [*ours, "block"] for part in PARTS)
    assert found.numbered == {}


def typed(theirs, ours, form):
    """The type of the port's output beside the reference's, in both parts of the results."""
    tap = "score.out"
    reference = Capture(tensors={tap: theirs, "block": torch.tensor([1])}, forms={tap: form} if form else {})
    evidence = evidence_with(reference=reference, oracle={}, oracle_isolated={})
    tensors = {tap: ours, "block": torch.tensor([1], dtype=torch.int32)}
    found = comparable(evidence, Results(dict(tensors), dict(tensors)))
    assert {part["block"].dtype for part in (found.untapped, found.tapped)} == {torch.int32}
    (dtype,) = {part[tap].dtype for part in (found.untapped, found.tapped)}
    assert all(part[tap].tolist() == ours.tolist() for part in (found.untapped, found.tapped))
    return dtype


def test_a_number_of_the_reference_has_no_type_of_integers():
    number, short = torch.tensor([3]), torch.tensor([3], dtype=torch.int32)
    assert typed(number, short, form_of(3)) is torch.int64
    # A tensor has one, and another kind of number is another result.
    assert typed(number, short, "") is torch.int32
    assert typed(number, short, form_of(torch.zeros(1, dtype=torch.complex64))) is torch.int32
    assert typed(number, torch.tensor([3.0]), form_of(3)) is torch.float32
    assert typed(torch.tensor([3.0]), short, form_of(3.0)) is torch.int32


def test_results_of_every_call_have_the_references_names():
    theirs, ours = ("block[mean]", "last[mean]"), ("block[0]", "last[0]")
    paths = ("block", "last")
    calls = [ModuleCall(path, path, "Block", [], {}, (tap,)) for path, tap in zip(paths, theirs, strict=True)]
    sums = dict.fromkeys(paths, 1)
    reference = Capture(tensors={tap: torch.zeros(2) for tap in theirs}, calls=calls, longest_sums=sums)
    evidence = evidence_with(reference=reference, oracle={}, oracle_isolated={})
    tensors = {tap: torch.full((2,), float(place)) for place, tap in enumerate((*ours, "own", "score.0"))}
    received = capture(*((path, {"x": 2.0}, {"origins": {"x": "block[0]"}}) for path in paths))
    known = {*theirs, "own", "score.0"}
    for parts in (("tapped", "isolated"), ("tapped",), ("isolated",)):
        given = {"tapped": {}, "isolated": {}} | {part: dict(tensors) for part in parts}
        found = with_reference_names(evidence, Results({}, **given, received=received))
        for part in parts:
            own = getattr(found, part)
            assert {tap: float(own[tap][0]) for tap in own} == dict(
                zip((*theirs, "own", "score.0"), range(4), strict=True)
            )
            assert own.keys() == known
        # A call keeps its name.
        assert list(found.received.arguments) == list(paths)
        assert [argument.origin for argument in found.received.arguments["last"].arguments] == [theirs[0]]


def test_outputs_of_the_entry_are_no_results_of_a_module():
    """A module may have the name of an output."""
    call = ModuleCall("score.out", "score.out", "Head", [], {}, ("score.out[mean]",))
    reference = Capture(
        tensors={"score.out[mean]": torch.zeros(2)}, calls=[call], longest_sums={"score.out": 1}
    )
    evidence = evidence_with(reference=reference, oracle={}, oracle_isolated={})
    assert names_in_reference(evidence, {"score.out[0]": torch.zeros(2)}) == {}
