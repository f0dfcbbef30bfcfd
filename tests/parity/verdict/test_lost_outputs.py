"""Outputs that nearly any result would pass as: the verdict of a run whose modules are right."""

import math
from dataclasses import replace

import pytest

from parity.verdict.judgement import MODEL_OUTPUT
from parity.verdict.merging import merge_batches
from parity.verdict.sensitivity import Rows
from tests.parity.judgements import runner, tap, verdict

HALF = 0.5
"""Relative error: an output that does not detect half of its own size says nothing."""


def output(detectable, carrying=8.0, name="score.out", batch="typical", **changes):
    """An output of the model that detects no error below this one."""
    own = replace(verdict(0.1, detectable), rows=Rows.of(9, carrying))
    return tap(name, MODEL_OUTPUT, accumulated=own, isolated=None, rows=own.rows, batch=batch, **changes)


def merged(*taps, **changes):
    return merge_batches([{"tripy": runner(tap("block"), *taps, **changes)}], 0, recorded=False)["tripy"]


@pytest.mark.parametrize("detectable", [HALF, 0.9, 40.0, math.inf, math.nan])
def test_a_lost_output_is_insensitive_though_every_module_is_sensitive(detectable):
    found = merged(output(1e-6, name="score.first"), output(detectable), output(0.8, name="score.last"))
    assert found.verdict == "INSENSITIVE"
    assert [own.tap for own in found.taps if own.insensitive] == ["score.out", "score.last"]
    assert (found.diagnosis.kind, found.diagnosis.tap, found.diagnosis.batch) == (
        "insensitive",
        "score.out",
        "typical",
    )
    assert found.diagnosis.text == (
        "score.out: rounding may be as large as the result, so that nearly any result would pass; "
        "return it before numbers cancel or errors grow, or give a finer precision"
    )


@pytest.mark.parametrize(
    "own",
    [
        output(0.99 * HALF),
        # Zeros have no size.
        output(0.9, carrying=0.0),
    ],
)
def test_other_outputs_are_not_lost(own):
    found = merged(own)
    assert found.verdict == "PASS"
    assert not any(tap.insensitive for tap in found.taps)


def test_a_part_of_a_row_is_lost_as_well():
    assert merged(output(0.9, carrying=0.5)).verdict == "INSENSITIVE"


def test_a_failure_is_not_insensitive():
    assert merged(output(0.9), verdict="FAIL").verdict == "FAIL"
