"""The streaming port in Tripy: graphs for TensorRT, dynamic batches, and refusals.

`tests/cases/hstu/test_streaming.py` compares it with its reference.
"""

from __future__ import annotations

import numpy as np
import nvtripy as tp
import pytest

from parity.runners.tripy.lean_traces import lean_traces
from tests.tripy_port.port_setup import (
    VARIANTS,
    array,
    max_difference,
    rounding_bound,
    runtime_input,
    small_config,
    tensor,
    weights,
)
from tripy_port.build import build_hstu_stream

CAPACITY, NEW, ROWS = 5, 3, 4
# Softmax attention sums over positions to come, and has no stream.
POINTWISE = {"positional": {}, "rated": {}, "combined": {"normalization": "rel_bias"}}


def stream_model(variant, dtype=tp.float32):
    config = small_config(variant, **POINTWISE[variant])
    model = build_hstu_stream(config, dtype)
    model.load_state_dict({name: tensor(value, dtype) for name, value in weights(model).items()})
    return config, model


def compiled_step(config, model, smallest_batch=ROWS):
    """`extend` for a batch from the smallest to `ROWS`."""
    batch = ROWS if smallest_batch == ROWS else (smallest_batch, ROWS, ROWS)

    def info(shape, dtype):
        return tp.InputInfo((batch, *shape), dtype)

    state = model.empty_state(ROWS, CAPACITY)
    arguments = {
        "state": [info(tuple(map(int, entry.shape[1:])), entry.dtype) for entry in state],
        "new_lengths": info((), tp.int64),
        "new_ids": info((NEW,), tp.int64),
        "ratings": info((NEW,), tp.int64),
        "timestamps": info((NEW * config.positions_per_item + 1,), tp.int64),
    }

    def step(arguments):
        ids = arguments["new_ids"]
        payloads = {"timestamps": arguments["timestamps"]}
        if config.input_preprocessor != "positional":
            payloads["ratings"] = arguments["ratings"]
        encoded, state = model.extend(
            arguments["state"], arguments["new_lengths"], ids, model.get_item_embeddings(ids), payloads
        )
        return [encoded, *state]

    if config.input_preprocessor == "positional":
        del arguments["ratings"]
    with lean_traces():
        return tp.compile(step, args=[arguments])


@pytest.mark.parametrize(
    ("variant", "dtype"),
    [
        *((variant, tp.float32) for variant in VARIANTS),
        ("positional", tp.float16),
        ("positional", tp.bfloat16),
    ],
    ids=str,
)
def test_tensorrt_builds_the_step(variant, dtype):
    trt = pytest.importorskip("tripy_portable.trt", reason="nvtripy compiles with TensorRT itself here")
    if reason := trt.available():
        pytest.skip(reason)
    recorded = trt.program_of(compiled_step(*stream_model(variant, dtype), smallest_batch=1))
    for program in (recorded, trt.at_typical_shapes(recorded)):
        assert trt.build(program, trt.BuildOptions()).size > 0


def test_one_executable_serves_several_batches():
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 41, (ROWS, NEW))
    times = rng.integers(1, 10**6, (ROWS, NEW + 1)).cumsum(axis=1)
    stored = np.array([3, 0, 2, 1])

    def states(dtype, batches):
        config, model = stream_model("positional", dtype)
        executable = compiled_step(config, model, smallest_batch=1)
        parts = []
        for rows in batches:
            new = {"new_lengths": stored[rows], "new_ids": ids[rows], "timestamps": times[rows]}
            arguments = {name: runtime_input(value) for name, value in new.items()}
            state = model.empty_state(stored[rows].size, CAPACITY)
            parts.append(array(executable({"state": state} | arguments)[0]))
        return config, np.concatenate(parts)

    config, together = states(tp.float32, [slice(None)])
    _, alone = states(tp.float32, [slice(row, row + 1) for row in range(ROWS)])
    _, in_float16 = states(tp.float16, [slice(None)])
    assert max_difference(alone, together) <= rounding_bound(config, in_float16, together)


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
