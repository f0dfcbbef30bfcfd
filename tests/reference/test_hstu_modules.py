"""Embeddings, preprocessors, postprocessors, similarity, sequence utilities, initializers; refusals."""

from __future__ import annotations

import pytest
import torch

from reference.build import build_hstu
from reference.embedding_modules import CategoricalEmbeddingModule, LocalEmbeddingModule
from reference.hstu_dense import HSTUDenseModel
from reference.initialization import truncated_normal
from reference.input_features_preprocessors import (
    CombinedItemAndRatingInputFeaturesPreprocessor,
    LearnablePositionalEmbeddingInputFeaturesPreprocessor,
    LearnablePositionalEmbeddingRatedInputFeaturesPreprocessor,
)
from reference.output_postprocessors import L2NormEmbeddingPostprocessor, LayerNormEmbeddingPostprocessor
from reference.relative_attention_bias import (
    RelativeBucketedTimeAndPositionBasedBias,
    RelativePositionalBias,
)
from reference.sequence_utils import (
    batch_gather_embeddings,
    batch_scatter_embeddings,
    jagged_or_dense_index_select_dim0,
    jagged_or_dense_repeat_interleave_dim0,
)
from reference.similarity import DotProductSimilarity
from reference.transduction_dense import (
    HSTUAttentionDense,
    NonAffineLayerNorm,
    SequentialTransductionUnitDense,
)
from tests.reference.hstu_setup import make_batch, make_model, small_config

EPS64 = torch.finfo(torch.float64).eps


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_local_embedding():
    module = LocalEmbeddingModule(5, 3)
    ids = torch.tensor([[0, 5], [2, 2]])
    assert torch.equal(module.get_item_embeddings(ids), module._item_emb.weight[ids])
    assert module.item_embedding_dim == 3
    assert module.debug_str() == "local_emb_d3"


def test_categorical_embedding():
    categories = torch.tensor([2, 0, 2, 1, 4])
    module = CategoricalEmbeddingModule(5, 3, categories)
    weight = module._item_emb.weight
    assert weight.shape == (6, 3)
    for item in range(1, 6):
        assert torch.equal(module(torch.tensor(item)), weight[categories[item - 1] + 1])
    # The padding item reads the first item's category, as in the public code.
    assert torch.equal(module(torch.tensor(0)), weight[3])
    assert module.debug_str() == "cat_emb_d3"


def preprocessor_inputs():
    ids = torch.tensor([[3, 0, 1, 0], [2, 2, 0, 0]])
    ratings = torch.tensor([[5, 1, 0, 2], [4, 3, 3, 0]])
    return torch.tensor([3, 2]), ids, draw(2, 4, 3), {"ratings": ratings}


@pytest.mark.parametrize("kind", ["positional", "rated", "combined"])
def test_preprocessors_by_loops(kind):
    lengths, ids, embeddings, payloads = preprocessor_inputs()
    if kind == "positional":
        module = LearnablePositionalEmbeddingInputFeaturesPreprocessor(6, 3, 0.5)
    elif kind == "rated":
        module = LearnablePositionalEmbeddingRatedInputFeaturesPreprocessor(6, 3, 0.5, 2, 6)
    else:
        module = CombinedItemAndRatingInputFeaturesPreprocessor(6, 3, 0.5, 6)
    module = module.double().eval()
    per_item = module.positions_per_item
    out_lengths, x, mask = module(lengths, ids, embeddings, payloads)
    assert out_lengths.tolist() == [3 * per_item, 2 * per_item]
    assert x.shape == (2, 4 * per_item, module.embedding_dim)
    assert mask.shape == (2, 4 * per_item, 1)
    assert mask.dtype == torch.float64
    for b in range(2):
        for position in range(4 * per_item):
            n = position // per_item
            row = embeddings[b, n]
            if kind == "rated":
                row = torch.cat([row, module._rating_emb.weight[payloads["ratings"][b, n]]])
            if kind == "combined" and position % 2 == 1:
                row = module._rating_emb.weight[payloads["ratings"][b, n]]
            expected = row * module.embedding_dim**0.5 + module._pos_emb.weight[position]
            valid = ids[b, n] != 0
            assert mask[b, position] == valid
            assert torch.equal(x[b, position], expected * valid)


def test_combined_ids_and_masks():
    lengths, ids, embeddings, payloads = preprocessor_inputs()
    module = CombinedItemAndRatingInputFeaturesPreprocessor(6, 3, 0.0, 6)
    assert module.get_preprocessed_ids(lengths, ids, embeddings, payloads).tolist() == [
        [3, 5, 0, 1, 1, 0, 0, 2],
        [2, 4, 2, 3, 0, 3, 0, 0],
    ]
    masks = module.get_preprocessed_masks(lengths, ids, embeddings, payloads)
    assert masks.int().tolist() == [[1, 1, 0, 0, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0]]


def test_debug_strings():
    assert LearnablePositionalEmbeddingInputFeaturesPreprocessor(6, 3, 0.2).debug_str() == "posi_d0.2"
    rated = LearnablePositionalEmbeddingRatedInputFeaturesPreprocessor(6, 3, 0.2, 2, 6)
    assert rated.debug_str() == "posir_d0.2"
    assert CombinedItemAndRatingInputFeaturesPreprocessor(6, 3, 0.2, 6).debug_str() == "combir_d0.2"
    assert L2NormEmbeddingPostprocessor(3).debug_str() == "l2"
    assert LayerNormEmbeddingPostprocessor(3).debug_str() == "ln"
    assert DotProductSimilarity().debug_str() == "dp"
    assert build_hstu(small_config()).debug_str() == "HSTU-b3-h2-dqk6-dv7-lsilud0.0-ad0.0"
    no_bias = small_config(normalization="softmax_rel_bias", relative_attention_bias="none")
    assert build_hstu(no_bias).debug_str() == "HSTU-b3-h2-dqk6-dv7-lsilud0.0-ad0.0-norab"


def test_l2_postprocessor():
    x = draw(2, 4, 5)
    x[0, 0] = 0.0
    out = L2NormEmbeddingPostprocessor(3)(x)
    assert out.shape == (2, 4, 3)
    assert torch.equal(out[0, 0], torch.zeros(3, dtype=torch.float64))
    norms = (out**2).sum(dim=-1).sqrt().flatten()[1:]
    # A sum of three squares, a root, a quotient and the same again here.
    assert (norms - 1).abs().max() <= 12 * EPS64
    tiny = torch.full((1, 3), 1e-9, dtype=torch.float64)
    assert torch.equal(L2NormEmbeddingPostprocessor(3)(tiny), tiny / 1e-6)


def test_layer_norm_postprocessor():
    x = draw(2, 4, 5)
    assert torch.equal(LayerNormEmbeddingPostprocessor(3)(x), NonAffineLayerNorm(3, 1e-6)(x[..., :3]))


@pytest.mark.parametrize(("queries", "sets"), [(4, 1), (4, 4), (12, 4), (1, 1)])
def test_dot_product_broadcasts(queries, sets):
    query, items = draw(queries, 5), draw(sets, 7, 5, seed=1)
    actual = DotProductSimilarity()(query, items)
    assert actual.shape == (queries, 7)
    for row in range(queries):
        for item in range(7):
            expected = sum(query[row, d] * items[row * sets // queries, item, d] for d in range(5))
            # Two sums of five products below 16.
            assert abs(actual[row, item] - expected) <= 2 * 5 * 16 * EPS64


def test_dot_product_refuses_uneven_groups():
    with pytest.raises(AssertionError, match="5 queries do not divide among 2 item sets"):
        DotProductSimilarity()(draw(5, 3), draw(2, 4, 3))


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_gather_and_scatter(index_dtype):
    x, new = draw(3, 5, 2), draw(3, 2, seed=1)
    index = torch.tensor([[4, 0], [2, 2], [0, 3]], dtype=index_dtype)
    gathered = batch_gather_embeddings(index, x)
    for b in range(3):
        for n in range(2):
            assert torch.equal(gathered[b, n], x[b, index[b, n]])
    before = x.clone()
    scattered = batch_scatter_embeddings(x, index[:, 0], new)
    assert torch.equal(x, before)
    for b in range(3):
        x[b, index[b, 0]] = new[b]
    assert torch.equal(scattered, x)


def test_jagged_or_dense_selection():
    lengths = torch.tensor([2, 0, 3])
    jagged, dense = draw(5, 2), draw(3, 4, 2, seed=1)
    rows = [jagged[:2], jagged[2:2], jagged[2:]]
    repeated = jagged_or_dense_repeat_interleave_dim0(jagged, lengths, 2)
    assert torch.equal(repeated, torch.cat([rows[0], rows[0], rows[1], rows[1], rows[2], rows[2]]))
    index = torch.tensor([2, 0, 2])
    selected = jagged_or_dense_index_select_dim0(jagged, lengths, index)
    assert torch.equal(selected, torch.cat([rows[2], rows[0], rows[2]]))
    repeated = jagged_or_dense_repeat_interleave_dim0(dense, lengths, 2)
    assert torch.equal(repeated, dense[[0, 0, 1, 1, 2, 2]])
    assert torch.equal(jagged_or_dense_index_select_dim0(dense, lengths, index), dense[index])


def test_truncated_normal():
    torch.manual_seed(0)
    x = torch.empty(200, 500)
    assert truncated_normal(x, mean=3.0, std=0.5) is x
    z = (x - 3.0) / 0.5
    # Four draws outside two deviations: p = 0.0455^4, 0.4 of these 1e5 elements expected.
    assert (z.abs() > 2.001).sum() <= 4
    # The truncated normal has deviation 0.8796; five standard errors of 1e5 draws.
    assert abs(z.mean()) < 5 * 0.8796 / 1e5**0.5
    assert abs(z.std() - 0.8796) < 5 * 0.8796 / (2e5) ** 0.5


def test_initial_values():
    torch.manual_seed(0)
    config = small_config("rated", num_items=4000)
    model = build_hstu(config)
    state = model.state_dict()
    items = state["_embedding_module._item_emb.weight"]
    assert items[0].abs().max() > 0
    assert items.abs().max() <= 0.02 * 2.001
    for key in ("_input_features_preproc._pos_emb.weight", "_input_features_preproc._rating_emb.weight"):
        rows, columns = state[key].shape
        xavier = (2.0 / (rows + columns)) ** 0.5
        # Five standard errors of a standard deviation.
        assert abs(state[key].std() / xavier - 1) < 5 / (2 * rows * columns) ** 0.5
    assert abs(state["_hstu._attention_layers.0._uvqk"].std() / 0.02 - 1) < 0.15
    limit = (6 / (config.num_heads * config.linear_dim + config.embedding_dim)) ** 0.5
    assert 0.9 * limit < state["_hstu._attention_layers.0._o.weight"].abs().max() <= limit
    assert not model.training


def unit(**changes):
    arguments = {
        "embedding_dim": 4,
        "linear_hidden_dim": 4,
        "attention_dim": 4,
        "dropout_ratio": 0.0,
        "attn_dropout_ratio": 0.0,
        "num_heads": 1,
        "linear_activation": "silu",
        "divisor": 8,
        "relative_attention_bias_module": RelativePositionalBias(8),
        **changes,
    }
    return SequentialTransductionUnitDense(**arguments)


def model(**changes):
    arguments = {
        "max_sequence_len": 6,
        "max_output_len": 2,
        "embedding_dim": 4,
        "num_blocks": 1,
        "num_heads": 1,
        "linear_dim": 4,
        "attention_dim": 4,
        "normalization": "rel_bias",
        "linear_config": "uvqk",
        "linear_activation": "silu",
        "linear_dropout_rate": 0.0,
        "attn_dropout_rate": 0.0,
        "embedding_module": LocalEmbeddingModule(5, 4),
        "similarity_module": DotProductSimilarity(),
        "input_features_preproc_module": LearnablePositionalEmbeddingInputFeaturesPreprocessor(8, 4, 0.0),
        "output_postproc_module": L2NormEmbeddingPostprocessor(4),
        **changes,
    }
    return HSTUDenseModel(**arguments)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: unit(normalization="layer"), r"normalization='layer': .*'rel_bias'"),
        (lambda: unit(linear_activation="relu"), r"linear_activation='relu': choose one of 'silu', 'none'"),
        (lambda: unit(linear_config="qkv"), r"linear_config='qkv': choose one of 'uvqk'"),
        (lambda: unit(dropout_ratio=1.0), r"dropout_ratio=1.0: .*\[0, 1\)"),
        (lambda: unit(num_heads=0), r"num_heads=0: must be an integer of at least 1"),
        (lambda: unit(divisor=True), r"divisor=True: must be an integer"),
        (
            lambda: unit(relative_attention_bias_module=None),
            r"relative_attention_bias_module=None: .*softmax",
        ),
        (lambda: model(relative_attention_bias="alibi"), r"relative_attention_bias='alibi': choose one of"),
        (lambda: model(relative_attention_bias="none"), r"relative_attention_bias_module=None: "),
        (lambda: model(num_blocks=0), r"num_blocks=0: "),
        (lambda: model(embedding_dim=6), r"embedding_dim=6: must equal .*, 4"),
        (lambda: model(bucket_divisor=0.0), r"bucket_divisor=0.0: must be positive and finite"),
        (lambda: RelativePositionalBias(-1), r"max_seq_len=-1: "),
        (lambda: RelativeBucketedTimeAndPositionBasedBias(4, 0, 0.3), r"num_buckets=0: "),
        (lambda: RelativeBucketedTimeAndPositionBasedBias(4, 9, float("nan")), r"bucket_divisor=nan: "),
        (lambda: HSTUAttentionDense(1, 2, 2, "softmax", 3), r"normalization='softmax': "),
        (lambda: NonAffineLayerNorm(4, 0.0), r"epsilon=0.0: must be positive"),
        (lambda: L2NormEmbeddingPostprocessor(4, eps=0.0), r"eps=0.0: must be positive"),
        (lambda: LocalEmbeddingModule(0, 4), r"num_items=0: "),
        (lambda: CategoricalEmbeddingModule(3, 4, torch.tensor([0, 1])), r"\.shape=\(2,\): must be \(3,\)"),
        (lambda: CategoricalEmbeddingModule(2, 4, torch.tensor([0, 2])), r"range=\(0, 2\): .*\[0, 1\]"),
        (lambda: build_hstu(small_config(), layout="ragged"), r"layout='ragged': choose one of 'dense'"),
    ],
)
def test_refusals_name_field_value_and_fix(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_widths_that_do_not_fit():
    config = small_config("combined")
    model, batch = make_model(config), make_batch(config)
    embeddings = model.get_item_embeddings(batch.ids)
    single = {**batch.payloads, "timestamps": batch.timestamps}
    with pytest.raises(ValueError, match=r"width of past_payloads\['timestamps'\]=12: must be 24"):
        model(batch.lengths, batch.ids, embeddings, single)
    small = make_model(small_config("combined", max_output_len=2))
    small._input_features_preproc = model._input_features_preproc
    with pytest.raises(ValueError, match="sequence width=24: must be at most 22"):
        small(batch.lengths, batch.ids, embeddings, batch.payloads)
