"""The notebook's lookup predictors: its printed numbers, and what must hold for any sizes."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from perf_model.embedding import (
    Lookup,
    NotebookGPU,
    backward_sgd_microseconds,
    forward_microseconds,
    hit_rate,
)

FORWARD = Lookup(
    batch_size=4096, num_embeddings=500000, num_tables=197, bag_size=32, embedding_dim=32, rows_per_block=128
)
BACKWARD = Lookup(
    batch_size=2048, num_embeddings=200000, num_tables=128, bag_size=128, embedding_dim=128, rows_per_block=32
)


def test_the_forward_is_the_notebooks_to_the_last_digit():
    assert forward_microseconds(FORWARD) == 4340.7676440049445


def test_the_backward_is_the_notebooks_to_the_last_digit():
    assert backward_sgd_microseconds(BACKWARD) == 42834.783248454885


# The golden bags of 32 are hardly ever all cached. A bag of 2 in a smaller table hits at times.
HITS = Lookup(
    batch_size=4096, num_embeddings=100_000, num_tables=7, bag_size=2, embedding_dim=32, rows_per_block=128
)


def test_the_forward_with_hits_by_hand():
    cached = 6 * 1024 * 1024 * 4 // 3  # three tables at once
    hits = math.comb(cached // 128, 2) / math.comb(100_000, 2)
    assert 0.4 < hits < 0.5
    rows = 2 * 128 * 4096 - cached
    dram = (32 + 128) * 4096 + (1 - hits) * rows + cached
    l2 = 64 * 4096 + hits * rows
    assert forward_microseconds(HITS) == pytest.approx(7 * max(dram / 809, l2 / 2888) / 1000, rel=1e-12)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Lookup)])
def test_the_forward_depends_on_each_size(field):
    changed = dataclasses.replace(HITS, **{field: getattr(HITS, field) * 2})
    assert forward_microseconds(changed) != forward_microseconds(HITS)


@pytest.mark.parametrize("predictor", [forward_microseconds, backward_sgd_microseconds])
@pytest.mark.parametrize("field", ["num_tables", "batch_size", "bag_size", "embedding_dim"])
def test_more_work_takes_longer(predictor, field):
    for lookup in (FORWARD, BACKWARD):
        larger = dataclasses.replace(lookup, **{field: getattr(lookup, field) * 4})
        assert predictor(larger) > predictor(lookup)


@pytest.mark.parametrize("predictor", [forward_microseconds, backward_sgd_microseconds])
def test_a_faster_gpu_takes_no_longer(predictor):
    slow = NotebookGPU()
    for field in ("dram_bandwidth", "l2_bandwidth", "throughput"):
        fast = dataclasses.replace(slow, **{field: getattr(slow, field) * 2})
        assert predictor(FORWARD, fast) <= predictor(FORWARD, slow)


def test_twice_the_bandwidth_halves_a_forward_that_dram_bounds():
    fast = dataclasses.replace(NotebookGPU(), dram_bandwidth=2 * 809)
    assert forward_microseconds(FORWARD, fast) == pytest.approx(forward_microseconds(FORWARD) / 2, rel=1e-12)


def test_the_hit_rate_counts_bags_of_cached_rows_only():
    rng = random.Random(0)
    for _ in range(50):
        rows = rng.randint(1, 60)
        bag, cached = rng.randint(1, rows), rng.randint(0, rows)
        expected = math.comb(cached, bag) / math.comb(rows, bag)
        assert hit_rate(cached, rows, bag) == pytest.approx(expected, rel=1e-12, abs=1e-300)


def test_a_bag_hits_always_or_never_at_the_ends():
    assert hit_rate(100, 100, 7) == 1.0
    assert hit_rate(0, 100, 1) == 0.0
    assert hit_rate(6, 100, 7) == 0.0


def test_a_table_that_fits_is_read_from_dram_once():
    fits = dataclasses.replace(FORWARD, num_embeddings=1000, num_tables=1, batch_size=100_000)
    row, table = 32 * 4, 1000 * 32 * 4
    dram = (32 * 4 + row) * 100_000 + table
    l2 = 64 * 100_000 + 32 * row * 100_000 - table
    assert forward_microseconds(fits) == pytest.approx(max(dram / 809, l2 / 2888) / 1000, rel=1e-12)
