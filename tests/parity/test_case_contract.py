"""Results of a case's own methods that do not fit: the method, its result and the fix in one line."""

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
        ("weight_scale", lambda self, name, parameter: "big", "weight_scale: 'big'"),
        ("weight_scale", lambda self, name, parameter: -1.0, "weight_scale: -1.0"),
        ("weight_scale", lambda self, name, parameter: float("nan"), "weight_scale: nan"),
        ("weight_scale", lambda self, name, parameter: -parameter.abs(), "weight_scale: "),
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


def test_the_names_of_outputs_are_no_text():
    _refused("whole_outputs: 'forward'", whole_outputs="forward")


def test_a_batch_of_a_plan_that_lacks_an_array():
    def plan(self):
        yield parity.PlannedBatch("short", "two rows", {"y": np.zeros((2, WIDTH), np.float32)})

    _refused("plan.short: y do not fit forward(x", plan=plan)


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
        "boundaries": lambda self: {"Linear": lambda x: np.zeros((ROWS, 3), bool)},
        "plan": lambda self: iter(()),
        "rows": lambda self, arrays, rows: None,
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

    text = str(parity.check(Lookup(), ("fp32",)))
    assert "IndexError: index out of range in self" in text
    assert ("in batch ends" in text) == ("ends" in names)
