"""Live models whose sides call a module a different number of times."""

import nvtripy as tp
import pytest
import torch

import parity
from tests.parity.live_models import modules

X = torch.randn(24, 8, generator=torch.Generator().manual_seed(1))


class Shared(torch.nn.Module):
    """One layer that runs three times."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.out = torch.nn.Linear(8, 2)

    def forward(self, x):
        for _ in range(3):
            x = x + torch.tanh(self.layer(x))
        return self.out(x) + self.out(x)


class SharedPort(tp.Module):
    runs = 3
    head_runs = 1

    def __init__(self, dtype):
        super().__init__()
        self.layer = tp.Linear(8, 8, dtype=dtype)
        self.out = tp.Linear(8, 2, dtype=dtype)

    def forward(self, x):
        for _ in range(self.runs):
            x = x + tp.tanh(self.layer(x))
        heads = [self.out(x) for _ in range(self.head_runs)]
        return heads[0] + heads[0]


class Thrice(SharedPort):
    head_runs = 3


class TooFew(SharedPort):
    runs = 2


class TooMany(SharedPort):
    runs = 4


class AnotherInput(SharedPort):
    """A wrong value before a call that is missing."""

    def forward(self, x):
        return super().forward(x * 1.5)


class TwoOutputs(SharedPort):
    def forward(self, x):
        return super().forward(x), x


@pytest.mark.parametrize(
    ("port", "call", "side"), [(SharedPort, "out@1", "the reference"), (Thrice, "out@2", "the port")]
)
def test_a_call_that_changes_nothing_is_a_note(port, call, side):
    result = parity.compare(Shared(), port, {"x": X}, ("fp32",))
    assert result.passed, result
    spare = modules(result)[call]
    assert (spare.status, spare.gap) == ("GAP", f"{side} alone makes this call")


@pytest.mark.parametrize(
    ("port", "call"), [(TooFew, "layer@2"), (TooMany, "layer@3"), (AnotherInput, "layer")]
)
def test_the_culprit_is_a_call_only_where_it_may_be_the_cause(port, call):
    result = parity.compare(Shared(), port, {"x": X}, ("fp32",))
    assert not result.passed
    assert f"FAIL at {call}" in str(result)


def test_another_number_of_outputs_is_a_failure():
    assert not parity.compare(Shared(), TwoOutputs, {"x": X}, ("fp32",)).passed


def test_a_case_asks_for_equal_calls():
    class Strict(parity.Case):
        name = "strict"
        build_reference = staticmethod(Shared)
        build_port = staticmethod(SharedPort)

        def make_inputs(self):
            return {"x": X.numpy()}

    result = parity.check(Strict(), precisions=("fp32",))
    assert not result.passed
    assert "FAIL at out@1" in str(result)


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(8, 8)
        self.b = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class Reused(tp.Module):
    """Calls one layer twice, and the other one never."""

    def __init__(self, dtype):
        super().__init__()
        self.a = tp.Linear(8, 8, dtype=dtype)
        self.b = tp.Linear(8, 8, dtype=dtype)

    def forward(self, x):
        return self.a(tp.relu(self.a(x)))


def test_a_module_that_the_port_never_calls_is_named_with_the_one_in_its_place():
    result = parity.compare(Two(), Reused, {"x": X}, ("fp32",))
    assert "FAIL at b" in str(result)
    told = "missing: the port never calls b; the port calls a 2 times, the reference once; call it in"
    assert told in str(result)
    assert modules(result)["a@1"].accumulated.reason == (
        "extra: the port calls a 2 times, the reference once"
    )


class Cross(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x0, x):
        return x0 * self.layer(x) + x


class Crossed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cross = Cross()

    def forward(self, x):
        x = torch.tanh(x)
        return self.cross(x, x)


class CrossPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.layer = tp.Linear(8, 8, dtype=dtype)

    def forward(self, x0, x):
        return x0 * self.layer(x) + x


class CrossedPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.cross = CrossPort(dtype)

    def forward(self, x):
        x = tp.sigmoid(x)
        return self.cross(x, x)


def test_a_wrong_tensor_that_is_two_arguments_is_equal_in_neither():
    text = str(parity.compare(Crossed(), CrossedPort, {"x": X}, ("fp32",)))
    assert "cross receives another x0" in text
    assert "is equal" not in text
