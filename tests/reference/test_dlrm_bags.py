"""Jagged bags and compressed tables, against loops over the definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from reference.embedding_bags import BagInputError, EmbeddingBag, bags_from_lists, check_bags, fill_uniform
from reference.md_embedding_bag import PrEmbeddingBag, mixed_dimensions
from reference.qr_embedding_bag import QREmbeddingBag

# Empty bags first, in the middle, side by side and last; a repeated row; a long bag.
BAGS = [[], [3], [0, 0, 6], [], [], [5, 1, 2, 4, 0, 6, 3], [2], []]
KAGGLE_ROWS = [
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
]


def sum_of_rows(weight_ND, bags, weights=None):
    """Each bag's sum by the definition, in float64 and one row at a time."""
    weights = weights or [[1.0] * len(bag) for bag in bags]
    pooled_BD = torch.zeros(len(bags), weight_ND.shape[1], dtype=torch.float64)
    for bag, (rows, row_weights) in enumerate(zip(bags, weights, strict=True)):
        for row, row_weight in zip(rows, row_weights, strict=True):
            pooled_BD[bag] += weight_ND[row].double() * row_weight
    return pooled_BD


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_bags_sum_their_own_rows(dtype, weighted):
    table = EmbeddingBag(7, 5, rng=np.random.RandomState(0)).to(dtype)
    indices_L, offsets_B = bags_from_lists(BAGS)
    weights_L = torch.linspace(-1, 2, len(indices_L)).to(dtype) if weighted else None
    per_bag = None
    if weighted:
        per_bag = [part.tolist() for part in weights_L.double().split([len(bag) for bag in BAGS])]
    pooled_BD = table(indices_L, offsets_B, weights_L)
    expected_BD = sum_of_rows(table.weight, BAGS, per_bag)
    # One rounding of each product and of each of at most six additions, relative to the sum of magnitudes.
    bound = 13 * torch.finfo(dtype).eps * 7 * 2 * table.weight.abs().max().double()
    assert pooled_BD.dtype == dtype
    assert (pooled_BD.double() - expected_BD).abs().max() <= bound
    empty = [bag for bag, rows in enumerate(BAGS) if not rows]
    assert torch.count_nonzero(pooled_BD[empty]) == 0


def test_all_bags_may_be_empty():
    indices_L, offsets_B = bags_from_lists([[], [], []])
    check_bags(0, 4, indices_L, offsets_B)
    assert torch.equal(EmbeddingBag(4, 2)(indices_L, offsets_B), torch.zeros(3, 2))


def test_int32_indices_give_the_same_sums():
    table = EmbeddingBag(7, 5)
    indices_L, offsets_B = bags_from_lists(BAGS)
    check_bags(0, 7, indices_L.int(), offsets_B.int())
    assert torch.equal(table(indices_L, offsets_B), table(indices_L.int(), offsets_B.int()))


@pytest.mark.parametrize(
    ("indices", "offsets", "message"),
    [
        ([0, 7], [0, 1], r"table 3: index 7 at position 1 is out of range: the table has 7 rows.* 0 to 6"),
        ([0, -1], [0, 1], r"table 3: index -1 at position 1 is out of range"),
        ([0, 1], [1, 1], r"table 3: offsets begin at 1"),
        ([0, 1], [0, 3], r"table 3: the last bag begins at 3, beyond the 2 indices"),
        ([0, 1, 2], [0, 2, 1], r"table 3: offset 2 of bag 1 is followed by 1"),
        ([0, 1], [], r"table 3: no bags"),
    ],
)
def test_impossible_bags_are_refused(indices, offsets, message):
    with pytest.raises(BagInputError, match=message):
        check_bags(3, 7, torch.tensor(indices), torch.tensor(offsets, dtype=torch.int64))


def test_wrong_types_are_refused():
    with pytest.raises(BagInputError, match=r"table 0: indices .*float32"):
        check_bags(0, 7, torch.tensor([0.0]), torch.tensor([0]))
    with pytest.raises(BagInputError, match=r"table 0: offsets have shape \(1, 1\)"):
        check_bags(0, 7, torch.tensor([0]), torch.tensor([[0]]))
    with pytest.raises(BagInputError, match=r"table 0: \(1,\) per-sample weights for \(2,\) indices"):
        check_bags(0, 7, torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1))


def with_exact_values(table):
    """Sixteenths from -1 to 1: sums and products of them are exact in float64, in whatever order."""
    with torch.no_grad():
        for parameter in table.double().parameters():
            parameter.copy_(torch.randint(-16, 17, parameter.shape) / 16)
    return table


@pytest.mark.parametrize("operation", ["mult", "add", "concat"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_qr_bags_compose_two_tables(operation, weighted):
    table = with_exact_values(QREmbeddingBag(7, 3, num_collisions=3, operation=operation))
    assert {key: tuple(value.shape) for key, value in table.state_dict().items()} == {
        "weight_q": (3, 3),
        "weight_r": (3, 3),
    }
    indices_L, offsets_B = bags_from_lists(BAGS)
    weights_L = torch.arange(len(indices_L)).double() / 4 - 1 if weighted else None
    per_bag = [part.tolist() for part in weights_L.split([len(bag) for bag in BAGS])] if weighted else None
    q_BD = sum_of_rows(table.weight_q, [[row // 3 for row in bag] for bag in BAGS], per_bag)
    r_BD = sum_of_rows(table.weight_r, [[row % 3 for row in bag] for bag in BAGS], per_bag)
    compose = {"mult": torch.mul, "add": torch.add, "concat": lambda q, r: torch.cat((q, r), dim=1)}
    expected_BD = compose[operation](q_BD, r_BD)
    assert table.output_dim == expected_BD.shape[1]
    assert torch.equal(table(indices_L, offsets_B, weights_L), expected_BD)


def test_qr_quotient_is_exact_above_2_24():
    # In float32, 67108871 / 4 rounds to 16777218 and not down to 16777217.
    with torch.device("meta"):
        table = QREmbeddingBag(67_108_872, 1, num_collisions=4, operation="add")
    seen = {}

    def record(weight, indices_L, *rest):
        seen[weight.shape[0]] = indices_L.tolist()
        return torch.zeros(1, 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reference.qr_embedding_bag.pool_bags", record)
        table(torch.tensor([67_108_871]), torch.tensor([0]))
    assert seen == {16_777_218: [16_777_217], 4: [3]}


def test_pr_bags_are_projected():
    table = with_exact_values(PrEmbeddingBag(7, 2, base_dim=5))
    assert {key: tuple(value.shape) for key, value in table.state_dict().items()} == {
        "embs.weight": (7, 2),
        "proj.weight": (5, 2),
    }
    expected_BD = sum_of_rows(table.embs.weight, BAGS) @ table.proj.weight.T
    pooled_BD = table(*bags_from_lists(BAGS))
    assert torch.equal(pooled_BD, expected_BD)


def test_pr_bags_of_full_width_have_no_projection():
    assert list(PrEmbeddingBag(7, 5, base_dim=5).state_dict()) == ["embs.weight"]
    with pytest.raises(ValueError, match=r"embedding_dim=6: must not exceed base_dim=5"):
        PrEmbeddingBag(7, 6, base_dim=5)


def test_mixed_dimensions_are_those_of_the_public_solver():
    # Results of md_solver of facebookresearch/dlrm for these tables at temperature 0.3 and d0 16.
    plain = [3, 3, 1, 1, 4, 9, 1, 3, 16, 1, 2, 1, 2, 8, 1, 1, 11, 2, 2, 15, 1, 9, 10, 1, 6, 1]
    rounded = [4, 4, 1, 1, 4, 8, 1, 4, 16, 1, 2, 1, 2, 8, 1, 1, 8, 2, 2, 16, 1, 8, 8, 1, 8, 1]
    assert mixed_dimensions(KAGGLE_ROWS, 0.3, 16) == plain
    assert mixed_dimensions(KAGGLE_ROWS, 0.3, 16, round_dims=True) == rounded
    assert mixed_dimensions(KAGGLE_ROWS, 0.0, 16) == [16] * 26


def test_tables_fill_in_blocks_as_in_one_draw(monkeypatch):
    monkeypatch.setattr("reference.embedding_bags._ROWS_PER_DRAW", 3)
    weight = torch.empty(7, 2)
    fill_uniform(weight, -0.5, 0.5, np.random.RandomState(4))
    expected = np.random.RandomState(4).uniform(-0.5, 0.5, (7, 2)).astype(np.float32)
    assert np.array_equal(weight.numpy(), expected)
