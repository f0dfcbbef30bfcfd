"""The parts of the ported model, evaluated eagerly, against NumPy from first principles."""

from __future__ import annotations

import numpy as np
import nvtripy as tp
import pytest

from tests.tripy_port.port_setup import DTYPES, FLOAT32_ROUNDOFF, array, max_difference, tensor
from tripy_port import numerics, sequence_utils
from tripy_port.embedding_modules import CategoricalEmbeddingModule, LocalEmbeddingModule
from tripy_port.input_features_preprocessors import CombinedItemAndRatingInputFeaturesPreprocessor
from tripy_port.output_postprocessors import L2NormEmbeddingPostprocessor, LayerNormEmbeddingPostprocessor
from tripy_port.relative_attention_bias import (
    RelativeBucketedTimeAndPositionBasedBias,
    RelativePositionalBias,
    time_bucket,
)
from tripy_port.similarity import DotProductSimilarity
from tripy_port.transduction_dense import (
    AttentionMask,
    HSTUAttentionDense,
    NonAffineLayerNorm,
    SequentialTransductionUnitDense,
)

RNG = np.random.default_rng(0)
UNIT_ROUNDOFF = {tp.float32: 2.0**-24, tp.float16: 2.0**-11, tp.bfloat16: 2.0**-8}


def normal(*shape: int) -> np.ndarray:
    """Exact in bfloat16, so that all dtypes start from the same numbers."""
    return np.round(RNG.standard_normal(shape) * 32).astype(np.float32) / 32


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_are_moved_bit_for_bit(dtype):
    x, new = normal(3, 5, 2), normal(3, 2)
    lengths, rows = np.array([5, 1, 3]), np.array([[0, 4], [2, 2], [4, 1]])
    device_x = tensor(x, dtype)
    gathered = sequence_utils.batch_gather_embeddings(tensor(rows), device_x)
    assert np.array_equal(array(gathered), x[np.arange(3)[:, None], rows])
    current = sequence_utils.get_current_embeddings(tensor(lengths), device_x)
    assert np.array_equal(array(current), x[np.arange(3), lengths - 1])
    scattered = sequence_utils.batch_scatter_embeddings(device_x, tensor(lengths - 1), tensor(new, dtype))
    expected = x.copy()
    expected[np.arange(3), lengths - 1] = new
    assert np.array_equal(array(scattered), expected)
    padded = sequence_utils.pad_sequence(device_x, 7)
    assert padded.dtype == dtype
    assert np.array_equal(array(padded), np.pad(x, ((0, 0), (0, 2), (0, 0))))
    assert np.array_equal(array(sequence_utils.pad_sequence(device_x, 5)), x)


def test_padding_is_cleared_whatever_it_held():
    x, lengths = normal(2, 4, 3), np.array([1, 3])
    padding = np.arange(4) >= lengths[:, None]
    x[padding] = np.nan
    assert np.array_equal(
        array(sequence_utils.zero_padded_rows(tensor(x), tensor(lengths))), np.nan_to_num(x)
    )
    timestamps = RNG.integers(1, 2**40, (2, 4))
    cleared = sequence_utils.clear_padded_timestamps(tensor(timestamps), tensor(lengths))
    assert np.array_equal(array(cleared), np.where(np.arange(4) > lengths[:, None], 0, timestamps))


def test_a_number_is_not_rounded_to_half():
    # bfloat16 holds 8 bits: 1011 becomes 1012 there, 1.41421356 becomes 1.4140625.
    x = np.arange(1, 256, dtype=np.float32)[None, :]
    half = tensor(x, tp.bfloat16)
    quotient = array(tensor(x / np.float32(1011), tp.bfloat16))
    product = array(tensor(x * np.float32(2**0.5), tp.bfloat16))
    assert np.array_equal(array(numerics.divide(half, 1011)), quotient)
    assert np.array_equal(array(numerics.scale(half, 2**0.5)), product)
    assert not np.array_equal(array(half / 1011), quotient)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_silu_rounds_once(dtype):
    x = normal(1000).reshape(1, -1)
    exact = x / (1 + np.exp(-x.astype(np.float64)))
    # Two float32 roundings inside, then one to the dtype; half an ulp each, relative to the result.
    relative = np.abs(array(numerics.silu(tensor(x, dtype))) - exact) / np.maximum(np.abs(exact), 2.0**-10)
    assert relative.max() <= UNIT_ROUNDOFF[dtype] + 8 * FLOAT32_ROUNDOFF


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("epsilon", [1e-6, 1e-2])
def test_layer_norm_has_no_parameters_and_keeps_its_epsilon(dtype, epsilon):
    module = NonAffineLayerNorm(12, epsilon)
    assert module.state_dict() == {}
    x = normal(2, 3, 12) / 16
    wide = x.astype(np.float64)
    exact = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + epsilon)
    # Sums of 12 terms in float32, then one rounding to the dtype of numbers up to sqrt(12).
    allowed = (UNIT_ROUNDOFF[dtype] + 4 * 12 * FLOAT32_ROUNDOFF) * np.sqrt(12)
    assert max_difference(array(module(tensor(x, dtype))), exact) <= allowed
    postprocessor = LayerNormEmbeddingPostprocessor(12, eps=epsilon)
    assert max_difference(array(postprocessor(tensor(x, dtype))), exact) <= allowed


def test_l2_norm_keeps_the_item_columns_and_survives_zero():
    x = normal(2, 3, 7)
    x[0, 1] = 0
    wide = x[..., :5].astype(np.float64)
    exact = wide / np.maximum(np.linalg.norm(wide, axis=-1, keepdims=True), 1e-6)
    out = array(L2NormEmbeddingPostprocessor(5)(tensor(x)))
    assert max_difference(out, exact) <= 8 * FLOAT32_ROUNDOFF


def test_time_buckets():
    deltas = np.concatenate([np.arange(4000), 10 ** np.arange(4, 18), [2**62]]).astype(np.int64)
    ratio = np.log(np.maximum(deltas, 1)) / 0.301
    # Where a few float32 ulps reach the next integer, either bucket is right; the parity run counts those.
    decided = (np.abs(ratio - np.round(ratio)) > 8 * FLOAT32_ROUNDOFF * np.maximum(ratio, 1)) | (deltas <= 1)
    assert decided.sum() > 4000
    for sign in (1, -1):
        buckets = array(time_bucket(tensor(sign * deltas), 128, 0.301))
        assert np.array_equal(buckets[decided], np.minimum(np.floor(ratio), 128)[decided])
    assert array(time_bucket(tensor(deltas), 5, 0.301)).max() == 5


@pytest.mark.parametrize("n", [1, 4, 6])
def test_relative_biases_index_by_distance_and_elapsed_time(n):
    width, weight, time_weight = 6, normal(11), normal(9)
    row, column = np.indices((n, n))
    timestamps = np.cumsum(10 ** RNG.integers(0, 4, (2, n)), axis=1)
    positional = RelativePositionalBias(width)
    positional._w = tensor(weight)
    assert np.array_equal(array(positional(tensor(timestamps)))[0], weight[width - 1 + column - row])
    assert array(positional(None)).shape == (1, width, width)
    both = RelativeBucketedTimeAndPositionBasedBias(width, 8, 0.9)
    both._ts_w, both._pos_w = tensor(time_weight), tensor(weight)
    following = np.concatenate([timestamps[:, 1:], timestamps[:, -1:]], axis=1)
    elapsed = np.maximum(np.abs(following[:, :, None] - timestamps[:, None, :]), 1)
    expected = (
        weight[width - 1 + column - row] + time_weight[np.minimum(np.log(elapsed) // 0.9, 8).astype(int)]
    )
    assert np.array_equal(array(both(tensor(timestamps))), expected)


@pytest.mark.parametrize(
    ("queries", "sets"), [(4, 4), (4, 1), (6, 2), (1, 1)], ids=["paired", "shared", "grouped", "single"]
)
def test_similarity_broadcasts(queries, sets):
    query, items = normal(queries, 8), normal(sets, 5, 8)
    spread = np.repeat(items, queries // sets, axis=0).astype(np.float64)
    exact, magnitude = (
        np.einsum("bd,bxd->bx", *operands) for operands in ((query, spread), (np.abs(query), np.abs(spread)))
    )
    out = array(DotProductSimilarity()(tensor(query), tensor(items)))
    assert out.shape == (queries, 5)
    assert (np.abs(out - exact) <= 8 * FLOAT32_ROUNDOFF * magnitude).all()


def test_embeddings():
    table, ids = normal(7, 3), np.array([[0, 1, 6], [2, 2, 5]])
    local = LocalEmbeddingModule(6, 3)
    local._item_emb.weight = tensor(table)
    assert np.array_equal(array(local.get_item_embeddings(tensor(ids))), table[ids])
    categories = np.array([3, 0, 0, 1, 5, 2])
    categorical = CategoricalEmbeddingModule(6, 3, tensor(categories))
    categorical._item_emb.weight = tensor(table)
    # The padding item takes the category of item 1.
    assert np.array_equal(array(categorical(tensor(ids))), table[categories[np.maximum(ids - 1, 0)] + 1])


def test_items_and_ratings_alternate():
    preprocessor = CombinedItemAndRatingInputFeaturesPreprocessor(4, 3, 0.0, num_ratings=6)
    ids, ratings = np.array([[7, 8, 0]]), np.array([[5, 1, 0]])
    arguments = (tensor(np.array([2])), tensor(ids), tensor(normal(1, 3, 3)), {"ratings": tensor(ratings)})
    assert array(preprocessor.get_preprocessed_ids(*arguments)).tolist() == [[7, 5, 8, 1, 0, 0]]
    assert array(preprocessor.get_preprocessed_masks(*arguments)).tolist() == [[True] * 4 + [False] * 2]


def test_attention_divides_by_the_width_of_the_mask_and_keeps_the_diagonal():
    everything = np.triu(np.ones((6, 6), dtype=np.bool_), k=1)
    mask = AttentionMask()(tensor(everything), tensor(normal(2, 4, 3)))
    assert np.array_equal(array(mask), np.tril(np.ones((4, 4))))
    q, k, v, bias = normal(2, 4, 6), normal(2, 4, 6), normal(2, 4, 4), normal(1, 4, 4)
    out = HSTUAttentionDense(2, 3, 2, "rel_bias", divisor=6)(*map(tensor, (q, k, v, bias)), mask)
    heads = [t.reshape(2, 4, 2, -1).astype(np.float64) for t in (q, k, v)]
    logits = np.einsum("bnhk,bmhk->bhnm", *heads[:2]) + bias[:, None]
    weights = logits / (1 + np.exp(-logits)) / 6 * np.tril(np.ones((4, 4)))
    exact = np.einsum("bhnm,bmhv->bnhv", weights, heads[2]).reshape(2, 4, 4)
    # Two sums, of 3 and of 4 terms, and five roundings between them; each weight and value is at most 20.
    assert (
        max_difference(array(out), exact)
        <= 12 * FLOAT32_ROUNDOFF * 4 * np.abs(weights).max() * np.abs(v).max()
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 0}, "num_heads=0: must be an integer of at least 1"),
        ({"normalization": "soft"}, "relative_attention_bias_module=None: normalization 'soft' needs a bias"),
        ({"linear_activation": "relu"}, "linear_activation='relu': choose one of 'silu', 'none'"),
        (
            {"normalization": "rel_bias"},
            "relative_attention_bias_module=None: normalization 'rel_bias' needs",
        ),
        ({"epsilon": 0.0}, "epsilon=0.0: must be positive"),
        ({"dropout_ratio": 1.0}, "dropout_ratio=1.0: a dropout rate lies in"),
    ],
)
def test_impossible_blocks_are_refused_by_name(changes, message):
    arguments = {
        "embedding_dim": 4,
        "linear_hidden_dim": 2,
        "attention_dim": 2,
        "dropout_ratio": 0.0,
        "attn_dropout_ratio": 0.0,
        "num_heads": 2,
        "linear_activation": "silu",
        "divisor": 6,
        "normalization": "softmax_rel_bias",
        **changes,
    }
    with pytest.raises(ValueError, match=message):
        SequentialTransductionUnitDense(**arguments)
