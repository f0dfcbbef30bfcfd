"""The rows of a batch, and those whose losses are told."""

from __future__ import annotations

import numpy as np

from reference import training
from reference.training import TRAIN, VALIDATION, Schedule
from tests.reference.training_setup import TASKS, train


def test_rows_of_like_lengths_share_a_batch():
    lengths = np.random.default_rng(2).integers(0, 500, 20_011)
    batches = training._batches(np.random.default_rng(7), lengths.size, 16, lengths)
    assert sorted(np.concatenate(batches).tolist()) == list(range(lengths.size))
    assert sorted(map(len, batches)) == [lengths.size % 16] + [16] * (lengths.size // 16)
    padded = sum(lengths[batch].max() * len(batch) for batch in batches)
    assert padded < 1.05 * lengths.sum()
    # Long and short batches come in no order.
    means = np.array([lengths[batch].mean() for batch in batches])
    assert abs(np.corrcoef(means[1:], means[:-1])[0, 1]) < 0.1
    again = training._batches(np.random.default_rng(7), lengths.size, 16, lengths)
    assert all(np.array_equal(*pair) for pair in zip(batches, again, strict=True))


def test_rows_without_lengths_are_cut_as_they_are_shuffled():
    batches = training._batches(np.random.default_rng(7), 20, 8, None)
    assert np.array_equal(np.concatenate(batches), np.random.default_rng(7).permutation(20))
    assert list(map(len, batches)) == [8, 8, 4]


def test_losses_are_told_of_equally_spaced_rows(monkeypatch, tmp_path):
    monkeypatch.setattr(training, "MOST_EVALUATED", 3)
    task, seen = TASKS["sgd"](), {TRAIN: [], VALIDATION: []}
    loss = task.loss

    def heard(part, rows_B, generator):
        seen[part].append(rows_B.tolist())
        return loss(part, rows_B, generator)

    monkeypatch.setattr(task, "loss", heard)
    train(task, tmp_path, schedule=Schedule(1, 1, 100, 0))
    for part, told in seen.items():
        rows = task.num_rows(part)
        assert [0, rows // 3, 2 * rows // 3] in told
        assert {len(batch) for batch in told} <= {3, rows}
    assert sum(len(batch) == task.num_rows(TRAIN) for batch in seen[TRAIN]) == 1
