"""Tables in 4 bits: PyTorch's own quantiser gives the same bytes, and the port the same ones."""

from __future__ import annotations

import nvtripy as tp
import pytest
import torch

from cases.dlrm.code_rows import with_code_rows
from reference.int4_embedding_bags import ZERO, Int4EmbeddingBag, Int4Rows
from tripy_port import int4_embedding_bags as port


def drawn(columns=18, scale=1.0):
    return torch.randn(300, columns, generator=torch.Generator().manual_seed(0)) * scale


TABLES = {
    "random": drawn(),
    "small": drawn(scale=3e-7),
    "below half precision": drawn(scale=1e-9),
    "large": drawn(scale=1e4),
    # The low end is rounded up, so that the range is negative.
    "equal numbers": torch.full((3, 8), 0.3),
    "zeros": torch.zeros(2, 6),
    # Codes leave 0 to 15 before they are clamped.
    "rows of cases": with_code_rows(drawn()),
}


def fused(weight):
    """fbgemm's layout: two codes a byte, then scale and bias as the bytes of half precision numbers."""
    codes, scale, bias = Int4Rows(weight.shape[1])(weight)
    unsigned = (codes.int() + ZERO).to(torch.uint8)
    return torch.cat((unsigned, scale.half().view(torch.uint8), bias.half().view(torch.uint8)), 1)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_the_bytes_are_those_of_pytorchs_own_quantiser(table):
    assert torch.equal(fused(table), torch.ops.quantized.embedding_bag_4bit_prepack(table))


def test_the_bytes_are_those_of_fbgemm():
    pytest.importorskip("fbgemm_gpu", reason="fbgemm is not installed")
    table = drawn(20)
    assert torch.equal(fused(table), torch.ops.fbgemm.FloatToFusedNBitRowwiseQuantizedSBHalf(table, 4))


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("columns", [5, 6])
def test_the_port_has_the_same_bytes_scales_and_biases(table, columns):
    table = table[:, :columns].contiguous()
    own = port.Int4Rows(columns)(tp.Tensor(table))
    for ported, expected in zip(own, Int4Rows(columns)(table), strict=True):
        assert torch.equal(torch.from_dlpack(tp.copy(ported, tp.device("cpu"))), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_codes_are_those_of_float32_in_every_type(dtype):
    stored = TABLES["random"].to(dtype)
    for own, expected in zip(Int4Rows(18)(stored), Int4Rows(18)(stored.float()), strict=True):
        assert own.dtype == expected.dtype
        assert torch.equal(own, expected)


def test_bags_are_those_of_pytorchs_own_lookup():
    table, indices, offsets = TABLES["random"], torch.tensor([3, 299, 0, 7, 7]), torch.tensor([0, 0, 3])
    bag = Int4EmbeddingBag(*table.shape)
    with torch.no_grad():
        bag.weight.copy_(table)
        own = bag(indices, offsets)
    packed = torch.ops.quantized.embedding_bag_4bit_prepack(table)
    expected = torch.ops.quantized.embedding_bag_4bit_rowwise_offsets(packed, indices, offsets)
    torch.testing.assert_close(own, expected, rtol=1e-6, atol=1e-5)
    assert (own[0] == 0).all()


@pytest.mark.parametrize("longest", [None, 3])
@pytest.mark.parametrize("columns", [5, 6])
@pytest.mark.parametrize("bags", [[[3], [], [29]], [[], []], [[3, 29, 0], [7, 7]]])
def test_the_ports_bags_are_those_of_the_reference(bags, columns, longest):
    table = drawn(columns)[:30]
    flat = [row for bag in bags for row in bag]
    starts = [sum(map(len, bags[:number])) for number in range(len(bags))]
    indices, offsets = torch.tensor(flat, dtype=torch.int64), torch.tensor(starts)
    reference = Int4EmbeddingBag(30, columns)
    ported = port.Int4EmbeddingBag(30, columns, max_bag_size=longest)
    ported.load_state_dict({"weight": tp.Tensor(table)})
    with torch.no_grad():
        reference.weight.copy_(table)
        expected = reference(indices, offsets)
    own = ported(tp.Tensor(indices.numpy()), tp.Tensor(offsets.numpy()))
    own = torch.from_dlpack(tp.copy(own, tp.device("cpu")))
    torch.testing.assert_close(own, expected, rtol=1e-6, atol=1e-6)
