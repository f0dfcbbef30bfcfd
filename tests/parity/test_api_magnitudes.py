"""Ports that are right on the inputs of a comparison, and not on larger, smaller or shifted ones."""

import math

import nvtripy as tp
import pytest
import torch

import parity

B, N, D = 32, 5, 8
X = 2.0 * torch.randn(B, N, D, generator=torch.Generator().manual_seed(2))


class Of(torch.nn.Module):
    """A module of one function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.first = torch.nn.Linear(D, D)
        self.part = Of(function)

    def forward(self, x):
        return self.part(self.first(x))


class PartPort(tp.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def port_of(function):
    class Port(tp.Module):
        def __init__(self, dtype):
            super().__init__()
            self.first = tp.Linear(D, D, dtype=dtype)
            self.part = PartPort(function)

        def forward(self, x):
            return self.part(self.first(x))

    return Port


def normalized(x):
    """A layer norm in two passes, in float32."""
    wide = tp.cast(x, tp.float32)
    centred = wide - tp.mean(wide, dim=-1, keepdim=True)
    variance = tp.mean(centred * centred, dim=-1, keepdim=True)
    return tp.cast(centred / tp.sqrt(variance + 1e-5), x.dtype)


def by_two_means(x):
    wide = tp.cast(x, tp.float32)
    mean = tp.mean(wide, dim=-1, keepdim=True)
    variance = tp.mean(wide * wide, dim=-1, keepdim=True) - mean * mean
    return tp.cast((wide - mean) / tp.sqrt(variance + 1e-5), x.dtype)


def norm(x):
    return torch.nn.functional.layer_norm(x, (D,))


def softmax_of_exponentials(x):
    weights = tp.exp(x)
    return weights / tp.sum(weights, dim=-1, keepdim=True)


def length(x):
    wide = tp.cast(x, tp.float32)
    return tp.cast(tp.sqrt(tp.sum(wide * wide, dim=-1)), x.dtype)


RIGHT = {
    "softmax": (lambda x: x.softmax(-1), lambda x: tp.softmax(x, dim=-1)),
    "norm": (norm, normalized),
    "sigmoid": (torch.sigmoid, tp.sigmoid),
    "length": (lambda x: x.norm(dim=-1), length),
    "bound": (lambda x: x.clamp(-9, 9), lambda x: tp.minimum(tp.maximum(x, -9.0), 9.0)),
}
LARGER, SHIFTED = "with 64 times its inputs", "times their largest"
INSIDE = {
    "softmax without its maximum": ("softmax", softmax_of_exponentials, "fp32", LARGER),
    "variance of two means": ("norm", by_two_means, "fp32", SHIFTED),
    "quotient of exponentials": ("sigmoid", lambda x: tp.exp(x) / (tp.exp(x) + 1.0), "fp16", LARGER),
    "squares in half": ("length", lambda x: tp.sqrt(tp.sum(x * x, dim=-1)), "fp16", LARGER),
    "bound that is left out": ("bound", lambda x: tp.maximum(x, -9.0), "fp32", LARGER),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_module_has_no_note(name):
    reference, port = RIGHT[name]
    result = parity.compare(Model(reference), port_of(port), {"x": X}, ("fp32", "fp16", "bf16"))
    assert result.passed, result
    assert "beyond the inputs" not in str(result)


@pytest.mark.parametrize("name", INSIDE)
def test_a_module_that_is_right_on_the_inputs_alone_is_noted(name):
    kind, port, precision, change = INSIDE[name]
    result = parity.compare(Model(RIGHT[kind][0]), port_of(port), {"x": X}, (precision,))
    assert result.passed, result
    (note,) = (line for line in str(result).splitlines() if "beyond the inputs" in line)
    assert "note: part (Of): beyond the inputs: " in note
    assert change in note


def first_best(x):
    """The place of the largest number, the first of equal ones, and a number of the place."""
    place = x.argmax(-1, keepdim=True)
    return place, place.to(x.dtype).cos()


def last_best(x, times=1.0):
    """The last of equal ones."""
    place = D - 1 - tp.argmax(tp.flip(x, dim=-1), dim=-1, keepdim=True)
    return tp.cast(place, tp.int64), tp.cos(tp.cast(place, x.dtype)) * times


def test_another_choice_among_equal_numbers_is_no_loss():
    """Numbers far from zero are equal in half precision, and either of them is the best."""
    result = parity.compare(Model(first_best), port_of(last_best), {"x": X}, ("fp16",))
    assert result.passed, result
    assert "beyond the inputs" not in str(result)


def test_infinity_beside_another_choice_is_told():
    def infinite_above_zero(x):
        least = tp.min(x, dim=-1, keepdim=True)
        return last_best(x, tp.where(least > 0.0, tp.full_like(least, math.inf), tp.ones_like(least)))

    result = parity.compare(Model(first_best), port_of(infinite_above_zero), {"x": X}, ("fp16",))
    assert result.passed, result
    (note,) = (line for line in str(result).splitlines() if "beyond the inputs" in line)
    assert SHIFTED in note
    assert "infinite or NaN" in note


class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Bounded()

    def forward(self, x, valid):
        return self.part(x, valid) * valid[..., None]


class Bounded(torch.nn.Module):
    def forward(self, x, valid):
        return x.clamp(-9, 9)


class MaskedPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.part = BoundedPort()

    def forward(self, x, valid):
        return self.part(x, valid) * tp.cast(tp.unsqueeze(valid, 2), x.dtype)


class BoundedPort(tp.Module):
    """Behind the valid rows it has no bounds."""

    def forward(self, x, valid):
        return tp.where(tp.unsqueeze(valid, 2) > 0, tp.minimum(tp.maximum(x, -9.0), 9.0), x)


def test_padding_does_not_count():
    valid = (torch.arange(N) < (torch.arange(B) % N + 1)[:, None]).int()
    result = parity.compare(Masked(), MaskedPort, {"x": X, "valid": valid}, ("fp32",), mask="valid")
    assert result.passed, result
    assert "beyond the inputs" not in str(result)


class TurnedPort(tp.Module):
    """Its part receives and returns rows and columns exchanged, and both have the same size."""

    def __init__(self, dtype):
        super().__init__()
        self.first = tp.Linear(D, D, dtype=dtype)
        self.part = PartPort(lambda x: tp.softmax(x, dim=1))

    def forward(self, x):
        return tp.transpose(self.part(tp.transpose(self.first(x), 1, 2)), 1, 2)


def test_a_part_with_its_axes_in_another_order_is_no_other_function():
    square = torch.randn(B, D, D, generator=torch.Generator().manual_seed(3))
    result = parity.compare(Model(RIGHT["softmax"][0]), TurnedPort, {"x": square}, ("fp32",))
    assert result.passed, result
    assert "beyond the inputs" not in str(result)
