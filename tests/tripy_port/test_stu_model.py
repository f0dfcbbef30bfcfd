"""The ported STU in dynamic shapes, its cache as a server keeps it, and its refusals. No PyTorch here."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import nvtripy as tp
import pytest

from configs import STUConfig
from tests.tripy_port.port_setup import array, call, compile_for, max_difference, tensor
from tripy_port.build import build_stu, build_stu_fused
from tripy_port.hstu_transducer import HSTUTransducer, TargetSplit
from tripy_port.numerics import both
from tripy_port.positional_encoder import HSTUPositionalEncoder
from tripy_port.postprocessors import TimestampLayerNormPostprocessor
from tripy_port.stu import STULayer
from tripy_port.stu_attention import STUAttention, STUAttentionMask
from tripy_port.stu_fused import STUAttentionFused

HISTORY, TARGETS = 9, 3
CONFIG = STUConfig(
    num_items=40,
    contextual_seq_len=2,
    max_uih_len=HISTORY,
    max_num_targets=TARGETS,
    embedding_dim=12,
    num_layers=2,
    num_heads=2,
    attention_dim=5,
    hidden_dim=7,
    max_attn_len=4,
    num_position_buckets=8,
    num_time_buckets=30,
)
#: Two evaluations of the same float32 function in graphs of other shapes: a few units in the last place.
ROUND_OFF = 100 * 2.0**-24


@functools.cache
def model(dtype: tp.dtype = tp.float32) -> HSTUTransducer:
    built = build_stu(CONFIG, dtype)
    rng = np.random.default_rng(0)
    values = {
        name: (rng.standard_normal(tuple(parameter.shape)) * 0.5).astype(np.float32)
        for name, parameter in sorted(built.state_dict().items())
    }
    built.load_state_dict({name: tensor(value, dtype) for name, value in values.items()})
    return built


def request() -> tuple[np.ndarray, ...]:
    """Four users; the longest history with the most targets, an empty one, and one without targets."""
    rng = np.random.default_rng(1)
    targets = np.array([TARGETS, 1, 0, 2])
    lengths = CONFIG.contextual_seq_len + np.array([HISTORY, 0, 5, 3]) + targets
    shape = (4, CONFIG.padded_length)
    seconds = 1_400_000_000 + 61 * np.sort(rng.integers(0, 1000, shape), axis=1)
    return lengths, rng.integers(1, CONFIG.num_items + 1, shape), seconds, targets


def test_both_is_and():
    a, b = np.array(list(itertools.product([False, True], repeat=2))).T
    assert array(both(tensor(a), tensor(b))).tolist() == (a & b).tolist()


def test_users_are_ranked_the_same_in_any_batch():
    arguments = request()
    smallest = tuple(entry[:1] for entry in arguments)
    executable = compile_for(model().forward, arguments, smallest)
    (together,) = call(executable, arguments)
    assert together.shape == (4, TARGETS, CONFIG.embedding_dim)
    for user in range(4):
        (alone,) = call(executable, tuple(entry[user : user + 1] for entry in arguments))
        assert max_difference(alone[0], together[user]) < ROUND_OFF * np.abs(together).max()
    behind = np.arange(TARGETS) >= arguments[3][:, None]
    assert not together[behind].any()
    assert together[~behind].any()


def test_targets_behind_a_cache_have_the_states_of_the_full_forward():
    arguments = request()
    (full,) = call(compile_for(model().forward, arguments), arguments)

    def prefill(*request):
        return [entry for state in model().prefill(*request) for entry in state]

    def extend(k_0, v_0, k_1, v_1, *request):
        return model().extend([(k_0, v_0), (k_1, v_1)], *request)

    prefilled = compile_for(prefill, arguments)(*map(runtime, arguments))
    cache = [array(entry).astype(np.float32) for entry in prefilled]
    assert len(cache) == 2 * CONFIG.num_layers
    (actual,) = call(compile_for(extend, (*cache, *arguments)), (*cache, *arguments))
    assert max_difference(actual, full) < ROUND_OFF * np.abs(full).max()


def runtime(value):
    return tp.copy(tp.Tensor(np.ascontiguousarray(value)), tp.device("gpu"))


@pytest.mark.parametrize("dtype", [tp.float16, tp.bfloat16], ids=str)
def test_a_half_model_answers_in_its_type_near_the_float32_one(dtype):
    arguments = request()
    (wide,) = call(compile_for(model().forward, arguments), arguments)
    executable = compile_for(model(dtype).forward, arguments)
    half = executable(*map(runtime, arguments))
    assert half.dtype == dtype
    unit = 2.0**-11 if dtype == tp.float16 else 2.0**-8
    assert max_difference(array(half), wide) < 100 * unit * np.abs(wide).max()


def test_a_call_before_the_weights_are_there_names_one():
    empty = build_stu(CONFIG)
    with pytest.raises(tp.TripyException, match="weight"):
        compile_for(empty.forward, request())


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: STUAttentionMask(-1, 0), "contextual_seq_len"),
        (lambda: STUAttention(2, 5, 7, attn_alpha=0.0), "attn_alpha"),
        (lambda: STULayer(12, 2, 7, 5, output_dropout_ratio=1.0), "output_dropout_ratio"),
        (lambda: HSTUPositionalEncoder(4, 10, 12, contextual_seq_len=4), "contextual_seq_len"),
        (lambda: TimestampLayerNormPostprocessor(12, ()), "time_duration_features"),
        (lambda: TargetSplit(0), "max_num_targets"),
        (lambda: build_stu(CONFIG, tp.int8), "dtype"),
        (lambda: build_stu_fused(CONFIG, dtype=tp.int8), "dtype"),
        (lambda: STUAttentionFused(2, 5, 257), "hidden_dim=257: fused attention takes heads of at most 256"),
    ],
)
def test_what_cannot_be_built_is_refused_by_its_name(make, field):
    with pytest.raises(ValueError, match=field):
        make()


def test_fused_attention_has_no_cache():
    fused = build_stu_fused(CONFIG)
    for method in (fused.prefill, fused.extend):
        with pytest.raises(NotImplementedError, match="no k/v cache; use the dense model"):
            method(*request())
