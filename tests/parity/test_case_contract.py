"""Results of a case's own methods that do not fit: the method, its result and the fix in one line."""

import functools
import sys

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity
from parity.inputs.prepared import prepare

WIDTH, ROWS = 6, 20


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Port(tp.Module):
    def __init__(self, dtype: tp.dtype) -> None:
        super().__init__()
        self.layer = tp.Linear(WIDTH, 3, dtype=dtype)

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        return self.layer(x)


class Unbuilt(Port):
    """Its weight has another number of elements than its shape."""

    def __init__(self, dtype):
        super().__init__(dtype)
        self.weight = tp.reshape(tp.ones((2, 3), dtype=dtype), (5,))


class Right(parity.Case):
    name = "right"
    batch_size = ROWS

    def build_reference(self) -> torch.nn.Module:
        return Model()

    def build_port(self, dtype: tp.dtype) -> tp.Module:
        return Port(dtype)

    def make_inputs(self) -> dict[str, np.ndarray]:
        x = np.random.default_rng(self.seed).standard_normal((self.batch_size, WIDTH))
        return {"x": x.astype(np.float32)}


def _refused(message: str, **methods) -> None:
    case = type("Wrong", (Right,), methods)()
    with pytest.raises(parity.UserError) as caught:
        prepare([case], None, None)
    assert message in str(caught.value)


def _mask(*shape: int, dtype=bool):
    return lambda self, arrays: {WIDTH: np.ones(shape, dtype)}


@pytest.mark.parametrize(
    ("method", "result", "message"),
    [
        ("valid_rows", _mask(3, WIDTH), "valid_rows[6]: an array of bool (3, 6)"),
        ("valid_rows", _mask(ROWS, WIDTH, dtype=np.int64), "valid_rows[6]: an array of int64 (20, 6)"),
        ("valid_rows", lambda self, arrays: None, "valid_rows: None"),
        ("dynamic_sizes", lambda self, arrays: None, "dynamic_sizes: None"),
        ("dynamic_sizes", lambda self, arrays: {21: 1}, "dynamic_sizes[21]: 1 is of no axis of right's"),
        ("dynamic_sizes", lambda self, arrays: {"x": 1}, "dynamic_sizes['x']: 1 is of no axis of right's"),
        ("dynamic_sizes", lambda self, arrays: {("y", 0): 1}, "name the size of a first axis, or (argument"),
        ("dynamic_sizes", lambda self, arrays: {ROWS: ROWS + 1}, "dynamic_sizes[20]: 21 is no least size"),
        ("dynamic_sizes", lambda self, arrays: {("x", 1): 0.5}, "dynamic_sizes[('x', 1)]: 0.5 is no least"),
        ("batch_size_of", lambda self, arrays: None, "batch_size_of: None"),
        ("entry_arguments", lambda self, arrays: [arrays["x"]], "entry_arguments: a list"),
        ("entry_arguments", lambda self, arrays: {0: arrays["x"]}, "entry_arguments: a dict"),
        ("rows", lambda self, arrays, rows: [arrays["x"][rows]], "rows: a list"),
        ("rows", lambda self, arrays, rows: {"y": arrays["x"][rows]}, "rows: a dict"),
        ("rows", lambda self, arrays, rows: dict(arrays), "rows: 20 of 20 rows are no single row of right"),
        ("boundaries", lambda self: ["Linear"], "boundaries: ['Linear']"),
        ("boundaries", lambda self: {"Linear": 3}, "boundaries: {'Linear': 3}"),
        ("gaps", lambda self: {torch.nn.Linear: "none"}, "gaps: {<class"),
        ("options", lambda self: ["a"], "options: ['a']"),
        ("cannot_be_asked", lambda self: ["a"], "cannot_be_asked: ['a']"),
        ("port_modules", lambda self: "small", "port_modules: 'small'"),
        ("port_modules", lambda self: ["json", "json.none"], "port_modules: json.none is no module that"),
        ("port_modules", lambda self: ["none.at_all"], "port_modules: none.at_all is no module that"),
        ("weight_scale", lambda self, name, parameter: "big", "weight_scale: 'big'"),
        ("weight_scale", lambda self, name, parameter: -1.0, "weight_scale: -1.0"),
        ("weight_scale", lambda self, name, parameter: float("nan"), "weight_scale: nan"),
        ("weight_scale", lambda self, name, parameter: -parameter.abs(), "weight_scale: "),
        ("initial_values", lambda self, name, own: own.double(), "initial_values: "),
        ("initial_values", lambda self, name, own: own[:1], "initial_values: "),
        ("plan", lambda self: [{"x": np.zeros((2, WIDTH))}], "plan: a dict"),
    ],
)
def test_a_result_that_does_not_fit(method, result, message):
    _refused(message, **{method: result})


@pytest.mark.parametrize("method", ["options", "validate", "valid_rows", "weight_scale", "dynamic_sizes"])
def test_a_method_that_raises(method):
    def wrong(self, *arguments):
        raise ZeroDivisionError("mine")

    _refused(f"{method} fails (ZeroDivisionError: mine, {__file__}:", **{method: wrong})


def test_inputs_that_fail_for_few_rows_are_told_as_inputs():
    """The default plan has one row and two, and no code of the user's."""

    def make_inputs(self):
        return {
            "x": np.zeros((self.batch_size, WIDTH), np.float32)[: self.batch_size // (self.batch_size - 1)]
        }

    _refused(
        f"make_inputs fails (ZeroDivisionError: integer division or modulo by zero, {__file__}:",
        make_inputs=make_inputs,
    )


@pytest.mark.parametrize(
    ("name", "method", "message"),
    [
        ("build_port", lambda self: None, "Wrong.build_port() is called as build_port(dtype); write def bui"),
        ("build_port", lambda: None, "Wrong.build_port() is called as build_port(dtype); write"),
        ("build_port", staticmethod(lambda dtype, depth: None), "(dtype, depth) is called as build_port(dt"),
        (
            "build_reference",
            lambda self, dtype: None,
            "build_reference(dtype) is called as build_reference()",
        ),
        ("make_inputs", lambda self, seed: None, "Wrong.make_inputs(seed) is called as make_inputs(); write"),
        ("valid_rows", lambda self: {}, "Wrong.valid_rows() is called as valid_rows(arrays); write"),
        ("with_overrides", lambda self, seed=None: self, "is called as with_overrides(seed, batch_size)"),
        (
            "extend",
            lambda self, model: None,
            "Wrong.extend(model) is called as extend(model, cache, argument",
        ),
        ("poison", ("x",), "Wrong.poison is of type tuple, and no method; write def poison(self, arrays, se"),
    ],
)
def test_a_method_with_other_parameters(name, method, message):
    _refused(message, **{name: method})


def test_parameters_that_fit():
    def wrapped(self, *arguments):
        return Port(*arguments)

    # The parameters of the function inside are its own matter.
    wrapped.__wrapped__ = lambda self, dtype, depth: None
    methods = {
        "build_port": wrapped,
        "build_reference": staticmethod(Model),
        "make_inputs": functools.cache(Right.make_inputs),
        "gaps": functools.partialmethod(lambda self, gaps: gaps, {}),
        "valid_rows": lambda self, inputs, axis=1: {},
        "extend": lambda self, model, cache, item, position: None,
        "with_overrides": lambda self, **changes: Right.with_overrides(self, **changes),
    }
    prepare([type("Fitting", (Right,), methods)()], None, None)


def test_the_names_of_outputs_are_no_text():
    _refused("whole_outputs: 'forward'", whole_outputs="forward")


def test_a_batch_of_a_plan_that_lacks_an_array():
    def plan(self):
        yield parity.PlannedBatch("short", "two rows", {"y": np.zeros((2, WIDTH), np.float32)})

    _refused("plan.short: y do not fit forward(x", plan=plan)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"make_inputs": lambda self: {0: np.ones(3)}}, "inputs: 0 is no name of an array"),
        (
            {"plan": lambda self: [parity.PlannedBatch("a", "b", {None: np.ones(3)})]},
            "inputs: None is no name of an array",
        ),
        ({"plan": lambda self: [parity.PlannedBatch(3, "b", {})]}, "plan: name: 3 is no result"),
        ({"plan": lambda self: [parity.PlannedBatch("a", None, {})]}, "plan: purpose: None is no result"),
    ],
)
def test_names_and_numbers_of_another_type(methods, message):
    _refused(message, **methods)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"name": None}, "case: Wrong has the name None; give it a name of letters"),
        ({"name": "../up"}, "case: Wrong has the name '../up'; give it a name of letters"),
        ({"batch_size": 4.0}, "case: Wrong has the batch_size 4.0; give it a whole number, 1 or more"),
        ({"seed": True}, "case: Wrong has the seed True; give it a whole number, 0 or more"),
        ({"description": 3}, "case: Wrong has the description 3; give it a text"),
        ({"one_sided": "no"}, "one_sided: no is not known; use True or False"),
        ({"states_rows": 1}, "states_rows: 1 is not known; use True or False"),
        ({"options": lambda self: {"a": 3}}, "options: {'a': 3} is no result"),
        ({"gaps": lambda self: {"Linear": 3}}, "gaps: {'Linear': 3} is no result"),
        ({"cannot_be_asked": lambda self: {"a": None}}, "cannot_be_asked: {'a': None} is no result"),
        ({"build_reference": lambda self: None}, "has no reference: build_reference returns None"),
        (
            {"build_reference": lambda self: Model},
            "reference: build_reference returns the class Model",
        ),
        (
            {"build_reference": lambda self: sys.exit(0)},
            "used: build_reference fails (SystemExit: 0",
        ),
        ({"build_port": lambda self, dtype: sys.exit(0)}, "cannot be used: build_port fails (SystemExit: 0"),
        (
            {"build_port": lambda self, dtype: Unbuilt(dtype)},
            "build_port fails (TripyException: 'tensorrt.reshape' op reshape changes volume: ",
        ),
    ],
)
def test_facts_of_another_type(facts, message):
    with pytest.raises(parity.UserError) as caught:
        parity.check(type("Wrong", (Right,), facts)())
    assert message in str(caught.value)


def _no_rows() -> dict[str, np.ndarray]:
    return {"x": np.zeros((0, WIDTH), np.float32)}


@pytest.mark.parametrize(
    ("methods", "field"),
    [
        ({"make_inputs": lambda self: _no_rows()}, "inputs.x"),
        ({"make_inputs": lambda self: parity.Batches([_no_rows()], "mine", {})}, "inputs.x"),
        ({"plan": lambda self: [parity.PlannedBatch("none", "no row", _no_rows())]}, "inputs.x"),
        ({"batch_size_of": lambda self, arrays: 0}, "inputs"),
    ],
    ids=["inputs", "batches", "plan", "counted"],
)
def test_a_batch_without_a_row(methods, field):
    _refused(f"{field}: has no row; give at least one row", **methods)


@pytest.mark.parametrize(
    ("poisoned", "message"),
    [
        (lambda self, arrays, seed: [arrays["x"]], "poison: list is no result of right"),
        (lambda self, arrays, seed: {"y": arrays["x"]}, "poison: y are not the inputs of right"),
        (lambda self, arrays, seed: {"x": arrays["x"][:2]}, "poison.x: an array of float32 (2, 6)"),
        (lambda self, arrays, seed: {"x": arrays["x"] > 0}, "poison.x: an array of bool (20, 6)"),
        (lambda self, arrays, seed: 1 / 0, "poison fails (ZeroDivisionError"),
    ],
)
def test_garbage_that_does_not_fit(poisoned, message):
    with pytest.raises(parity.UserError) as caught:
        parity.check(type("Wrong", (Right,), {"poison": poisoned})(), ("fp32",))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"named_outputs": lambda self, results: [results]}, "named_outputs: a list is no result of right"),
        ({"named_outputs": lambda self, results: {"scores": results}}, "by names such as forward.scores"),
        ({"named_outputs": lambda self, results: 1 / 0}, "named_outputs fails (ZeroDivisionError"),
        ({"whole_outputs": ("scores",)}, "whole_outputs: scores is no output of right; name one of output"),
    ],
)
def test_names_of_outputs_that_do_not_fit(named, message):
    with pytest.raises(parity.UserError) as caught:
        parity.check(type("Wrong", (Right,), named)(), ("fp32",))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"initial": "random"}, "initial: random is not known; use 'sensitive' or 'own'"),
        ({"unused": "layer.bias"}, "unused: layer.bias is a text"),
        ({"tolerance": {"layer": 2.0}}, "tolerance['layer']: 2.0 is no relative error"),
    ],
)
def test_options_that_mean_nothing(option, message):
    _refused(message, **option)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"unused": ("mask",)}, "unused: mask matches no tensor of the reference; use names such as layer.w"),
        ({"inert": ("Dropuot",)}, "inert: Dropuot matches no module; use names such as layer, Linear"),
        ({"functional": ("layers",)}, "functional: layers matches no module; did you mean 'layer'?"),
        ({"tolerance": {"layers": 0.1}}, "tolerance: layers matches no module; did you mean 'layer'?"),
    ],
)
def test_options_that_match_nothing(option, message):
    with pytest.raises(parity.UserError) as caught:
        parity.check(type("Wrong", (Right,), option)(), ("fp32",))
    assert message in str(caught.value)


@pytest.mark.parametrize("result", [None, "yes", np.zeros(3)])
def test_a_boundary_that_is_no_mask(result):
    case = type("Wrong", (Right,), {"boundaries": lambda self: {"Linear": lambda x: result}})()
    with pytest.raises(parity.UserError, match="boundaries: .*return an array of booleans"):
        parity.check(case, ("fp32",))


def test_a_boundary_that_raises():
    case = type("Wrong", (Right,), {"boundaries": lambda self: {"Linear": lambda x: 1 / 0}})()
    with pytest.raises(parity.UserError, match="boundaries fails .ZeroDivisionError"):
        parity.check(case, ("fp32",))


def test_results_that_fit():
    methods = {
        "valid_rows": _mask(ROWS, WIDTH),
        "weight_scale": lambda self, name, parameter: torch.ones_like(parameter),
        "initial_values": lambda self, name, own: own.mul_(2.0),
        "boundaries": lambda self: {"Linear": lambda x: np.zeros((ROWS, 3), bool)},
        "plan": lambda self: iter(()),
        "rows": lambda self, arrays, rows: None,
        "port_modules": lambda self: ["__main__", __name__],
    }
    parity.check(type("Fitting", (Right,), methods)(), ("fp32",)).raise_if_failed()


def test_inputs_that_do_not_follow_from_the_seed():
    random = np.random.default_rng(3)

    def make_inputs(self):
        return {"x": random.standard_normal((ROWS, WIDTH)).astype(np.float32)}

    _refused("make_inputs: seed 0 gives other arrays in a second call, in right", make_inputs=make_inputs)


class Rows(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Embedding(9, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class RowsPort(tp.Module):
    def __init__(self, dtype: tp.dtype) -> None:
        super().__init__()
        self.layer = tp.Embedding(9, WIDTH, dtype=dtype)

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        return self.layer(x)


def _ids(last: int) -> dict[str, np.ndarray]:
    return {"x": np.array([*range(8), last])}


@pytest.mark.parametrize("names", [("typical",), ("typical", "ends")])
def test_a_batch_that_the_reference_refuses_is_named(names):
    """The typical batch needs no name: it is the one that the case makes first."""

    class Lookup(Right):
        def build_reference(self):
            return Rows()

        def build_port(self, dtype):
            return RowsPort(dtype)

        def make_inputs(self):
            return _ids(8 if "ends" in names else 9)

        def plan(self):
            yield parity.PlannedBatch("few", "all in the table", _ids(7))
            yield parity.PlannedBatch("ends", "one behind the table", _ids(9 if "ends" in names else 5))

    with pytest.raises(parity.UserError) as caught:
        parity.check(Lookup(), ("fp32",))
    text = str(caught.value)
    assert text.startswith(
        "inputs.x[8]: 9 is outside of what the reference looks up: embedding in layer takes "
    )
    assert ("(in batch ends)" in text) == ("ends" in names)
