"""Results that are no real tensors: complex numbers, sparse tensors, numbers, texts, None, named tuples."""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity
from tests.parity.fault_runs import runner

WIDTH = 6
INPUTS = {"x": torch.linspace(-2, 2, 40 * WIDTH).reshape(40, WIDTH)}


class Model(torch.nn.Module):
    """Two layers, whose results make the entry's."""

    def __init__(self, results: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.results = results
        self.first, self.second = torch.nn.Linear(WIDTH, 5), torch.nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor) -> Any:
        return self.results(self.first(x), self.second(x))


class Port(tp.Module):
    def __init__(self, results: Callable[[Any, Any], Any], dtype: tp.dtype) -> None:
        super().__init__()
        self.results = results
        self.first, self.second = tp.Linear(WIDTH, 5, dtype=dtype), tp.Linear(WIDTH, 5, dtype=dtype)

    def forward(self, x: tp.Tensor) -> Any:
        return self.results(self.first(x), self.second(x))


def compared(theirs: Any, ours: Any, precisions: tuple[str, ...] = ("fp32",)) -> parity.Result:
    return parity.compare(Model(theirs), lambda dtype: Port(ours, dtype), INPUTS, precisions)


def parts(a: tp.Tensor, b: tp.Tensor) -> tp.Tensor:
    return tp.stack([a, b], dim=-1)


def test_a_complex_output_is_its_real_and_imaginary_parts():
    assert compared(torch.complex, parts).passed
    assert compared(lambda a, b: torch.complex(a, b).conj(), lambda a, b: parts(a, b * -1.0)).passed
    assert "FAIL at forward.output" in str(compared(torch.complex, lambda a, b: parts(b, a)))
    told = "PyTorch returns complex numbers, compared as (..., 2), the real and imaginary parts"
    assert told in str(compared(torch.complex, lambda a, b: a))
    (row,) = (
        row
        for row in runner(compared(torch.complex, parts).report, "tripy").modules
        if row.tap == "forward.output"
    )
    assert told in row.notes


class Rotation(torch.nn.Module):
    def forward(self, z: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        return z * turn


class Rotary(torch.nn.Module):
    """Complex numbers between modules, from a buffer that no state dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.rotation = torch.nn.Linear(WIDTH, 8), Rotation()
        angles = torch.linspace(0.1, 1.5, 4)
        self.register_buffer("turn", torch.polar(torch.ones(4), angles), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = torch.view_as_complex(self.layer(x).float().reshape(-1, 4, 2))
        return torch.view_as_real(self.rotation(z, self.turn)).flatten(-2)


class RotationPort(tp.Module):
    def __init__(self, sign: float) -> None:
        super().__init__()
        self.sign = sign

    def forward(self, z: tp.Tensor, turn: tp.Tensor) -> tp.Tensor:
        real = z[..., 0] * turn[..., 0] - z[..., 1] * turn[..., 1] * self.sign
        return parts(real, z[..., 0] * turn[..., 1] + z[..., 1] * turn[..., 0])


class RotaryPort(tp.Module):
    def __init__(self, sign: float = 1.0) -> None:
        super().__init__()
        self.layer, self.rotation = tp.Linear(WIDTH, 8), RotationPort(sign)

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        angles = torch.linspace(0.1, 1.5, 4)
        turn = tp.Tensor(torch.stack([angles.cos(), angles.sin()], dim=-1).contiguous())
        turned = self.rotation(tp.reshape(self.layer(x), (-1, 4, 2)), turn)
        return tp.reshape(turned, (-1, 8))


def test_complex_numbers_between_modules_are_compared_in_their_parts():
    result = parity.compare(Rotary(), RotaryPort(), INPUTS, ("fp32",))
    assert result.passed, str(result)
    assert "alone" not in str(result)
    wrong = str(parity.compare(Rotary(), RotaryPort(-1.0), INPUTS, ("fp32",)))
    assert "FAIL at rotation\n" in wrong
    assert "rotation (Rotation) diverges on its own" in wrong


class Spectral(torch.nn.Module):
    """A complex parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = torch.nn.Parameter(torch.randn(WIDTH // 2, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.double() if x.dtype is torch.float64 else x.float()
        z = torch.view_as_complex(wide.reshape(-1, WIDTH // 2, 2))
        return torch.view_as_real(z * self.filter).to(x.dtype)


class SpectralPort(tp.Module):
    def __init__(self, dtype: tp.dtype, sign: float = 1.0) -> None:
        super().__init__()
        self.filter = tp.zeros((WIDTH // 2, 2), dtype=dtype)
        self.rotation, self.dtype = RotationPort(sign), dtype

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        z = tp.cast(tp.reshape(x, (-1, WIDTH // 2, 2)), tp.float32)
        return tp.cast(self.rotation(z, tp.cast(self.filter, tp.float32)), self.dtype)


@pytest.mark.sampled
@pytest.mark.parametrize("initial", ["sensitive", "own"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_complex_parameter_is_a_real_one_with_an_axis_of_two(initial, precision):
    result = parity.compare(Spectral(), SpectralPort, INPUTS, (precision,), initial=initial)
    assert result.passed, str(result)
    wrong = parity.compare(
        Spectral(), lambda dtype: SpectralPort(dtype, -1.0), INPUTS, (precision,), initial=initial
    )
    assert not wrong.passed


def test_a_sparse_output_is_compared_as_a_dense_one():
    assert compared(lambda a, b: torch.relu(a).to_sparse(), lambda a, b: tp.relu(a)).passed
    assert not compared(lambda a, b: torch.relu(a).to_sparse(), lambda a, b: a).passed


class Mode(enum.Enum):
    DENSE = 1
    SPARSE = 2


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (3, 4),
        (2**70, 2**70 + 1),
        (True, False),
        (0.5, 0.75),
        (math.inf, -math.inf),
        (math.nan, 0.0),
        ("greedy", "beam"),
        ("", "a"),
        (Mode.DENSE, Mode.SPARSE),
        (2j, 2 + 0j),
        (np.float32(0.5), np.float32(0.75)),
        (np.array([1, 2]), np.array([2, 1])),
    ],
)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_number_or_text_beside_tensors_is_compared(theirs, ours, precision):
    def with_value(value):
        return lambda a, b: {"logits": a + b, "extra": [None, value]}

    assert compared(with_value(theirs), with_value(theirs), (precision,)).passed
    text = str(compared(with_value(theirs), with_value(ours), (precision,)))
    assert "FAIL at forward.extra.1" in text


def test_a_size_has_no_type():
    assert compared(lambda a, b: (a, a.shape), lambda a, b: (a, tuple(a.shape))).passed
    assert compared(lambda a, b: (a, a.shape[1]), lambda a, b: (a, tp.full((), 5, dtype=tp.int32))).passed
    assert not compared(lambda a, b: (a, a.shape[1]), lambda a, b: (a, tp.full((), 6, dtype=tp.int32))).passed
    assert not compared(lambda a, b: (a, a.shape[1]), lambda a, b: (a, tp.full((), 5.0))).passed
    summed = compared(lambda a, b: (a, a.sum().item()), lambda a, b: (a, tp.sum(a)))
    assert summed.passed, str(summed)


def test_numbers_alone_are_compared():
    assert compared(lambda a, b: (1, 2), lambda a, b: (1, 2)).passed
    assert not compared(lambda a, b: (1, 2), lambda a, b: (2, 1)).passed


def test_an_output_of_none_is_no_output():
    assert compared(lambda a, b: (a, None), lambda a, b: a).passed
    missing = compared(lambda a, b: (a, b, None), lambda a, b: (a, None, None))
    assert not missing.passed


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (lambda a: torch.nested.nested_tensor([a[:3], a[:4]]), "nested tensor"),
        (lambda a: object(), "object"),
        (lambda a: torch.float32, "dtype"),
    ],
)
@pytest.mark.parametrize("is_port", [False, True])
def test_an_output_that_cannot_be_compared_is_refused_by_name(value, kind, is_port):
    if is_port and kind == "nested tensor":
        value = lambda a: object()  # noqa: E731
        kind = "object"

    def plain(a, b):
        return {"logits": a, "extra": b}

    def other(a, b):
        return {"logits": a, "extra": value(a)}

    with pytest.raises(parity.UserError) as refused:
        compared(plain, other) if is_port else compared(other, plain)
    assert f"outputs: forward.extra is a {kind}, which cannot be compared; return a " in str(refused.value)


class Named(NamedTuple):
    logits: Any
    state: Any


@dataclasses.dataclass
class Fields:
    logits: Any
    state: Any


CONTAINERS: dict[str, Callable[[Any, Any], Any]] = {
    "named tuple": Named,
    "dataclass": Fields,
    "dictionary": lambda a, b: {"logits": a, "state": b},
    "tuple": lambda a, b: (a, b),
    "list": lambda a, b: [a, b],
}


@pytest.mark.sampled
@pytest.mark.parametrize("theirs", CONTAINERS)
@pytest.mark.parametrize("ours", CONTAINERS)
def test_outputs_have_the_names_of_fields_and_pair_with_those_of_a_tuple(theirs, ours):
    names = ("0", "1") if theirs in ("tuple", "list") else ("logits", "state")

    def nested(container):
        return lambda a, b: container(a, (b, a - b))

    result = compared(nested(CONTAINERS[theirs]), nested(CONTAINERS[ours]))
    assert result.passed, str(result)
    taps = {row.tap for row in runner(result.report, "tripy").modules}
    assert {f"forward.{names[0]}", f"forward.{names[1]}.0", f"forward.{names[1]}.1"} <= taps
    wrong = str(compared(nested(CONTAINERS[theirs]), lambda a, b: CONTAINERS[ours](a, (a - b, b))))
    assert f"FAIL at forward.{names[1]}.0" in wrong


def test_other_names_and_numbers_of_outputs_fail():
    assert not compared(Named, lambda a, b: {"logits": a, "states": b}).passed
    assert not compared(Named, lambda a, b: (a, b, a)).passed
    assert not compared(Named, lambda a, b: (b, a)).passed
    assert not compared(lambda a, b: Named(a, (b, a)), lambda a, b: (a, b, a)).passed
    assert not compared(collections.namedtuple("Other", ["logits", "values"]), Named).passed  # noqa: PYI024
