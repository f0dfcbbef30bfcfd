"""HSTU as a whole: dense against jagged, padding, trimming, causality, dtypes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from reference.sequence_utils import get_current_embeddings
from tests.reference.hstu_setup import (
    ATTENTIONS,
    PREPROCESSORS,
    make_batch,
    make_full_batch,
    make_model,
    rounding_bound,
    small_config,
)
from tests.reference.rounding import max_difference

OPTIONS = (
    {
        "embedding": "local",
        "linear_activation": "silu",
        "concat_ua": False,
        "output_postprocessor": "l2_norm",
    },
    {
        "embedding": "categorical",
        "num_categories": 11,
        "linear_activation": "none",
        "concat_ua": True,
        "output_postprocessor": "layer_norm",
    },
)


def variant(preprocessor, attention, options=OPTIONS[0]):
    normalization, bias = attention
    return small_config(preprocessor, normalization=normalization, relative_attention_bias=bias, **options)


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "all_options"])
@pytest.mark.parametrize("attention", ATTENTIONS, ids="-".join)
@pytest.mark.parametrize("preprocessor", PREPROCESSORS)
def test_dense_equals_jagged(preprocessor, attention, options):
    config = variant(preprocessor, attention, options)
    batch = make_batch(config)
    dense, jagged = make_model(config), make_model(config, "jagged", jagged_backend="plain")
    in_float32 = batch.score(dense)
    dense_outputs, jagged_outputs = batch.score(dense.double()), batch.score(jagged.double())
    # Padded rows too: both layouts leave zeros there.
    for low, a, b in zip(in_float32, dense_outputs, jagged_outputs, strict=True):
        assert max_difference(a, b) <= rounding_bound(config, low, a)


@pytest.mark.parametrize("attention", ATTENTIONS, ids="-".join)
def test_every_block_matters(attention):
    """Else the comparisons here would pass with a block missing."""
    config = variant("rated", attention)
    batch = make_batch(config)
    model = make_model(config)
    encoded = batch.score(model)[0]
    for block in model._hstu._attention_layers:
        weight = block._o.weight.detach().clone()
        block._o.weight.data.zero_()
        assert (batch.score(model)[0] - encoded).abs().max() > 0.1
        block._o.weight.data.copy_(weight)


@pytest.mark.parametrize("layout", ["dense", "jagged"])
@pytest.mark.parametrize("attention", ATTENTIONS, ids="-".join)
@pytest.mark.parametrize("preprocessor", PREPROCESSORS)
def test_padding_changes_no_bit(preprocessor, attention, layout):
    config = variant(preprocessor, attention)
    model, batch = make_model(config, layout), make_batch(config)
    garbage = make_full_batch(config, seed=7)
    position = torch.arange(config.padded_length)
    padded = position >= batch.lengths.unsqueeze(1)
    past_query = position > batch.lengths.unsqueeze(1)
    poisoned = replace(
        batch,
        ids=torch.where(padded, garbage.ids, batch.ids),
        ratings=torch.where(padded, garbage.ratings, batch.ratings),
        timestamps=torch.where(past_query, garbage.timestamps * 3 - 10**10, batch.timestamps),
    )
    with torch.no_grad():
        embeddings = model.get_item_embeddings(batch.ids)
        clean = model(batch.lengths, batch.ids, embeddings, batch.payloads)
        nan_embeddings = embeddings.masked_fill(padded.unsqueeze(2), float("nan"))
        dirty = model(batch.lengths, poisoned.ids, nan_embeddings, poisoned.payloads)
    assert torch.isfinite(clean).all()
    assert torch.equal(clean, dirty)


@pytest.mark.parametrize("layout", ["dense", "jagged"])
def test_query_time_is_no_padding(layout):
    config = small_config()
    model, batch = make_model(config, layout), make_batch(config)
    timestamps = batch.timestamps.clone()
    timestamps[torch.arange(len(batch.lengths)), batch.lengths] += 10**8
    before, after = batch.score(model)[1], replace(batch, timestamps=timestamps).score(model)[1]
    assert ((before - after).abs().amax(dim=1) > 1e-3).all()


@pytest.mark.parametrize("layout", ["dense", "jagged"])
@pytest.mark.parametrize("attention", ATTENTIONS, ids="-".join)
@pytest.mark.parametrize("preprocessor", PREPROCESSORS)
def test_trimmed_equals_full_width(preprocessor, attention, layout):
    """The divisor and the softmax's columns belong to W, not to the input's width."""
    config = variant(preprocessor, attention)
    model, batch = make_model(config, layout), make_batch(config)
    width = int(batch.lengths.max()) + 1
    assert width < config.padded_length
    in_float32 = batch.score(model)
    model = model.double()
    full, trimmed = batch.score(model), batch.trimmed(width).score(model)
    inner_width = width * config.positions_per_item
    assert trimmed[0].shape[1] == inner_width
    cut = (full[0][:, :inner_width], *full[1:])
    for low, a, b in zip(in_float32, cut, trimmed, strict=True):
        if low.dim() == 3:
            low = low[:, :inner_width]
        assert max_difference(a, b) <= rounding_bound(config, low, a)


@pytest.mark.parametrize("attention", ATTENTIONS[:2], ids="-".join)
def test_causal(attention):
    """Event t changes no bit before t, and something at t."""
    config = variant("positional", attention)
    model, batch = make_model(config), make_batch(config, (9, 9))
    t = 5
    ids = batch.ids.clone()
    ids[:, t] = ids[:, t] % config.num_items + 1
    before, after = batch.score(model)[0], replace(batch, ids=ids).score(model)[0]
    assert torch.equal(before[:, :t], after[:, :t])
    assert ((before[:, t:9] - after[:, t:9]).abs().amax(dim=2) > 0).all()


def test_softmax_denominator_sees_the_future():
    """A property of the public code that the incremental forward inherits."""
    config = variant("positional", ("softmax_rel_bias", "positional"))
    model, batch = make_model(config), make_batch(config, (9, 9))
    ids = batch.ids.clone()
    ids[:, 5] = ids[:, 5] % config.num_items + 1
    before, after = batch.score(model)[0], replace(batch, ids=ids).score(model)[0]
    assert not torch.equal(before[:, :5], after[:, :5])


@pytest.mark.parametrize("layout", ["dense", "jagged"])
@pytest.mark.parametrize("preprocessor", PREPROCESSORS)
def test_encode_is_the_row_before_length(preprocessor, layout):
    config = variant(preprocessor, ATTENTIONS[0])
    model, batch = make_model(config, layout), make_batch(config)
    encoded, current, similarity = batch.score(model)
    with torch.no_grad():
        embeddings = model.get_item_embeddings(batch.ids)
        alone = model.encode(batch.lengths, batch.ids, embeddings, batch.payloads)
        with_cache = model.encode(
            batch.lengths, batch.ids, embeddings, batch.payloads, return_cache_states=True
        )
        items = model.get_item_embeddings(batch.candidates)
        values = model.similarity_fn(current, batch.candidates, item_embeddings=items)
    for row, length in enumerate(batch.lengths.tolist()):
        assert torch.equal(current[row], encoded[row, length - 1])
    assert torch.equal(alone, current)
    assert torch.equal(with_cache[0], current)
    assert len(with_cache[1]) == config.num_blocks
    assert torch.equal(get_current_embeddings(batch.lengths, encoded), current)
    assert torch.equal(values, similarity)


@pytest.mark.parametrize("layout", ["dense", "jagged"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("preprocessor", PREPROCESSORS)
def test_no_module_leaves_its_dtype(preprocessor, dtype, layout):
    attention = {"positional": ATTENTIONS[0], "rated": ATTENTIONS[1], "combined": ATTENTIONS[2]}[preprocessor]
    config = variant(preprocessor, attention)
    model, batch = make_model(config, layout).to(dtype), make_batch(config)
    seen = []

    def check(name):
        def hook(module, args, output):
            tensors = output if isinstance(output, tuple) else (output,)
            for tensor in tensors:
                if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                    seen.append(name)
                    assert tensor.dtype == dtype, name
                    assert torch.isfinite(tensor).all(), name

        return hook

    for name, module in model.named_modules():
        module.register_forward_hook(check(name))
    batch.score(model)
    for name in ("_input_features_preproc", "_valid_attn_mask", "_hstu", "_output_postproc", "_ndp_module"):
        assert name in seen
    for name in ("_rel_attn_bias", "_norm_input", "_attn", "_norm_attn_output", "_o"):
        assert f"_hstu._attention_layers.2.{name}" in seen


def test_dropout_is_for_training_only():
    config = small_config(linear_dropout_rate=0.5)
    model, batch = make_model(config), make_batch(config)
    assert torch.equal(batch.score(model)[0], batch.score(model)[0])
    model.train()
    assert not torch.equal(batch.score(model)[0], batch.score(model)[0])


def test_without_timestamps_only_the_softmax_keeps_its_bias():
    for attention, changes in ((ATTENTIONS[1], True), (ATTENTIONS[3], False)):
        config = variant("positional", attention)
        model, batch = make_model(config), make_batch(config)
        with torch.no_grad():
            embeddings = model.get_item_embeddings(batch.ids)
            values = model(batch.lengths, batch.ids, embeddings, batch.payloads)
            missing = model(batch.lengths, batch.ids, embeddings, {})
        assert torch.equal(values, missing) is not changes
