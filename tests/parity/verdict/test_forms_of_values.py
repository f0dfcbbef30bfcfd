"""Calls with another form of values; `test_api_turned` and `test_api_factors` have whole models."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from parity.capture.arguments import Received
from parity.capture.captures import ModuleCall
from parity.verdict import forms_of_values
from parity.verdict.forms_of_values import MOST_AXES, Factor, Order, _orders, _Surroundings, in_forms
from parity.verdict.judgement import MODEL_OUTPUT, TapJudgement
from tests.parity.comparisons import (
    APPENDED,
    OUTPUT,
    SUMS,
    TENSORS,
    B,
    D,
    N,
    evidence_with,
    module_call,
    normal,
    results_with,
    wide,
)
from tests.parity.verdict.formed import (
    BIAS,
    RIGHT,
    SCALED,
    TURNED,
    WRONG,
    X,
    judgements,
    sides,
    turned,
)
from tests.parity.verdict.received_calls import capture

INSIDE = {"block": "", "block.list.0": "block", "block.list.0.mix": "block.list.0"}
"""The caller of each module."""


def surroundings(wrong, right=(), callers=INSIDE):
    """The modules around calls, with taps that fail and taps that pass."""
    arguments = {call: Received(parent, 0, 0, ()) for call, parent in callers.items()}
    evidence = SimpleNamespace(reference=SimpleNamespace(arguments=arguments))
    taps = [
        TapJudgement(tap, tap, MODEL_OUTPUT if tap == "forward.output" else "Module", verdict, None)
        for verdict, names in ((WRONG, wrong), (RIGHT, right))
        for tap in names
    ]
    return _Surroundings(evidence, taps)


def contained(wrong, calls, right=(), callers=INSIDE):
    """Those calls whose form ends inside their caller."""
    return surroundings(wrong, right, callers).contained(calls)


@pytest.mark.parametrize(
    ("wrong", "right", "expected"),
    [
        # The caller is right, or no result of it is known and the one around it is right.
        (["block.list.0.mix"], ["block.list.0", "block", "forward.output"], True),
        (["block.list.0.mix"], ["block", "forward.output"], True),
        (["block.list.0.mix"], ["forward.output"], True),
        # The caller is wrong, and not in another order itself.
        (["block.list.0.mix", "block.list.0"], ["block", "forward.output"], False),
        (["block.list.0.mix", "block"], ["forward.output"], False),
        (["block.list.0.mix", "forward.output"], [], False),
        # An output behind a right caller is another matter.
        (["block.list.0.mix", "forward.output"], ["block.list.0"], True),
    ],
)
def test_a_form_ends_inside_the_caller(wrong, right, expected):
    assert contained(wrong, ["block.list.0.mix"], right) == ["block.list.0.mix"] * expected


def test_a_caller_in_another_form_hands_it_to_its_own_caller():
    both = ["block.list.0", "block.list.0.mix"]
    assert contained(both, both, ["block", "forward.output"]) == both
    assert contained([*both, "block"], both, ["forward.output"]) == []
    assert contained(both, ["block.list.0.mix"], ["block"]) == []


def test_a_call_that_only_one_side_records_is_left_out():
    assert contained(["other"], ["other"]) == []


def test_modules_inside_of_each_other_end_the_search():
    callers = {"a": "b", "b": "a"}
    assert contained([], ["a"], callers=callers) == ["a"]
    assert contained(["forward.output"], ["a"], callers=callers) == []
    assert contained(["a"], ["a"], callers={"a": "a"}) == ["a"]
    assert not surroundings(["a", "b"], callers=callers).detects("a", 4.0)


@pytest.mark.parametrize(
    ("factor", "detected"),
    [
        (4.0, True),
        (0.25, True),
        (-1.0, True),
        (1.0005, False),
        (0.9995, False),
        (1.0010005, False),
        (0.9990005, False),
        (1.002, True),
    ],
)
def test_a_factor_is_detected_by_the_first_right_result_around_it(factor, detected):
    both = ["block.list.0", "block.list.0.mix"]
    around = surroundings(both, ["block", "forward.output"])
    assert [around.detects(tap, factor) for tap in both] == [detected] * 2
    # Nothing that is judged lies around.
    assert not surroundings(both).detects("block.list.0.mix", factor)


@pytest.mark.parametrize(
    ("of_block", "of_output", "detected"), [(1e-3, 0.5, True), (0.499, 1.0, True), (0.5, 1e-3, False)]
)
def test_the_check_of_the_first_right_result_around_counts_alone(of_block, of_output, detected):
    """Not that of an output behind it."""
    verdicts = {
        "block.list.0.mix": WRONG,
        "block.list.0": WRONG,
        "block": SimpleNamespace(passed=True, min_detectable_error=of_block),
        "": SimpleNamespace(passed=True, min_detectable_error=of_output),
    }
    arguments = {call: Received(parent, 0, 0, ()) for call, parent in INSIDE.items()}
    evidence = SimpleNamespace(reference=SimpleNamespace(arguments=arguments))
    taps = [
        TapJudgement(path or "forward.output", path, "Module" if path else MODEL_OUTPUT, verdict, None)
        for path, verdict in verdicts.items()
    ]
    assert _Surroundings(evidence, taps).detects("block.list.0.mix", 2.0) is detected


def in_form(x, bias, wrong=("bias",), alone=(), **changes):
    """The port's results in the reference's form; None if they stay as they are."""
    evidence, results = sides(x, bias, **changes)
    found = in_forms(evidence, results, judgements(wrong, alone))
    return None if found is results else found


def test_a_call_with_axes_in_another_order_is_compared_in_the_reference_s():
    found = in_form(turned(X), turned(BIAS), valid={})
    assert found.in_forms == {"bias": TURNED}
    assert found.other_axes == {"bias": (B, N, N)}
    assert found.scaled == {}
    for part in (found.tapped, found.poisoned):
        assert torch.equal(part["bias"], BIAS)
        assert torch.equal(part["block"], TENSORS["block"])


@pytest.mark.parametrize("factor", [4.0, -0.5])
def test_a_call_times_a_factor_is_compared_without_it(factor):
    found = in_form(factor * X, factor * BIAS)
    assert found.in_forms == {"bias": SCALED}
    assert found.scaled == {"bias": pytest.approx(factor, rel=1e-6)}
    assert found.other_axes == {}
    for part in (found.tapped, found.poisoned):
        assert torch.allclose(part["bias"], BIAS, rtol=1e-6)
        assert part["bias"].dtype == torch.float32


def test_another_form_of_the_arguments_or_the_results_alone_is_a_fault():
    assert in_form(turned(X), BIAS, valid={}) is None
    assert in_form(X, turned(BIAS), valid={}) is None
    assert in_form(X, 4 * BIAS) is None
    assert in_form(4 * X, turned(BIAS), valid={}) is None
    # A wrong result in another form is wrong.
    assert in_form(turned(X), turned(BIAS) + 1, valid={}) is None


def test_elements_at_a_discontinuity_of_the_result_say_nothing_about_its_form():
    port, boundary = BIAS.clone(), torch.zeros(BIAS.shape, dtype=torch.bool).numpy()
    port[0, 1, 2] += 5
    assert in_form(turned(X), turned(port), valid={}) is None
    boundary[0, 1, 2] = True
    found = in_form(turned(X), turned(port), valid={}, boundary={"bias": boundary})
    assert found.in_forms == {"bias": TURNED}
    assert in_form(turned(X), turned(port), valid={}, boundary={"block": boundary[..., :2]}) is None


def test_a_form_that_leaves_the_block_is_a_fault():
    assert in_form(turned(X), turned(BIAS), ("bias", "block"), valid={}) is None
    assert in_form(4 * X, 4 * BIAS, ("bias", "block", OUTPUT)) is None


def test_a_factor_too_small_for_the_check_around_is_a_fault():
    assert in_form(1.002 * X, 1.002 * BIAS).scaled
    assert in_form(1.0005 * X, 1.0005 * BIAS) is None


def test_only_failing_calls_of_the_full_forward_have_forms():
    for wrong in ((), (OUTPUT,), (APPENDED,), ("block",)):
        assert in_form(turned(X), turned(BIAS), wrong, valid={}) is None


def test_a_module_that_is_wrong_alone_takes_the_axes_in_another_order():
    found = in_form(turned(X), BIAS, (), ("bias",), valid={})
    assert (found.in_forms, found.other_axes) == ({"bias": TURNED}, {})
    assert torch.equal(found.tapped["bias"], BIAS)
    # A factor shows in results.
    assert in_form(4 * X, BIAS, (), ("bias",)) is None


def test_a_result_that_the_port_does_not_have_has_no_form():
    results = results_with(received=capture(("bias", {"x": turned(X)})))
    del results.tapped["bias"]
    evidence = evidence_with(valid={})
    reference = capture(("bias", {"x": X}))
    evidence.reference.arguments, evidence.reference.call_inputs = reference.arguments, reference.call_inputs
    assert in_forms(evidence, results, [TapJudgement("bias", "bias", "Bias", WRONG, None)]) is results


def test_the_orders_are_those_that_make_every_shape_the_references():
    def orders(*shapes):
        return [order.axes for order in _orders(shapes)]

    assert orders(((2, 3), (3, 2))) == [(1, 0)]
    assert orders(((2, 3), (3, 2)), ((4, 5), (4, 5))) == []
    assert orders(((2, 3), (2, 3))) == []
    assert orders(((2, 3), (2, 3, 1))) == []
    last = (*range(MOST_AXES - 2), MOST_AXES - 1, MOST_AXES - 2)
    for rank, expected in ((MOST_AXES, [last]), (MOST_AXES + 1, [])):
        ours = tuple(range(2, rank + 2))
        theirs = (*ours[:-2], ours[-1], ours[-2])
        assert orders((ours, theirs)) == expected
    # A module alone may take any order of up to so many axes.
    assert {len(axes) for axes in orders()} == set(range(2, MOST_AXES + 1))


def test_what_is_known_of_other_calls_stays():
    evidence, results = sides(turned(X), turned(BIAS), valid={})
    results = replace(results, in_forms={"block": SCALED}, other_axes={"block": (1, 2)})
    found = in_forms(evidence, results, judgements())
    assert found.in_forms == {"block": SCALED, "bias": TURNED}
    assert found.other_axes == {"block": (1, 2), "bias": (B, N, N)}


def test_more_axes_than_those_of_an_order_keep_their_places():
    order = Order((1, 0))
    assert order.of(X, X).shape == (N, B, N)
    assert torch.equal(order.of(X[:, 0, 0], X), X[:, 0, 0])


def test_the_factor_is_that_of_the_elements_that_count():
    factor = Factor(evidence_with())
    port = 3 * BIAS
    port[1, 3:] = 99.0  # padding
    port[0, 0, 0] = torch.inf
    assert factor.between(port, BIAS) == pytest.approx(3, rel=1e-6)
    reference = BIAS.clone()
    reference[0, 1, 1] = -torch.inf
    assert factor.between(3 * BIAS, reference) == pytest.approx(3, rel=1e-6)
    # The least squares of the port's tensor, of which a part is no multiple.
    ones = torch.ones(2)
    assert factor.between(torch.tensor([2.0, 4.0]), ones) == 3.0
    assert factor.between(torch.tensor([2.0, 4.0]), 2 * ones) == 1.5


@pytest.mark.parametrize(
    ("port", "reference"),
    [
        (BIAS[:1], BIAS),
        (torch.arange(3), torch.arange(3)),
        (torch.ones(3), torch.zeros(3)),
        (torch.zeros(3), torch.ones(3)),
        (torch.full((3,), torch.nan), torch.ones(3)),
    ],
)
def test_tensors_without_a_factor_stay(port, reference):
    factor = Factor(evidence_with())
    assert factor.between(port, reference) is None
    assert factor.of(port, reference) is port


def test_the_finest_check_of_a_module_detects_a_factor():
    fine, coarse = (SimpleNamespace(passed=True, min_detectable_error=own) for own in (1e-3, 0.5))
    for first, second in ((fine, coarse), (coarse, fine)):
        taps = [
            TapJudgement("block[0]", "block", "Module", first, None),
            TapJudgement("block[1]", "block", "Module", second, None),
            TapJudgement("block.list.0", "block.list.0", "Module", WRONG, None),
        ]
        arguments = {call: Received(parent, 0, 0, ()) for call, parent in INSIDE.items()}
        evidence = SimpleNamespace(reference=SimpleNamespace(arguments=arguments))
        assert _Surroundings(evidence, taps).detects("block.list.0", 1.01)


def test_a_module_of_two_axes_that_is_wrong_alone_takes_them_in_another_order():
    x = normal(15, B, B)
    evidence = evidence_with(oracle_received=capture(("bias", {"x": x.double()})), valid={})
    own = capture(("bias", {"x": x}))
    evidence.reference.arguments, evidence.reference.call_inputs = own.arguments, own.call_inputs
    results = results_with(received=capture(("bias", {"x": x.T})))
    assert in_forms(evidence, results, judgements((), ("bias",))).in_forms == {"bias": TURNED}


def first_axes(tensor):
    """A result whose shape tells that its axes are in another order, and leaves two orders."""
    return tensor.transpose(0, 1)


def last_axes(tensor):
    return tensor.permute(1, 2, 0)


LATER = normal(21, B, N, D)


def of_two_calls(later):
    """The results of two calls of one module in the reference's form; `later` is that of the second one."""
    tensors = {**TENSORS, "bias@1": LATER}
    reference = capture(("bias", {"x": X}), ("bias@1", {"x": LATER}))
    reference.tensors.update(tensors)
    reference.calls += [module_call(tap) for tap in TENSORS if tap != OUTPUT]
    reference.calls.append(ModuleCall("bias", "bias@1", "Bias", [], {}, ("bias@1",)))
    reference.longest_sums.update(SUMS)
    reference.longest_sums_before.update({"bias": 1, "bias@1": 1, "block.inner": 4, "block": 15})
    evidence = evidence_with(
        reference=reference,
        oracle=wide(tensors),
        oracle_received=capture(("bias", {"x": X.double()}), ("bias@1", {"x": LATER.double()})),
        valid={},
    )
    results = results_with(
        received=capture(("bias", {"x": first_axes(X)}), ("bias@1", {"x": first_axes(LATER)}))
    )
    for part in (results.tapped, results.poisoned):
        part.update({"bias": first_axes(BIAS), "bias@1": later})
    taps = [
        TapJudgement(tap, tap.removesuffix("@1"), "Module", WRONG if "bias" in tap else RIGHT, None)
        for tap in tensors
        if tap not in (OUTPUT, APPENDED)
    ]
    return in_forms(evidence, results, taps)


@pytest.mark.parametrize("axes", [first_axes, last_axes])
def test_an_order_that_shapes_tell_may_leave_the_module_around(axes):
    for wrong in (("bias",), ("bias", "block"), ("bias", "block", OUTPUT)):
        found = in_form(axes(X), axes(BIAS), wrong, valid={})
        assert found.in_forms == {"bias": TURNED}
        assert torch.equal(found.tapped["bias"], BIAS)


def test_a_call_behind_an_error_has_the_order_of_another_call_of_its_module():
    found = of_two_calls(first_axes(LATER) + 1)
    assert found.in_forms == {"bias": TURNED, "bias@1": TURNED}
    assert found.other_axes == {"bias": (B, N, D), "bias@1": (B, N, D)}
    assert torch.equal(found.tapped["bias@1"], LATER + 1)
    # It has no order where its own shape does not allow that of the other call, or is the reference's.
    assert of_two_calls(last_axes(LATER) + 1).in_forms == {"bias": TURNED}
    assert of_two_calls(LATER + 1).in_forms == {"bias": TURNED}


def test_a_call_whose_shapes_tell_its_form_is_asked_once(monkeypatch):
    asked, forms = [], forms_of_values._forms
    monkeypatch.setattr(forms_of_values, "_forms", lambda *own: asked.append(own[2]) or forms(*own))
    assert of_two_calls(first_axes(LATER)).in_forms == {"bias": TURNED, "bias@1": TURNED}
    assert asked == ["bias", "bias@1"]
