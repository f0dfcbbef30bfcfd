"""The drawn benchmark's distributions: each form of the attention has its own ratios."""

from __future__ import annotations

import pytest

from benchmarks.gpu.drawn import distribution


def row(kind: str, ratio: float, **others: float) -> dict:
    device = {"ours": {"median": 10.0}}
    return {
        "kind": kind,
        "verdicts": {"ours": "PASS"},
        "peer": "Meta",
        "ratio": ratio,
        "called_ratio": 2.0,
        "device_us": device,
        "floor_us": 5.0,
    } | others


def test_the_searched_form_has_a_distribution_of_its_own():
    rows = [
        row("attention", 0.8, searched_ratio=0.9),
        row("attention", 1.2, searched_ratio=1.1),
        row("attention", 1.4, searched_ratio=1.5),
        row("layers", 3.0, auto_ratio=4.0),
    ]
    found = distribution(rows)
    assert list(found) == ["attention", "layers", "attention, ours, searched", "layers, ours, auto"]
    assert found["layers, ours, auto"]["least"] == 4.0
    searched = found["attention, ours, searched"]
    assert (searched["cases"], searched["least"], searched["median"], searched["largest"]) == (
        3,
        0.9,
        1.1,
        1.5,
    )
    assert searched["share above 1"] == pytest.approx(2 / 3)
    assert (found["attention"]["least"], found["attention"]["largest"]) == (0.8, 1.4)


def test_without_a_search_there_is_no_such_form():
    assert list(distribution([row("attention", 1.2)])) == ["attention"]
