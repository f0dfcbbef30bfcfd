"""Answers of tensors that are looked at piece by piece are those of the whole tensors."""

from __future__ import annotations

import numpy as np
import pytest

from parity.coverage import probes


def whole_answers(left, right):
    difference = np.unique(np.clip(left - right, -2, 2))
    return (
        np.unique(left <= right).tolist(),
        [step for step in (-1, 0, 1) if step in difference],
        [number for number, seen in enumerate(((left < right).any(), (left > right).any())) if seen],
    )


OPERANDS = {
    "a column and a row": (np.arange(40)[:, None], np.arange(0, 60, 3)[None]),
    "a batch of them": (np.arange(7)[None, :, None], np.arange(5, 12)[None, None]),
    "always below": (np.zeros((9, 5), int), np.full(5, 3)),
    "the last one decides": (np.arange(30), np.array(29)),
    "numbers": (np.array(1), np.array(2)),
    "nothing": (np.zeros((0, 4), int), np.zeros(4, int)),
}


@pytest.mark.parametrize("name", OPERANDS)
@pytest.mark.parametrize("piece", [1, 7, 1 << 24])
def test_pieces_have_the_answers_of_the_whole(monkeypatch, name, piece):
    monkeypatch.setattr(probes, "_PIECE", piece)
    left, right = OPERANDS[name]
    seen = (
        probes._seen(lambda *sides: probes._truths(np.less_equal(*sides)), (left, right), 2),
        probes._seen(lambda one, other: probes._steps(one - other), (left, right), 3),
        probes._seen(probes._orders, (left, right), 2),
    )
    assert seen == whole_answers(left, right)


def test_no_piece_follows_the_last_answer(monkeypatch):
    monkeypatch.setattr(probes, "_PIECE", 10)
    sizes = []

    def truths(values):
        sizes.append(values.size)
        return probes._truths(values)

    assert probes._seen(truths, [np.arange(100) > 12], 2) == [False, True]
    assert sizes == [10, 10]
