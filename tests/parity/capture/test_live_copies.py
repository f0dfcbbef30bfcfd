"""Copies of live tensors save digests, and change nothing that a capture holds."""

from __future__ import annotations

import gc

import pytest
import torch

from parity.capture import live_copies
from parity.capture.captures import Capture
from parity.capture.live_copies import LiveCopies
from parity.capture.torch_hooks import tapped


@pytest.fixture
def on_every_device(monkeypatch):
    monkeypatch.setattr(live_copies, "_WITHOUT", "")
    monkeypatch.setattr(live_copies, "_LEAST_BYTES", 0)


class Layer(torch.nn.Module):
    def forward(self, x, mask):
        return x * mask


class Model(torch.nn.Module):
    """Two layers share a mask, a third one gets it with a zero of another sign, a fourth one overwritten."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(4))

    def forward(self, x):
        mask = torch.tensor([1.0, 0.0, 2.0])
        for number, layer in enumerate(self.layers):
            if number == 2:
                mask[1] = -0.0
            if number == 3:
                mask[0] = 5.0
            x = layer(x, mask)
        return x


MODEL = Model()


def test_a_capture_is_the_same_with_copies(on_every_device, monkeypatch):
    x = torch.tensor([3.0, 4.0, 5.0])

    def captured():
        with torch.inference_mode(), tapped(MODEL, record_calls=True, inputs={"x": x}) as capture:
            MODEL(x)
        return capture

    with_copies = captured()
    monkeypatch.setattr(live_copies, "_WITHOUT", "cpu")
    without = captured()
    assert with_copies.calls == without.calls
    assert with_copies.arguments == without.arguments
    assert [*with_copies.call_inputs] == [*without.call_inputs]
    masks = [call.args[1].key for call in with_copies.calls]
    assert masks[0] == masks[1]
    assert len({*masks}) == 3


def test_a_tensor_that_has_not_changed_has_no_second_digest(on_every_device, monkeypatch):
    digested = []
    capture, tensor = Capture(), torch.arange(5.0)
    first = capture.intern(tensor)
    monkeypatch.setattr("parity.capture.captures.content_digest", lambda content: digested.append(content))
    assert capture.intern(tensor) == first
    assert not digested


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float64, torch.complex64])
def test_a_change_ends_the_keys(on_every_device, dtype):
    copies, tensor = LiveCopies(), torch.zeros(4, 3).to(dtype)
    copies.add(tensor, "a")
    copies.add(tensor, "b")
    assert copies.keys(tensor) == {"a", "b"}
    assert copies.keys(tensor.clone()) == set()
    tensor[1, 1] = 1
    assert copies.keys(tensor) == set()
    copies.add(tensor, "c")
    assert copies.keys(tensor) == {"c"}


def test_a_copy_ends_with_its_tensor(on_every_device):
    copies, tensor = LiveCopies(), torch.zeros(3)
    copies.add(tensor, "a")
    del tensor
    gc.collect()
    assert not copies._copies


def test_tensors_of_the_host_and_small_ones_have_none(monkeypatch):
    copies, tensor = LiveCopies(), torch.zeros(2**20)
    copies.add(tensor, "a")
    assert copies.keys(tensor) == set()
    monkeypatch.setattr(live_copies, "_WITHOUT", "")
    small = torch.zeros(3)
    copies.add(small, "a")
    assert copies.keys(small) == set()
    copies.add(tensor, "a")
    assert copies.keys(tensor) == {"a"}
