"""Bags of all tables in one launch, alone and with the interaction behind them, against the reference's."""

import math

import pytest
import torch

from kernels.dlrm import (
    Bags,
    KernelError,
    TableGroup,
    bags_interaction,
    embedding_bags,
    interaction_columns,
)
from parity.base.precision import PRECISIONS
from reference.dlrm_layers import FeatureInteraction
from reference.embedding_bags import pool_bags
from tests.kernels.dlrm.kernel_setup import (
    DEVICE,
    GPU,
    assert_right,
    backends,
    drawn,
    needs_products,
)

BACKENDS = pytest.mark.parametrize("backend", backends())
ALL_BACKENDS = pytest.mark.parametrize("backend", backends(("torch", "triton", "cuda")))
WEIGHTED = pytest.mark.parametrize("weighted", [False, True])
# Tables of one row, of few and of many; bags that are empty at the front, in the middle and at the end.
ROWS = (1, 50, 7, 1000, 3)
LENGTHS = (0, 1, 5, 0, 2, 3, 0)
LONGEST = max(LENGTHS)


def lists(rows, lengths=LENGTHS, index_dtype=torch.int64, seed=0):
    """The reference's form: offsets and indices by table; lengths are turned from table to table."""
    generator = torch.Generator().manual_seed(seed)
    lS_o, lS_i = [], []
    for table, count in enumerate(rows):
        turned = torch.tensor(lengths).roll(table)
        lS_o.append((turned.cumsum(0) - turned).to(index_dtype))
        lS_i.append(torch.randint(0, count, (int(turned.sum()),), generator=generator).to(index_dtype))
    return lS_o, lS_i


def on_device(bags):
    weights_L = None if bags.weights_L is None else bags.weights_L.to(DEVICE)
    return Bags(bags.indices_L.to(DEVICE), bags.offsets.to(DEVICE), weights_L)


def tables_of(rows, columns, precision):
    return [drawn((count, columns), 10 + table, precision) for table, count in enumerate(rows)]


def weights_of(lS_i, precision):
    return [drawn((len(indices),), 30 + table, precision) for table, indices in enumerate(lS_i)]


def pooled(lS_o, lS_i, weighted):
    """The reference, table by table, for tables and weights as one flat list of arguments."""

    def eager(*tensors):
        tables, weights = tensors[: len(lS_i)], tensors[len(lS_i) :]
        device = tables[0].device
        return torch.stack(
            [
                pool_bags(table, lS_i[t].to(device), lS_o[t].to(device), weights[t] if weighted else None)
                for t, table in enumerate(tables)
            ],
            dim=1,
        )

    return eager


@BACKENDS
@WEIGHTED
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("columns", [1, 16, 20, 128, 300])
def test_embedding_bags(backend, weighted, precision, columns):
    lS_o, lS_i = lists(ROWS)
    tables = tables_of(ROWS, columns, precision)
    weights = weights_of(lS_i, precision) if weighted else []
    bags = on_device(Bags.join(lS_o, lS_i, weights or None))
    result = embedding_bags(TableGroup([table.to(DEVICE) for table in tables]), bags, backend=backend)
    assert result.dtype == PRECISIONS[precision].dtype
    assert_right(result, pooled(lS_o, lS_i, weighted), [*tables, *weights], precision, LONGEST)


@BACKENDS
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("tables", [1, 17, 40])
def test_one_index_a_bag_moves_rows_unchanged(backend, index_dtype, tables):
    rows = [3 + 5 * table for table in range(tables)]
    lS_o, lS_i = lists(rows, (1, 1, 1), index_dtype)
    weights = tables_of(rows, 24, "fp32")
    bags = on_device(Bags.join(lS_o, lS_i))
    result = embedding_bags(TableGroup([table.to(DEVICE) for table in weights]), bags, backend=backend)
    assert_right(result, pooled(lS_o, lS_i, False), weights, "fp32", longest_sum=0)


@BACKENDS
def test_rows_that_are_not_aligned(backend):
    """A table that begins 4 bytes after a multiple of 16 cannot be read 16 bytes at a time."""
    lS_o, lS_i = lists((9, 9))
    storage = drawn((9 * 16 + 1,), 5)
    tables = [storage[1:].view(9, 16), drawn((9, 16), 6)]
    group = TableGroup([storage.to(DEVICE)[1:].view(9, 16), tables[1].to(DEVICE)])
    result = embedding_bags(group, on_device(Bags.join(lS_o, lS_i)), backend=backend)
    assert_right(result, pooled(lS_o, lS_i, False), tables, "fp32", LONGEST)


@BACKENDS
def test_changed_values_are_seen_and_every_element_is_written(backend):
    lS_o, lS_i = lists(ROWS)
    tables = [table.to(DEVICE) for table in tables_of(ROWS, 20, "fp32")]
    group, bags = TableGroup(tables), on_device(Bags.join(lS_o, lS_i))
    # A place in front of each row's tables, as the interaction has it, stays as it is.
    wide = torch.full((len(LENGTHS), len(ROWS) + 1, 20), math.nan, device=DEVICE)
    first = embedding_bags(group, bags, backend=backend, out=wide[:, 1:]).clone()
    assert not first.isnan().any()
    assert wide[:, 0].isnan().all()
    tables[1].mul_(2.0)
    second = embedding_bags(group, bags, backend=backend)
    assert torch.equal(second[:, 1], 2.0 * first[:, 1])
    assert torch.equal(second[:, 2], first[:, 2])


@BACKENDS
def test_no_indices_and_no_bags(backend):
    group = TableGroup([table.to(DEVICE) for table in tables_of((3, 4), 20, "fp32")])
    empty = on_device(
        Bags.join([torch.zeros(3, dtype=torch.int64)] * 2, [torch.zeros(0, dtype=torch.int64)] * 2)
    )
    assert torch.equal(embedding_bags(group, empty, backend=backend), torch.zeros(3, 2, 20, device=DEVICE))
    none = Bags(empty.indices_L, empty.offsets[:1])
    assert embedding_bags(group, none, backend=backend).shape == (0, 2, 20)
    dense = torch.zeros(0, 20, device=DEVICE)
    assert bags_interaction(dense, group, none, backend=backend).shape == (0, 23)


@ALL_BACKENDS
@WEIGHTED
@pytest.mark.parametrize("itself", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("columns", [16, 20, 128])
def test_bags_interaction(backend, weighted, itself, precision, columns):
    """Tables in float32, vectors in the tested precision: the cast is between them, as in DLRM's forward."""
    if backend == "cuda" and (precision == "fp32" or columns == 20):
        pytest.skip("CUDA C++ takes half types and multiples of 16; test_cuda_says_what_it_takes")
    check_bags_interaction(backend, weighted, itself, precision, columns, "fp32", ROWS, torch.int64)


@pytest.mark.parametrize("backend", backends(("triton", "cuda")))
@pytest.mark.parametrize("table_precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(("tables", "columns"), [(1, 16), (15, 48), (16, 144), (33, 32), (63, 272)], ids=str)
def test_bags_interaction_of_other_sizes(backend, table_precision, tables, columns):
    rows = [1 + 7 * table for table in range(tables)]
    check_bags_interaction(backend, True, False, "fp16", columns, table_precision, rows, torch.int32)


def check_bags_interaction(backend, weighted, itself, precision, columns, table_precision, rows, index_dtype):
    needs_products(precision, backend)
    lS_o, lS_i = lists(rows, index_dtype=index_dtype)
    tables = tables_of(rows, columns, table_precision)
    weights = weights_of(lS_i, table_precision) if weighted else []
    dense = drawn((len(LENGTHS), columns), 50, precision)

    def eager(dense, *tensors):
        vectors = pooled(lS_o, lS_i, weighted)(*tensors).to(dense.dtype)
        features = torch.cat((dense[:, None], vectors), dim=1)
        return FeatureInteraction("dot", len(rows) + 1, itself).to(dense.device)(features)

    bags = on_device(Bags.join(lS_o, lS_i, weights or None))
    group = TableGroup([table.to(DEVICE) for table in tables])
    # NaN, so that what is not written shows; rows further apart than long, whose padding must stay.
    width = interaction_columns(len(rows) + 1, columns, itself)
    padded = torch.full((len(LENGTHS), -(-width // 16) * 16 + 16), math.nan, dtype=dense.dtype, device=DEVICE)
    out = padded[:, :width]
    result = bags_interaction(dense.to(DEVICE), group, bags, itself, backend=backend, out=out)
    assert padded[:, width:].isnan().all()
    inputs = [dense, *tables, *weights]
    assert_right(result, eager, inputs, precision, max(columns, LONGEST), modules=2)


def test_cuda_says_what_it_takes():
    """Checked behind the device, so that a CPU sees the first of these only."""
    group = TableGroup([torch.zeros(3, 20, device=DEVICE)])
    bags = on_device(Bags(torch.tensor([1]), torch.tensor([0, 1])))
    words = "columns=20: must be a multiple of 16" if GPU else "runs on CUDA tensors"
    with pytest.raises(KernelError, match=words):
        bags_interaction(torch.zeros(1, 20, device=DEVICE).half(), group, bags, backend="cuda")
    words = "dense_BD.dtype=torch.float32: must be torch.float16" if GPU else "runs on CUDA tensors"
    with pytest.raises(KernelError, match=words):
        bags_interaction(torch.zeros(1, 20, device=DEVICE), group, bags, backend="cuda")


def test_tensors_of_two_devices_are_refused_as_everywhere_else():
    group = TableGroup([torch.zeros(3, 16)])
    bags = Bags(torch.tensor([1]).to("meta"), torch.tensor([0, 1]).to("meta"))
    with pytest.raises(KernelError, match="indices_L has device meta and tables has cpu: give one device"):
        embedding_bags(group, bags, backend="torch")


def group_of_two():
    return TableGroup([torch.zeros(3, 4), torch.zeros(9, 4)])


@pytest.mark.parametrize(
    ("indices", "offsets", "words"),
    [
        ([0, 3], [0, 1, 2], "table 0: index 3 is out of range: its 3 rows are 0 to 2|table 1"),
        ([0, -1], [0, 1, 2], "table 1: index -1 is out of range: its 9 rows are 0 to 8"),
        ([0, 1], [0, 1, 1], "offsets run from 0 to 1: they must rise from 0 to the number of indices, 2"),
        ([0, 1], [0, 3, 2], "they must rise"),
        ([0, 1], [1, 1, 2], "offsets run from 1"),
        ([0, 1], [0, 1, 1, 2], r"offsets='3 \+ 1 of them': give batch \* 2 \+ 1"),
    ],
    ids=str,
)
def test_values_that_cannot_be_looked_up(indices, offsets, words):
    if indices == [0, 3]:
        indices = [3, 0]
    bags = Bags(torch.tensor(indices), torch.tensor(offsets))
    with pytest.raises(KernelError, match=words):
        embedding_bags(group_of_two(), bags, backend="torch")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TableGroup([]), "tables=.*: give at least one"),
        (lambda: TableGroup([torch.zeros(3, 4), torch.zeros(3, 5)]), r"tables\[1\] has shape \(3, 5\)"),
        (lambda: TableGroup([torch.zeros(3, 4), torch.zeros(3, 4).half()]), r"tables\[1\] has dtype"),
        (lambda: TableGroup([torch.zeros(4, 3).T]), r"tables\[0\]\.stride"),
        (lambda: TableGroup([torch.zeros(0, 3)]), "give at least one row"),
        (lambda: Bags(torch.zeros(2), torch.zeros(2)), "indices_L.dtype=torch.float32"),
        (lambda: Bags(torch.tensor([1]), torch.tensor([0, 1]).int()), "offsets has dtype torch.int32"),
        (
            lambda: Bags(torch.tensor([1]), torch.tensor([0, 1]), torch.zeros(2)),
            r"weights_L has shape \(2,\): give \(1,\)",
        ),
        (
            lambda: embedding_bags(
                group_of_two(), Bags(torch.tensor([1]), torch.tensor([0, 1, 1]), torch.zeros(1).half())
            ),
            "weights_L has dtype torch.float16 and tables has torch.float32",
        ),
        (
            lambda: bags_interaction(
                torch.zeros(2, 4),
                group_of_two(),
                Bags(torch.tensor([1]), torch.tensor([0, 1, 1])),
                backend="torch",
            ),
            r"dense_BD has shape \(2, 4\): give \(1, 4\)",
        ),
    ],
)
def test_errors(make, words):
    with pytest.raises(KernelError, match=words):
        make()
