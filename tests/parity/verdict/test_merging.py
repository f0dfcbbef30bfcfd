"""Several batches of a runner: each tap's worst batch, the first failure, the smallest detected error."""

import math
from dataclasses import replace

import pytest

from parity.execution.record import REFERENCE, RunnerRecord, Status
from parity.verdict.judgement import MODEL_OUTPUT, Diagnosis
from parity.verdict.merging import merge_batches
from parity.verdict.row_errors import RowErrors
from parity.verdict.sensitivity import ENOUGH_ROWS, Rows
from tests.parity.judgements import DIAGONAL, runner, tap, verdict

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


def _merge(*batches, further=0, recorded=False):
    return merge_batches(batches, further, recorded)


def _merged(*batches, name="tripy"):
    merged = _merge(*({name: batch} for batch in batches))[name]
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


def test_a_check_that_no_number_of_rows_helps_passes_with_the_reason():
    output = tap(OUTPUT, MODEL_OUTPUT, isolated=None, accumulated=verdict(0.1, 0.02))
    limited = replace(output, lasting_limits={"accumulated": 0.0051})
    merged, taps = _merged(runner(limited), runner(limited))
    assert merged.verdict == "PASS"
    assert (taps[OUTPUT].status, taps[OUTPUT].by_nature) == ("PASS", True)
    (note,) = taps[OUTPUT].notes
    assert note.startswith("no batch of a run detects every error of 1%")
    assert "0.0051" in note
    # Half of 1 % is the largest part of the limit that rows can help with.
    helped = _merged(runner(replace(output, lasting_limits={"accumulated": 0.0049})))[0]
    assert helped.verdict == "INSENSITIVE"
    # Another check of the same runner is insensitive all the same.
    both = _merged(runner(limited, replace(output, tap="score.encoded", path="score.encoded")))[0]
    assert (both.verdict, both.diagnosis.tap) == ("INSENSITIVE", "score.encoded")
    assert [tap.status for tap in both.taps] == ["PASS", "INSENSITIVE"]


def test_rows_help_a_module_that_runs_alone_in_any_batch():
    """Later batches of a plan judge modules inside the model only, where more roundings add up."""
    alone = tap("_block", isolated=verdict(0.1, 0.03), accumulated=verdict(0.1, 0.03))
    alone = replace(alone, lasting_limits={"isolated": 0.004, "accumulated": 0.02})
    inside = tap("_block", isolated=None, accumulated=verdict(0.1, 0.025))
    inside = replace(inside, lasting_limits={"accumulated": 0.03})
    for batches in ((alone, inside), (inside, alone)):
        merged, taps = _merged(*map(runner, batches))
        assert merged.verdict == "INSENSITIVE"
        assert taps["_block"].lasting_limits == {"isolated": 0.004, "accumulated": 0.03}


@pytest.mark.parametrize(
    ("further", "recorded", "text"),
    [
        (0, True, "recorded data have no more rows to draw; give a larger file, or a finer precision"),
        (0, False, "the inputs have too few rows; give about 4 times as many, or a finer precision"),
        (1, False, "4 times the rows of the typical batch are not enough; give a finer precision"),
        (3, False, "64 times the rows of the typical batch are not enough; give a finer precision"),
    ],
)
def test_an_insensitive_check_says_which_rows_were_drawn(further, recorded, text):
    merged = _merge({"tripy": _batch(0, detectable=0.02)}, further=further, recorded=recorded)["tripy"]
    assert merged.diagnosis.text.endswith(f": {text}")


def test_more_rows_are_no_advice_for_one_number_of_a_batch():
    worst = replace(
        tap("loss", isolated=verdict(0.1, 0.02), accumulated=None), rows=Rows(1, 1, 1.0, is_of_batch=True)
    )
    merged, _ = _merged(runner(worst))
    assert merged.diagnosis.text.endswith(
        ": it is one number of the whole batch, whose roundings no other row averages out; "
        "return a number of each row beside it, or give a finer precision"
    )
    other = tap("other", isolated=verdict(0.1, 0.02), accumulated=None)
    merged, _ = _merged(runner(worst, other))
    assert "the inputs have too few rows" in merged.diagnosis.text


@pytest.mark.parametrize(
    ("detectable", "lasting", "number"),
    [
        (0.0101, 0.0, "about 4 times as many"),
        (0.021, 0.0, "about 16 times as many"),
        (0.079, 0.0, "about 64 times as many"),
        (0.081, 0.0, "far more"),
        (math.inf, 0.0, "far more"),
        # 1 % less the lasting part of 0.8 % on both sides leaves 0.6 % to the rows.
        (0.0144, 0.004, "about 4 times as many"),
        (0.0145, 0.004, "about 16 times as many"),
        (0.02, 0.005, "far more"),
    ],
)
def test_the_advice_says_how_many_rows_are_enough(detectable, lasting, number):
    worst = tap("worst", isolated=verdict(0.1, detectable), accumulated=None)
    worst = replace(worst, lasting_limits={"isolated": lasting})
    other = tap("other", isolated=verdict(0.1, 0.0101), accumulated=None)
    merged = _merge({"tripy": runner(other, worst)})["tripy"]
    assert merged.diagnosis.text.endswith(
        f": the inputs have too few rows; give {number}, or a finer precision"
    )


def test_rows_of_all_batches_tell_that_a_check_is_insensitive_by_its_nature():
    """A result of zeros, and a result of one size."""
    zeros, constant = (tap(name, isolated=verdict(0.1, 0.5), accumulated=None) for name in ("zeros", "same"))
    batches = [
        {"tripy": runner(replace(zeros, rows=Rows.of(rows, 0.0)), replace(constant, rows=Rows.of(4, 3.0)))}
        for rows in (4, ENOUGH_ROWS)
    ]
    merged = _merge(*batches, further=1)["tripy"]
    assert merged.verdict == "PASS"
    notes = [judged.notes[0].partition(": ")[2] for judged in merged.taps]
    assert notes == [
        f"the result is 0 in all {ENOUGH_ROWS} rows",
        "the result has 4 rows in a batch of any size",
    ]
    # Before a further batch, both may be chance.
    assert _merge(batches[0])["tripy"].verdict == "INSENSITIVE"


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


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_a_failure_names_the_module_that_a_batch_without_a_verdict_cannot_name(order):
    crashed = runner(verdict="NONE", status=Status.CRASHED, reason="boom", diagnosis=None)
    failed = _batch(1, (0.2, 1.5, 0.4))
    merged = _merged(*(failed, crashed)[order])[0]
    assert (merged.verdict, merged.diagnosis.tap) == ("FAIL", TAPS[1])
    assert (merged.status, merged.reason) == (Status.CRASHED, "boom")
    raised = replace(failed, status=Status.ERROR, reason="raised")
    assert _merged(*(raised, crashed)[order])[0].reason == "raised"


@pytest.mark.parametrize("is_first", [True, False])
def test_a_leak_a_failed_check_and_the_largest_observer_difference_remain(is_first):
    other = replace(
        _batch(1), padding_leak="tap", checks={"incremental.current": verdict(2.0)}, observer_difference=3.0
    )
    merged = _merged(*((other, _batch(0)) if is_first else (_batch(0), other)))[0]
    assert (merged.padding_leak, merged.observer_difference) == ("tap", 3.0)
    assert merged.checks["incremental.current"].status == "FAIL"


def test_an_error_just_above_one_percent_is_not_told_as_one_percent():
    dull = tap("dull", isolated=verdict(0.2, 0.0104), accumulated=None)
    text = _merge({"tripy": runner(dull)})["tripy"].diagnosis.text
    assert "1 of 1 checks do not detect an error of 1%; dull detects none below 0.0104: " in text


def test_an_insensitive_judgement_as_a_whole():
    dull = tap("dull", isolated=verdict(0.2, 0.02), accumulated=None, batch="0")
    duller = tap("duller", isolated=verdict(0.2, 0.256), accumulated=None, batch="7")
    sharp = tap("sharp", isolated=verdict(0.2, 0.01), accumulated=None)
    gap = tap("gap", gap="no such operation", isolated=None, accumulated=None)
    output = tap(OUTPUT, MODEL_OUTPUT, isolated=None, accumulated=verdict(0.2, 0.5))
    judged = runner(dull, duller, sharp, gap, output)
    merged = _merge({"tripy": judged}, recorded=True)["tripy"]
    taps = {judgement.tap: judgement for judgement in merged.taps}
    text = (
        "2 of 4 checks do not detect an error of 1%; duller detects none below 0.26: "
        "recorded data have no more rows to draw; give a larger file, or a finer precision"
    )
    assert merged.diagnosis == Diagnosis("insensitive", "duller", text, batch="7")
    assert merged.verdict == "INSENSITIVE"
    assert [name for name, judgement in taps.items() if judgement.insensitive] == ["dull", "duller"]
    assert [judgement.status for judgement in taps.values()] == [
        "INSENSITIVE",
        "INSENSITIVE",
        "PASS",
        "GAP",
        "PASS",
    ]
    assert merged.taps[2:] == judged.taps[2:]


def test_every_runner_is_merged_by_its_name():
    failed = _batch(1, (0.2, 1.5, 0.4))
    merged = _merge({REFERENCE: _batch(0), "a": _batch(0)}, {"a": failed, "b": _batch(1)})
    assert {name: judgement.verdict for name, judgement in merged.items()} == {
        REFERENCE: "PASS",
        "a": "FAIL",
        "b": "PASS",
    }
    assert list(merged) == [REFERENCE, "a", "b"]
    assert _merge() == {}


def test_the_worse_of_two_batches_as_a_whole():
    """The verdict alone comes from the other batch where this one has none; the notes from both."""
    first = tap("block", isolated=verdict(0.3), accumulated=verdict(0.2), batch="0", notes=("a", "b"))
    second = tap(
        "block", isolated=None, accumulated=verdict(0.9, 1e-9), batch="1", notes=("b", "c"), path="path"
    )
    for batches in ((first, second), (second, first)):
        (merged,) = _merged(*(runner(batch) for batch in batches))[0].taps
        assert merged == replace(
            second,
            isolated=first.isolated,
            min_detectable_error=1e-9,
            lasting_limits={"isolated": 0.0, "accumulated": 0.0},
            notes=("a", "b", "c") if batches[0] is first else ("b", "c", "a"),
        )
    failed = tap("block", isolated=verdict(5.0), accumulated=None, batch="2")
    far = tap("block", isolated=verdict(0.99), accumulated=None, batch="3")
    (merged,) = _merged(runner(far), runner(failed, verdict="FAIL"))[0].taps
    assert (merged.batch, merged.status) == ("2", "FAIL")
    # Of two equal batches the first one counts.
    (merged,) = _merged(runner(first), runner(replace(first, batch="9")))[0].taps
    assert merged.batch == "0"


def test_a_batch_without_a_verdict_on_a_tap_leaves_that_of_the_other_one():
    """A call without a partner is judged alone, and modules run alone in some batches only."""
    alone = tap("block", isolated=verdict(0.3, 1e-6), accumulated=None, batch="0", notes=("judged alone",))
    absent = replace(
        alone,
        isolated=None,
        batch="1",
        gap="the port calls block once",
        min_detectable_error=math.nan,
        notes=(),
    )
    for batches in ((alone, absent), (absent, alone)):
        merged, taps = _merged(*(runner(batch) for batch in batches))
        assert (merged.verdict, taps["block"]) == ("PASS", alone)
    assert _merged(runner(absent), runner(replace(absent, batch="2")))[1]["block"] == absent
    told = replace(absent, notes=("judged alone", "in one batch"))
    assert _merged(runner(alone), runner(told))[1]["block"] == replace(alone, notes=told.notes)
    for error in (0.1, 0.9):
        inside = tap("block", isolated=None, accumulated=verdict(error, 1e-6), batch="1")
        for batches in ((alone, inside), (inside, alone)):
            both = _merged(*(runner(batch) for batch in batches))[1]["block"]
            assert (both.isolated, both.accumulated) == (alone.isolated, inside.accumulated)


def test_a_failure_is_worse_than_any_margin():
    """A failure for a reason that no error shows, such as another type, has a small margin."""
    failed = replace(verdict(0.1), status="FAIL", reason="float16 in place of float32")
    taps = [tap("block", isolated=one, accumulated=None, batch=one.status) for one in (verdict(0.9), failed)]
    for order in (taps, taps[::-1]):
        (merged,) = _merged(*(runner(judged, verdict=judged.status) for judged in order))[0].taps
        assert merged.batch == "FAIL"
    assert _merged(runner(checks={"a": verdict(0.9)}), runner(checks={"a": failed}))[0].checks == {
        "a": failed
    }


def test_rows_of_all_batches_have_one_sum():
    few, more = RowErrors(2, 1.0, 2.0, 3.0, 4.0, 5.0), RowErrors(3, 10.0, 20.0, 30.0, 40.0, 50.0)

    def merged_rows(*rows):
        batches = [runner(replace(tap("block"), row_errors=one)) for one in rows]
        return _merged(*batches)[0].taps[0].row_errors

    assert merged_rows(few, more) == RowErrors(5, 11.0, 22.0, 33.0, 44.0, 55.0)
    assert merged_rows(few, None) == merged_rows(None, few) == few
    assert merged_rows(few, None, more) == few + more
    assert merged_rows(None, None) is None


def test_a_leak_keeps_its_map_whichever_batch_is_worse():
    leak, other = replace(DIAGONAL, cells=DIAGONAL.cells[::-1]), DIAGONAL
    far = tap("block", isolated=verdict(0.9), accumulated=None, error_maps={"isolated": other})
    near = tap("block", isolated=verdict(0.1), accumulated=None)
    leaking = replace(near, error_maps={"poisoned": leak, "isolated": leak})
    for order in ((far, leaking), (leaking, far)):
        (merged,) = _merged(*(runner(judged) for judged in order))[0].taps
        assert merged.error_maps == {"poisoned": leak, "isolated": other}
    both = replace(far, error_maps={"poisoned": other})
    (merged,) = _merged(runner(leaking), runner(both))[0].taps
    assert merged.error_maps == {"poisoned": other}


def test_checks_show_their_worst_batch():
    def checked(**margins):
        return runner(checks={name: verdict(margin) for name, margin in margins.items()})

    merged = _merged(checked(a=0.2, b=0.5, c=2.0), checked(a=0.3, b=0.4, c=0.1, d=0.7))[0]
    assert merged.checks == {"a": verdict(0.3), "b": verdict(0.5), "c": verdict(2.0), "d": verdict(0.7)}
    again = replace(merged.checks["a"], checked=1)
    assert _merged(merged, runner(checks={"a": again}))[0].checks["a"].checked == 640
    infinite = _merged(checked(a=math.inf), checked(a=2.0))[0]
    assert infinite.checks == {"a": verdict(math.inf)}


def test_the_first_leak_remains():
    batches = [replace(_batch(number), padding_leak=leak) for number, leak in enumerate(("", "a", "b"))]
    assert _merged(*batches)[0].padding_leak == "a"
    assert _merged(*batches[:1])[0].padding_leak == ""


def test_maps_of_a_merged_judgement_are_those_of_telling_taps():
    taps = [tap(f"t{n}", isolated=verdict(0.1 * (n + 1)), accumulated=None) for n in range(6)]
    taps = [replace(judged, error_maps={"isolated": DIAGONAL}) for judged in taps]
    merged = _merged(runner(*taps, padding_leak="t0"))[0]
    assert [judged.tap for judged in merged.taps if judged.error_maps] == ["t0", "t3", "t4", "t5"]


def test_the_most_rows_of_a_run_end_the_search_for_a_sensitive_check():
    dull = replace(tap("dull", isolated=verdict(0.2, 0.02), accumulated=None), rows=Rows(8, 8192, 791.4))
    batches = [{"tripy": runner(dull)}]
    note = (
        "no batch of a run detects every error of 1%: a run draws no more than 8192 rows, of which 791 "
        "carry the result"
    )
    last = merge_batches(batches, 2, False, most=2)["tripy"]
    assert (last.verdict, last.taps[0].notes, last.taps[0].by_nature) == ("PASS", (note,), True)
    for most in (0, 3):
        assert merge_batches(batches, 2, False, most=most)["tripy"].verdict == "INSENSITIVE"
    # Without a number of batches, none is the last one.
    assert merge_batches(batches, 2, False)["tripy"].verdict == "INSENSITIVE"


def test_a_check_that_no_further_batch_can_make_sensitive_is_so_by_its_nature():
    dull = replace(
        tap("dull", isolated=verdict(0.2, 0.02), accumulated=None),
        rows=Rows(8, 2048, 300.0, fewer=(512, 200.0)),
        min_detectable_error=0.02,
    )
    merged = merge_batches([{"tripy": runner(dull)}], 4, False, most=5)["tripy"]
    assert (merged.verdict, merged.taps[0].by_nature) == ("PASS", True)
    assert "no batch of up to 8192 rows" in merged.taps[0].notes[0]
    merged = merge_batches([{"tripy": runner(dull)}], 4, False, most=8)["tripy"]
    assert merged.verdict == "INSENSITIVE"


def test_a_check_that_is_insensitive_by_its_nature_as_a_whole():
    dull = tap("dull", isolated=verdict(0.2, 0.02), accumulated=None, notes=("a",))
    dull = replace(dull, lasting_limits={"isolated": 0.0123, "accumulated": 0.02})
    merged = _merged(runner(dull))[0]
    note = (
        "no batch of a run detects every error of 1%: all rows share roundings of up to 0.012, and those "
        "of a correct port may hide twice as much"
    )
    assert merged.taps == (replace(dull, by_nature=True, notes=("a", note)),)
    assert (merged.verdict, merged.diagnosis) == ("PASS", Diagnosis())


def test_the_numbers_at_a_named_tap_are_of_the_diagnosis_batch():
    merged, taps = _merged(_batch(0), _batch(1, (0.2, 3.0, 0.4)), _batch(2, (0.2, 9.0, 7.0)))
    assert (merged.diagnosis.tap, merged.diagnosis.batch) == ("_block.0", "1")
    assert [taps[name].batch for name in TAPS] == ["0", "1", "2"]
    assert taps["_block.0"].isolated.margin == 3.0
    # A named tap that passes hides no later failure.
    named = replace(_batch(0), verdict="FAIL", diagnosis=Diagnosis("between", "_block.0", batch="0"))
    _, taps = _merged(named, _batch(1, (0.2, 3.0, 0.4)))
    assert taps["_block.0"].batch == "1"


def test_the_numbers_of_a_named_check_are_of_the_diagnosis_batch():
    def failing(*margins):
        checks = {name: verdict(margin) for name, margin in zip(("current", "other"), margins, strict=True)}
        return replace(
            _batch(0), checks=checks, verdict="FAIL", diagnosis=Diagnosis("check", "current", batch="0")
        )

    merged, _ = _merged(failing(2.0, 2.0), failing(5.0, 5.0))
    assert {name: check.margin for name, check in merged.checks.items()} == {"current": 2.0, "other": 5.0}
    # A check that passes where another place is named shows its worst batch.
    merged, _ = _merged(failing(0.5, 2.0), failing(5.0, 5.0))
    assert merged.checks["current"].margin == 5.0
