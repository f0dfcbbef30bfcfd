"""Checkpoints with damage that PyTorch and safetensors read without a word."""

import json
import random

import pytest
import torch

from parity.base.errors import UserError
from parity.inputs.checkpoints import layout, load_checkpoint, read_safetensors


@pytest.fixture(scope="module")
def tensors():
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(16, 8, generator=generator) for name in ("first.weight", "second.weight")}


def test_a_flipped_bit_in_a_tensor_is_refused(tensors, tmp_path):
    path = tmp_path / "weights.pt"
    torch.save(tensors, path)
    content = bytearray(path.read_bytes())
    place = content.index(tensors["second.weight"].numpy().tobytes()) + 41
    content[place] ^= 1
    path.write_bytes(content)
    assert not torch.equal(torch.load(path)["second.weight"], tensors["second.weight"])
    with pytest.raises(UserError, match=r"weights/data/1 does not have its checksum"):
        load_checkpoint(path, layout(tensors))


def test_a_flipped_bit_anywhere_is_refused_or_changes_nothing(tensors, tmp_path):
    path = tmp_path / "weights.pt"
    torch.save(tensors, path)
    intact, draw = path.read_bytes(), random.Random(7)
    refused = 0
    for _ in range(300):
        content = bytearray(intact)
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        try:
            actual = load_checkpoint(path, layout(tensors))
        except UserError:
            refused += 1
        else:
            assert all(torch.equal(actual[name], tensors[name]) for name in tensors)
    assert refused > 100


@pytest.mark.parametrize(
    "header",
    [
        '{{"w": {first}, "w": {second}}}',
        '{{"w": {first}, "v": {second}, "v": {second}}}',
        '{{"w": {{"dtype": "F32", "shape": [2], "shape": [2], "data_offsets": [0, 8]}}, "v": {second}}}',
    ],
    ids=["tensor", "equal", "field"],
)
def test_a_name_that_occurs_twice_in_a_header_is_refused(tmp_path, header):
    first, second = (
        json.dumps({"dtype": "F32", "shape": [2], "data_offsets": [begin, begin + 8]}) for begin in (0, 8)
    )
    text = header.format(first=first, second=second).encode()
    path = tmp_path / "weights.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))
    with pytest.raises(UserError):
        read_safetensors(path)
