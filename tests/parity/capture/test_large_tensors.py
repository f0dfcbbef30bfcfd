"""Tensors whose digest and type are known without reading all of them in one thread, or at all."""

from __future__ import annotations

import pytest
import torch

from parity.capture import spool
from parity.capture.captures import Capture
from parity.capture.spool import Spool, content_digest
from parity.capture.store import open_capture, save_capture

TENSORS = {
    "mask": torch.ones(3, 70, dtype=torch.bool),
    "ids": torch.arange(200),
    "half": torch.ones(100, dtype=torch.bfloat16),
    "exact": torch.ones(100, dtype=torch.float64),
}


@pytest.mark.parametrize("large", [16, 2**20], ids=["files of their own", "one file"])
def test_a_saved_capture_tells_types_without_the_tensors(tmp_path, monkeypatch, large):
    capture = Capture.spooled(tmp_path / "torch" / "tapped", large)
    capture.tensors.update(TENSORS)
    save_capture(capture, tmp_path / "torch" / "tapped")
    saved = open_capture(tmp_path / "torch" / "tapped").tensors
    if large == 16:
        monkeypatch.setattr("parity.capture.store.load_rows", lambda *_: pytest.fail("a tensor is read"))
    assert {name: saved.is_floating_point(name) for name in saved} == {
        name: tensor.is_floating_point() for name, tensor in TENSORS.items()
    }


def test_every_byte_of_a_large_tensor_is_in_its_digest(monkeypatch):
    monkeypatch.setattr(spool, "_PIECE", 7)
    tensor = torch.zeros(5, 9, dtype=torch.uint8)
    digests = {content_digest(tensor)}
    for place in range(tensor.numel()):
        other = tensor.clone()
        other.view(-1)[place] = 1
        digests.add(content_digest(other))
    digests |= {content_digest(tensor.view(9, 5)), content_digest(tensor.bool())}
    assert len(digests) == tensor.numel() + 3
    assert content_digest(tensor) == content_digest(tensor.clone())


def test_equal_large_tensors_share_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(spool, "_PIECE", 64)
    tensors = Spool(tmp_path, large=16)
    tensors["one"] = torch.arange(1000)
    tensors["other"] = torch.arange(1000)
    assert tensors.stored["one"] == tensors.stored["other"]
    assert len(list(tmp_path.iterdir())) == 1
    assert torch.equal(tensors["other"], torch.arange(1000))
