"""The reason why one side alone has a tap: calls of modules are counted, and the counts are told."""

import dataclasses

import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.capture.captures import Capture, ModuleCall
from parity.verdict.calls import (
    ONE_SIDED,
    REMEDY,
    extra,
    has_module,
    looks_up_rows,
    missing,
    spare_result,
    without_partner,
)
from parity.verdict.evidence import Evidence, Results


def sides(theirs, ours):
    """The evidence of a reference with some taps, and the results of a port with others."""
    theirs, ours = (dict.fromkeys(taps.split(), torch.zeros(1)) for taps in (theirs, ours))
    evidence = Evidence(PRECISIONS["fp32"], "score", Capture(theirs), theirs, {}, {}, {}, {}, 1)
    return evidence, Results({}, ours)


# The reference's taps, the port's, a tap that the port lacks, and the reason.
MISSING = {
    "an output of the model": (
        "score.best",
        "block",
        "score.best",
        "the port's score returns no such output",
    ),
    "no call": ("block mask", "block", "mask", f"the port never calls mask; {REMEDY}"),
    # Another module may be called in its place.
    "a call of another module": (
        "norm first second block block@1 block@2",
        "first second second@1 second@2 block block@1 block@2 block@3",
        "norm",
        f"the port never calls norm; the port calls second 3 times, the reference once; {REMEDY}",
    ),
    "the first of two such modules": (
        "norm second@1 second first",
        "second second@1 second@2 first first@1",
        "norm",
        f"the port never calls norm; the port calls second 3 times, the reference 2 times; {REMEDY}",
    ),
    "too few calls": (
        "block block@1 block@2",
        "block",
        "block@1",
        f"the port calls block once, the reference 3 times; {ONE_SIDED}",
    ),
    "an output of a call": (
        "block[0] block[1] block@1[0]",
        "block[0] block@1[0]",
        "block[1]",
        "the port's block returns no such output",
    ),
    "more calls": ("block[1]", "block[0] block@1[0]", "block[1]", "the port's block returns no such output"),
    "another module instead": (
        "first.norm first second.norm second",
        "first.norm first first.norm@1 first@1",
        "second",
        f"the port never calls second; the port calls first 2 times, the reference once; {REMEDY}",
    ),
    # Calls that append an item to a cache are no calls of the full forward.
    "appends": (
        "norm block",
        "block append:block@1 append:block@2",
        "norm",
        f"the port never calls norm; {REMEDY}",
    ),
}
# As above, with a tap that the reference lacks.
EXTRA = {
    "an output of the model": (
        "block",
        "score.best",
        "score.best",
        "the reference's score returns no such output",
    ),
    "no call": ("block", "block mask", "mask", "the reference never calls mask"),
    "too many calls": (
        "block",
        "block block@1",
        "block@1",
        f"the port calls block 2 times, the reference once; {ONE_SIDED}",
    ),
    "an output of a call": (
        "block[0]",
        "block[0] block[1]",
        "block[1]",
        "the reference's block returns no such output",
    ),
    "fewer calls": (
        "block[0] block@1[0]",
        "block[1]",
        "block[1]",
        "the reference's block returns no such output",
    ),
    "no call in the full forward": (
        "block",
        "append:block[1]",
        "append:block[1]",
        "the reference's block returns no such output",
    ),
}


@pytest.mark.parametrize("name", MISSING)
def test_a_tap_that_the_port_lacks(name):
    theirs, ours, tap, reason = MISSING[name]
    assert missing(*sides(theirs, ours), tap) == f"missing: {reason}"


@pytest.mark.parametrize("name", EXTRA)
def test_a_tap_that_the_reference_lacks(name):
    theirs, ours, tap, reason = EXTRA[name]
    assert extra(*sides(theirs, ours), tap) == f"extra: {reason}"


def test_a_runner_without_modules_has_outputs_alone():
    evidence, results = sides("block", "mask")
    results = dataclasses.replace(results, taps_modules=False)
    assert extra(evidence, results, "mask") == "extra: the reference's score returns no such output"


def allowed(path, kind):
    """A reason why one side alone has a module, with both arguments."""
    return f"{path} of {kind}" if (path, kind) == ("lstm", "LSTM") else ""


# The reference's taps, the port's, the tap, and whether it may be absent.
SPARE = {
    "the reference's last state": ("lstm[0] lstm[1]", "lstm[0]", "lstm[1]", "reference"),
    "the port's last state": ("lstm[0]", "lstm[0] lstm[1]", "lstm[1]", "port"),
    "of a second call": ("lstm@1[0] lstm@1[1]", "lstm@1[0]", "lstm@1[1]", "reference"),
    "of both sides": ("lstm[0] lstm[1]", "lstm[0] lstm[1]", "lstm[1]", ""),
    "of no side": ("lstm[0]", "lstm[0]", "lstm[1]", ""),
    "of a call of one side": ("lstm[0] lstm@1[0]", "lstm[0]", "lstm@1[0]", ""),
    "of a call whose results differ in name": ("lstm[1]", "lstm[0]", "lstm[1]", ""),
    "of a call that appends": (
        "append:lstm[0] append:lstm[1]",
        "append:lstm[0]",
        "append:lstm[1]",
        "",
    ),
    "an output of the model": ("score.last lstm[0]", "lstm[0]", "score.last", ""),
    "of a module that the case does not allow": ("gru[0] gru[1]", "gru[0]", "gru[1]", ""),
}


@pytest.mark.parametrize("name", SPARE)
def test_a_result_that_one_side_alone_returns(name):
    theirs, ours, tap, side = SPARE[name]
    evidence, results = sides(theirs, ours)
    evidence.absence = allowed
    expected = f"the {side} alone returns its result [1]" if side else ""
    assert spare_result(evidence, results, tap, "LSTM" if "lstm" in tap else "GRU") == expected


BAGS = ModuleCall("bags", "bags", "EmbeddingBag", [], {}, ("bags",))
LOOKED_UP = "the port looks its rows up alone; the results behind them are judged"


@pytest.mark.parametrize(
    ("kind", "shape", "port", "expected"),
    [
        ("EmbeddingBag", (6, 4), (6, 3, 4), LOOKED_UP),
        ("EmbeddingBag", (6, 2, 4), (6, 2, 3, 4), LOOKED_UP),
        ("Embedding", (6, 4), (6, 3, 4), ""),
        ("EmbeddingBag", (6, 4), (6, 4), ""),
        ("EmbeddingBag", (6, 4), (3, 6, 4), ""),
        ("EmbeddingBag", (6, 4), (6, 3, 5), ""),
        ("EmbeddingBag", (6, 4), (6, 3, 3, 4), ""),
        ("EmbeddingBag", (6, 4), (4,), ""),
    ],
)
def test_a_bag_whose_rows_the_port_looks_up(kind, shape, port, expected):
    evidence, _ = sides("bags", "bags")
    evidence.reference.tensors["bags"] = torch.zeros(shape)
    evidence.absence = lambda path, of: "may be absent" if (path, of) == ("bags", kind) else ""
    call = dataclasses.replace(BAGS, kind=kind)
    assert looks_up_rows(evidence, call, torch.zeros(port)) == expected


def test_a_bag_that_the_case_compares_is_compared():
    evidence, _ = sides("bags", "bags")
    evidence.reference.tensors["bags"] = torch.zeros(6, 4)
    assert looks_up_rows(evidence, BAGS, torch.zeros(6, 3, 4)) == ""


@pytest.mark.parametrize("part", ["tapped", "isolated", "isolated_problems"])
def test_a_runner_has_a_module_with_any_result_of_it(part):
    results = Results({}, **{part: {"block@1[0]": "any"}})
    assert has_module(results, "block")
    assert not has_module(results, "block.inner")


def test_no_remedy_is_told_where_the_case_allows_the_calls_of_a_path():
    evidence, results = sides("block block@1 other other@1", "block block@1 block@2 other")
    evidence.absence = lambda path, kind: "stated" if path == "block" else ""
    assert extra(evidence, results, "block@2") == "extra: the port calls block 3 times, the reference 2 times"
    assert missing(evidence, results, "other@1").endswith(f"; {ONE_SIDED}")
    evidence.absence = lambda path, kind: "stated" if path == "other" else ""
    assert extra(evidence, results, "block@2").endswith(f"; {ONE_SIDED}")
    assert (
        missing(evidence, results, "other@1") == "missing: the port calls other once, the reference 2 times"
    )


def test_calls_of_equal_shapes_are_partners_beside_joined_ones():
    evidence, results = sides(
        "block block@1 block.inner block.inner@1 other other@1", "block block.inner other"
    )
    results.tapped["block"] = torch.zeros(2)
    inside, outside = (
        f"the port calls {path} once, the reference 2 times" for path in ("block.inner", "block")
    )
    assert without_partner(evidence, results) == {"block": outside, "block.inner": inside}
