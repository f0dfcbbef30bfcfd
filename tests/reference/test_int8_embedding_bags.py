"""Tables in 8 bits: the quantisers of PyTorch and fbgemm give the same bytes, and the port the same codes."""

from __future__ import annotations

import nvtripy as tp
import pytest
import torch

from reference.int8_embedding_bags import ZERO, Int8EmbeddingBag, Int8Rows
from tripy_port import int8_embedding_bags as port

TIES = torch.tensor([[0.0, 255.0, 0.5, 1.5, 2.5, 254.5], [-1.0, 254.0, -0.5, 0.5, 1.5, 253.5]])
"""Rows of step 1, whose other numbers lie between two codes."""


@pytest.fixture
def table():
    weight = torch.randn(500, 17, generator=torch.Generator().manual_seed(0))
    weight[3] = 0.25
    return weight


def _bytes(weight):
    """fbgemm's layout: codes, then scale and bias as the bytes of float32 numbers."""
    codes, scale, bias = Int8Rows()(weight)
    unsigned = (codes.int() + ZERO).to(torch.uint8)
    return torch.cat((unsigned, scale.view(torch.uint8), bias.view(torch.uint8)), 1)


def test_the_bytes_are_those_of_pytorchs_own_quantiser(table):
    assert torch.equal(_bytes(table), torch.ops.quantized.embedding_bag_byte_prepack(table))


def test_the_bytes_are_those_of_fbgemm(table):
    pytest.importorskip("fbgemm_gpu", reason="fbgemm is not installed")
    assert torch.equal(_bytes(table), torch.ops.fbgemm.FloatToFused8BitRowwiseQuantized(table))


def test_halves_go_to_even():
    codes, scale, bias = Int8Rows()(TIES)
    assert (codes.int() + ZERO).tolist() == [[0, 255, 0, 2, 2, 254], [0, 255, 0, 2, 2, 254]]
    assert scale.flatten().tolist() == [1.0, 1.0]
    assert bias.flatten().tolist() == [0.0, -1.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_codes_are_those_of_float32_in_every_type(table, dtype):
    stored = table.to(dtype)
    rounded = stored.to(torch.float32).to(torch.float64)
    for own, expected in zip(Int8Rows()(stored), Int8Rows()(rounded), strict=True):
        assert own.dtype == expected.dtype
        assert torch.equal(own, expected)


def test_bags_are_those_of_pytorchs_own_lookup(table):
    indices, offsets = torch.tensor([3, 499, 0, 7, 7]), torch.tensor([0, 0, 3])
    bag = Int8EmbeddingBag(*table.shape)
    with torch.no_grad():
        bag.weight.copy_(table)
        own = bag(indices, offsets)
    packed = torch.ops.quantized.embedding_bag_byte_prepack(table)
    expected = torch.ops.quantized.embedding_bag_byte_rowwise_offsets(packed, indices, offsets)
    torch.testing.assert_close(own, expected, rtol=1e-6, atol=1e-6)
    assert (own[0] == 0).all()
    assert not torch.equal(own, torch.nn.functional.embedding_bag(indices, table, offsets, mode="sum"))


@pytest.mark.parametrize("weight", [TIES, None], ids=["ties", "random"])
def test_the_port_has_the_same_codes_scales_and_biases(table, weight):
    weight = table if weight is None else weight
    for own, expected in zip(port.Int8Rows()(tp.Tensor(weight.numpy())), Int8Rows()(weight), strict=True):
        assert torch.equal(torch.from_dlpack(tp.copy(own, tp.device("cpu"))), expected)


@pytest.mark.parametrize("longest", [None, 1, 3])
@pytest.mark.parametrize("bags", [[[3], [], [499]], [[], []], [[3, 499, 0], [7, 7]]])
def test_the_ports_bags_are_those_of_the_reference(table, bags, longest):
    if longest is not None and max(map(len, bags)) > longest:
        bags = [bag[:longest] for bag in bags]
    flat = [row for bag in bags for row in bag]
    starts = [sum(map(len, bags[:number])) for number in range(len(bags))]
    indices, offsets = torch.tensor(flat, dtype=torch.int64), torch.tensor(starts)
    reference = Int8EmbeddingBag(*table.shape)
    ported = port.Int8EmbeddingBag(*table.shape, max_bag_size=longest)
    ported.load_state_dict({"weight": tp.Tensor(table.numpy())})
    with torch.no_grad():
        reference.weight.copy_(table)
        expected = reference(indices, offsets)
    own = ported(tp.Tensor(indices.numpy()), tp.Tensor(offsets.numpy()))
    own = torch.from_dlpack(tp.copy(own, tp.device("cpu")))
    torch.testing.assert_close(own, expected, rtol=1e-6, atol=1e-6)
