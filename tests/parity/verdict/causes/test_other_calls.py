"""A cause holds in the other calls of a module, too."""

import pytest
import torch

from tests.parity.verdict.planted import told

B, D = 5, 4
RNG = torch.Generator().manual_seed(12)
X, STATE, WEIGHT, BIAS = (
    torch.randn(*shape, generator=RNG, dtype=torch.float64) for shape in ((B, D), (B, D), (D, D), (D,))
)
FIRST = {"x": X, "state": torch.zeros(B, D, dtype=torch.float64)}
LATER = {"x": 2 * X - 1, "state": STATE}


def step(x, state, gate=lambda gate: gate, inside=lambda state, gate: state):
    g = torch.sigmoid(x)
    return torch.tanh(x + gate(g) * (inside(state, g) @ WEIGHT + BIAS))


def gate_inside(x, state):
    """The gate multiplies the state before the product: without a state, there is no gate."""
    return step(x, state, gate=torch.ones_like, inside=lambda state, gate: gate * state)


def without_gate(x, state):
    return step(x, state, gate=torch.ones_like)


LEFT_OUT = f"fits the reference without the first factor of shape {B}x{D}"


def test_a_cause_that_another_call_contradicts_is_none():
    assert told(step, gate_inside, FIRST) == LEFT_OUT
    assert told(step, gate_inside, FIRST, others=[LATER]) == ""
    # The first call with a state that agrees does not end the search for one that does not.
    assert told(step, gate_inside, FIRST, others=[FIRST, LATER]) == ""


def test_a_cause_that_holds_in_all_calls():
    assert told(step, without_gate, FIRST, others=[FIRST, LATER]) == LEFT_OUT
    assert told(step, without_gate, LATER, others=[FIRST]) == LEFT_OUT


def stepping(x, state, count, factors=lambda number: WEIGHT[0]):
    for number in range(int(count)):
        state = torch.tanh(state + x) * factors(number)
    return state


@pytest.mark.parametrize("others", [(), (2,), (3, 5)])
def test_all_runs_of_a_loop_of_another_length(others):
    def arguments(count):
        return LATER | {"count": torch.tensor(count)}

    def port(x, state, count):
        return stepping(x, state, count, factors=lambda number: torch.ones(D))

    text = told(stepping, port, arguments(4), others=list(map(arguments, others)))
    assert text.startswith(f"fits the reference without the factor of shape {D}, all 4 times in ")


def test_a_call_without_the_operation_contradicts_nothing():
    def reference(x, state, gate=lambda state: torch.sigmoid(state)):
        return x * gate(state) if state.any() else x + BIAS

    def port(x, state):
        return reference(x, state, gate=torch.tanh)

    text = told(reference, port, LATER, others=[FIRST])
    assert text == "fits the reference with tanh in place of sigmoid"


def test_another_call_contradicts_changes_of_an_argument_and_of_all_runs_of_a_loop():
    """The port is wrong in one call alone."""

    def rounded(x, state):
        return step(x if state.any() else x.float().double(), state)

    text = "fits the reference with x as float32"
    assert told(step, rounded, FIRST) == told(step, rounded, FIRST, others=[FIRST]) == text
    assert told(step, rounded, FIRST, others=[LATER]) == ""

    # Another change of an argument in the other call is none of this one.
    assert told(step, lambda x, state: rounded(x, state.float().double()), FIRST, others=[LATER]) == ""

    def without_factors(x, state, count):
        factors = {"factors": lambda number: torch.ones(D)} if count == 4 else {}
        return stepping(x, state, count, **factors)

    four, three = (LATER | {"count": torch.tensor(count)} for count in (4, 3))
    text = f"fits the reference without the factor of shape {D}, all 4 times in "
    assert told(stepping, without_factors, four, others=[four]).startswith(text)
    assert told(stepping, without_factors, four, others=[three]) == ""

    def with_others(x, state, count):
        if count == 4:
            return without_factors(x, state, count)
        for _ in range(int(count)):
            state = torch.sigmoid(state + x) * WEIGHT[0]
        return state

    assert told(stepping, with_others, four, others=[three]) == ""


@pytest.mark.parametrize("weight", [WEIGHT, None])
def test_a_change_that_another_call_cannot_have_contradicts(weight):
    """It has a result of another shape there, or does not run."""

    def reference(x, axis=0):
        rows = x.sum(axis)
        return rows if weight is None else rows @ weight

    def port(x):
        return reference(x, axis=int(x.shape == (D, D)))

    square, rows = {"x": X[:D]}, {"x": X}
    text = "fits the reference with sum over axis 1 in place of 0"
    assert told(reference, port, square) == told(reference, port, square, others=[square]) == text
    assert told(reference, port, square, others=[rows]) == ""


def exchanging(state):
    """A run with a state in the place of the call's own, and whether it ran with gradients."""
    gradients = []

    def run(arguments):
        gradients.append(torch.is_grad_enabled())
        return step(arguments["x"], state)

    return run, gradients


def test_a_run_with_exchanged_weights_is_a_cause_and_needs_no_gradients():
    run, gradients = exchanging(STATE.flip(0))
    exchanged = {"with weights a and b exchanged": run}
    text = told(step, lambda x, state: step(x, STATE.flip(0)), LATER, others=[FIRST], exchanged=exchanged)
    assert text == "fits the reference with weights a and b exchanged"
    assert set(gradients) == {False}


def test_exchanges_with_one_result_are_both_told():
    exchanged = {name: exchanging(STATE.flip(0))[0] for name in ("with a and b exchanged", "with b and a")}
    text = told(step, lambda x, state: step(x, STATE.flip(0)), LATER, exchanged=exchanged)
    assert text == "fits the reference with a and b exchanged or with b and a, which give the same result"


def test_one_exchange_in_a_call_and_another_one_in_the_other_are_no_cause():
    exchanged = {"a and b exchanged": exchanging(STATE.flip(0))[0], "c and d": exchanging(STATE.flip(1))[0]}

    def port(x, state):
        return step(x, STATE.flip(0) if state.any() else STATE.flip(1))

    assert told(step, port, LATER, exchanged=exchanged) == "fits the reference a and b exchanged"
    assert told(step, port, LATER, others=[FIRST], exchanged=exchanged) == ""


def all_runs(x, state, change):
    """Two runs of one place, of which a change reaches both."""
    for _ in range(2):
        state = change(state + x) * WEIGHT[0]
    return state


@pytest.mark.parametrize(
    ("first", "later", "reference"),
    [
        (
            lambda x, state: step(x.float().double(), state),
            lambda x, state: step(x.bfloat16().double(), state),
            step,
        ),
        (
            lambda x, state: torch.tanh(x) * (state @ WEIGHT),
            lambda x, state: torch.relu(x) * (state @ WEIGHT),
            lambda x, state: torch.sigmoid(x) * (state @ WEIGHT),
        ),
        (
            lambda x, state: all_runs(x, state, torch.sigmoid),
            lambda x, state: all_runs(x, state, torch.relu),
            lambda x, state: all_runs(x, state, torch.tanh),
        ),
    ],
    ids=["argument", "operation", "all runs of a loop"],
)
def test_a_change_in_a_call_and_another_one_of_its_kind_in_the_other_are_no_cause(first, later, reference):
    one, other = LATER, {"x": X, "state": 0.5 - STATE}

    def port(x, state):
        return (first if torch.equal(state, STATE) else later)(x, state)

    for own in (one, other):
        assert told(reference, port, own).startswith("fits the reference with ")
        assert told(reference, port, own, others=[own]) != ""
    assert told(reference, port, one, others=[other]) == ""
    assert told(reference, port, other, others=[one]) == ""
