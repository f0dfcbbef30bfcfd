"""A port that writes a size as a constant where it varies: the failure tells the line and the fix."""

import linecache
from pathlib import Path

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity
from parity.execution.errors import error_text
from parity.runners.base import FailsWithSizes
from parity.runners.tripy import other_sizes

D, N, ROWS = 8, 7, 36
INPUTS = {"x": np.random.default_rng(3).standard_normal((ROWS, N, D)).astype(np.float32)}
HERE = Path(__file__)
FIX = "; a size that varies is a constant there: take it from a tensor's shape"


class Scores(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(D, 1)

    def forward(self, x):
        return self.layer(x).reshape(x.shape[0], -1)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = Scores()

    def forward(self, x):
        return torch.sigmoid(self.scores(x))


def reshaped(y, *shape):
    return tp.reshape(y, shape)


class ScoresPort(tp.Module):
    def __init__(self, dtype, shape):
        super().__init__()
        self.layer = tp.Linear(D, 1, dtype=dtype)
        self.shape = shape

    def forward(self, x):
        y = self.layer(x)
        if self.shape == "rows":
            return tp.reshape(y, (ROWS, -1))
        if self.shape == "columns":
            return reshaped(y, -1, N)
        return tp.reshape(y, (x.shape[0], x.shape[1]))


class Port(tp.Module):
    def __init__(self, dtype, shape=""):
        super().__init__()
        self.scores = ScoresPort(dtype, shape)

    def forward(self, x):
        return tp.sigmoid(self.scores(x))


def judged(shape=""):
    port = lambda dtype: Port(dtype, shape)  # noqa: E731, a function as users write it
    return parity.compare(Model(), port, INPUTS, ("fp32",), dynamic={"x": {0: 1, 1: 1}})


def place_of(text):
    """File and line of this file's only line with a text, behind its definition."""
    lines = HERE.read_text().splitlines()
    return f"{HERE.name}:{next(number for number, line in enumerate(lines, 1) if line.strip() == text)}"


def test_sizes_from_the_tensor_pass():
    assert judged().passed, judged()


@pytest.mark.parametrize(
    ("shape", "line", "sizes"),
    [
        ("rows", "return tp.reshape(y, (ROWS, -1))", f"x of 1x{N}x{D} in place of {ROWS}x{N}x{D}"),
        # A function of no module: the module that calls it is named.
        ("columns", "return tp.reshape(y, shape)", f"x of 1x1x{D} in place of {ROWS}x{N}x{D}"),
    ],
)
def test_a_size_that_is_a_constant_is_told_with_its_line_and_the_fix(shape, line, sizes):
    text = str(judged(shape))
    assert " fp32 FAIL" in text or " fp32 ERROR" in text
    assert f"{place_of(line)} in " in text
    assert f"): {line}, in scores, with {sizes}{FIX}" in text
    # The same error is told once.
    assert text.count("cannot reshape") == 1


def raising():
    raise tp.TripyException(
        f"error\n--> {HERE}:{ScoresPort.forward.__code__.co_firstlineno + 1} in forward()"
    )


def failure(arguments, sizes, trace=raising, modules=None):
    modules = {"scores": ScoresPort(tp.float32, "")} if modules is None else modules
    return other_sizes.failing_with_sizes(trace, modules, arguments, sizes)


def test_an_error_that_the_trace_does_not_repeat_has_no_place():
    assert failure({}, {}, trace=lambda: None) is None


def test_equal_sizes_are_no_reason():
    x = torch.zeros(3, 2)
    told = error_text(failure({"x": x}, {"x": (3, 2)}))
    line = linecache.getline(str(HERE), ScoresPort.forward.__code__.co_firstlineno + 1).strip()
    assert told.endswith(f": {line}, in scores")
    told = error_text(failure({"x": x, "y": x}, {"x": (3, 2), "y": (4, 2)}))
    assert told.endswith(f", in scores, with y of 3x2 in place of 4x2{FIX}")


def test_few_sizes_and_modules_are_listed():
    count = other_sizes.LISTED + 2
    arguments = {f"x{number}": torch.zeros(2) for number in range(count)}
    port = ScoresPort(tp.float32, "")
    modules = {f"scores.{number}": port for number in range(count)}
    told = error_text(failure(arguments, dict.fromkeys(arguments, (3,)), modules=modules))
    assert "in scores.0, scores.1, scores.2, scores.3 and 2 more, with x0 of 2 in place of 3, " in told
    assert f"x3 of 2 in place of 3 and 2 more{FIX}" in told


def test_an_error_without_a_place_of_the_user_stays_as_it_is():
    error = FailsWithSizes(tp.TripyException("no place"), "x of 1 in place of 2", lambda *place: "scores")
    assert error_text(error) == "TripyException: no place"
