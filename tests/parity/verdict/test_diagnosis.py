"""Diagnoses as whole values, in the order in which one cause hides the next."""

import math
from dataclasses import replace

import pytest

from parity.base.precision import PRECISIONS
from parity.case.pairing import UNKNOWN
from parity.verdict.bound import bound_for
from parity.verdict.diagnosis import CLOSE, diagnose, with_own_leak
from parity.verdict.elements import EQUAL_VALUES, NO_VERDICT
from parity.verdict.judgement import MODEL_OUTPUT, ArgumentDifference, CallJudgement, Diagnosis
from parity.verdict.rule import failure
from parity.verdict.tolerance import Tolerated
from tests.parity.judgements import tap, verdict

FAIL, MISSING = verdict(2.0), failure("missing: no such module", bound_for(PRECISIONS["fp32"], 1))
GOOD = tap("block.norm", "Norm")


def test_nothing_fails():
    assert diagnose([GOOD], {"incremental.out": verdict()}, "") == Diagnosis()
    assert diagnose([], {}, "") == Diagnosis("none", "", "", None, (), "")


def test_the_first_module_that_fails_alone():
    taps = [
        GOOD,
        tap("block.sum", "Sum", accumulated=FAIL),
        tap("block.mask", "Mask", isolated=None, accumulated=MISSING),
        tap("block", "Block", isolated=verdict(2 * CLOSE)),
        tap("model", "Model", isolated=verdict(2.0)),
    ]
    actual = diagnose(taps, {"incremental.out": FAIL}, "block")
    assert actual == Diagnosis("module", "block", "block (Block) diverges on its own: exceeds")


def test_the_other_wrong_results_of_a_module_that_fails_alone_are_told():
    results = [
        tap(f"block[{name}]", "Block", isolated=FAIL, path="block") for name in ("first", "second", "third")
    ]
    right = tap("block[right]", "Block", path="block")
    unjudged = tap("block[unjudged]", "Block", isolated=None, path="block")
    again = tap("block@1[first]", "Block", isolated=FAIL, path="block")
    actual = diagnose([*results, right, unjudged, again], {}, "")
    assert actual.text.endswith("; also block[second], block[third]")
    assert "also" not in diagnose([results[0], right, unjudged, again], {}, "").text


def test_a_module_that_fails_alone_in_an_append_is_told_so():
    failed = replace(tap("append:block@1[0]", "Block", isolated=verdict(2 * CLOSE)), path="block")
    actual = diagnose([GOOD, failed], {}, "")
    text = "in an append, block (Block) diverges on its own: exceeds"
    assert actual == Diagnosis("module", "append:block@1[0]", text)


@pytest.mark.parametrize("margin", [1.5, CLOSE])
def test_a_module_close_to_its_limit_names_the_nearest_inside(margin):
    inside = [
        tap("block.a", isolated=verdict(0.3)),
        tap("block.b", isolated=verdict(0.85)),
        tap("block.c", isolated=None),
        tap("blocks.d", isolated=verdict(0.95)),
    ]
    text = "block (Block) diverges on its own: exceeds"
    nearest = "; of the modules inside, block.b is nearest to its own limit, 0.85 of it"
    failed = tap("block", "Block", isolated=verdict(margin))
    assert diagnose([*inside, failed], {}, "").text == text + nearest
    assert diagnose([failed, *inside[2:]], {}, "").text == text
    assert diagnose([tap("block.a", isolated=verdict(0.0)), failed], {}, "").text == text
    far = tap("block", "Block", isolated=verdict(CLOSE * 1.01))
    assert diagnose([*inside, far], {}, "").text == text


def test_the_first_wrong_result_inside_a_module_is_told_if_it_has_no_verdict_alone():
    failed = tap("block", "Block", isolated=verdict(2 * CLOSE), accumulated=FAIL)
    norm = tap("block.norm", "Norm", isolated=None, accumulated=FAIL)
    text = "block (Block) diverges on its own: exceeds"
    told = f"{text}; inside, block.norm is the first result that differs"
    assert diagnose([GOOD, norm, failed], {}, "").text == told
    right_alone = tap("block.norm", "Norm", isolated=verdict(0.5), accumulated=FAIL)
    before = tap("blocks.first", isolated=None, accumulated=FAIL)
    for first in (right_alone, before):
        assert diagnose([first, norm, failed], {}, "").text == text


def test_a_missing_call_inside_a_wrong_module_is_told_with_both_numbers_of_calls():
    missing = replace(MISSING, reason="missing: the port calls it once, the reference 2 times")
    inner = replace(tap("block.a.conv@1", isolated=None, accumulated=missing), path="block.a.conv")
    outer = replace(tap("block.a@1", isolated=None, accumulated=missing), path="block.a")
    failed = tap("block", "Block", isolated=verdict(2 * CLOSE), accumulated=FAIL)
    text = diagnose([GOOD, inner, outer, failed], {}, "").text
    told = "; inside, block.a@1 is missing: the port calls it once, the reference 2 times"
    assert text.endswith(f"exceeds{told}")


def test_a_module_without_a_verdict_alone_does_not_diverge():
    failed = failure(f"3 NaN; {NO_VERDICT}", bound_for(PRECISIONS["fp32"], 1))
    text = diagnose([GOOD, tap("block", "Block", isolated=failed)], {}, "").text
    assert text == f"block (Block) cannot be judged: {failed.reason}"
    # Alone, it receives what the reference has lost before it.
    inside = failure(f"2 NaN in the reference; {NO_VERDICT}", bound_for(PRECISIONS["fp32"], 1))
    text = diagnose([GOOD, tap("block", "Block", isolated=failed, accumulated=inside)], {}, "").text
    assert text == f"block (Block) cannot be judged: {inside.reason}"
    for accumulated in (FAIL, verdict(CLOSE)):
        text = diagnose([GOOD, tap("block", "Block", isolated=failed, accumulated=accumulated)], {}, "").text
        assert text.startswith(f"block (Block) cannot be judged: {failed.reason}")


def test_a_wrong_argument_before_a_missing_tap_is_named_with_its_code():
    missing = tap("block.mask", "Mask", isolated=None, accumulated=MISSING)
    actual = diagnose([missing], {}, "", [_call(WRONG, parent="")], "score")
    assert (actual.kind, actual.argument) == ("between", "block.mask(mask)")
    told = "; every module before it is right; the code of score makes the argument"
    assert actual.text.endswith(told)


def test_a_missing_tap_comes_before_a_wrong_one():
    taps = [GOOD, tap("block", accumulated=FAIL), tap("mask", isolated=None, accumulated=MISSING)]
    actual = diagnose(taps, {"incremental.out": FAIL}, "block")
    text = "mask: missing: no such module; block is the first result with other numbers"
    assert actual == Diagnosis("module", "mask", text)


NEVER, ONCE = "missing: the port never calls it", "missing: the port calls it once, the reference 2 times"


@pytest.mark.parametrize(
    ("block", "model", "named"),
    [
        (NEVER, ONCE, "model"),
        (ONCE, NEVER, "model"),
        (NEVER, "shape (2,) differs from the reference's (3,)", "model.block"),
        ("missing: the port's block returns no such output", NEVER, "model.block.norm"),
    ],
)
def test_of_calls_that_are_missing_the_outermost_is_named(block, model, named):
    reasons = {"model.block.norm": NEVER, "model.blocks": ONCE, "model.block": block, "model": model}
    taps = [
        tap(path, isolated=None, accumulated=failure(reason, bound_for(PRECISIONS["fp32"], 1)))
        for path, reason in reasons.items()
    ]
    assert diagnose([GOOD, *taps], {}, "") == Diagnosis("module", named, f"{named}: {reasons[named]}")
    # A module that ran is not blamed for the calls inside it.
    ran = tap("model.block", isolated=None, accumulated=FAIL)
    ran_well = tap("model.block", isolated=None)
    assert diagnose([GOOD, taps[0], ran, taps[3]], {}, "").tap == "model.block.norm"
    # One that ran before is not asked, and does not hide that its later call is missing.
    again = [replace(one, tap=f"{one.tap}@1") for one in taps]
    actual = diagnose([GOOD, ran_well, *again], {}, "").tap
    assert actual == (diagnose([GOOD, *taps], {}, "").tap + "@1")
    # Nor for a result that a call does not have.
    without = failure("missing: the port's norm returns no such output", bound_for(PRECISIONS["fp32"], 1))
    lost = tap("model.block.norm", isolated=None, accumulated=without)
    assert diagnose([GOOD, lost, *taps[1:]], {}, "").tap == "model.block.norm"


OFTENER = "extra: the port calls it 6 times, the reference 3 times"


@pytest.mark.parametrize(
    ("outer", "named"),
    [
        (OFTENER, "model.block@3"),
        ("extra: the reference never calls it", "model.block@3"),
        ("extra: the reference's block returns no such output", "model.block.norm@3"),
    ],
)
def test_of_calls_that_the_port_alone_makes_the_outermost_is_named(outer, named):
    reasons = {"model.block.norm@3": OFTENER, "model.block.norm@4": OFTENER, "model.block@3": outer}
    taps = [
        tap(name, isolated=None, accumulated=failure(reason, bound_for(PRECISIONS["fp32"], 1)))
        for name, reason in reasons.items()
    ]
    assert diagnose([GOOD, *taps], {}, "") == Diagnosis("module", named, f"{named}: {reasons[named]}")


def test_an_error_that_grows_inside_the_model():
    alone = verdict(0.5)
    grown = tap("block", "Block", isolated=alone, accumulated=FAIL)
    actual = diagnose([GOOD, grown, tap("later", accumulated=FAIL)], {"incremental.out": FAIL}, "block")
    text = "every module passes on its own; the error that reaches block exceeds its limit: "
    assert actual == Diagnosis("amplification", "block", f"{text}4 times its own error", 4.0)
    exact = tap("block", "Block", isolated=verdict(0.0), accumulated=FAIL)
    assert diagnose([exact], {}, "") == Diagnosis(
        "amplification", "block", f"{text}its own error is zero", None
    )


def test_modules_of_the_port_alone_are_none_that_pass_on_their_own():
    own = tap("block.split", UNKNOWN, isolated=None, accumulated=None)
    grown = tap("block", "Block", isolated=verdict(0.5), accumulated=FAIL)
    text = diagnose([own, grown], {}, "").text
    assert text.startswith("every module of both sides passes on its own; the error that reaches block")


@pytest.mark.parametrize(("share", "doubts"), [(0.9, False), (1.0, False), (1.1, True)])
def test_an_error_beyond_half_of_the_digits_is_rarely_one_of_rounding(share, doubts):
    error = share * math.sqrt(PRECISIONS["fp32"].unit_roundoff)
    failed = verdict(error / verdict(1.0).port.l2)
    text = diagnose([tap("block", "Block", isolated=verdict(0.5), accumulated=failed)], {}, "").text
    doubt = "; rounding is rarely the cause of so large an error: look at what the module receives"
    assert text.endswith(doubt) == ("rarely" in text) == doubts


def test_integers_of_another_type_come_last():
    other = failure(f"other, {EQUAL_VALUES}", bound_for(PRECISIONS["fp32"], 1))
    typed = tap("block.top", "Top", isolated=other, accumulated=other)
    assert diagnose([GOOD, typed], {}, "") == Diagnosis("module", "block.top", f"block.top: {other.reason}")
    failed = tap("block", "Block", isolated=verdict(2 * CLOSE), accumulated=FAIL)
    actual = diagnose([typed, failed], {}, "")
    assert actual == Diagnosis("module", "block", "block (Block) diverges on its own: exceeds")
    assert diagnose([typed], {}, "block.top").kind == "check"
    inside = tap("block.top", "Top", isolated=other, accumulated=FAIL)
    assert diagnose([inside], {}, "").kind == "amplification"


def test_a_module_that_cannot_run_alone():
    actual = diagnose([GOOD, tap("score.out", MODEL_OUTPUT, isolated=None, accumulated=FAIL)], {}, "")
    assert actual == Diagnosis("module", "score.out", "score.out (model output): exceeds")


def test_a_leak_of_the_reference_is_told_beside_the_ports():
    leak = diagnose([GOOD], {}, "block")
    told = with_own_leak(leak, "block", "block.mask")
    assert told.text.startswith(f"{leak.text}; so it does in the reference, at block.mask: name in poison")
    assert replace(told, text=leak.text) == leak
    assert with_own_leak(leak, "block", "") is leak
    other = replace(leak, kind="module")
    assert with_own_leak(other, "block", "block") is other
    assert with_own_leak(leak, "other", "block") is leak
    assert with_own_leak(Diagnosis(), "", "block") == Diagnosis()


def test_a_leak_comes_before_the_checks():
    checks = {"incremental.first": verdict(), "incremental.second": FAIL, "incremental.third": FAIL}
    text = "padding leaks: garbage in padded positions changes valid bits at block"
    assert diagnose([GOOD], checks, "block") == Diagnosis("check", "block", text)
    actual = diagnose([GOOD], checks, "")
    assert actual == Diagnosis("check", "incremental.second", "incremental.second: exceeds")


def _call(*differing, parent="block", call="block.mask"):
    return CallJudgement(call, parent, differing, ())


WRONG = ArgumentDifference("mask", "value", "receives another mask", is_exact=True, explanation=("shifted",))


def test_a_wrong_argument_inside_a_module_that_fails_alone():
    failed = tap("block", "Block", isolated=verdict(2 * CLOSE))
    call = _call(WRONG)
    calls = [_call(WRONG, parent="other"), _call(parent="block"), call, _call(WRONG, call="block.late")]
    actual = diagnose([GOOD, failed], {}, "", calls, "score")
    text = f"block (Block) diverges on its own: exceeds; inside, block.mask {call.text()}"
    assert actual == Diagnosis("module", "block", text, code="block", argument="block.mask(mask)")
    alone = diagnose([GOOD, failed], {}, "", [_call(WRONG, parent="other")], "score")
    assert alone == Diagnosis("module", "block", "block (Block) diverges on its own: exceeds")


@pytest.mark.parametrize(("parent", "code"), [("block", "block"), ("", "score")])
def test_a_wrong_argument_between_modules(parent, code):
    call = _call(WRONG, parent=parent)
    taps = [GOOD, tap("block.mask", "Mask"), tap("block", "Block", accumulated=FAIL)]
    actual = diagnose(taps, {}, "block", [call], "score")
    text = f"block.mask {call.text()}; every module passes on its own; the code of {code} makes the argument"
    expected = Diagnosis(
        "between",
        "block.mask",
        text,
        explanation=("shifted",),
        code=parent,
        argument="block.mask(mask)",
    )
    assert actual == expected
    # Without modules alone, those before the call are right; a call without a tap has no place among them.
    inside = [tap("block", "Block", isolated=None, accumulated=FAIL)]
    before = diagnose(inside, {}, "", [call], "score")
    assert before.text == text.replace("passes on its own", "before it is right")
    assert before.tap == ""


def test_a_wrong_argument_that_no_result_shows():
    call = _call(WRONG)
    assert call.is_wrong_by_itself
    actual = diagnose([GOOD], {}, "block", [_call(), call], "score")
    assert actual.text.endswith("; no result of this batch shows it; the code of block makes the argument")
    assert actual.kind == "between"


def test_an_output_behind_right_modules():
    output = tap("score.out", MODEL_OUTPUT, isolated=None, accumulated=FAIL)
    text = (
        "score.out: exceeds; every module is right and receives the right arguments; "
        "the code of score after the modules makes the output"
    )
    assert diagnose([GOOD, output], {}, "", [], "score") == Diagnosis("between", "score.out", text, code="")
    grown = tap("block", "Block", accumulated=FAIL)
    assert diagnose([GOOD, grown, output], {}, "", [], "score").kind == "amplification"


@pytest.mark.parametrize(
    ("count", "told"),
    [(1, "also b"), (2, "also b, c"), (4, "also b, c, d, e"), (5, "also b, c, d, 2 others")],
)
def test_other_wrong_outputs_are_told_up_to_a_number(count, told):
    """The first output may be a sum of a later one, which is the wrong one."""
    outputs = [tap(name, MODEL_OUTPUT, isolated=None, accumulated=FAIL) for name in ("a", *"bcdef"[:count])]
    right = tap("right", MODEL_OUTPUT, isolated=None)
    diagnosis = diagnose([outputs[0], right, *outputs[1:]], {}, "", [], "score")
    assert diagnosis.text.startswith(f"a: exceeds; {told}; ")
    assert diagnosis.tap == "a"


def test_an_output_with_nan_is_a_wrong_one_and_not_a_missing_one():
    nan = failure("NaN or Inf among the compared elements: 11 in the port", bound_for(PRECISIONS["fp32"], 1))
    output = tap("score.out", MODEL_OUTPUT, isolated=None, accumulated=nan)
    alone = diagnose([GOOD, output], {}, "", [], "score")
    assert alone.kind == "between"
    assert alone.text.endswith("; the code of score after the modules makes the output")
    # A wrong argument and a wrong output before it may be its cause.
    block = tap("block", "Block", accumulated=FAIL)
    assert diagnose([block, output], {}, "", [_call(WRONG)], "score").argument == "block.mask(mask)"
    first = tap("score.first", MODEL_OUTPUT, isolated=None, accumulated=FAIL)
    assert diagnose([GOOD, first, output], {}, "", [], "score").tap == "score.first"
    # A result that the port lacks is named before it.
    missing = tap("block.mask", "Mask", isolated=None, accumulated=MISSING)
    assert diagnose([GOOD, output, missing], {}, "", [], "score").tap == "block.mask"
    # NaN of all sides says nothing of the port's code.
    same = replace(nan, reason=f"{nan.reason}; {NO_VERDICT}")
    told = diagnose([GOOD, replace(output, accumulated=same)], {}, "", [], "score")
    assert told == Diagnosis("module", "score.out", f"score.out: {same.reason}")
    # A result of a module is named before all others.
    inside = tap("block", "Block", isolated=None, accumulated=nan)
    assert diagnose([GOOD, inside, first], {}, "", [], "score").tap == "block"


def test_an_infinite_error_is_no_missing_tap():
    infinite = tap("block", "Block", isolated=None, accumulated=verdict(math.inf))
    assert diagnose([infinite], {}, "").text == "block (Block): exceeds"


def test_a_tolerated_error_may_be_the_cause_behind_it():
    tolerated = Tolerated({"norm": 0.1}, {"norm": 0, "block": 1, "score.out": 2})
    source = "the error that the case tolerates at norm"
    norm = tap("norm", "Norm")
    call = replace(_call(WRONG), behind="norm")
    between = diagnose([norm, tap("block", "Block", accumulated=FAIL)], {}, "", [call], "score", tolerated)
    assert between.text.endswith(f"{source}, or the code of block, makes the argument")
    output = tap("score.out", MODEL_OUTPUT, isolated=None, accumulated=FAIL)
    after = diagnose([norm, output], {}, "", [], "score", tolerated)
    assert after.text.endswith(f"{source}, or the code of score after the modules, makes the output")
    grown = diagnose([norm, tap("block", "Block", accumulated=FAIL)], {}, "", [], "score", tolerated)
    assert grown.text.endswith(f"; {source} may be its cause")
    # What comes later is no cause.
    early = Tolerated({"score.second": 0.1}, {"norm": 0, "score.out": 1, "score.second": 2})
    assert "tolerates" not in diagnose([norm, output], {}, "", [], "score", early).text
    before = diagnose([tap("norm", "Norm", accumulated=FAIL)], {}, "", [], "score", tolerated)
    assert source not in before.text


def test_a_call_has_no_choice_of_the_parameters_of_its_module():
    lacks = [ArgumentDifference(name, "signature", "no such argument") for name in ("key", "mask")]
    call = _call(*lacks, call="block.attn", parent="block")
    assert (call.wrong, call.not_compared) == (None, ["key", "mask"])
    wrong = tap("block.attn", "Attention", isolated=None, accumulated=FAIL)
    unknown = "; block.attn takes key, mask in another form or not at all, which is not compared"
    actual = diagnose([wrong], {}, "", [_call(), call], "score")
    assert actual == Diagnosis("module", "block.attn", f"block.attn (Attention): exceeds{unknown}")
    form = _call(ArgumentDifference("mask", "form", "float32 in place of bool"), call="block.attn")
    assert diagnose([wrong], {}, "", [form], "score").text.endswith(unknown.replace("key, ", ""))
    other = _call(*lacks, call="block.other")
    assert unknown not in diagnose([wrong], {}, "", [other], "score").text
    inside = _call(WRONG, call="block.attn.out", parent="block.attn")
    between = diagnose([wrong], {}, "", [call, inside], "score")
    assert between.text.endswith(f"the code of block.attn makes the argument{unknown}")
    assert between.argument == "block.attn.out(mask)"
    outside = _call(WRONG, call="last", parent="")
    assert "not compared" not in diagnose([wrong], {}, "", [call, outside], "score").text


def test_an_absent_argument_of_a_call_with_right_results_is_no_cause():
    absent = ArgumentDifference("padding", "absent", "None in place of a tensor")
    missing = tap("block.last", isolated=None, accumulated=MISSING)
    attention = tap("block.attn", "Attention", isolated=None)
    lacks = _call(absent, call="block.attn")
    assert diagnose([attention, missing], {}, "", [lacks], "forward").tap == "block.last"
    wrong = tap("block.attn", "Attention", isolated=None, accumulated=FAIL)
    other_value = _call(absent, replace(WRONG, name="x"), call="block.attn")
    for taps, call in (([wrong, missing], lacks), ([attention, missing], other_value), ([missing], lacks)):
        assert diagnose(taps, {}, "", [call], "forward").kind == "between"


@pytest.mark.parametrize(("kind", "is_between"), [("Block", True), ("unknown", False), (MODEL_OUTPUT, False)])
def test_a_result_that_is_missing_behind_a_wrong_argument(kind, is_between):
    """A tap of the port alone, or an output, has no place behind the call."""
    missing = tap("block", kind, isolated=None, accumulated=MISSING)
    call = CallJudgement("table", "", (ArgumentDifference("ids", "value", "2 of 3 elements", True),))
    assert call.wrong
    found = diagnose([missing], {}, "", [call])
    assert (found.kind == "between") is is_between
    if not is_between:
        assert found == Diagnosis("module", "block", f"block: {MISSING.reason}")
