"""The forward of wide models in one CUDA C++ kernel: its results on such a GPU, and what a CPU sees of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernels.hstu_forward import HSTUForward
from kernels.hstu_forward.hopper_launch import LONGEST
from tests.identifiers import shortened
from tests.kernels.hstu_forward.forward_cases import (
    LENGTHS,
    batch,
    rows,
    settings_of,
    sized,
    small_model,
)
from tests.kernels.hstu_forward.test_hopper import (
    FORMS,
    WIDE,
    assert_lengths_pass,
    judged,
    printed,
)
from tests.kernels.marks import DEVICE, NVCC, needs_hopper, needs_nvcc


@needs_hopper
@FORMS
@pytest.mark.parametrize(
    "changes",
    [
        WIDE,
        # Clusters of 2, 4 and 8 thread blocks; heads of 64, 32 and 16 columns, some of them empty, and keys
        # that are wider than values; one chunk of an embedding in a thread block and several.
        sized(256, 4, 64, 64),
        sized(256, 8, 32, 32),
        sized(512, 8, 64, 64),
        sized(512, 2, 16, 40),
        sized(65, 1, 25, 25),
        sized(300, 5, 50, 60),
        sized(128, 8, 16, 16),
        sized(96, 12, 8, 7),
        # Embeddings whose rows start at no multiple of four elements.
        sized(99, 2, 50, 50),
        sized(50, 3, 33, 20),
        WIDE | {"relative_attention_bias": "positional"},
        WIDE | {"num_blocks": 1},
        WIDE | {"num_blocks": 5, "num_buckets": 254},
    ],
    ids=shortened,
)
@pytest.mark.parametrize("longest", [51, 211])
def test_shapes_and_lengths_are_the_model(changes, precision, dot_precision, longest):
    assert_lengths_pass(changes, precision, dot_precision, longest)


@needs_hopper
@FORMS
def test_the_longest_rows_of_more_clusters_than_the_device_holds_are_the_model_too(precision, dot_precision):
    config, model = small_model(max_sequence_len=LONGEST - 11, **sized(512, 8, 64, 64))
    actual = judged(config, model, precision, dot_precision, (LONGEST, 0, 1, LONGEST - 17))
    assert actual.passed, actual.reason


@needs_hopper
def test_launches_beside_each_other_keep_their_keys_apart():
    """Graphs of one forward that run on two streams at once."""
    config, model = small_model(**WIDE)
    state = {name: x.to(DEVICE) for name, x in model.state_dict().items()}
    forward = HSTUForward(state, settings_of(config, model), "fp16x3", backend="hopper")
    padded, ids, times = (x.to(DEVICE) for x in batch(model, LENGTHS))
    flat, offsets = rows(ids, padded), torch.tensor((0, *LENGTHS), device=DEVICE).cumsum(0)
    expected = forward(flat, offsets, times, max(LENGTHS))
    streams = [torch.cuda.Stream(DEVICE) for _ in range(2)]
    torch.cuda.synchronize()
    results = []
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(forward(flat, offsets, times, max(LENGTHS)))
    torch.cuda.synchronize()
    assert all(torch.equal(states, expected) for states in results)


@pytest.mark.full
@needs_nvcc
def test_two_stages_of_weights_fit_beside_the_widest_and_longest_rows(tmp_path: Path):
    source = (
        '#include <cstdio>\n#include "wide_shared.cuh"\nusing hopper_forward::WideLayout;\nint main() {\n'
        "for (int size = 2; size <= 8; size *= 2) for (int chunks = size; chunks <= 8; chunks += size)\n"
        "for (int parts = 1; parts <= 2; ++parts)\n"
        f'printf("%d\\n", WideLayout{{parts, 2 * parts, {LONGEST}, size, chunks, 2, 0}}.bytes());\n}}\n'
    )
    assert max(int(line) for line in printed(NVCC, source, tmp_path, ".cu")) <= 227 * 1024
