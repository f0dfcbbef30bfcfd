"""Types that explain a result: masks, and numbers that are rounded on the way."""

import numpy as np
import pytest
import torch

from tests.parity.verdict.patterned import EXACT, explained, normal


def test_masks_are_booleans_or_floating_point():
    oracle = np.tril(np.ones((6, 6)))
    for dtype in (torch.bool, torch.float16, torch.float32):
        (text,) = explained(oracle, 1.0 - oracle, dtype=dtype)
        assert text == "is the oracle's mask with zeros and ones exchanged"
    (text,) = explained(oracle, np.tril(oracle, -1), limit=EXACT, dtype=torch.int64)
    assert "mask" not in text


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_values_of_the_result_s_own_type_are_not_rounded_on_the_way(dtype):
    oracle, port = normal(4, 6), torch.from_numpy(normal(4, 6, seed=6)).to(dtype).double().numpy()
    assert explained(oracle, port, dtype=dtype) == []


def test_the_coarsest_type_that_holds_all_values_is_told():
    oracle = normal(4, 6)
    for name, own, words in (
        ("float16", torch.float32, "float16"),
        ("bfloat16", torch.float32, "bfloat16"),
        ("bfloat16", torch.float16, "bfloat16"),
    ):
        rounded = torch.from_numpy(oracle).to(getattr(torch, name)).double().numpy()
        assert explained(oracle, rounded, dtype=own) == [
            f"holds only {words} values: rounded to {words} on the way"
        ]


@pytest.mark.parametrize("rounded", [np.floor, np.trunc, np.round])
def test_whole_numbers_are_values_of_every_type_and_told_as_such(rounded):
    oracle = 5.0 * normal(4, 6)
    words = "holds only whole numbers: rounded or divided as integers on the way"
    assert explained(oracle, rounded(oracle))[0] == words
    assert not any("holds only" in text for text in explained(oracle, rounded(oracle) + 2.0))


def test_rounding_to_whole_numbers_leaves_several_and_moves_none_by_1():
    words = "holds only whole numbers: rounded or divided as integers on the way"
    oracle = 1.0 + 0.3 * np.sin(normal(4, 6))
    assert not any("holds only" in text for text in explained(oracle, oracle.round()))
    oracle[:, ::2] -= 1.0
    assert words in explained(oracle, oracle.round())
    oracle[0, 0], port = 0.0, oracle.round()
    port[0, 0] = 1.0
    assert not any("holds only" in text for text in explained(oracle, port))


def test_numbers_that_a_coarser_type_makes_whole_are_told_by_the_type():
    oracle = 300.0 + 50.0 * np.abs(normal(4, 6))
    coarse = torch.from_numpy(oracle).bfloat16().double().numpy()
    assert explained(oracle, coarse) == ["holds only bfloat16 values: rounded to bfloat16 on the way"]


def test_constants_far_from_the_oracle_are_not_rounded_on_the_way():
    oracle = normal(4, 6)
    assert not any("holds only" in text for text in explained(oracle, np.full((4, 6), -10.0)))
    near = torch.from_numpy(oracle).bfloat16().double().numpy()
    assert any("holds only" in text for text in explained(oracle, near))


def test_integers_are_not_rounded():
    port = np.arange(24.0).reshape(4, 6)
    assert explained(port + normal(4, 6).round(1) + 0.05, port, dtype=torch.int32) == []


def test_values_of_a_results_own_type_are_no_rounding_on_the_way():
    oracle = normal(40, 5)
    port = torch.from_numpy(oracle).bfloat16().double().numpy()
    for dtype, is_told in ((torch.float32, True), (torch.bfloat16, False)):
        texts = explained(oracle, port, dtype=dtype, limit=EXACT)
        assert any("rounded to bfloat16" in text for text in texts) is is_told
