"""Runs of the reference's code: under which choices, and where its operations come from."""

import functools

import pytest
import torch

from parity.verdict.causes.operations import Place
from parity.verdict.causes.runs import Program
from tests.parity.verdict.choices.searches import shown_choices

X = torch.linspace(-1.0, 1.0, 6, dtype=torch.float64)
NUMBERS = torch.tensor([0.95, 0.5, 1.05], dtype=torch.float64)
"""The first number and the last one have another integer within rounding."""
PORT = torch.tensor([1, 1, 0])


@pytest.mark.parametrize("model", [lambda x: x.to(dtype=torch.int64), torch.floor], ids=["keyword", "floor"])
def test_the_reference_takes_the_verdicts_choices_and_other_programs_those_that_rounding_explains(model):
    results = []

    def run(tensors):
        results.append(model(tensors["x"]))
        return results[-1]

    port = PORT.to(model(NUMBERS).dtype)
    choices = shown_choices(
        model, port, NUMBERS, 0, torch.ones(3, dtype=torch.bool), torch.tensor([False, True, False])
    )
    program = Program(run, {"x": NUMBERS}, choices=choices)
    assert program.result().tolist() == [0, 1, 1]
    program.listed()
    assert results[-1].tolist() == [0, 1, 1]
    assert program.changed().tolist() == [1, 0, 0]
    # Without choices of the port, all make their own.
    alone = Program(run, {"x": NUMBERS})
    alone.listed()
    assert [alone.result().tolist(), results[-1].tolist(), alone.changed().tolist()] == [[0, 0, 1]] * 3


def test_operations_that_may_not_change_have_no_changes():
    def run(tensors):
        return torch.tanh(tensors["x"] * 2)

    assert Program(run, {"x": X}).listed().changes
    assert Program(run, {"x": X}, is_changeable=lambda: False).listed().changes == []


def test_the_elements_of_all_tensors_are_counted():
    def run(tensors):
        first, second = tensors["x"].split(3)
        return (first * second).sum()

    assert Program(run, {"x": X}).listed().elements == 3 + 1


def in_package(name):
    """A function of a package, or of code without a name."""
    namespace = {"__name__": name} if name else {}
    exec("def run(tensors):\n    return tensors['x'] * 2.0\n", namespace)
    return namespace["run"]


def origins(run):
    return {change.origin for _, change in Program(run, {"x": X}).listed().changes}


def test_an_operation_comes_from_the_last_line_of_the_users_code():
    def run(tensors):
        return in_torch({"x": tensors["x"]})

    in_torch = in_package("torch.nn.functional")
    (place,) = origins(run)
    first = run.__code__.co_firstlineno
    assert (place.code, place.words) == (run.__code__, f"test_runs.py:{first + 1}")
    for name in ("models", "torchrec.models", ""):
        own = in_package(name)
        (place,) = origins(functools.partial(own))
        assert (place.code, place.words) == (own.__code__, "<string>:2")


@pytest.mark.parametrize("name", ["torch", "torch.nn.functional", "parity.runners"])
def test_a_module_of_a_library_that_runs_alone_has_no_line(name):
    assert origins(in_package(name)) == {Place(None, 0, "the module")}
