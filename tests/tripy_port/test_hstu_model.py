"""The ported model as a whole: shapes, dtypes, dynamic shapes, caches, saved executables, errors."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import nvtripy as tp
import pytest

from configs import HSTUConfig
from tests.tripy_port.port_setup import (
    DTYPES,
    FLOAT32_ROUNDOFF,
    VARIANTS,
    Batch,
    call,
    compile_for,
    make_batch,
    make_full_batch,
    make_model,
    map_tree,
    max_difference,
    rounding_bound,
    runtime_input,
    small_config,
    tensor,
    weights,
)
from tripy_port.build import build_hstu
from tripy_port.hstu_dense import HSTUDenseModel

# Rows of different lengths, each growing by one event a step, the longest up to the maximum.
START_LENGTHS = (1, 4, 7, 2)
STEPS = 2


@functools.cache
def static_score(config: HSTUConfig, dtype: tp.dtype = tp.float32) -> tp.Executable:
    return compile_for(make_model(config, dtype).score, make_batch(config).arguments)


@functools.cache
def dynamic_score(config: HSTUConfig) -> tp.Executable:
    """For 1 to 4 rows, and widths from 2 to the full one."""
    largest = make_batch(config)
    smallest = largest.trimmed(batch_size=1, width=2)
    return compile_for(make_model(config).score, largest.arguments, smallest.arguments)


@functools.cache
def bound(config: HSTUConfig) -> float:
    """Largest difference of two float32 encoders: `rounding_bound` on the standard batch."""
    arguments = make_batch(config).arguments
    half = call(static_score(config, tp.float16), arguments)[0]
    return rounding_bound(config, half, call(static_score(config), arguments)[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_score_has_the_declared_shapes_in_the_model_s_dtype(variant, dtype):
    config = small_config(variant)
    batch = make_batch(config)
    executable = static_score(config, dtype)
    outputs = executable(*(map_tree(runtime_input, argument) for argument in batch.arguments))
    assert [output.dtype for output in outputs] == [dtype] * 3
    encoded, current, similarity = call(executable, batch.arguments)
    b, d = len(batch.lengths), config.item_embedding_dim
    assert encoded.shape == (b, config.sequence_width, d)
    assert current.shape == (b, d)
    assert similarity.shape == (b, batch.candidates.shape[1])
    assert np.isfinite(similarity).all()
    positions = np.arange(config.sequence_width)[None, :]
    assert not encoded[positions >= config.positions_per_item * batch.lengths[:, None]].any()


@pytest.mark.parametrize("variant", VARIANTS)
def test_both_ends_of_a_dynamic_profile_equal_static_shapes(variant):
    config = small_config(variant)
    largest = make_batch(config)
    smallest = largest.trimmed(batch_size=1, width=2)
    static_smallest = compile_for(make_model(config).score, smallest.arguments)
    for batch, static in ((largest, static_score(config)), (smallest, static_smallest)):
        dynamic_outputs = call(dynamic_score(config), batch.arguments)
        for actual, wanted in zip(dynamic_outputs, call(static, batch.arguments), strict=True):
            assert max_difference(actual, wanted) <= bound(config)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_trimmed_batch_keeps_its_rows(variant):
    config = small_config(variant)
    batch = make_batch(config, lengths=(1, 5, 4, 2))
    trimmed = batch.trimmed(batch_size=3, width=6)
    full = call(dynamic_score(config), batch.arguments)[0]
    small = call(dynamic_score(config), trimmed.arguments)[0]
    assert max_difference(small, full[:3, : small.shape[1]]) <= bound(config)


@pytest.mark.parametrize("variant", VARIANTS)
def test_padding_does_not_reach_the_outputs(variant):
    config = small_config(variant)
    batch = make_batch(config)
    garbage = make_full_batch(config, seed=7)
    beyond_query = np.arange(config.padded_length) > batch.lengths[:, None]
    poisoned = Batch(
        lengths=batch.lengths,
        ids=np.where(beyond_query, garbage.ids, batch.ids),
        ratings=np.where(beyond_query, garbage.ratings, batch.ratings),
        timestamps=np.where(beyond_query, -garbage.timestamps, batch.timestamps),
        candidates=batch.candidates,
        config=config,
    )
    executable = static_score(config)
    for clean, dirty in zip(
        call(executable, batch.arguments), call(executable, poisoned.arguments), strict=True
    ):
        assert np.array_equal(clean, dirty)


def test_encode_with_dynamic_shapes_returns_the_last_rows():
    config = small_config()
    model = make_model(config)
    largest = make_batch(config)
    smallest = largest.trimmed(batch_size=1, width=2)

    def with_embeddings(batch: Batch) -> list:
        table = weights(build_hstu(config))["_embedding_module._item_emb.weight"]
        return [batch.lengths, batch.ids, table[batch.ids], batch.payloads]

    executable = compile_for(model.encode, with_embeddings(largest), with_embeddings(smallest))
    encoded, current, _ = call(static_score(config), largest.arguments)
    assert max_difference(call(executable, with_embeddings(largest))[0], current) <= bound(config)
    assert np.array_equal(current, encoded[np.arange(len(largest.lengths)), largest.lengths - 1])


def flat(outputs: tuple) -> tuple[tp.Tensor, ...]:
    """(encoded, states of the blocks) as the plain sequence of tensors that a compiled function returns."""
    encoded, states = outputs
    return (encoded, *itertools.chain.from_iterable(states))


def incremental_rows(model: HSTUDenseModel, config: HSTUConfig):
    """For every added position: its index in each row, the batch, the output; all from one executable."""

    def prefill(lengths, ids, payloads):
        embeddings = model.get_item_embeddings(ids)
        return flat(
            model.generate_user_embeddings(lengths, ids, embeddings, payloads, return_cache_states=True)
        )

    def step(lengths, ids, payloads, delta, cache):
        embeddings = model.get_item_embeddings(ids)
        return flat(model.generate_user_embeddings(lengths, ids, embeddings, payloads, delta, cache, True))

    everything = make_full_batch(config, len(START_LENGTHS), seed=3)
    lengths = np.array(START_LENGTHS)
    start = everything.with_lengths(lengths).arguments[:3]
    cache = blocks(call(compile_for(prefill, start), start)[1:])
    smallest = [*everything.trimmed(1, 2).arguments[:3], lengths[:1], trimmed_cache(cache, config)]
    executable = compile_for(step, [*start, lengths, cache], smallest)
    for _ in range(STEPS):
        longer = everything.with_lengths(lengths + 1)
        for part in range(config.positions_per_item):
            position = lengths * config.positions_per_item + part
            output, *states = call(executable, [*longer.arguments[:3], position, cache])
            cache = blocks(states)
            yield position, longer, output
        lengths = lengths + 1


def blocks(states) -> list[list[np.ndarray]]:
    """Four tensors for each block."""
    states = [state.astype(np.float32) for state in states]
    return [states[i : i + 4] for i in range(0, len(states), 4)]


def trimmed_cache(cache, config: HSTUConfig):
    full_width = config.normalization == "softmax_rel_bias"
    width = config.sequence_width if full_width else 2 * config.positions_per_item
    return map_tree(lambda state: state[:1, :width], cache)


@pytest.mark.parametrize(
    ("variant", "changes"),
    [
        ("positional", {}),
        ("rated", {}),
        ("combined", {"normalization": "rel_bias"}),
        # The softmax's denominators see later positions: it takes a single block for new rows to be equal.
        ("combined", {}),
    ],
)
def test_incremental_rows_equal_the_full_forward(variant, changes):
    config = small_config(variant, **changes)
    model = make_model(config)
    rows = np.arange(len(START_LENGTHS))
    count = 0
    for position, batch, output in incremental_rows(model, config):
        if (position + 1 == batch.lengths * config.positions_per_item).all():
            full = call(static_score(config), batch.arguments)[0]
            assert max_difference(output[rows, position], full[rows, position]) <= bound(config)
            count += 1
    assert count == STEPS


def test_a_saved_executable_gives_the_same_bits(tmp_path):
    config = small_config()
    arguments = make_batch(config).arguments
    executable = static_score(config)
    executable.save(str(tmp_path / "hstu.json"))
    loaded = tp.Executable.load(str(tmp_path / "hstu.json"))
    for saved, original in zip(call(loaded, arguments), call(executable, arguments), strict=True):
        assert np.array_equal(saved, original)


def test_one_item_set_for_all_rows():
    config = small_config()
    batch = make_batch(config)
    shared = np.repeat(batch.candidates[:1], len(batch.lengths), axis=0)
    expected = call(dynamic_score(config), (*batch.arguments[:3], shared))[2]
    actual = call(dynamic_score(config), (*batch.arguments[:3], batch.candidates[:1]))[2]
    # Two orders of a sum of d products, each up to the item's largest element: the current row has norm 1.
    d = config.item_embedding_dim
    table = np.abs(weights(build_hstu(config))["_embedding_module._item_emb.weight"])
    assert max_difference(actual, expected) <= 2 * d * FLOAT32_ROUNDOFF * d * table.max()


def test_a_model_without_weights_says_which_are_missing():
    config = small_config()
    lengths, ids, _, _ = make_batch(config).arguments
    with pytest.raises(tp.TripyException, match=r"(?s)never set.*_attention_layers\.1\._uvqk"):
        build_hstu(config)(tensor(lengths), tensor(ids), None, None)


@pytest.mark.parametrize("fault", ["missing", "extra", "shape", "dtype"])
def test_a_state_dict_must_fit(fault):
    model = build_hstu(small_config())
    values = {name: tensor(value) for name, value in weights(model).items()}
    name = "_hstu._attention_layers.0._o.bias"
    if fault == "missing":
        del values[name]
    elif fault == "extra":
        values["_extra"] = values[name]
    elif fault == "shape":
        values[name] = tensor(np.zeros(13, dtype=np.float32))
    else:
        values[name] = tp.cast(values[name], tp.float16)
    with pytest.raises(tp.TripyException, match="_extra" if fault == "extra" else "_o.bias"):
        model.load_state_dict(values)


def test_an_unknown_dtype_is_refused():
    with pytest.raises(ValueError, match="dtype=int32: choose one of float32, float16, bfloat16"):
        build_hstu(small_config(), tp.int32)
