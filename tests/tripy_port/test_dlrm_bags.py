"""The ported tables, evaluated in one compiled graph each, against sums written out by hand."""

from __future__ import annotations

from functools import cache

import numpy as np
import nvtripy as tp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tripy_port.port_setup import DTYPES, array, runtime_input, tensor
from tripy_port.embedding_bags import BagInputError, EmbeddingBag, check_bags
from tripy_port.md_embedding_bag import PrEmbeddingBag, mixed_dimensions
from tripy_port.qr_embedding_bag import QREmbeddingBag

ROWS, DIM, LONGEST = 40, 5, 4
MAX_BATCH, MAX_INDICES = 12, 64
MAX_BAG_SIZES = (None, 1, LONGEST)
# Rows are whole numbers of at most 8, weights powers of two: sums of bags are exact in every dtype.
TABLE = np.random.default_rng(0).integers(-8, 9, (ROWS, DIM)).astype(np.float32)


def in_one_list(bags: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Indices and offsets."""
    lengths = np.array([len(bag) for bag in bags])
    indices = np.array([row for bag in bags for row in bag], dtype=np.int64)
    return indices, (np.cumsum(lengths) - lengths).astype(np.int64)


def weights_for(indices: np.ndarray) -> np.ndarray:
    return (2.0 ** (np.arange(indices.size) % 4 - 2)).astype(np.float32)


def summed(table: np.ndarray, bags: list[list[int]], weights: np.ndarray | None) -> np.ndarray:
    sums, position = np.zeros((len(bags), table.shape[1])), 0
    for bag, rows in enumerate(bags):
        for row in rows:
            sums[bag] += table[row] * (1.0 if weights is None else weights[position])
            position += 1
    return sums


@cache
def compiled(max_bag_size: int | None, dtype: tp.dtype, weighted: bool, index_dtype: tp.dtype = tp.int64):
    module = EmbeddingBag(ROWS, DIM, max_bag_size=max_bag_size, dtype=dtype)
    module.load_state_dict({"weight": tensor(TABLE, dtype)})
    infos = [
        tp.InputInfo([(0, MAX_BATCH, MAX_INDICES)], index_dtype),
        tp.InputInfo([(1, 2, MAX_BATCH)], index_dtype),
    ]
    if weighted:
        infos.append(tp.InputInfo([(0, MAX_BATCH, MAX_INDICES)], dtype))
    return tp.compile(module.forward, args=infos)


def pooled(bags, max_bag_size, dtype=tp.float32, weighted=False, index_dtype=tp.int64) -> np.ndarray:
    indices, offsets = in_one_list(bags)
    kind = np.int64 if index_dtype == tp.int64 else np.int32
    arguments = [runtime_input(indices.astype(kind)), runtime_input(offsets.astype(kind))]
    if weighted:
        weights = tp.cast(runtime_input(weights_for(indices)), dtype)
        weights.eval()
        arguments.append(weights)
    return array(compiled(max_bag_size, dtype, weighted, index_dtype)(*arguments))


BAGS = {
    "one each": [[3], [0], [39], [3]],
    "empty in the middle": [[1, 2], [], [5], [], [], [7]],
    "empty at both ends": [[], [4, 4, 8], []],
    "all empty": [[], [], []],
    "one bag": [[9, 8, 7, 6]],
    "one empty bag": [[]],
}


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("max_bag_size", MAX_BAG_SIZES)
def test_bags_of_every_kind_in_one_executable(max_bag_size, dtype, weighted):
    for name, bags in BAGS.items():
        if max_bag_size is not None and max(map(len, bags)) > max_bag_size:
            continue
        expected = summed(TABLE, bags, weights_for(in_one_list(bags)[0]) if weighted else None)
        assert np.array_equal(pooled(bags, max_bag_size, dtype, weighted), expected), name


@settings(max_examples=60, deadline=None)
@given(
    bags=st.lists(st.lists(st.integers(0, ROWS - 1), max_size=LONGEST), min_size=1, max_size=MAX_BATCH),
    weighted=st.booleans(),
)
@pytest.mark.parametrize("max_bag_size", [None, LONGEST])
def test_any_bags(max_bag_size, bags, weighted):
    expected = summed(TABLE, bags, weights_for(in_one_list(bags)[0]) if weighted else None)
    assert np.array_equal(pooled(bags, max_bag_size, weighted=weighted), expected)


@pytest.mark.parametrize("max_bag_size", MAX_BAG_SIZES)
def test_indices_may_be_int32(max_bag_size):
    bags = BAGS["one each"]
    assert np.array_equal(pooled(bags, max_bag_size, index_dtype=tp.int32), summed(TABLE, bags, None))


def test_a_longer_bag_than_the_graph_takes_is_cut_and_refused():
    bags = [[1, 2, 3], [4]]
    assert np.array_equal(pooled(bags, 1), summed(TABLE, [[1], [4]], None))
    indices, offsets = (tensor(part) for part in in_one_list(bags))
    check_bags(0, ROWS, indices, offsets, max_bag_size=3)
    with pytest.raises(BagInputError, match="table 0: bag 0 has 3 indices: the graph takes at most"):
        check_bags(0, ROWS, indices, offsets, max_bag_size=1)


@pytest.mark.parametrize(
    ("indices", "offsets", "weights", "message"),
    [
        ([0, 40], [0, 1], None, "index 40 at position 1 is out of range: the table has 40 rows, .* 0 to 39"),
        ([-1], [0], None, "index -1 at position 0 is out of range"),
        ([1], [1], None, "offsets begin at 1: the first bag begins at 0"),
        ([1, 2, 3], [0, 2, 1], None, "offset 2 of bag 1 is followed by 1: offsets must not decrease"),
        ([1, 2], [0, 3], None, "the last bag begins at 3, beyond the 2 indices given"),
        ([1, 2], [0, 1], [1.0], r"\(1,\) per-sample weights for \(2,\) indices: give one weight"),
        ([[1, 2]], [0], None, r"indices have shape \(1, 2\) and dtype int64: give a vector"),
        ([1], [[0]], None, r"offsets have shape \(1, 1\) and dtype int64: give a vector"),
    ],
)
def test_what_cannot_be_looked_up_is_refused_beforehand(indices, offsets, weights, message):
    weights = None if weights is None else tensor(np.array(weights, dtype=np.float32))
    with pytest.raises(BagInputError, match=f"^table 7: {message}"):
        check_bags(7, ROWS, tensor(np.array(indices)), tensor(np.array(offsets)), weights)


def test_an_empty_batch_and_indices_that_are_no_integers_are_refused():
    with pytest.raises(BagInputError, match="table 0: no bags: give at least one"):
        check_bags(0, ROWS, tensor(np.array([1])), tensor(np.empty(0, dtype=np.int64)))
    with pytest.raises(BagInputError, match=r"indices have shape \(1,\) and dtype float32"):
        check_bags(0, ROWS, tensor(np.ones(1, dtype=np.float32)), tensor(np.array([0])))


@pytest.mark.parametrize("max_bag_size", [None, LONGEST])
@pytest.mark.parametrize("operation", ["mult", "add", "concat"])
def test_quotient_and_remainder_are_pooled_and_composed(operation, max_bag_size):
    collisions = 7  # does not divide 40
    module = QREmbeddingBag(ROWS, DIM, collisions, operation, max_bag_size)
    quotients, remainders = TABLE[: -(-ROWS // collisions)], TABLE[10 : 10 + collisions]
    module.load_state_dict({"weight_q": tensor(quotients), "weight_r": tensor(remainders)})
    bags = [[39, 0, 6], [], [7, 13]]
    q = summed(quotients, [[row // collisions for row in bag] for bag in bags], None)
    r = summed(remainders, [[row % collisions for row in bag] for bag in bags], None)
    expected = {"mult": q * r, "add": q + r, "concat": np.concatenate([q, r], axis=1)}[operation]
    actual = array(module(*(tensor(part) for part in in_one_list(bags))))
    assert np.array_equal(actual, expected)
    assert actual.shape[1] == module.output_dim


@pytest.mark.parametrize("base_dim", [DIM, 8])
def test_mixed_dimensions_are_projected_behind_the_sum(base_dim):
    module = PrEmbeddingBag(ROWS, DIM, base_dim, LONGEST)
    projection = np.eye(base_dim, DIM, dtype=np.float32)[::-1].copy()
    state = {"embs.weight": tensor(TABLE)}
    if base_dim > DIM:
        state["proj.weight"] = tensor(projection)
    module.load_state_dict(state)
    bags = [[1, 39], [], [0]]
    expected = summed(TABLE, bags, None)
    expected = expected @ projection.T if base_dim > DIM else expected
    assert np.array_equal(array(module(*(tensor(part) for part in in_one_list(bags)))), expected)
    assert module.num_embeddings == ROWS


def test_a_table_without_values_is_named():
    with pytest.raises(tp.TripyException, match="weight"):
        EmbeddingBag(ROWS, DIM)(tensor(np.array([1])), tensor(np.array([0]))).eval()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_embeddings": 0}, "num_embeddings=0: must be an integer of at least 1"),
        ({"num_collisions": 0}, "num_collisions=0: must be"),
        ({"operation": "sum"}, "operation='sum': choose one of 'mult', 'add', 'concat'"),
    ],
)
def test_constructors_refuse(arguments, message):
    arguments = {"num_embeddings": 4, "embedding_dim": 2, "num_collisions": 2, **arguments}
    with pytest.raises(ValueError, match=message):
        QREmbeddingBag(**arguments)
    with pytest.raises(ValueError, match="embedding_dim=3: must not exceed base_dim=2"):
        PrEmbeddingBag(4, 3, 2)


def test_the_power_rule():
    # 16 * (4 / 64) ** 0.5 is 4; tables of one size keep the base dimension; rounding is to powers of two.
    assert mixed_dimensions([64, 4, 16], 0.5, 16) == [4, 16, 8]
    assert mixed_dimensions([9, 9], 0.7, 6) == [6, 6]
    assert mixed_dimensions([10**7, 10], 0.9, 4) == [1, 4]
    assert mixed_dimensions([100, 10], 0.3, 16, round_dims=True) == [8, 16]
