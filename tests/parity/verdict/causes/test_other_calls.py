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
