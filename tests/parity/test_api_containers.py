"""Named tuples, dataclasses and dictionaries of other classes between modules and as results."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any, NamedTuple

import nvtripy as tp
import pytest
import torch

import parity

INPUTS = {"x": torch.linspace(-2, 2, 240).reshape(40, 6)}


class Named(NamedTuple):
    """A named tuple, whose constructor takes its items one by one."""

    wide: Any
    bent: Any


@dataclasses.dataclass(frozen=True)
class Fields:
    """A dataclass whose fields cannot be set."""

    wide: Any
    bent: Any


class Attributes(OrderedDict):  # type: ignore[type-arg]
    """A dictionary whose items are attributes too, as public model libraries return."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


CONTAINERS = (Named, Fields, Attributes)


class Encoder(torch.nn.Module):
    def __init__(self, container: Any) -> None:
        super().__init__()
        self.container = container
        self.first, self.second = torch.nn.Linear(6, 8), torch.nn.Linear(6, 8)

    def forward(self, x: torch.Tensor) -> Any:
        return self.container(wide=self.first(x), bent=torch.relu(self.second(x)))


class Head(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Linear(8, 3)

    def forward(self, encoded: Any) -> torch.Tensor:
        return self.last(encoded.wide * 0.5 + encoded.bent)


class Model(torch.nn.Module):
    def __init__(self, container: Any) -> None:
        super().__init__()
        self.container = container
        self.encoder, self.head = Encoder(container), Head()

    def forward(self, x: torch.Tensor) -> Any:
        encoded = self.encoder(x)
        return self.container(wide=self.head(encoded), bent=encoded.bent)


class EncoderPort(tp.Module):
    def __init__(self, container: Any) -> None:
        super().__init__()
        self.container = container
        self.first, self.second = tp.Linear(6, 8), tp.Linear(6, 8)

    def forward(self, x: tp.Tensor) -> Any:
        return self.container(wide=self.first(x), bent=tp.relu(self.second(x)))


class HeadPort(tp.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.last = tp.Linear(8, 3)

    def forward(self, encoded: Any) -> tp.Tensor:
        return self.last(encoded.wide * self.scale + encoded.bent)


class Port(tp.Module):
    def __init__(self, container: Any, scale: float = 0.5) -> None:
        super().__init__()
        self.container = container
        self.encoder, self.head = EncoderPort(container), HeadPort(scale)

    def forward(self, x: tp.Tensor) -> Any:
        encoded = self.encoder(x)
        return self.container(wide=self.head(encoded), bent=encoded.bent)


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_right_port_passes_with_every_module_alone(container):
    result = parity.compare(Model(container), Port(container), INPUTS, ("fp32",))
    assert result.passed, str(result)
    assert "alone" not in str(result)


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_fault_behind_a_container_is_named_with_its_cause(container):
    text = str(parity.compare(Model(container), Port(container, 1.0), INPUTS, ("fp32",)))
    assert "FAIL at head\n" in text
    assert "head (Head) diverges on its own" in text
    assert "without the step times 0.5" in text


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_capture_keeps_containers(container, tmp_path):
    from parity.capture.captures import TensorKey
    from parity.capture.store import open_capture, save_capture
    from parity.capture.torch_hooks import tapped

    model = Model(container)
    with torch.inference_mode(), tapped(model, record_calls=True) as capture:
        model(**INPUTS)
    save_capture(capture, tmp_path / "tapped")
    (call,) = (call for call in open_capture(tmp_path / "tapped").calls if call.path == "head")
    (argument,) = call.args
    assert type(argument) is container
    assert isinstance(argument.wide, TensorKey)
    assert argument.wide != argument.bent


class Sized(torch.nn.Module):
    """A module that returns sizes beside its tensor, as layers of vision models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 8)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x), x.shape[1], (2.0, "words")


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sized = Sized()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, size, _ = self.sized(x)
        return y * size


class SizedPort(tp.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = tp.Linear(6, 8)

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        return self.layer(x)


class ScaledPort(tp.Module):
    def __init__(self, size: float) -> None:
        super().__init__()
        self.size = size
        self.sized = SizedPort()

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        return self.sized(x) * self.size


@pytest.mark.parametrize(("size", "passes"), [(6.0, True), (5.0, False)])
def test_a_module_may_return_constants_beside_tensors(size, passes):
    assert parity.compare(Scaled(), ScaledPort(size), INPUTS, ("fp32",)).passed is passes


def test_constants_are_outputs_of_the_model_too():
    text = str(parity.compare(Sized(), SizedPort(), INPUTS, ("fp32",)))
    assert "forward.0: missing: the port's forward returns no such output" in text


class Silent(torch.nn.Module):
    """Its author forgot to return the result."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        self.layer(x)


class SilentPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.layer = tp.Linear(4, 4, dtype=dtype)

    def forward(self, x):
        self.layer(x)


def test_a_model_that_returns_nothing_never_passes():
    with pytest.raises(parity.UserError, match="outputs: forward returns no tensor, and nothing is left"):
        parity.compare(Silent(), SilentPort, {"x": torch.ones(3, 4)}, ("fp32",))
