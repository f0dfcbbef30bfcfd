"""Arguments of modules and of the entry that are neither tensors nor constants."""

from __future__ import annotations

import enum
from typing import Any

import nvtripy as tp
import pytest
import torch

import parity
from tests.parity.fault_runs import runner

WIDTH = 6
INPUTS = {"x": torch.linspace(-2, 2, 40 * WIDTH).reshape(40, WIDTH)}


class Pooling(enum.Enum):
    SUM = "sum"
    MEAN = "mean"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3


class Scale:
    """A plain object."""

    def __init__(self, factor: float) -> None:
        self.factor = factor


def half(y: Any) -> Any:
    return y * 0.5


class Inner(torch.nn.Module):
    """Its second argument decides what it computes."""

    def __init__(self, use: Any) -> None:
        super().__init__()
        self.use = use
        self.layer = torch.nn.Linear(WIDTH, 8)

    def forward(self, x: torch.Tensor, how: Any) -> torch.Tensor:
        return self.use(self.layer(x), how)


class Outer(torch.nn.Module):
    def __init__(self, use: Any, how: Any) -> None:
        super().__init__()
        self.how = how
        self.inner = Inner(use)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, self.how) + 1


class InnerPort(tp.Module):
    def __init__(self, use: Any, dtype: tp.dtype) -> None:
        super().__init__()
        self.use = use
        self.layer = tp.Linear(WIDTH, 8, dtype=dtype)

    def forward(self, x: tp.Tensor, how: Any) -> tp.Tensor:
        return self.use(self.layer(x), how)


class OuterPort(tp.Module):
    def __init__(self, use: Any, how: Any, dtype: tp.dtype) -> None:
        super().__init__()
        self.how = how
        self.inner = InnerPort(use, dtype)

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        return self.inner(x, self.how) + 1


def pooled(y: Any, how: Any) -> Any:
    return y * 8 if how is Pooling.SUM else y


def levelled(y: Any, how: Any) -> Any:
    return y * (2.0 if how is Level.HIGH else 1.0)


def cast(y: Any, how: Any) -> Any:
    return y.to(how) if isinstance(y, torch.Tensor) else tp.cast(y, how)


def picked(y: Any, how: Any) -> Any:
    return y[how]


def shaped(y: Any, how: Any) -> Any:
    assert isinstance(how, tuple)
    return y.reshape((-1, *how)) if isinstance(y, torch.Tensor) else tp.reshape(y, (-1, *how))


def counted(y: Any, how: Any) -> Any:
    return y * float(sum(how))


def turned(y: Any, how: Any) -> Any:
    return y * how.real + how.imag


def keyed(y: Any, how: Any) -> Any:
    return y * how["tensor"] + how[Pooling.SUM] + how[3]


def mapped(y: Any, how: Any) -> Any:
    return how(y)


def scaled(y: Any, how: Any) -> Any:
    return y * how.factor


STORED = {
    "enum": (pooled, Pooling.SUM, Pooling.SUM),
    "int_enum": (levelled, Level.HIGH, Level.HIGH),
    "dtype": (cast, torch.float32, tp.float32),
    "bfloat16": (cast, torch.bfloat16, tp.bfloat16),
    "slice": (picked, (slice(None), slice(1, 5)), (slice(None), slice(1, 5))),
    "ellipsis": (picked, (..., slice(1, 5)), (slice(None), slice(1, 5))),
    "size": (shaped, torch.Size((2, 4)), (2, 4)),
    "range": (counted, range(4), range(4)),
    "set": (counted, {1, 2}, frozenset({1, 2})),
    "bytes": (counted, b"\x01\x02", b"\x01\x02"),
    "complex": (turned, 2 + 1j, 2 + 1j),
    "keys": (keyed, {"tensor": 2.0, Pooling.SUM: 1.0, 3: 0.5}, {"tensor": 2.0, Pooling.SUM: 1.0, 3: 0.5}),
}
NOT_STORED = {
    "function": (mapped, half, half, "how (function)"),
    "object": (scaled, Scale(3.0), Scale(3.0), "how (Scale)"),
    "set with an object": (lambda y, how: y * len(how), {half, 1}, {half, 1}, "how (set)"),
}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("kind", STORED)
def test_a_value_with_an_exact_form_reaches_a_module_alone(kind, precision):
    use, theirs, ours = STORED[kind]
    result = parity.compare(
        Outer(use, theirs), lambda dtype: OuterPort(use, ours, dtype), INPUTS, (precision,)
    )
    assert result.passed, str(result)
    (inner,) = (row for row in runner(result.report, "tripy").modules if row.path == "inner")
    assert inner.isolated is not None, inner.notes


@pytest.mark.parametrize("kind", NOT_STORED)
def test_a_module_that_receives_another_object_is_judged_inside_the_model_and_says_so(kind):
    use, theirs, ours, name = NOT_STORED[kind]
    result = parity.compare(Outer(use, theirs), lambda dtype: OuterPort(use, ours, dtype), INPUTS)
    assert result.passed, str(result)
    assert f"inner (Inner): judged inside the model alone: its arguments cannot be stored: {name}" in str(
        result
    )
    wrong = parity.compare(
        Outer(use, theirs), lambda dtype: OuterPort(lambda y, how: use(y, how) * 1.01, ours, dtype), INPUTS
    )
    assert "FAIL at inner" in str(wrong)


def test_a_wrong_module_behind_a_stored_value_is_named():
    def port(dtype):
        return OuterPort(lambda y, how: pooled(y, how) * 1.01, Pooling.SUM, dtype)

    text = str(parity.compare(Outer(pooled, Pooling.SUM), port, INPUTS, ("fp32",)))
    assert "FAIL at inner" in text
    assert "inner (Inner) diverges on its own" in text


def test_another_member_is_named():
    def port(dtype):
        return OuterPort(pooled, Pooling.MEAN, dtype)

    text = str(parity.compare(Outer(pooled, Pooling.SUM), port, INPUTS, ("fp32",)))
    assert "receives another how: Pooling MEAN in place of Pooling SUM" in text


class Entry(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, 8)

    def forward(self, x: torch.Tensor, how: Any, scale: Any, dtype: Any) -> torch.Tensor:
        return (pooled(self.layer(x), how) * scale.factor).to(dtype)


class EntryPort(tp.Module):
    def __init__(self, dtype: tp.dtype) -> None:
        super().__init__()
        self.layer = tp.Linear(WIDTH, 8, dtype=dtype)

    def forward(self, x: tp.Tensor, how: Any, scale: Any, dtype: Any) -> tp.Tensor:
        return tp.cast(pooled(self.layer(x), how) * scale.factor, dtype)


def test_the_entry_may_receive_objects():
    inputs = {**INPUTS, "how": Pooling.SUM, "scale": Scale(2.0), "dtype": torch.float32}
    result = parity.compare(Entry(), EntryPort, inputs)
    assert result.passed, str(result)
    assert "no coverage" not in str(result)


def test_an_array_of_another_library_is_refused():
    with pytest.raises(parity.UserError, match="is an array of another library"):
        parity.compare(Entry(), EntryPort, {"x": tp.ones((2, WIDTH))})
