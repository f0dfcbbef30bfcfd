"""Arguments of another shape with other elements: which ones are wrong."""

from dataclasses import replace

import pytest

from parity.verdict.broadcasts import with_broadcasts
from parity.verdict.judgement import ArgumentDifference, CallJudgement
from tests.parity.judgements import tap, verdict

FAIL = verdict(2.0)
MASK = ArgumentDifference("mask", "broadcast", "shape", explanation=("is zero",))
OTHER = ArgumentDifference("x", "form", "float32 in place of float16")


def kinds(taps, *differing):
    call = CallJudgement("block", "", differing or (MASK, OTHER))
    (decided,) = with_broadcasts([call], taps)
    return [argument.kind for argument in decided.differing]


@pytest.mark.parametrize(
    ("taps", "kind"),
    [
        ([tap("block[0]"), tap("block[1]", accumulated=FAIL)], "value"),
        ([tap("block[0]"), tap("block[1]")], "form"),
        ([tap("block[0]", isolated=FAIL), tap("block[1]", accumulated=FAIL)], "form"),
        ([tap("block[0]", isolated=None), tap("block[1]", accumulated=FAIL)], "form"),
        ([tap("block", isolated=FAIL, accumulated=FAIL)], "form"),
        ([tap("other", accumulated=FAIL)], "form"),
        ([], "form"),
    ],
)
def test_an_argument_is_wrong_where_its_module_is_right_alone_and_wrong_inside(taps, kind):
    assert kinds(taps) == [kind, "form"]


def test_other_kinds_stay():
    value = ArgumentDifference("x", "value", "1 of 2 elements")
    assert kinds([tap("block", accumulated=FAIL)], value, OTHER) == ["value", "form"]


def test_other_values_alone_have_an_explanation_and_their_tensors():
    mask = replace(MASK, failed=object())
    for taps, kind in (([tap("block")], "form"), ([tap("block", accumulated=FAIL)], "value")):
        (call,) = with_broadcasts([CallJudgement("block", "", (mask,))], taps)
        explained = mask if kind == "value" else replace(mask, explanation=(), failed=None)
        assert call.differing == (replace(explained, kind=kind),)
        assert call.differing[0].failed is explained.failed
