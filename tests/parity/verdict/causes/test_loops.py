"""Mistakes in a loop: one place in the code runs several times, and the port differs in all of them."""

import functools
from pathlib import Path

import pytest
import torch

from parity.verdict.causes import runs, search
from parity.verdict.causes.operations import Change, Place
from tests.parity.verdict.planted import told

STEPS, B, D = 7, 3, 4
RNG = torch.Generator().manual_seed(3)
ARGUMENTS = {
    "x": torch.randn(STEPS, B, D, generator=RNG, dtype=torch.float64),
    "scale": torch.rand(D, generator=RNG, dtype=torch.float64) + 0.5,
    "moves": torch.randn(D, D, generator=RNG, dtype=torch.float64),
}


def summed(x, scale, moves, factor=lambda scale: scale, turned=lambda moves: moves):
    """The last state of a recurrence: the best moves from each state, and what a step adds."""
    state = torch.zeros_like(x[0])
    for step in x:
        state = (state[:, :, None] + turned(moves)).logsumexp(1) + factor(scale) * step
    return state


LINE = f"{Path(__file__).name}:{summed.__code__.co_firstlineno + 4}"
"""The line of the loop's body."""


def test_a_factor_that_every_step_leaves_out():
    def port(**arguments):
        return summed(**arguments, factor=torch.ones_like)

    text = told(summed, port, ARGUMENTS)
    assert text == f"fits the reference without the factor of shape {D}, all {STEPS} times in {LINE}"


def test_an_operand_of_a_sum_that_every_step_transposes():
    def port(**arguments):
        return summed(**arguments, turned=torch.t)

    text = told(summed, port, ARGUMENTS)
    assert text == f"fits the reference with other of add transposed, all {STEPS} times in {LINE}"


def test_a_factor_that_one_step_leaves_out():
    factors = iter([ARGUMENTS["scale"]] * 2 + [torch.ones(D)] + [ARGUMENTS["scale"]] * (STEPS - 3))

    def port(**arguments):
        return summed(**arguments, factor=lambda scale: next(factors))

    text = told(summed, port, ARGUMENTS)
    assert text == f"fits the reference without the factor of shape {D}, the 3rd of {STEPS} times in {LINE}"


def test_the_number_of_a_step_in_words():
    texts = "1st 2nd 3rd 4th 10th 11th 12th 13th 14th 21st 22nd 23rd 24th 100th 101st 111th 112th 113th 121st"
    for text in texts.split():
        assert search._ordinal(int(text[:-2])) == text


def test_a_loop_of_two_steps():
    arguments = ARGUMENTS | {"x": ARGUMENTS["x"][:2]}

    def port(left_out, **arguments):
        factors = iter([torch.ones(D) if step in left_out else ARGUMENTS["scale"] for step in range(2)])
        return summed(**arguments, factor=lambda scale: next(factors))

    for left_out, times in (((0, 1), "all 2 times"), ((1,), "the 2nd of 2 times")):
        text = told(summed, lambda left_out=left_out, **own: port(left_out, **own), arguments)
        assert text == f"fits the reference without the factor of shape {D}, {times} in {LINE}"


def test_code_without_the_name_of_a_module():
    """As of a function that a notebook or a tool makes from text."""
    names = {"torch": torch}
    exec("def written(x): return torch.log1p(x.square())", names)  # noqa: S102
    text = told(names["written"], lambda x: torch.log(x.square()), {"x": ARGUMENTS["x"]})
    assert text == "fits the reference with log in place of log1p"


def test_two_lines_are_two_places():
    def reference(x, first=1.0, second=1.0):
        y = x[0] * ARGUMENTS["scale"] ** first
        return y + x[1] * ARGUMENTS["scale"] ** second

    arguments = {"x": ARGUMENTS["x"]}
    text = told(reference, lambda x: reference(x, second=0.0), arguments)
    assert text == f"fits the reference without the factor of shape {D}"
    # The same mistake at two places is none of these.
    assert told(reference, lambda x: reference(x, 0.0, 0.0), arguments) == ""


def test_two_operations_of_one_line_are_two_places():
    scale = ARGUMENTS["scale"]

    def reference(x, first=scale, second=scale):
        return torch.tanh(x[0] * first) + torch.sin(x[1] * second)

    def functions(x, other=lambda x: torch.tanh(x * ARGUMENTS["scale"])):
        # Python 3.10 makes one code object of equal functions of one line.
        def first(x):
            return torch.tanh(x * scale)

        def second(x):
            return torch.tanh(x * scale)

        return first(x[0]) + 2 * (other or second)(x[1])

    arguments = {"x": ARGUMENTS["x"]}
    text = f"fits the reference without the factor of shape {D}"
    assert told(reference, lambda x: reference(x, second=torch.ones(D)), arguments) == text
    assert told(reference, lambda x: reference(x, torch.ones(D), torch.ones(D)), arguments) == ""
    # The same instruction of two functions is two places, too.
    function = functools.partial(functions, other=None)
    assert told(function, lambda x: functions(x, other=torch.tanh), arguments) == text


def test_a_loop_of_a_library_has_no_line_of_the_users_code(monkeypatch):
    """As that of PyTorch's recurrent modules, where these run alone."""
    monkeypatch.setattr(runs, "_LIBRARIES", runs._LIBRARIES | {"tests"})

    def port(**arguments):
        return summed(**arguments, factor=torch.ones_like)

    text = told(summed, port, ARGUMENTS)
    assert text == f"fits the reference without the factor of shape {D}, all {STEPS} times in the module"


@pytest.mark.parametrize(
    ("reference", "port", "text"),
    [
        (lambda x, g: torch.tanh(x * g), lambda x, g: torch.tanh(x), "the factor of shape 3x1"),
        (lambda x, g: torch.tanh(g * x), lambda x, g: torch.tanh(x), "the factor of shape 3x1"),
        (lambda x, g: torch.tanh(x / g), lambda x, g: torch.tanh(x), "the divisor of shape 3x1"),
    ],
)
def test_a_tensor_left_out_of_a_product(reference, port, text):
    arguments = {"x": ARGUMENTS["x"][0], "g": ARGUMENTS["x"][1, :, :1]}
    assert told(reference, port, arguments) == f"fits the reference without {text}"


def gated(x, scale, gate=lambda kept, scale: kept.mul_(scale)):
    """A state that is written in place: the result of the operation itself is not used."""
    kept = x[0] - x[1]
    gate(kept, scale)
    return kept.add_(x[2])


@pytest.mark.parametrize(
    ("gate", "text"),
    [
        (lambda kept, scale: kept.div_(scale), "with div in place of mul"),
        (lambda kept, scale: kept.add_(scale), "with add in place of mul"),
        (lambda kept, scale: kept, f"without the factor of shape {D}"),
        (lambda kept, scale: kept.sigmoid_(), ""),
    ],
)
def test_an_operation_in_place_is_changed_in_place(gate, text):
    arguments = {name: ARGUMENTS[name] for name in ("x", "scale")}
    actual = told(gated, lambda **own: gated(**own, gate=gate), arguments)
    assert actual == (f"fits the reference {text}" if text else "")


def test_changes_in_the_same_words_may_be_of_two_kinds():
    """One of a place in the code has words of its own for several operations, and its neighbour has none."""
    place = Place(summed.__code__, 7, LINE)
    single = Change("with x", lambda operation: 0, origin=place)
    joint = Change("with x", lambda operation: 0, together="operands", origin=place)
    program = runs.Program(lambda arguments: 0, {})
    trials = search._trials(program, [(3, single), (5, joint), (8, single)])
    assert [trial.text for trial in trials] == [
        f"with x, all 2 times in {place.words}",
        f"with x, the 1st of 2 times in {place.words}",
        "with x",
        f"with x, the 2nd of 2 times in {place.words}",
    ]
