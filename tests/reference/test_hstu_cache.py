"""The incremental forward with a cache, against the full forward."""

from __future__ import annotations

import pytest
import torch

from reference.jagged_ops import complete_cumsum, jagged_to_padded_dense
from tests.reference.hstu_setup import (
    ATTENTIONS,
    PREPROCESSORS,
    make_full_batch,
    make_model,
    rounding_bound,
    small_config,
)
from tests.reference.rounding import max_difference

# Rows of different lengths, each growing by one event a step, the longest up to the maximum.
START_LENGTHS = (1, 4, 6, 2)
STEPS = 3


def full_forward(model, batch, **cache_arguments):
    with torch.no_grad():
        embeddings = model.get_item_embeddings(batch.ids)
        return model.generate_user_embeddings(
            batch.lengths, batch.ids, embeddings, batch.payloads, **cache_arguments
        )


def grown(values, old_lengths, new_lengths):
    """(L, D) jagged values with room, filled with garbage, for rows that have become longer."""
    out = values.new_full((int(new_lengths.sum()), values.size(1)), 1e30)
    old, new = complete_cumsum(old_lengths).tolist(), complete_cumsum(new_lengths).tolist()
    for row, length in enumerate(old_lengths.tolist()):
        out[new[row] : new[row] + length] = values[old[row] : old[row] + length]
    return out


def rows_at(encoded, position):
    return encoded[torch.arange(len(position)), position]


def incremental_rows(model, config, layout):
    """For every added position: its index in each row, the batch, the whole output, the new cache."""
    everything = make_full_batch(config, len(START_LENGTHS), seed=3)
    per_item = config.positions_per_item
    lengths = torch.tensor(START_LENGTHS)
    cache = full_forward(model, everything.with_lengths(lengths), return_cache_states=True)[1]
    for _ in range(STEPS):
        longer = everything.with_lengths(lengths + 1)
        if layout == "jagged":
            old, new = lengths * per_item, longer.lengths * per_item
            cache = [(grown(v, old, new), q, k, grown(out, old, new)) for v, q, k, out in cache]
        for part in range(per_item):
            position = lengths * per_item + part
            delta = position
            if layout == "jagged":
                delta = (complete_cumsum(longer.lengths * per_item)[:-1] + position, position)
            stored = [[tensor.clone() for tensor in state] for state in cache]
            output, new_cache = full_forward(
                model, longer, delta_x_offsets=delta, cache=cache, return_cache_states=True
            )
            for state, copy in zip(cache, stored, strict=True):
                assert all(torch.equal(a, b) for a, b in zip(state, copy, strict=True))
            cache = new_cache
            yield position, longer, output, cache
        lengths = lengths + 1


@pytest.mark.parametrize("layout", ["dense", "jagged"])
@pytest.mark.parametrize("attention", ATTENTIONS, ids="-".join)
@pytest.mark.parametrize("preprocessor", PREPROCESSORS)
def test_new_rows_equal_the_full_forward(preprocessor, attention, layout):
    normalization, bias = attention
    softmax = normalization == "softmax_rel_bias"
    config = small_config(
        preprocessor,
        normalization=normalization,
        relative_attention_bias=bias,
        # A softmax's denominators see later positions, so that older states are stale behind the first block.
        num_blocks=1 if softmax else 3,
    )
    low_model, model = make_model(config, layout), make_model(config, layout).double()
    count = 0
    for position, batch, output, _ in incremental_rows(model, config, layout):
        if softmax and config.positions_per_item == 2 and bool((position % 2 == 0).all()):
            # The full forward's denominator has the rating already that this half of the step lacks.
            continue
        full = full_forward(model, batch)[0]
        expected = rows_at(full, position)
        low = rows_at(full_forward(low_model, batch)[0], position)
        assert max_difference(rows_at(output, position), expected) <= rounding_bound(config, low, expected)
        count += 1
    assert count == STEPS * (1 if softmax else config.positions_per_item)


@pytest.mark.parametrize("attention", ATTENTIONS[:2], ids="-".join)
@pytest.mark.parametrize("preprocessor", PREPROCESSORS)
def test_the_other_rows_come_from_the_cache(preprocessor, attention):
    """All rows reached so far, and the caches, equal the full forward's: the history has not changed."""
    normalization, bias = attention
    config = small_config(preprocessor, normalization=normalization, relative_attention_bias=bias)
    low_model, model = make_model(config), make_model(config).double()
    for position, batch, output, cache in incremental_rows(model, config, "dense"):
        reached = (torch.arange(output.size(1)) <= position.unsqueeze(1)).unsqueeze(2)
        full, full_cache = full_forward(model, batch, return_cache_states=True)
        low, low_cache = full_forward(low_model, batch, return_cache_states=True)
        names = ["output", *(f"{i}.{name}" for i in range(3) for name in ("v", "q", "k", "outputs"))]
        actual = [output, *(tensor for state in cache for tensor in state)]
        expected = [full, *(tensor for state in full_cache for tensor in state)]
        in_float32 = [low, *(tensor for state in low_cache for tensor in state)]
        for name, a, b, c in zip(names, actual, expected, in_float32, strict=True):
            a, b, c = a * reached, b * reached, c * reached
            assert max_difference(a, b) <= rounding_bound(config, c, b), name


@pytest.mark.parametrize("attention", ATTENTIONS, ids="-".join)
def test_dense_and_jagged_caches_agree(attention):
    """Also for several blocks of softmax attention, where neither equals the full forward."""
    normalization, bias = attention
    config = small_config("rated", normalization=normalization, relative_attention_bias=bias)
    dense, jagged = make_model(config).double(), make_model(config, "jagged").double()
    low_model = make_model(config)
    steps = zip(
        incremental_rows(dense, config, "dense"),
        incremental_rows(jagged, config, "jagged"),
        incremental_rows(low_model, config, "dense"),
        strict=True,
    )
    for (_, _, dense_output, _), (_, _, jagged_output, _), (_, _, low, _) in steps:
        assert max_difference(dense_output, jagged_output) <= rounding_bound(config, low, dense_output)


@pytest.mark.parametrize("attention", ATTENTIONS, ids="-".join)
def test_cache_states_are_the_same_tensors(attention):
    normalization, bias = attention
    config = small_config(normalization=normalization, relative_attention_bias=bias)
    dense, jagged = make_model(config).double(), make_model(config, "jagged").double()
    low_model = make_model(config)
    batch = make_full_batch(config, 3).with_lengths(torch.tensor([1, 9, 5]))
    offsets = complete_cumsum(batch.lengths)
    width = config.sequence_width
    inside = (torch.arange(width) < batch.lengths.unsqueeze(1)).unsqueeze(2)
    caches = [full_forward(m, batch, return_cache_states=True)[1] for m in (dense, jagged, low_model)]
    for dense_state, (v, q, k, outputs), low_state in zip(*caches, strict=True):
        padded_v, padded_outputs = (jagged_to_padded_dense(t, offsets, width) for t in (v, outputs))
        jagged_state = (padded_v, q, k, padded_outputs)
        for ours, theirs, low in zip(dense_state, jagged_state, low_state, strict=True):
            # The dense outputs' padded rows hold the output projection's bias; v, q and k are zero there.
            ours, low = ours * inside, low * inside
            assert max_difference(ours, theirs) <= rounding_bound(config, low, ours)


def test_a_stale_cache_shows():
    """The comparison with the full forward fails when the history did change."""
    config = small_config()
    model = make_model(config).double()
    everything = make_full_batch(config, 2)
    lengths = torch.tensor([3, 5])
    cache = full_forward(model, everything.with_lengths(lengths), return_cache_states=True)[1]
    changed = make_full_batch(config, 2, seed=9).with_lengths(lengths + 1)
    output = full_forward(model, changed, delta_x_offsets=lengths, cache=cache)[0]
    full = full_forward(model, changed)[0]
    assert (rows_at(output, lengths) - rows_at(full, lengths)).abs().max() > 1e-3
