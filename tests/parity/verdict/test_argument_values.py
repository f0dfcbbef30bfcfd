"""Verdicts on single arguments: which values are equal, which are compared, and the words of a difference."""

import math

import numpy as np
import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.capture.captures import Capture, ModuleCall
from parity.verdict import argument_judge
from parity.verdict.arguments import judge_arguments
from parity.verdict.bound import bound_for
from parity.verdict.distances import Distance
from parity.verdict.evidence import Evidence, Results
from parity.verdict.tolerance import Tolerated
from tests.parity.verdict.received_calls import capture, tensor

B, N = 4, 6
CALL = "block.attention"
LENGTHS = np.array([6, 2, 3, 5])
VALID = np.arange(N) < LENGTHS[:, None]


class Table:
    """Neither a tensor nor a constant."""


NOTHING = Tolerated()


def judged(
    reference,
    port,
    oracle=None,
    excluded=None,
    right_taps=9,
    with_floats=True,
    tolerated=NOTHING,
    **evidence,
):
    """The judgements on calls whose arguments are captured."""
    basis = Evidence(
        precision=PRECISIONS[evidence.pop("precision", "fp32")],
        entry="forward",
        reference=reference,
        oracle={},
        oracle_isolated={},
        reference_incremental={},
        incremental_outputs={},
        valid={N: VALID},
        batch_size=B,
        oracle_received=oracle or Capture(),
        **evidence,
    )
    results = Results({}, received=port)
    return judge_arguments(basis, results, right_taps, with_floats, lambda tensor: excluded, tolerated)


def difference(theirs, ours, facts=({}, {}), oracle=None, **options):
    """The difference of one argument `x` of one call; None without one."""
    sides = (capture((CALL, {"x": value}, fact)) for value, fact in zip((theirs, ours), facts, strict=True))
    exact = None if oracle is None else capture((CALL, {"x": oracle}))
    calls = judged(*sides, exact, **options)
    if not calls:
        return None
    ((argument,),) = (call.differing for call in calls)
    assert (calls[0].call, calls[0].parent, argument.name) == (CALL, "block", "x")
    return argument


def told(found):
    return None if found is None else (found.kind, found.text)


X = tensor(B, N, 3)
NOISE = tensor(B, N, 3, seed=4)
ORACLE = X.double() + 1e-7 * NOISE
"""The reference's argument has an error of some units of round-off."""
IDS = torch.arange(B * N).reshape(B, N) ** 2 % 31


@pytest.mark.parametrize(
    ("theirs", "ours", "expected"),
    [
        (X, None, ("absent", "None in place of a tensor")),
        (None, X, ("absent", "a tensor in place of None")),
        (X, 2.0, ("form", "2.0 in place of a tensor")),
        (2.0, X, ("form", "a tensor in place of 2.0")),
        (X, Table(), ("form", "Table in place of a tensor")),
        (Table(), X, ("form", "a tensor in place of Table")),
        (Table(), object(), None),
        (Table(), Table(), None),
        # A value that is no constant may have a text, which counts within one class.
        (slice(2), slice(2), None),
        (slice(2), slice(3), ("value", "slice slice(None, 3, None) in place of slice slice(None, 2, None)")),
        (slice(2), range(2), None),
        (slice(2), Table(), None),
        (Table(), 2, ("form", "2 in place of Table")),
        (2, Table(), ("form", "Table in place of 2")),
        (None, Table(), ("form", "Table in place of None")),
        (None, None, None),
        (None, 0, ("value", "0 in place of None")),
        (0, None, ("value", "None in place of 0")),
        ("a", "a", None),
        ("a", "b", ("value", "'b' in place of 'a'")),
        ("2", 2, ("value", "2 in place of '2'")),
        (2, 3, ("value", "3 in place of 2")),
        (True, False, ("value", "False in place of True")),
    ],
    # Every process of pytest-xdist needs the same names, without addresses.
    ids=lambda value: repr(value) if isinstance(value, (str, int, tuple)) else type(value).__name__,
)
def test_leaves_other_than_tensors(theirs, ours, expected):
    assert told(difference(theirs, ours)) == expected


UNIT = PRECISIONS["bf16"].unit_roundoff


@pytest.mark.parametrize(
    ("theirs", "ours", "is_equal"),
    [
        (4.0, 4.0 + 4 * UNIT, True),
        (4.0, 4.0 - 4 * UNIT, True),
        (4.0, 4.0 + 4.1 * UNIT, False),
        (0.25, 0.25 + 0.3 * UNIT, False),
        (4, 4.0, True),
        (4, 4.0 + UNIT, False),
        (0.0, 0.0, True),
        (0.0, 1e-9, False),
        (math.inf, math.inf, True),
        (math.inf, 1.0, False),
        (math.inf, -math.inf, False),
        (1.0, math.inf, False),
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (1.0, math.nan, False),
    ],
)
def test_a_floating_point_constant_is_equal_to_round_off(theirs, ours, is_equal):
    """An integer constant has no round-off."""
    assert (difference(theirs, ours, precision="bf16") is None) is is_equal


def test_another_shape_or_type_is_a_difference_of_form():
    found = difference(X, X[None])
    assert told(found) == ("form", "shape (1, 4, 6, 3) in place of (4, 6, 3)")
    assert told(difference(X, X.double())) == ("form", "float64 in place of float32")
    assert told(difference(IDS > 3, (IDS > 3).int())) == ("form", "int32 in place of bool")
    assert told(difference(IDS, IDS.float())) == ("form", "float32 in place of int64")
    assert told(difference(IDS.bool(), IDS)) == ("form", "int64 in place of bool")


def test_another_shape_that_broadcasts_is_compared():
    """Kind and text, with the elements of the larger shape, which either side may have."""
    mask = torch.arange(N)[:, None] >= torch.arange(N)
    wide = mask.expand(B, N, N).clone()
    assert told(difference(wide, mask[None])) == ("form", "shape (1, 6, 6) in place of (4, 6, 6)")
    wide[0, 0, :3] = True
    for theirs, ours in ((wide, mask[None]), (mask[None], wide)):
        found = difference(theirs, ours)
        assert (found.kind, found.is_exact, found.failed.wrong.sum()) == ("broadcast", False, 2)
        assert found.text.startswith(f"shape {tuple(ours.shape)} in place of {tuple(theirs.shape)}, 2 of ")
    facts = [{"origins": {"x": origin}} for origin in ("causal", "local")]
    assert "is local in place of causal" in difference(wide, mask[None], facts).explanation
    rows, columns = IDS[:, :1], IDS[:1]
    assert difference(rows, columns).kind == "form"
    assert difference(rows, IDS).kind == "broadcast"
    assert difference(rows, IDS.float()).kind == "form"
    assert difference(X, X[:, :4]).kind == "form"
    mean = X[:, :1].clone()
    exact = mean.double() + 1e-7 * NOISE[:, :1]
    near = (exact + 1e-7 * NOISE).float()
    assert difference(mean, near, oracle=exact).kind == "form"
    assert difference(mean, near + 0.01, oracle=exact).kind == "broadcast"
    assert difference(mean, near + 0.01, oracle=exact, with_floats=False).kind == "form"


def test_leading_axes_of_1_do_not_count_if_the_case_says_so():
    assert difference(X, X[None], squeeze=True) is None
    assert told(difference(IDS, IDS[None] + 1, squeeze=True)) == ("value", "16 of 16 elements")
    assert told(difference(X, X[..., None], squeeze=True))[0] == "form"


def test_an_integer_is_the_same_in_more_bits():
    assert difference(IDS.int(), IDS) is None
    assert difference(IDS, IDS.int()) is None
    wrong = IDS.int()
    wrong[1, 1] += 1
    found = difference(IDS, wrong)
    assert (told(found), found.is_exact) == (
        (
            "value",
            "1 of 16 elements, all at the batch 1; at the sequence (axis 1) 1; on the diagonal (equal "
            "indices of the batch and the sequence (axis 1))",
        ),
        True,
    )


def test_the_same_origin_is_the_same_argument():
    facts = {"origins": {"x": "query"}}
    assert difference(IDS, IDS + 1, (facts, facts)) is None
    found = difference(IDS, IDS + 1, (facts, {"origins": {"x": "key"}}))
    assert found.explanation[0] == "is key in place of query"
    for sides in ((facts, {}), ({}, facts)):
        assert difference(IDS, IDS + 1, sides).explanation == ("equals the oracle plus 1",)


@pytest.mark.parametrize(("origin", "is_compared"), [("causal", True), ("forward(x)", False)])
def test_a_parameter_of_the_same_name_may_hold_other_values(origin, is_compared):
    """The inputs of the entry are the same on both sides."""
    sides = [capture((CALL, {"x": x}, {"origins": {"x": origin}})) for x in (IDS, IDS + 1)]
    for side in sides:
        side.call_inputs[origin] = IDS
    found = [argument for call in judged(*sides) for argument in call.differing]
    assert [argument.explanation for argument in found] == is_compared * [
        (f"is {origin} with other values", "equals the oracle plus 1")
    ]


def test_the_reference_s_other_argument_is_told():
    values = {"query": X, "scale": 2.0, "ids": IDS, "key": X + 1, "value": X + 2}
    calls = judged(capture((CALL, values)), capture((CALL, {**values, "query": X + 2})))
    ((found,),) = (call.differing for call in calls)
    assert found.explanation[0] == "equals the reference's value"
    assert calls[0].equal == ("scale", "ids", "key", "value")
    calls = judged(capture((CALL, values)), capture((CALL, {**values, "query": X * 2})))
    assert "reference's" not in "".join(calls[0].differing[0].explanation)


def test_only_exact_arguments_are_compared_without_floats():
    assert difference(X, X + 1, with_floats=False) is None
    assert difference(IDS, IDS + 1, with_floats=False).is_exact
    assert not difference(X, X + 1).is_exact


def test_neither_padding_nor_discontinuities_count():
    excluded = np.zeros((B, N), bool)
    excluded[0, 3] = True
    for place, counts in (((0, 3), False), ((1, 2), False), ((0, 2), True), ((1, 1), True)):
        wrong = IDS.clone()
        wrong[place] += 1
        found = difference(IDS, wrong, excluded=excluded)
        assert (found is not None) is counts, place
    assert difference(IDS, IDS + 1, excluded=excluded).text.startswith("15 of 15 elements")
    # A tensor without the axis of the sequence has no padding.
    assert difference(IDS.T, IDS.T + 1).text == "24 of 24 elements"


def test_a_floating_point_argument_has_the_limit_of_a_tap():
    right = X + 2e-7 * NOISE
    assert difference(X, right, oracle=ORACLE) is None
    assert difference(X, X + 1e-3, oracle=ORACLE).text == "48 of 48 elements"
    garbage = torch.where(torch.from_numpy(VALID)[..., None], right, 7.0)
    assert difference(X, garbage, oracle=ORACLE) is None


def test_an_error_of_the_norm_alone_has_no_elements():
    """A scale error is below the limit of each element."""
    found = difference(X, X * (1 + 1e-6), oracle=ORACLE)
    assert found.text == "all elements by a little"
    assert found.explanation[0].startswith("equals the oracle times (1 + 1e-06)")


def test_the_room_for_chance_of_few_rows_hides_no_wrong_element_and_fits_no_cause():
    """One row carries the norm."""
    hours = 5.0 * ORACLE.abs()
    hours[0, 0] *= 8.0
    found = difference(hours.half(), hours.floor().half(), oracle=hours, precision="fp16")
    assert found.text == "47 of 48 elements"
    assert found.explanation[0].startswith("holds only whole numbers")


def test_words_of_a_large_error_have_the_limit_of_one_row():
    """Of a right reference, it is the floor, and the share of constants in a scale error."""
    floor = bound_for(PRECISIONS["fp32"], 8).floor
    found = difference(X, 1.5 * X, oracle=X.double())
    assert found.failed.limit == Distance(floor, floor, pytest.approx(math.hypot(floor, floor / 2)))


@pytest.mark.parametrize(
    "oracle", [capture(), capture((CALL, {"y": X.double()})), capture((CALL, {"x": X[None].double()}))]
)
def test_an_argument_that_the_oracle_lacks_must_be_equal(oracle):
    for change, is_equal in ((0.0, True), (1e-7, False)):
        port = capture((CALL, {"x": X * (1 + change)}))
        assert (judged(capture((CALL, {"x": X})), port, oracle) == ()) is is_equal


def test_infinite_elements_are_equal_or_wrong():
    masked, oracle = X.masked_fill(X > 1, -torch.inf), ORACLE.masked_fill(X > 1, -torch.inf)
    garbage = torch.where(torch.from_numpy(VALID)[..., None], masked + 2e-7 * NOISE, 7.0)
    assert difference(masked, garbage, oracle=oracle) is None
    for place, value in (((0, 0, 0), torch.inf), ((0, 1, 2), -torch.inf), ((0, 2, 0), torch.nan)):
        one = X.clone()
        one[place] = value
        for theirs, ours in ((X, one), (one, X)):
            found = difference(theirs, ours, oracle=theirs.double())
            assert found.text.startswith("1 of 48 elements, all at the batch 0;"), (place, value)
            # The reference's own infinity has no size, and so no limit.
            assert (found.failed.limit == argument_judge.EXACT) is (ours is X)
    wrong = masked + 1e-2 * NOISE
    infinite = int((np.isinf(masked.numpy()) & VALID[..., None]).sum())
    assert difference(masked, wrong, oracle=oracle).text.endswith(f" of {48 - infinite} elements")


@pytest.mark.parametrize("oracle", [ORACLE.masked_fill(X > 1, torch.nan), None], ids=["oracle", "none"])
def test_elements_that_are_nan_on_both_sides_are_equal(oracle):
    """Such as missing numbers of an input, which a module replaces."""
    missing = X.masked_fill(X > 1, torch.nan)
    assert difference(missing, missing.clone(), oracle=oracle) is None
    assert (difference(missing, missing + 2e-7 * NOISE, oracle=oracle) is None) is (oracle is not None)
    count = int((missing.isnan().numpy() & VALID[..., None]).sum())
    told = difference(missing, missing + 1e-2 * NOISE, oracle=oracle).text
    assert told == f"{48 - count} of {48 - count} elements"
    other = missing.clone()
    other[0, 0] = torch.nan
    assert not missing[0, 0].isnan().any()
    for theirs, ours in ((missing, other), (other, missing)):
        assert difference(theirs, ours, oracle=oracle).text.startswith(f"3 of {48 - count} elements")


@pytest.mark.parametrize(("finished", "modules"), [(0, 1), (1, 2), (2, 3), (3, 3)])
def test_the_code_before_a_call_counts_as_one_more_module(monkeypatch, finished, modules):
    """Modules without arithmetic do not count."""
    taps = ("first", "second", "view")
    reference = capture((CALL, {"x": X}, {"finished": finished, "longest": 5}), tensors=taps)
    reference.calls = [ModuleCall(tap, tap, "", [], {}, (tap,)) for tap in taps]
    reference.longest_sums = {"first": 4, "second": 8, "view": 0}
    seen, real = [], argument_judge.judge

    def judge(*values, modules):
        seen.append((values[4], modules))
        return real(*values, modules=modules)

    monkeypatch.setattr(argument_judge, "judge", judge)
    judged(reference, capture((CALL, {"x": X + 1})), capture((CALL, {"x": X.double()})))
    assert seen == [(5, modules)]


def test_calls_are_judged_up_to_the_first_wrong_tap():
    """A call that only one side makes is another check's."""
    names = ["a", "only here", "b", "late", "c"]
    reference = capture(*((name, {"x": IDS}, {"finished": 3 if name == "late" else 2}) for name in names))
    port = capture(*((name, {"x": IDS + 1}) for name in names if name != "only here"))
    assert [call.call for call in judged(reference, port, right_taps=2)] == ["a", "b", "c"]
    assert [call.call for call in judged(reference, port, right_taps=3)] == ["a", "b", "late", "c"]
    assert judged(reference, port, right_taps=1) == ()


def test_a_parameter_of_another_name_is_paired_by_its_place():
    theirs = {"x": IDS, "payload.ids": IDS + 5, "payload.times": IDS + 6}
    ours = {"input": IDS, "extra.ids": IDS + 5, "extra.times": IDS + 7}
    places = {"x": 0, "input": 0} | dict.fromkeys((*theirs, *ours), 1) | {"x": 0, "input": 0}
    reference, port = (capture((CALL, values, {"places": places})) for values in (theirs, ours))
    ((call,),) = (judged(reference, port),)
    assert [found.name for found in call.differing] == ["payload.times"]
    assert call.equal == ("x", "payload.ids")


def test_a_name_counts_before_a_place():
    sides = ({"x": IDS, "y": IDS + 1}, {"y": IDS + 1, "x": IDS})
    assert judged(*(capture((CALL, values)) for values in sides)) == ()


@pytest.mark.parametrize(
    ("theirs", "ours", "expected"),
    [
        ({"x": IDS}, {}, [("x", "signature", "the port's module has no such argument")]),
        ({"x": 2}, {}, [("x", "form", "the port's module has no such argument")]),
        ({}, {"x": IDS}, [("x", "form", "the reference's module has no such argument")]),
        ({}, {"x": 2}, [("x", "form", "the reference's module has no such argument")]),
        ({"a": 2}, {}, []),
        ({}, {"a": 2}, []),
    ],
)
def test_an_argument_of_one_side_alone(theirs, ours, expected):
    """The default value of a parameter that only one side has is no difference."""
    facts = {"defaults": ("a",)}
    calls = judged(capture((CALL, {"id": IDS, **theirs}, facts)), capture((CALL, {"id": IDS, **ours}, facts)))
    assert [(a.name, a.kind, a.text) for call in calls for a in call.differing] == expected
