"""Research HSTU over a stream, against the dense model over the whole of it, in float64."""

from __future__ import annotations

import pytest
import torch

from reference.build import build_hstu_stream
from tests.reference.hstu_setup import (
    ATTENTIONS,
    PREPROCESSORS,
    make_full_batch,
    make_model,
    rounding_bound,
    small_config,
)
from tests.reference.rounding import max_difference

ROWS = 4
# Items of a step, and the number that each row keeps; some are more than the cache holds.
STEPS = (
    (7, (7, 1, 3, 0)),
    (1, (1, 1, 0, 1)),
    (3, (2, 3, 3, 1)),
    (1, (0, 1, 1, 1)),
    (9, (9, 5, 8, 4)),
    (1, (1, 1, 1, 1)),
    (2, (0, 2, 1, 1)),
)
POINTWISE = [attention for attention in ATTENTIONS if attention[0] != "softmax_rel_bias"]


def with_window(model, capacity):
    """The dense model in which a position sees the latest ``capacity`` up to itself."""
    n = model.sequence_width
    model._attn_mask = ~(torch.ones(n, n, dtype=torch.bool).tril().triu(1 - capacity))
    return model


def full_rows(model, batch, capacity):
    with torch.no_grad():
        embeddings = model.get_item_embeddings(batch.ids)
        encoded, _ = with_window(model, capacity).generate_user_embeddings(
            batch.lengths, batch.ids, embeddings, batch.payloads
        )
    return encoded


def stream_rows(model, batch, capacity, steps):
    """For every step: the states that it gives, and the index of their positions."""
    per_item = batch.positions_per_item
    begun = torch.zeros(ROWS, dtype=torch.long)
    state = model.empty_state(ROWS, capacity)
    times = batch.timestamps.repeat_interleave(per_item, dim=1)
    for new, entry in steps:
        items = begun.unsqueeze(1) + torch.arange(new)
        positions = (begun * per_item).unsqueeze(1) + torch.arange(new * per_item + 1)
        ids = batch.ids.gather(1, items)
        payloads = {"timestamps": times.gather(1, positions), "ratings": batch.ratings.gather(1, items)}
        before = [tensor.clone() for tensor in state]
        with torch.no_grad():
            encoded, new_state = model.extend(
                state, torch.tensor(entry), ids, model.get_item_embeddings(ids), payloads
            )
        assert all(torch.equal(a, b) for a, b in zip(state, before, strict=True)), "the state was written to"
        state, begun = new_state, begun + torch.tensor(entry)
        yield encoded, positions[:, :-1]
    assert torch.equal(state[0], begun * per_item)


def stream_model(config):
    model = build_hstu_stream(config)
    model.load_state_dict(make_model(config).state_dict())
    return model


@pytest.mark.parametrize("capacity", [1, 6, 48])
@pytest.mark.parametrize("attention", POINTWISE, ids="-".join)
@pytest.mark.parametrize("preprocessor", PREPROCESSORS)
def test_every_step_equals_the_full_forward_with_a_window(preprocessor, attention, capacity):
    normalization, bias = attention
    config = small_config(
        preprocessor, max_sequence_len=45, normalization=normalization, relative_attention_bias=bias
    )
    batch = make_full_batch(config, ROWS).with_lengths(torch.full((ROWS,), 45))
    full = full_rows(make_model(config).double(), batch, capacity)
    low = full_rows(make_model(config), batch, capacity)
    bound = rounding_bound(config, low, full)
    count = 0
    for encoded, positions in stream_rows(stream_model(config).double(), batch, capacity, STEPS):
        index = positions.unsqueeze(2).expand(-1, -1, full.size(2))
        assert max_difference(encoded, full.gather(1, index)) <= bound
        count += 1
    assert count == len(STEPS)


def test_how_items_arrive_does_not_matter():
    """One at a time, or many at once and some of them twice: the same states."""
    config = small_config(max_sequence_len=45)
    batch = make_full_batch(config, ROWS).with_lengths(torch.full((ROWS,), 45))
    model, capacity = stream_model(config).double(), 5
    low = full_rows(make_model(config), batch, capacity)
    bound = rounding_bound(config, low, full_rows(make_model(config).double(), batch, capacity))
    singly = torch.cat(
        [rows for rows, _ in stream_rows(model, batch, capacity, [(1, (1,) * ROWS)] * 20)], dim=1
    )
    again = [(5, (3,) * ROWS)] * 6
    for rows, positions in stream_rows(model, batch, capacity, again):
        stored = positions[:, :3]
        if int(stored.max()) < 20:
            expected = singly.gather(1, stored.unsqueeze(2).expand(-1, -1, rows.size(2)))
            assert max_difference(rows[:, :3], expected) <= bound


@pytest.mark.parametrize("bias", ["bucketed_time_and_position", "positional"])
def test_a_stream_goes_on_beyond_the_width(bias):
    """The same as a wider model that has the last learned position again, and the narrow one's divisor."""
    narrow = small_config(relative_attention_bias=bias)
    wide = small_config(max_sequence_len=27, relative_attention_bias=bias)
    extra, capacity = wide.sequence_width - narrow.sequence_width, 8
    weights = make_model(narrow).state_dict()
    full_model, low_model = make_model(wide), make_model(wide)
    wider = {}
    for name, tensor in weights.items():
        if name.endswith("_pos_emb.weight"):
            tensor = torch.cat([tensor, tensor[-1:].expand(extra, -1)])
        elif name.endswith(("_pos_w", "._w")):
            tensor = torch.nn.functional.pad(tensor, (extra, extra))
        wider[name] = full_model.state_dict()[name] if name == "_attn_mask" else tensor
    for model in (full_model, low_model):
        model.load_state_dict(wider)
        for layer in model._hstu._attention_layers:
            layer._attn._divisor = narrow.sequence_width
    batch = make_full_batch(wide, ROWS).with_lengths(torch.full((ROWS,), 27))
    full = full_rows(full_model.double(), batch, capacity)
    bound = rounding_bound(wide, full_rows(low_model, batch, capacity), full)
    seen = 0
    for encoded, positions in stream_rows(stream_model(narrow).double(), batch, capacity, STEPS):
        index = positions.unsqueeze(2).expand(-1, -1, full.size(2))
        assert max_difference(encoded, full.gather(1, index)) <= bound
        seen = max(seen, int(positions.max()))
    assert seen > narrow.sequence_width


def test_the_window_shows():
    """One position more or less in the window is no rounding error."""
    config = small_config(max_sequence_len=45)
    batch = make_full_batch(config, ROWS).with_lengths(torch.full((ROWS,), 45))
    other = full_rows(make_model(config).double(), batch, 7)
    worst = 0.0
    for encoded, positions in stream_rows(stream_model(config).double(), batch, 6, STEPS):
        index = positions.unsqueeze(2).expand(-1, -1, other.size(2))
        worst = max(worst, max_difference(encoded, other.gather(1, index)))
    assert worst > 1e-3


@pytest.mark.parametrize(
    ("changes", "capacity", "message"),
    [
        ({}, 0, "capacity"),
        ({}, 13, "capacity=13: must be at most the width of the model, 12"),
        ({"normalization": "softmax_rel_bias"}, 5, "normalization"),
    ],
)
def test_what_no_stream_can_have_is_refused(changes, capacity, message):
    with pytest.raises(ValueError, match=message):
        build_hstu_stream(small_config(**changes)).empty_state(2, capacity)
