"""The port of research HSTU over streams, judged at every step, without and with faults of a cache."""

from __future__ import annotations

from unittest import mock

import nvtripy as tp
import pytest
import torch
from click.testing import CliRunner

import run_parity
import tripy_port.hstu_stream
import tripy_port.input_features_preprocessors
import tripy_port.relative_attention_bias
from cases.hstu.streaming import HSTUStreams
from cases.hstu.weight_scales import weight_scale
from configs import HSTUConfig, load_case
from parity.base.precision import PRECISIONS
from parity.inputs.weights import initial_weights
from parity.studies.streaming.judging import follow
from parity.studies.streaming.sides import PortSide, ReferenceSide
from parity.studies.streaming.truth import Truth
from reference.build import build_hstu
from tripy_port.numerics import both

# One process makes the fixtures of this module.
pytestmark = pytest.mark.xdist_group("streaming")

CAPACITY = 24
# Rows begin at different lengths, one with more than the cache holds.
FIRST = (1, 33, 7, 20)
STEPS = 200
# Streams grow beyond the model's width, of 150 positions; every width differs from every other.
CONFIG = HSTUConfig(
    num_items=40,
    max_sequence_len=147,
    max_output_len=3,
    item_embedding_dim=12,
    num_blocks=2,
    num_heads=2,
    attention_dim=6,
    linear_dim=7,
)
WEIGHTS = initial_weights(build_hstu(CONFIG), 0, weight_scale)
STREAMS = HSTUStreams(CONFIG)


def truth_of(precision, steps):
    # One item at a time, or several. A row keeps all, some or none of them.
    stream = STREAMS.draw(FIRST, steps, new=(1, 3, 1, 2), seed=0)
    return Truth(STREAMS, WEIGHTS, PRECISIONS[precision], stream, CAPACITY)


HALF = [pytest.param(name, marks=pytest.mark.full) for name in ("fp16", "bf16")]


@pytest.fixture(scope="module", params=["fp32", *HALF])
def truth(request):
    return truth_of(request.param, STEPS)


def port_side(precision="fp32"):
    return PortSide(STREAMS, WEIGHTS, PRECISIONS[precision], len(FIRST), CAPACITY)


def assert_every_step_passes(truth, side):
    steps = list(follow(truth, side))
    failed = steps[-1]
    assert not failed.failed, f"step {failed.step}, {failed.failed}: {failed.explanation}"
    assert len(steps) == STEPS + 1
    for step in steps:
        assert list(step.verdicts) == [
            *("lengths", "timestamps", "blocks.0.k", "blocks.0.v", "blocks.1.k", "blocks.1.v", "encoded")
        ]
    seen = truth.stream.steps
    assert sum(step.entering for step in seen).max() > CONFIG.sequence_width, "no stream outgrew the model"


def test_the_port_equals_the_full_forward_at_every_step(truth):
    assert_every_step_passes(truth, port_side(truth.precision.name))


def test_the_reference_equals_the_full_forward_at_every_step(truth):
    side = ReferenceSide(STREAMS, WEIGHTS, truth.precision.dtype, len(FIRST), CAPACITY)
    assert_every_step_passes(truth, side)


OTHER_INPUTS = {
    "ratings beside items": load_case("hstu_tiny_rated").model,
    # Two positions an item, and no time.
    "ratings between items": load_case("hstu_tiny_combined").model.model_copy(
        update={"normalization": "rel_bias", "num_heads": 2, "attention_dim": 6}
    ),
}


@pytest.mark.parametrize("config", OTHER_INPUTS.values(), ids=OTHER_INPUTS)
def test_other_inputs_stream_too(config):
    weights = initial_weights(build_hstu(config), 0, weight_scale)
    streams, precision, capacity = HSTUStreams(config), PRECISIONS["fp32"], 10
    stream = streams.draw((1, 7, 3), 12, new=(2, 1), seed=0)
    truth = Truth(streams, weights, precision, stream, capacity)
    *_, last = follow(truth, PortSide(streams, weights, precision, 3, capacity))
    assert (last.step, last.failed) == (12, "")


def test_the_state_stays_on_the_device():
    """The state that an executable returns is the input of the next one: Tripy's tensors, never copied."""
    truth, side = truth_of("fp32", 3), port_side()
    states_before = []
    append = PortSide._append

    def recorded(self, arguments):
        states_before.append(list(self._state))
        return append(self, arguments)

    with mock.patch.object(PortSide, "_append", recorded):
        states = [list(side._state) for _ in follow(truth, side)]
    assert len(states_before) == 4
    for before, after in zip(states_before[1:], states[:-1], strict=True):
        assert all(a is b for a, b in zip(before, after, strict=True))
        assert all(tensor.device.kind == "gpu" for tensor in before)


# Faults, each an exchange of one function of the port.

LATEST = tripy_port.hstu_stream._latest_rows
POSITIONS = tripy_port.input_features_preprocessors._positions
LAST_BIAS = tripy_port.relative_attention_bias._last_positional_bias


def slots_off_by_one(rows, new_lengths, capacity):
    return LATEST(rows, new_lengths + 1, capacity)


def oldest_not_evicted(rows, new_lengths, capacity):
    is_first = tp.reshape(tp.iota((capacity,), dtype=tp.int32) == 0, (1, capacity, 1))
    cached = rows[:, :capacity]
    return tp.where(both(is_first, cached != 0), cached, LATEST(rows, new_lengths, capacity))


def another_rows_cache(rows, new_lengths, capacity):
    latest = LATEST(rows, new_lengths, capacity)
    return tp.concatenate([latest[1:], latest[:1]], dim=0)


def learned_positions_off_by_one(count, first_positions, rows):
    return POSITIONS(count, None if first_positions is None else first_positions + 1, rows)


def relative_positions_off_by_one(weight, m, n, max_seq_len):
    return LAST_BIAS(tp.concatenate([weight[1:], weight[:1]], dim=0), m, n, max_seq_len)


def window_of(width_of):
    def window_mask(lengths, capacity, like):
        m = like.shape[1]
        row, column = (tp.iota((m, m + capacity), dim=dim, dtype=tp.int32) for dim in (0, 1))
        is_seen = both(column > row + (capacity - width_of(capacity)), column <= row + capacity)
        return tp.cast(tp.expand(tp.unsqueeze(is_seen, 0), (like.shape[0], -1, -1)), like.dtype)

    return window_mask


FAULTS = {
    "slots": ("hstu_stream._latest_rows", slots_off_by_one, "timestamps", "off by 1"),
    "eviction": ("hstu_stream._latest_rows", oldest_not_evicted, "timestamps", "stale entry, not evicted"),
    "rows": ("hstu_stream._latest_rows", another_rows_cache, "timestamps", "another row's positions"),
    "learned positions": (
        "input_features_preprocessors._positions",
        learned_positions_off_by_one,
        "blocks.0.k",
        "as if learned positions were one too high",
    ),
    "relative positions": (
        "relative_attention_bias._last_positional_bias",
        relative_positions_off_by_one,
        "blocks.1.k",
        "the attention of block 0: its own cache is right; as if relative positions were one too high",
    ),
    "window, wide": (
        "hstu_stream._window_mask",
        window_of(lambda capacity: capacity + 1),
        "blocks.1.k",
        "as if 25 positions were seen",
    ),
    "window, narrow": (
        "hstu_stream._window_mask",
        window_of(lambda capacity: capacity - 1),
        "blocks.1.k",
        "as if 23 positions were seen",
    ),
}


@pytest.fixture(scope="module")
def short_truth():
    return truth_of("fp32", 12)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(short_truth, fault):
    place, function, tensor, explanation = FAULTS[fault]
    with mock.patch(f"tripy_port.{place}", function):
        *_, last = follow(short_truth, port_side())
    assert last.failed == tensor
    assert explanation in last.explanation


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_fault_is_named_in_half_precision(precision):
    truth = truth_of(precision, 3)
    with mock.patch("tripy_port.hstu_stream._window_mask", window_of(lambda capacity: capacity + 1)):
        *_, last = follow(truth, port_side(precision))
    # The precision hides a part of the error, and decides the first tensor that shows it.
    assert last.failed in ("blocks.1.k", "blocks.1.v", "encoded")
    assert "as if 25 positions were seen" in last.explanation


@pytest.mark.parametrize("block", [0, 1])
def test_a_wrong_slot_of_one_block_is_named(short_truth, block):
    """A cache that is wrong in its keys alone, in a block of its own."""
    side = port_side()
    append = side.append

    def swapped(*arguments):
        results = append(*arguments)
        keys = results[f"blocks.{block}.k"]
        results[f"blocks.{block}.k"] = torch.cat([keys[:, :-2], keys[:, [-1, -2]]], dim=1)
        return results

    with mock.patch.object(side, "append", swapped):
        *_, last = follow(short_truth, side)
    assert last.failed == f"blocks.{block}.k"
    assert "off by 1" in last.explanation


@pytest.mark.parametrize(
    ("tensor", "origin"),
    [
        ("blocks.0.k", "the new positions' input, or block 0's projection"),
        ("encoded", "the attention of block 1"),
    ],
)
def test_an_error_without_a_wrong_element_is_not_explained_by_one(short_truth, tensor, origin):
    """All elements are too large by less than one of them may be: the scale alone is beyond its limit."""
    side = port_side()
    append = side.append

    def scaled(*arguments):
        results = append(*arguments)
        results[tensor] = results[tensor] * (1.0 + 8e-7)
        return results

    with mock.patch.object(side, "append", scaled):
        *_, last = follow(short_truth, side)
    assert last.failed == tensor
    assert last.explanation.startswith(origin)
    assert "slots" not in last.explanation
    assert "as if" not in last.explanation


def run(*arguments):
    return CliRunner().invoke(run_parity.main, ["stream", *arguments])


def test_the_command_judges_a_case():
    ended = run("--case", "hstu_tiny", "--precision", "fp32,bf16", "--steps", "4")
    assert ended.exit_code == 0, ended.output
    lines = ended.output.splitlines()[1:]
    assert [line.split(" | ")[0] for line in lines] == ["fp32", "fp32", "bf16", "bf16"]
    assert all(line.endswith("PASS") and " | 5 | " in line for line in lines)


def test_the_command_names_a_fault():
    with mock.patch("tripy_port.hstu_stream._latest_rows", another_rows_cache):
        ended = run("--case", "hstu_tiny", "--precision", "fp32", "--steps", "4")
    assert ended.exit_code == 1
    reference, port = ended.output.splitlines()[1:]
    assert reference.endswith("PASS")
    assert "FAIL at step 0: timestamps" in port
    assert "another row's positions" in port


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--case", "dlrm_tiny"), "stream: dlrm_tiny has no streams"),
        ((), "stream: 0 cases are given, where one is taken"),
        (("--case", "hstu_tiny,hstu_tiny_rated"), "stream: 2 cases are given, where one is taken"),
        (("--case", "hstu_tiny", "--runners", "tripy"), "--runners is no option of this verb"),
        (("--case", "hstu_tiny_combined"), "softmax attention"),
        (("--case", "hstu_tiny", "--capacity", "0"), "--capacity: 0 is not positive"),
        (("--case", "hstu_tiny", "--capacity", "28"), "--capacity: 28 is more than the model's width, 27"),
        (("--case", "hstu_tiny", "--precision", "fp8"), "fp8"),
        (("--case", "nothing_like_it"), "nothing_like_it"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    ended = run(*arguments)
    assert ended.exit_code == 2
    assert message in ended.stderr
