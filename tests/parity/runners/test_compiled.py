"""Executables of the port: arguments that are no inputs, results that are inputs, and what they accept."""

import nvtripy as tp
import pytest
import torch

from parity.base.trees import dotted, leaves, map_tree
from parity.runners.tripy.compiled import Compiled, to_device


@pytest.mark.parametrize(("arguments", "result"), [({"x": None}, 1.0), ({"x": torch.ones(2)}, 2.0)])
def test_a_function_runs_with_and_without_tensors_in_its_argument(arguments, result):
    def function(arguments):
        ones = tp.ones((2,))
        return {"sum": ones if arguments["x"] is None else ones + arguments["x"]}

    compiled = Compiled(function, arguments, {})
    on_device = {name: value if value is None else to_device(value) for name, value in arguments.items()}
    assert compiled.on_host(on_device)["sum"].tolist() == [result, result]


ARGUMENTS = {
    "args": [torch.tensor([1.0, 2.0]), [torch.tensor([3.0]), torch.tensor([4.0, 5.0])], 7],
    "kwargs": {"first": torch.tensor([6]), "last": {"deep": torch.tensor([True, False])}},
}


@pytest.mark.parametrize("computes", [True, False])
def test_every_argument_that_a_function_passes_through_is_returned_under_its_name(computes):
    def function(arguments):
        tensors = {dotted(path): leaf for path, leaf in leaves(arguments) if isinstance(leaf, tp.Tensor)}
        return tensors | ({"sum": arguments["args"][0] + 1.0} if computes else {})

    compiled = Compiled(function, ARGUMENTS, {})
    results = compiled.on_host(map_tree(ARGUMENTS, to_device))
    expected = {
        dotted(path): leaf.tolist() for path, leaf in leaves(ARGUMENTS) if isinstance(leaf, torch.Tensor)
    }
    expected |= {"sum": [2.0, 3.0]} if computes else {}
    assert {name: tensor.tolist() for name, tensor in results.items()} == expected


def test_results_have_the_order_of_the_function():
    """A cache is put together in it, also where a state is handed on as it is."""

    def function(arguments):
        x, y = arguments["x"], arguments["y"]
        return {"kept": x, "sum": x + y, "number": torch.ones(1), "also kept": y, "product": x * y}

    arguments = {"x": torch.tensor([2.0]), "y": torch.tensor([3.0])}
    results = Compiled(function, arguments, {}).on_host(map_tree(arguments, to_device))
    assert [(name, tensor.item()) for name, tensor in results.items()] == [
        ("kept", 2.0),
        ("sum", 5.0),
        ("number", 1.0),
        ("also kept", 3.0),
        ("product", 6.0),
    ]


def test_every_name_of_a_tensor_has_its_values_and_shares_its_copy():
    def function(arguments):
        first, second, third = (arguments["x"] + float(number) for number in (1, 2, 3))
        return {"1": first, "2": second, "1 again": first, "3": third, "2 again": second, "1 last": first}

    arguments = {"x": torch.zeros(1)}
    results = Compiled(function, arguments, {}).on_host(map_tree(arguments, to_device))
    assert {name: tensor.item() for name, tensor in results.items()} == {
        name: float(name[0]) for name in ("1", "2", "1 again", "3", "2 again", "1 last")
    }
    assert len({id(tensor) for tensor in results.values()}) == 3


ACCEPTED = {
    "rows": torch.zeros(4, 2),
    "ids": torch.zeros(4, dtype=torch.int32),
    "width": torch.zeros(2, 5),
    "flag": True,
    "count": 3,
    "text": "mean",
    "nothing": None,
}
LEAST = {4: 1, ("width", 1): 2}


@pytest.fixture(scope="module")
def compiled():
    return Compiled(lambda arguments: {"sum": arguments["rows"] + 1.0}, ACCEPTED, LEAST)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"rows": torch.zeros(1, 2)},
        {"rows": torch.zeros(3, 2), "ids": torch.zeros(1, dtype=torch.int32)},
        {"width": torch.zeros(2, 2)},
    ],
)
def test_arguments_of_the_same_types_with_sizes_in_range_are_accepted(compiled, change):
    assert compiled.accepts(ACCEPTED | change)


REFUSED = {
    "more rows": {"rows": torch.zeros(5, 2)},
    "no row": {"rows": torch.zeros(0, 2)},
    "another width": {"rows": torch.zeros(4, 1)},
    "too narrow": {"width": torch.zeros(2, 1)},
    "fewer rows of a fixed size": {"width": torch.zeros(1, 5)},
    "another type": {"rows": torch.zeros(4, 2, dtype=torch.float16)},
    "integers of another width": {"ids": torch.zeros(4, dtype=torch.int64)},
    "an axis more": {"rows": torch.zeros(4, 2, 1)},
    "another flag": {"flag": False},
    "a number for a flag": {"flag": 1},
    "another count": {"count": 4},
    "a count with a point": {"count": 3.0},
    "another text": {"text": "sum"},
    "a value for None": {"nothing": 0},
    "None for a value": {"count": None},
    "a nested value": {"count": [3]},
}


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
def test_arguments_of_which_one_leaf_does_not_fit_are_refused(compiled, change):
    assert not compiled.accepts(ACCEPTED | change)


def test_arguments_of_which_one_is_missing_are_refused(compiled):
    for name in ACCEPTED:
        assert not compiled.accepts({other: leaf for other, leaf in ACCEPTED.items() if other != name})
