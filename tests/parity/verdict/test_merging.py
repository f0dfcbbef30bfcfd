"""Several batches of a runner: each tap's worst batch, the first failure, the smallest detected error."""

import math
from dataclasses import replace

import pytest

from parity.execution.record import REFERENCE, RunnerRecord, Status
from parity.verdict.judgement import MODEL_OUTPUT, Diagnosis
from parity.verdict.merging import merge_batches
from tests.parity.judgements import runner, tap, verdict

TAPS = ("_emb", "_block.0", "_block.1")
OUTPUT = "score.current"


def _batch(number, margins=(0.2, 0.3, 0.4), detectable=1e-6):
    """A batch with these margins of the modules' isolated verdicts."""
    name = str(number)
    modules = [
        tap(
            name,
            isolated=verdict(margin, detectable),
            accumulated=verdict(0.1, detectable),
            batch=str(number),
        )
        for name, margin in zip(TAPS, margins, strict=True)
    ]
    output = tap(OUTPUT, MODEL_OUTPUT, isolated=None, accumulated=verdict(0.1, detectable), batch=name)
    failed = next((module for module in modules if not module.passed), None)
    if failed is None:
        return runner(*modules, output)
    return runner(*modules, output, verdict="FAIL", diagnosis=Diagnosis("module", failed.tap, batch=name))


def _merged(*batches, name="tripy"):
    merged = merge_batches({name: batch} for batch in batches)[name]
    return merged, {tap.tap: tap for tap in merged.taps}


def test_each_tap_shows_its_worst_batch_and_the_first_record_stays():
    batches = [_batch(0), _batch(1, (0.2, 0.3, 0.9)), _batch(2, (0.2, 0.3, 0.5))]
    later = [replace(batch, record=RunnerRecord(label="later")) for batch in batches[1:]]
    merged, taps = _merged(batches[0], *later)
    assert [taps[name].batch for name in TAPS] == ["0", "0", "1"]
    assert [tap.tap for tap in merged.taps] == [*TAPS, OUTPUT]
    assert merged.record == batches[0].record


def test_a_tap_of_a_later_batch_is_added():
    later = replace(_batch(1), taps=(*_batch(1).taps, tap("extra", batch="1")))
    merged, taps = _merged(_batch(0), later)
    assert [tap.tap for tap in merged.taps] == [*TAPS, OUTPUT, "extra"]
    assert taps["extra"].batch == "1"


def test_an_error_that_one_batch_detects_is_detected():
    merged, taps = _merged(*(_batch(n, detectable=error) for n, error in enumerate((0.02, 0.009, 0.5))))
    assert merged.verdict == "PASS"
    assert {tap.min_detectable_error for tap in taps.values()} == {0.009}


def test_a_check_that_detects_too_little_in_every_batch_is_insensitive():
    merged, taps = _merged(_batch(0, detectable=0.02), _batch(1, detectable=0.5))
    assert (merged.verdict, merged.diagnosis.kind) == ("INSENSITIVE", "insensitive")
    assert "3 of 3 checks do not detect an error of 1%" in merged.diagnosis.text
    assert {name for name, tap in taps.items() if tap.status == "INSENSITIVE"} == set(TAPS)
    assert taps[OUTPUT].status == "PASS"


def test_outputs_are_insensitive_without_other_checks():
    output = tap(OUTPUT, MODEL_OUTPUT, isolated=None, accumulated=verdict(0.1, 0.02))
    merged, taps = _merged(runner(output))
    assert (merged.verdict, taps[OUTPUT].status) == ("INSENSITIVE", "INSENSITIVE")


def test_one_sensitive_call_is_enough_for_a_module():
    first = tap("_block", isolated=verdict(0.2, 0.02), accumulated=None)
    second = replace(first, tap="_block@1", min_detectable_error=1e-6)
    assert _merged(runner(first, second))[0].verdict == "PASS"
    assert _merged(runner(first))[0].verdict == "INSENSITIVE"


def test_the_reference_and_a_failure_are_never_insensitive():
    assert _merged(_batch(0, detectable=0.5), name=REFERENCE)[0].verdict == "PASS"
    failed = _merged(_batch(0, (2.0, 0.3, 0.4), detectable=0.5))[0]
    assert (failed.verdict, failed.diagnosis.kind) == ("FAIL", "module")


def test_the_first_failure_remains_whatever_the_margin():
    failed, later = _batch(1, (0.2, 1.5, 0.4)), _batch(2, (0.2, 0.3, math.inf))
    merged, taps = _merged(_batch(0), failed, later)
    assert merged.verdict == "FAIL"
    assert (merged.diagnosis.tap, merged.diagnosis.batch) == (TAPS[1], "1")
    assert taps[TAPS[1]].status == taps[TAPS[2]].status == "FAIL"
    assert _merged(failed, _batch(0))[1][TAPS[1]].status == "FAIL"


@pytest.mark.parametrize("order", ["last", "first", "middle"])
def test_a_batch_without_a_verdict_leaves_none(order):
    crashed = runner(verdict="NONE", status=Status.CRASHED, reason="boom", diagnosis=None)
    batches = {
        "last": (_batch(0), crashed),
        "first": (crashed, _batch(1)),
        "middle": (_batch(0), crashed, _batch(2)),
    }[order]
    merged = _merged(*batches)[0]
    assert (merged.verdict, merged.status, merged.reason) == ("NONE", Status.CRASHED, "boom")


@pytest.mark.parametrize("is_first", [True, False])
def test_a_leak_a_failed_check_and_the_largest_observer_difference_remain(is_first):
    other = replace(
        _batch(1), padding_leak="tap", checks={"incremental.current": verdict(2.0)}, observer_difference=3.0
    )
    merged = _merged(*((other, _batch(0)) if is_first else (_batch(0), other)))[0]
    assert (merged.padding_leak, merged.observer_difference) == ("tap", 3.0)
    assert merged.checks["incremental.current"].status == "FAIL"
