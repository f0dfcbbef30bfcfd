"""Error maps: levels, padding, cells of many elements, which axes, which modules have one."""

import math
import shutil

import numpy as np
import pytest
import torch

from parity.capture.store import open_capture, save_capture
from parity.verdict.error_map import (
    FAILING,
    LEVELS,
    MAX_COLUMNS,
    MAX_ROWS,
    OUTSIDE,
    PASSING,
    error_map,
    with_telling_maps,
)
from tests.parity.judgements import DIAGONAL, runner, tap, verdict

SEQUENCE = {6}


def _mapped(error, counted=None, limit=0.1, batch_size=3):
    """The map of an error on an oracle of ones."""
    error = torch.as_tensor(error, dtype=torch.float64)
    oracle = torch.ones_like(error)
    counted = np.ones(tuple(error.shape), dtype=bool) if counted is None else counted
    return error_map(oracle, oracle + error, counted, limit, batch_size, SEQUENCE)


def test_a_cell_is_the_level_of_its_largest_error():
    error = torch.zeros(3, 6, 4)
    for column, ratio in enumerate((0.05, 0.2, 0.4, 0.99, 2.0, 9.0)):
        error[0, column, column % 4] = ratio * 0.1
    error[1, :4, 0] = torch.tensor([5.0, 50.0, 500.0, math.nan])
    error[2, 0, 3] = math.inf
    mapped = _mapped(error)
    assert mapped.axes == ("batch", "position")
    assert mapped.shape == (3, 6)
    assert mapped.cells == ("123456", "789900", "900000")
    assert len(LEVELS) == 9


def test_errors_are_relative_to_the_largest_finite_element_that_counts():
    oracle = torch.full((3, 6), 1e-3, dtype=torch.float64)
    oracle[0, 0], oracle[1, 1] = 1.0, math.inf
    port = oracle.clone()
    port[2] += 2e-4
    counted = np.ones((3, 6), dtype=bool)
    counted[0, 0] = False
    # Twice the limit of a tenth; the infinity is equal, and the largest element does not count.
    mapped = error_map(oracle, port, counted, 0.1, 3, SEQUENCE)
    level = _mapped(torch.full((3, 6), 0.2)).cells[0][0]
    assert mapped.cells == (OUTSIDE + "00000", "000000", level * 6)


def test_an_axis_of_two_tells():
    assert _mapped(torch.zeros(2, 5)).axes == ("axis 0", "axis 1")


def test_what_does_not_count_is_outside_and_hides_no_error_beside_it():
    error = torch.zeros(3, 6, 4)
    error[1, 4:] = math.nan
    counted = np.ones((3, 6, 4), dtype=bool)
    counted[1, 4:] = False
    counted[2, 5, :3] = False
    error[2, 5] = 1.0
    assert _mapped(error, counted).cells == ("000000", "0000" + 2 * OUTSIDE, "000006")
    assert _mapped(error, np.zeros_like(counted)) is None


def test_no_limit_at_all_leaves_equal_or_not():
    error = torch.zeros(3, 6)
    error[0, 1] = 1e-12
    assert _mapped(error, limit=0.0).cells == ("090000", "000000", "000000")


def test_integers_and_booleans():
    port = torch.eye(6, dtype=torch.bool)
    counted = np.ones((6, 6), dtype=bool)
    mapped = error_map(torch.zeros(6, 6, dtype=torch.int64), port, counted, 0.0, 3, SEQUENCE)
    assert mapped.axes == ("position", "position")
    assert mapped.cells[:2] == ("900000", "090000")


@pytest.mark.parametrize(
    ("shape", "axes", "size"),
    [
        ((3, 6, 6), ("batch", "position"), (3, 6)),
        ((3, 2, 6, 6), ("batch", "position"), (3, 6)),
        ((3, 5), ("batch", "axis 1"), (3, 5)),
        ((1, 6, 4), ("position", "axis 2"), (6, 4)),
        ((7, 8, 9), ("axis 0", "axis 1"), (7, 8)),
    ],
)
def test_the_most_telling_axes_are_shown(shape, axes, size):
    error = torch.zeros(shape)
    error[(0,) * len(shape)] = 1.0
    mapped = _mapped(error)
    assert (mapped.axes, mapped.shape) == (axes, size)
    assert mapped.cells[0][0] == "6"
    assert "".join(mapped.cells).count("0") == math.prod(size) - 1


@pytest.mark.parametrize("shape", [(), (3,), (3, 1), (1, 1, 6)])
def test_a_tensor_without_two_axes_has_no_map(shape):
    assert _mapped(torch.zeros(shape)) is None


def test_many_rows_share_cells_and_none_is_lost():
    error = torch.zeros(131, 211)
    error[130, 210] = 1.0
    mapped = _mapped(error, batch_size=131)
    rows, columns = len(mapped.cells), len(mapped.cells[0])
    assert rows <= MAX_ROWS
    assert columns <= MAX_COLUMNS
    assert mapped.shape == (131, 211)
    assert [line.count("6") for line in mapped.cells] == [0] * (rows - 1) + [1]
    assert mapped.cells[-1].endswith("6")


def test_a_tensor_in_parts_has_the_map_of_the_whole(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    error = torch.randn(9, 4, 6, 5, generator=generator, dtype=torch.float64)
    error[3, 1, 2, 0] = math.nan
    counted = torch.rand(error.shape, generator=generator).numpy() > 0.2
    maps = []
    for together in (1, 4 * 6 * 5 * 2, error.numel()):
        monkeypatch.setattr("parity.verdict.error_map.MOST_TOGETHER", together)
        maps += [_mapped(error, counted, batch_size=size) for size in (9, 7)]
    assert maps == maps[:2] * 3
    assert maps[0] != maps[1]


def test_only_telling_taps_keep_their_maps():
    maps = {"isolated": DIAGONAL}
    failing = [tap(f"failing.{n}", isolated=verdict(10.0 + n), error_maps=maps) for n in range(FAILING + 2)]
    passing = [
        tap(f"passing.{n}", isolated=verdict(0.0), accumulated=verdict(0.1 + 0.01 * n), error_maps=maps)
        for n in range(PASSING + 2)
    ]
    gap = tap("gap", gap="none", isolated=None, accumulated=None)
    reduced = with_telling_maps(runner(*passing, gap, *failing))
    assert {tap.tap for tap in reduced.taps if tap.error_maps} == {
        *(f"failing.{n}" for n in range(FAILING)),
        *(f"passing.{n}" for n in range(2, PASSING + 2)),
    }


def test_the_tap_that_padding_reaches_keeps_its_map():
    maps = {"poisoned": DIAGONAL}
    leaking = tap("leaking", isolated=verdict(0.0), accumulated=verdict(0.0), error_maps=maps)
    others = [tap(f"passing.{n}") for n in range(PASSING + 1)]
    reduced = with_telling_maps(runner(*others, leaking, padding_leak="leaking", verdict="FAIL"))
    assert reduced.taps[-1].error_maps == maps


def test_a_run_has_maps_of_its_port_with_the_padding_marked(report, runners_of):
    mapped = [m for m in runners_of(report)["torch_jagged"].modules if m.error_maps]
    assert len(mapped) == PASSING
    for module in mapped:
        (shown,) = module.error_maps.values()
        assert shown.axes[0] == "batch"
        lengths = [len(line.rstrip(OUTSIDE)) for line in shown.cells]
        assert shown.axes[1] != "position" or 0 < min(lengths) < len(shown.cells[0])
        assert all(level == OUTSIDE or int(level) <= 4 for line in shown.cells for level in line)


def test_a_leak_in_a_run_shows_where(saved_run, replayed, runners_of, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(saved_run.folder, folder)
    stem = folder / "hstu_tiny" / "batch_0000" / "fp32" / "torch_jagged" / "poisoned"
    poisoned = open_capture(stem)
    poisoned.tensors["_hstu"][1, 2:4, 7] += 1e-3
    save_capture(poisoned, stem)
    code, report, _ = replayed(folder)
    assert code == 1
    jagged = runners_of(report)["torch_jagged"]
    assert jagged.padding_leak == "_hstu"
    assert "2 of" in jagged.diagnosis.explanation[0]
    (module,) = (module for module in jagged.modules if module.tap == "_hstu")
    cells = module.error_maps["poisoned"].cells
    assert module.error_maps["poisoned"].axes == ("batch", "position")
    assert cells[1].startswith("009900")
    assert "9" not in "".join((cells[0], *cells[2:]))
