"""The model around the STU stack: positions and times, target split, postprocessors, the whole."""

from __future__ import annotations

import datetime
import math

import pytest
import torch

from reference.hstu_transducer import HSTUTransducer, TargetSplit
from reference.positional_encoder import HSTUPositionalEncoder, position_index, time_index
from reference.postprocessors import (
    L2NormPostprocessor,
    LayerNormPostprocessor,
    TimestampLayerNormPostprocessor,
)
from tests.reference.rounding import max_difference, unit_roundoff
from tests.reference.stu_setup import (
    POSTPROCESSORS,
    VARIANTS,
    assert_same_function,
    make_batch,
    make_model,
    small_config,
)

U = unit_roundoff(torch.float64)


def test_positions_count_back_from_the_end_of_the_history():
    like = torch.zeros(3, 9, 1)
    lengths, targets = torch.tensor([9, 5, 3]), torch.tensor([2, 0, 1])
    actual = position_index(lengths, targets, like, contextual_seq_len=2, num_position_buckets=6)
    assert actual.tolist() == [
        [0, 1, 5, 5, 5, 4, 3, 2, 2],  # two contextual rows, five of history, two targets
        [0, 1, 5, 4, 3, 2, 2, 2, 2],  # the rest is padding
        [0, 1, 2, 2, 2, 2, 2, 2, 2],  # no history
    ]


def test_times_are_roots_of_minutes():
    seconds = torch.tensor([-5, 0, 59, 60, 239, 240, 60 * 99**2 - 1, 60 * 99**2, 60 * 101**2, 2**40])
    assert time_index(seconds, 100).tolist() == [0, 0, 0, 1, 1, 2, 98, 99, 100, 100]
    elapsed = torch.arange(0, 600_000, 7)
    exact = torch.tensor([math.isqrt(entry // 60) for entry in elapsed.tolist()])
    assert torch.equal(time_index(elapsed, 2048), exact)


def test_the_encoder_adds_what_the_tables_have():
    encoder = HSTUPositionalEncoder(6, 10, 4, contextual_seq_len=1).to(torch.float64)
    lengths, targets = torch.tensor([5]), torch.tensor([1])
    seconds = torch.tensor([[0, 1_000_000, 1_000_060, 1_000_200, 1_000_300, 77]])
    x = torch.randn(1, 6, 4, dtype=torch.float64)
    with torch.no_grad():
        actual = encoder(lengths, seconds, x, targets)
        times, positions = encoder._timestamp_embeddings_weight, encoder._position_embeddings_weight
        for row, (time, position) in enumerate([(10, 0), (2, 4), (2, 3), (1, 2), (0, 1)]):
            expected = 2.0 * x[0, row] + times[time] + positions[position]
            # Two additions on either side, in whatever order; the product is exact.
            terms = 2.0 * x[0, row].abs() + times[time].abs() + positions[position].abs()
            assert ((actual[0, row] - expected).abs() <= 4 * U * terms).all()


def test_targets_are_split_off_left_aligned():
    values = torch.arange(12.0).reshape(2, 6, 1)
    actual = TargetSplit(3)(values, torch.tensor([6, 3]), torch.tensor([3, 0]))
    assert actual.squeeze(2).tolist() == [[3, 4, 5], [8, 8, 8]]


def test_time_features_are_those_of_the_calendar():
    """Hour of the day and, from a Thursday on, day of the week, on hours that float32 has."""
    seconds = 3600 * 64 * torch.tensor([[6_000, 6_001, 6_003, 6_010]])
    assert torch.equal(seconds.float().long(), seconds)
    postprocessor = TimestampLayerNormPostprocessor(3).to(torch.float64)
    with torch.no_grad():
        # Hands the features on: the first three of four.
        postprocessor._time_feature_combiner.weight.copy_(torch.eye(3, 7, dtype=torch.float64).roll(3, 1))
        joined = []
        postprocessor._layer_norm.register_forward_pre_hook(lambda module, args: joined.append(args[0]))
        postprocessor(torch.zeros(1, 4, 3, dtype=torch.float64), seconds)
    for row, second in enumerate(seconds[0].tolist()):
        moment = datetime.datetime.fromtimestamp(second, datetime.timezone.utc)
        hour = moment.hour / 24 * 2 * 3.14
        day = (moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)).days % 7 / 7 * 2 * 3.14
        expected = torch.tensor([math.cos(hour), math.sin(hour), math.cos(day)], dtype=torch.float64)
        # On either side four operations on a number of at most 6.28, and a cosine, whose slope is at most 1.
        assert max_difference(joined[0][0, row], expected) <= 2 * (4 * 6.28 + 1) * U


def test_postprocessors_normalise():
    x, seconds = torch.randn(2, 3, 5, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.int64)
    x[0, 0] = 0.0
    unit = L2NormPostprocessor()(x, seconds)
    assert torch.isfinite(unit).all()
    torch.testing.assert_close(unit[1].norm(dim=-1), torch.ones(3, dtype=torch.float64))
    with torch.no_grad():
        normed = LayerNormPostprocessor(5).to(torch.float64)(x, seconds)
    # What is normed sums to 0 but for the mean's own error, of a sum of 5 and its division, and the roundings
    # of the difference, the factor and the mean of the result, in units of the deviation.
    deviations = x[1].abs().amax(-1) / x[1].std(-1, unbiased=False)
    assert bool((normed[1].mean(-1).abs() <= (5 + 1 + 3 + 5) * U * (1 + deviations)).all())


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("layout", ["dense", "jagged"])
def test_prefill_and_extend_are_the_forward(variant, layout):
    config = small_config(variant)
    batch, model = make_batch(config), make_model(config, layout)
    with torch.no_grad():
        full = model(*batch.arguments)
        actual = model.extend(model.prefill(*batch.arguments), *batch.arguments)
        low = model.float()(*batch.arguments)
    assert_same_function(config, actual, full, low)
    behind = torch.arange(config.max_num_targets) >= batch.num_targets.unsqueeze(1)
    assert not full[behind].any()
    assert full[~behind].any()


def test_one_cache_ranks_any_targets():
    config = small_config("contextual")
    batch, model = make_batch(config), make_model(config)
    first = batch.seq_lengths - batch.num_targets
    is_target = torch.arange(batch.seq_ids.size(1)) >= first.unsqueeze(1)
    others = torch.where(is_target, batch.seq_ids % config.num_items + 1, batch.seq_ids)
    lengths, _, timestamps, targets = batch.arguments
    with torch.no_grad():
        cache = model.prefill(*batch.arguments)
        actual = model.extend(cache, lengths, others, timestamps, targets)
        expected = model(lengths, others, timestamps, targets)
        low = model.float()(lengths, others, timestamps, targets)
    assert_same_function(config, actual, expected, low)


@pytest.mark.parametrize("postprocessor", POSTPROCESSORS)
def test_padding_may_hold_anything(postprocessor):
    config = small_config("all", output_postprocessor=postprocessor)
    batch, model = make_batch(config), make_model(config)
    lengths, ids, timestamps, targets = batch.arguments
    with torch.no_grad():
        actual = model(lengths, ids, timestamps, targets)
        other = model(
            lengths,
            torch.where(batch.valid, ids, ids % config.num_items + 1),
            torch.where(batch.valid, timestamps, -timestamps),
            targets,
        )
    assert torch.equal(actual, other)


def test_keys_are_the_public_ones():
    model = make_model(small_config(num_layers=2))
    layer = ("uvqk_weight", "uvqk_beta", "input_norm_weight", "input_norm_bias")
    layer += ("output_weight", "output_norm_weight", "output_norm_bias")
    stack = {f"_stu_layers.{at}._{name}" for at in range(2) for name in layer}
    assert set(model._stu_module.state_dict()) == stack
    assert set(model.state_dict()) == {
        *(f"_stu_module.{name}" for name in stack),
        "_embedding_module._item_emb.weight",
        "_positional_encoder._position_embeddings_weight",
        "_positional_encoder._timestamp_embeddings_weight",
        *(f"_output_postprocessor._layer_norm.{role}" for role in ("weight", "bias")),
        *(f"_output_postprocessor._time_feature_combiner.{role}" for role in ("weight", "bias")),
    }


@pytest.mark.parametrize("variant", ["contextual", "all"])
def test_the_dense_model_exports_with_a_dynamic_batch(variant):
    config = small_config(variant)
    batch, model = make_batch(config), make_model(config).eval()
    users = torch.export.Dim("users", min=2, max=64)
    shapes = {name: {0: users} for name in ("seq_lengths", "seq_ids", "seq_timestamps", "num_targets")}
    exported = torch.export.export(model, batch.arguments, dynamic_shapes=shapes, strict=False).module()
    smaller = tuple(argument[1:4] for argument in batch.arguments)
    with torch.no_grad():
        for arguments in (batch.arguments, smaller):
            assert torch.equal(exported(*arguments), model(*arguments))


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: HSTUPositionalEncoder(4, 10, 12, contextual_seq_len=4), "contextual_seq_len"),
        (lambda: HSTUPositionalEncoder(0, 10, 12, contextual_seq_len=0), "num_position_buckets"),
        (lambda: LayerNormPostprocessor(12, eps=0.0), "eps"),
        (lambda: TimestampLayerNormPostprocessor(12, ()), "time_duration_features"),
        (lambda: TimestampLayerNormPostprocessor(12, ((0, 24),)), "seconds_per_unit"),
        (lambda: TargetSplit(0), "max_num_targets"),
        (lambda: make_model(small_config(), "ragged"), "layout"),
    ],
)
def test_what_cannot_be_built_is_refused_by_its_name(make, field):
    with pytest.raises(ValueError, match=field):
        make()


def test_a_model_is_one_class_in_both_layouts():
    assert {type(make_model(small_config(), layout)) for layout in ("dense", "jagged")} == {HSTUTransducer}
