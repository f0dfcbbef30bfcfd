"""Arguments of calls on both sides: names, origins, constants, copies."""

from dataclasses import replace

import numpy as np
import nvtripy as tp
import pytest
import torch

from parity.capture import torch_hooks, tripy_hooks
from parity.capture.arguments import Argument, named_arguments, with_value
from parity.capture.store import open_capture, save_capture


class Inner(torch.nn.Module):
    def forward(self, x, /, *more, mask=None, scale=2.0, **options):
        return x * scale


class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x, payloads):
        first = self.inner(x, payloads["mask"], mask=payloads["mask"] > 0)
        return self.inner(first + 1, scale=3, name="last")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.outer = Outer()
        self.last = Inner()

    def forward(self, x, mask):
        return self.last(self.outer(x, {"mask": mask}))


class PortedInner(tp.Module):
    def forward(self, x, /, *more, mask=None, scale=2.0, **options):
        return x * float(scale)


class PortedOuter(tp.Module):
    def __init__(self):
        super().__init__()
        self.inner = PortedInner()

    def forward(self, x, payloads):
        first = self.inner(x, payloads["mask"], mask=payloads["mask"] > 0.0)
        return self.inner(first + 1.0, scale=3, name="last")


class Port(tp.Module):
    def __init__(self):
        super().__init__()
        self.outer = PortedOuter()
        self.last = PortedInner()

    def forward(self, x, mask):
        return self.last(self.outer(x, {"mask": mask}))


INPUTS = {"forward(x)": torch.ones(2, 3), "forward(mask)": torch.tensor([0.0, 1.0, 1.0])}


def torch_arguments(model, record_calls=False):
    with (
        torch.inference_mode(),
        torch_hooks.tapped(model, record_calls=record_calls, inputs=INPUTS) as capture,
    ):
        model(*INPUTS.values())
    return capture


def ported_arguments():
    model = Port()
    with tripy_hooks.tapped(dict(tripy_hooks.named_modules(model)), model.state_dict()) as traced:
        inputs = {name: tp.Tensor(tensor.numpy()) for name, tensor in INPUTS.items()}
        for name, tensor in inputs.items():
            traced.name(tensor, name)
        model(*inputs.values())
    return traced


def facts(received):
    return {
        call: {argument.name: argument.origin or argument.constant for argument in calls.arguments}
        for call, calls in received.items()
    }


EXPECTED = {
    "outer": {"x": "forward(x)", "payloads.mask": "forward(mask)"},
    "outer.inner": {"x": "forward(x)", "more.0": "forward(mask)", "mask": None, "scale": 2.0},
    "outer.inner@1": {"x": None, "mask": None, "scale": 3, "name": "last"},
    "last": {"x": "outer.inner@1", "mask": None, "scale": 2.0},
}


@pytest.mark.parametrize("record_calls", [True, False])
def test_arguments_have_the_names_of_parameters_and_their_origins(record_calls):
    capture = torch_arguments(Model(), record_calls)
    assert facts(capture.arguments) == EXPECTED
    assert [received.parent for received in capture.arguments.values()] == ["", "outer", "outer", ""]
    assert [received.finished for received in capture.arguments.values()] == [0, 0, 1, 3]


def test_an_argument_that_the_caller_leaves_out_is_a_default():
    defaults = {
        call: {argument.name for argument in calls.arguments if argument.is_default}
        for call, calls in torch_arguments(Model()).arguments.items()
    }
    assert defaults == {
        "outer": set(),
        "outer.inner": {"scale"},
        "outer.inner@1": {"mask"},
        "last": {"mask", "scale"},
    }


def test_both_sides_name_arguments_alike():
    traced = ported_arguments()
    assert facts(traced.received) == EXPECTED
    received = torch_arguments(Model()).arguments
    assert [calls.parent for calls in traced.received.values()] == ["", "outer", "outer", ""]
    assert [calls.finished for calls in traced.received.values()] == [0, 0, 1, 3]
    assert {call: calls.arguments for call, calls in traced.received.items()} == {
        call: calls.arguments for call, calls in received.items()
    }


def test_a_tensor_with_an_origin_has_no_copy_of_its_own():
    capture = torch_arguments(Model())
    assert set(capture.call_inputs) == {*INPUTS, "outer.inner(mask)", "outer.inner@1(x)"}
    traced = ported_arguments()
    assert set(traced.arguments) == set(capture.call_inputs)


@pytest.mark.parametrize("record_calls", [True, False])
def test_every_argument_gives_the_tensor_that_the_call_received(record_calls):
    capture = torch_arguments(Model(), record_calls)
    by_name = {
        f"{call} {argument.name}": capture.argument(argument)
        for call, calls in capture.arguments.items()
        for argument in calls.arguments
        if argument.tensor
    }
    assert torch.equal(by_name["outer.inner mask"], torch.tensor([False, True, True]))
    assert torch.equal(by_name["outer.inner@1 x"], torch.full((2, 3), 3.0))
    assert torch.equal(by_name["last x"], torch.full((2, 3), 9.0))


@pytest.mark.parametrize("record_calls", [True, False])
def test_a_tap_that_is_overwritten_is_no_origin(record_calls):
    class Overwriting(Model):
        def forward(self, x, mask):
            return self.last(self.outer(x, {"mask": mask}).add_(1))

    capture = torch_arguments(Overwriting(), record_calls)
    (argument, *_) = capture.arguments["last"].arguments
    assert not argument.origin
    assert torch.equal(capture.argument(argument), torch.full((2, 3), 10.0))
    assert torch.equal(capture.tensors["outer"], torch.full((2, 3), 9.0))


def test_a_leaf_of_another_type_has_its_class_and_text():
    class Passing(Model):
        def forward(self, x, mask):
            return self.last(x, dtype=torch.float32)

    (received,) = torch_arguments(Passing()).arguments.values()
    assert received.arguments[-1] == Argument("dtype", 4, constant="float32", other="dtype")


def test_arguments_come_back_from_the_disk(tmp_path):
    capture = torch_arguments(Model(), record_calls=True)
    save_capture(capture, tmp_path / "capture")
    back = open_capture(tmp_path / "capture")
    assert back.arguments == capture.arguments
    assert list(back.arguments) == list(capture.arguments)


def test_wrong_arguments_are_refused_as_by_the_call():
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        list(named_arguments(Inner().forward, (), {}))


def test_a_number_of_numpy_is_a_constant_and_a_value_with_a_text_is_of_its_class():
    plain = Argument("x", 0)
    assert with_value(plain, np.float32(2.5)) == replace(plain, constant=2.5)
    assert with_value(plain, slice(2)) == replace(plain, constant="slice(None, 2, None)", other="slice")
    assert with_value(plain, object()) == replace(plain, other="object")
