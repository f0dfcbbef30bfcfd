"""The reason why one side alone has a tap: calls of modules are counted, and the counts are told."""

import dataclasses

import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.capture.captures import Capture
from parity.verdict.calls import REMEDY, extra, missing
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
        "the port calls block once, the reference 3 times",
    ),
    "an output of a call": (
        "block[0] block[1] block@1[0]",
        "block[0] block@1[0]",
        "block[1]",
        "the port's block returns no such output",
    ),
    "more calls": ("block[1]", "block[0] block@1[0]", "block[1]", "the port's block returns no such output"),
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
        "the port calls block 2 times, the reference once",
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
