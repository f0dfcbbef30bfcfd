"""The drawn shapes of the research forward, and what the choice of a form loses at them."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from benchmarks.gpu.hstu_drawn import NARROW, WIDE, cells_of, compared, show
from kernels.hstu_forward.hopper_launch import LONGEST, WIDEST
from kernels.hstu_forward.hopper_weights import WIDTH, columns_of
from kernels.hstu_forward.weights import Shape


def test_a_seed_draws_narrow_models_and_counts_the_others():
    cells, others = cells_of(40, 7)
    assert (cells, others) == cells_of(40, 7)
    assert cells != cells_of(40, 8)[0]
    assert len(cells) == 40
    assert others > 0
    for cell in cells:
        assert max(cell.dim, cell.heads * cell.attention_dim, cell.heads * cell.linear_dim) <= WIDTH
        assert cell.longest <= LONGEST
        assert cell.batch * cell.longest <= NARROW.most_rows
        assert cell.model.item_embedding_dim == cell.dim
        assert cell.model.max_sequence_len + cell.model.max_output_len == cell.longest


def test_a_seed_draws_wide_models_that_both_forms_take():
    cells, others = cells_of(40, 7, wide=True)
    assert (cells, others) == cells_of(40, 7, wide=True)
    assert others > 0
    for cell in cells:
        shape = Shape(cell.blocks, cell.heads, cell.attention_dim, cell.linear_dim, cell.dim)
        assert not cell.is_narrow
        assert cell.is_wide
        assert max(cell.dim, columns_of(shape)) > WIDTH
        assert max(cell.dim, columns_of(shape)) <= WIDEST
        assert max(cell.attention_dim, cell.linear_dim) <= WIDTH
        assert cell.batch * cell.longest <= WIDE.most_rows


def test_a_loss_is_the_chosen_form_s_time_over_the_faster_one_s():
    cells, _ = cells_of(3, 7)
    # The last cell has one form alone, since the other failed its verdict.
    times = ({"triton": 10.0, "hopper": 8.0}, {"triton": 10.0, "hopper": 15.0}, {"triton": 10.0})
    rows = [
        asdict(cell) | {"side": side, "fill": "full", "chosen": "hopper", "device_us": {"median": median}}
        for cell, both in zip(cells, times, strict=True)
        for side, median in both.items()
    ]
    rows += [row | {"fill": "half-filled", "device_us": {"median": 1.0}} for row in rows]
    found = compared(rows, "full")
    assert [cell["loss"] for cell in found] == [1.0, 1.5]
    shares = show(found, "full")
    assert (shares["cells"], shares["faster form"], shares["worst loss"]) == (2, 1, 1.5)
    assert shares["mean loss"] == pytest.approx(1.25)
    assert shares["triton alone, worst loss"] == pytest.approx(1.25)
