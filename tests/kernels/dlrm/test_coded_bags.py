"""Bags of rows of codes: the layout of PyTorch's own quantisers, and the sums of the reference."""

import math

import pytest
import torch

from kernels.dlrm import (
    Bags,
    CodedTableGroup,
    KernelError,
    TableGroup,
    bags_interaction,
    bags_triton,
    embedding_bags,
    packed_rows,
)
from kernels.dlrm.coded_tables import row_bytes
from parity.base.precision import PRECISIONS
from reference.dlrm_layers import FeatureInteraction
from reference.int4_embedding_bags import Int4EmbeddingBag, Int4Rows
from reference.int8_embedding_bags import Int8EmbeddingBag, Int8Rows
from tests.kernels.dlrm.kernel_setup import (
    DEVICE,
    GPU,
    assert_right,
    backends,
    drawn,
    needs_products,
)
from tests.kernels.dlrm.test_bags import LENGTHS, LONGEST, ROWS, lists, on_device, tables_of, weights_of
from tests.kernels.mutation import mutated

BACKENDS = pytest.mark.parametrize("backend", backends())
EVERY_BITS = pytest.mark.parametrize("bits", [8, 4])
PREPACKED = {
    8: torch.ops.quantized.embedding_bag_byte_prepack,
    4: torch.ops.quantized.embedding_bag_4bit_prepack,
}
MODULES = {8: Int8EmbeddingBag, 4: Int4EmbeddingBag}


def coded(table, bits):
    """A float32 table's rows, as the reference quantises them."""
    quantiser = Int8Rows() if bits == 8 else Int4Rows(table.shape[1])
    return packed_rows(*quantiser(table), bits)


def group_of(tables, bits):
    return CodedTableGroup([coded(table.float(), bits).to(DEVICE) for table in tables], bits)


def summed(lS_o, lS_i, bits, weighted):
    """The reference's modules in the type of the arguments: tables that it quantises, then weights."""

    def eager(*tensors):
        tables, weights = tensors[: len(lS_i)], tensors[len(lS_i) :]
        results = []
        for t, table in enumerate(tables):
            bag = MODULES[bits](*table.shape).to(table.device, table.dtype)
            bag.weight.data.copy_(table)
            indices, offsets = lS_i[t].to(table.device), lS_o[t].to(table.device)
            results.append(bag(indices, offsets, weights[t] if weighted else None))
        return torch.stack(results, dim=1).detach()

    return eager


@EVERY_BITS
def test_rows_are_the_bytes_of_pytorchs_own_quantiser(bits):
    table = drawn((30, 20), 1)
    rows = coded(table, bits)
    assert rows.shape == (30, row_bytes(20, bits))
    assert torch.equal(rows, PREPACKED[bits](table))


@EVERY_BITS
def test_looked_up_rows_are_dequantised_as_the_reference_does(bits):
    tables = tables_of(ROWS, 20, "fp32")
    group = group_of(tables, bits)
    for number, table in enumerate(tables):
        indices = torch.arange(len(table))
        bag = MODULES[bits](*table.shape)
        bag.weight.data.copy_(table)
        expected = bag(indices, indices).detach()
        assert torch.equal(group.rows(number, indices.to(DEVICE)).cpu(), expected)


@BACKENDS
@EVERY_BITS
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(("tables", "columns"), [(1, 64), (17, 4), (40, 128)])
def test_a_bag_of_one_is_the_references_row_to_the_bit(backend, bits, precision, tables, columns):
    if backend == "triton" and precision == "bf16" and not GPU:
        pytest.skip("Triton's interpreter cuts the bits of float32 that bfloat16 lacks, and does not round")
    rows = [3 + 5 * table for table in range(tables)]
    lS_o, lS_i = lists(rows, (1, 1, 1), torch.int32)
    numbers = tables_of(rows, columns, precision)
    dtype = PRECISIONS[precision].dtype
    result = embedding_bags(
        group_of(numbers, bits), on_device(Bags.join(lS_o, lS_i)), backend=backend, dtype=dtype
    )
    assert result.dtype == dtype
    assert torch.equal(result.cpu(), summed(lS_o, lS_i, bits, False)(*numbers))


@BACKENDS
@EVERY_BITS
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("columns", [4, 20, 128, 300])
def test_bags_of_several_are_right(backend, bits, weighted, precision, columns):
    """Tables and sums in the tested precision; weights are float32, and representable in it."""
    lS_o, lS_i = lists(ROWS)
    tables = tables_of(ROWS, columns, precision)
    weights = weights_of(lS_i, precision) if weighted else []
    bags = on_device(Bags.join(lS_o, lS_i, [weight.float() for weight in weights] or None))
    dtype = PRECISIONS[precision].dtype
    result = embedding_bags(group_of(tables, bits), bags, backend=backend, dtype=dtype)
    inputs = [*tables, *weights]
    assert_right(result, summed(lS_o, lS_i, bits, weighted), inputs, precision, LONGEST, modules=2)


@BACKENDS
@EVERY_BITS
def test_empty_bags_are_zero_and_every_element_is_written(backend, bits):
    lS_o, lS_i = lists(ROWS)
    group = group_of(tables_of(ROWS, 20, "fp32"), bits)
    out = torch.full((len(LENGTHS), len(ROWS), 20), math.nan, device=DEVICE)
    result = embedding_bags(group, on_device(Bags.join(lS_o, lS_i)), backend=backend, out=out)
    assert not result.isnan().any()
    for table in range(len(ROWS)):
        empty = torch.tensor(LENGTHS).roll(table) == 0
        assert (result[empty.to(DEVICE), table] == 0.0).all()


@BACKENDS
@EVERY_BITS
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("columns", [20, 128])
def test_the_interaction_takes_rows_of_codes(backend, bits, precision, columns):
    """Columns behind D are no part of a product, although a row's bias is not zero there."""
    needs_products(precision, backend)
    lS_o, lS_i = lists(ROWS)
    tables = tables_of(ROWS, columns, precision)
    dense = drawn((len(LENGTHS), columns), 50, precision)

    def eager(dense, *tensors):
        vectors = summed(lS_o, lS_i, bits, False)(*tensors)
        features = torch.cat((dense[:, None], vectors), dim=1)
        return FeatureInteraction("dot", len(ROWS) + 1).to(dense.device)(features)

    bags = on_device(Bags.join(lS_o, lS_i))
    result = bags_interaction(dense.to(DEVICE), group_of(tables, bits), bags, backend=backend)
    assert_right(result, eager, [dense, *tables], precision, max(columns, LONGEST), modules=3)


@pytest.mark.parametrize("backend", backends(("triton",)))
@pytest.mark.parametrize(
    ("bits", "old", "new"),
    [
        (4, "codes & 15, codes >> 4", "codes >> 4, codes & 15"),
        (8, "ends_ptr + 1", "ends_ptr"),
        (4, "rows + D // 2", "rows + D"),
        (8, ".to(ROUNDED)", ""),
    ],
    ids=["codes swapped in a byte", "scale for bias", "scale of another place", "not rounded before the sum"],
)
def test_a_wrong_kernel_is_seen(backend, bits, old, new, tmp_path, monkeypatch):
    """Results in float16, with bags of two rows, which are rounded before their sum."""
    lS_o, lS_i = lists((50, 9), (1, 2, 2))
    tables = tables_of((50, 9), 64, "fp16")
    # Readable memory behind the last row, for a kernel that reads too far.
    stored = [torch.cat((rows := coded(t.float(), bits), rows)).to(DEVICE)[: len(t)] for t in tables]
    group, bags = CodedTableGroup(stored, bits), on_device(Bags.join(lS_o, lS_i))
    expected = embedding_bags(group, bags, backend="torch", dtype=torch.float16)
    out = torch.empty_like(expected)
    bags_triton.launch_bags(group, bags, out)
    assert torch.equal(out, expected)
    mutated(bags_triton, old, new, tmp_path, monkeypatch).launch_bags(group, bags, out)
    assert not torch.equal(out, expected)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: CodedTableGroup([torch.zeros(3, 28)], 8), "tables.0..dtype=torch.float32: give rows of"),
        (lambda: CodedTableGroup([torch.zeros(3, 14).byte()], 8), "columns=6: give rows of a multiple of 4"),
        (lambda: CodedTableGroup([torch.zeros(3, 8).byte()], 8), "columns=0: give 1 to 512"),
        (lambda: CodedTableGroup([torch.zeros(3, 14).byte()], 2), "bits=2: give 8 or 4"),
        (
            lambda: packed_rows(torch.zeros(3, 4).char(), torch.full((3, 1), 1e9), torch.zeros(3, 1), 4),
            "scale_N1 has numbers that torch.float16 cannot hold: round them before",
        ),
        (
            lambda: packed_rows(torch.zeros(3, 4), torch.ones(3, 1), torch.zeros(3, 1), 8),
            "codes_NP.dtype=torch.float32: give torch.int8",
        ),
        (
            lambda: packed_rows(torch.zeros(3, 4).char(), torch.ones(3), torch.zeros(3, 1), 8),
            r"scale_N1 has shape \(3,\): give \(3, 1\)",
        ),
        (
            lambda: embedding_bags(
                CodedTableGroup([torch.zeros(3, 12).byte()], 8),
                Bags(torch.tensor([1]), torch.tensor([0, 1]), torch.ones(1).half()),
                backend="torch",
            ),
            "weights_L has dtype torch.float16 and tables has torch.float32: give one dtype",
        ),
    ],
)
def test_what_does_not_fit_is_named(make, words):
    with pytest.raises(KernelError, match=words):
        make()


def test_coded_and_plain_groups_share_their_checks():
    with pytest.raises(KernelError, match=r"tables\[1\] has shape \(3, 13\)"):
        CodedTableGroup([torch.zeros(3, 12).byte(), torch.zeros(3, 13).byte()], 8)
    assert TableGroup([torch.zeros(3, 4).half()]).dtype == torch.float16
