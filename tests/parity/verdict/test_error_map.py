"""Error maps: levels, padding, cells of many elements, which axes, which modules have one."""

import math
import shutil

import numpy as np
import pytest
import torch

from parity.capture.store import load_capture, save_capture
from parity.report.error_maps import FAILING, PASSING, with_telling_pictures
from parity.verdict.error_map import LEVELS, MAX_COLUMNS, MAX_ROWS, OUTSIDE, error_map
from tests.parity import made_reports
from tests.parity.made_reports import DIAGONAL, module

SEQUENCE = {6}


def _mapped(error, keep=None, limit=0.1, batch_size=3):
    """The map of an error on an oracle of ones."""
    error = torch.as_tensor(error, dtype=torch.float64)
    oracle = torch.ones_like(error)
    keep = np.ones(tuple(error.shape), dtype=bool) if keep is None else keep
    return error_map(oracle, oracle + error, keep, limit, batch_size, SEQUENCE)


def test_a_cell_is_the_level_of_its_largest_error():
    error = torch.zeros(3, 6, 4)
    for column, ratio in enumerate((0.05, 0.2, 0.4, 0.99, 2.0, 9.0)):
        error[0, column, column % 4] = ratio * 0.1
    error[1, :4, 0] = torch.tensor([5.0, 50.0, 500.0, math.nan])
    error[2, 0, 3] = math.inf
    found = _mapped(error)
    assert found.axes == ("batch", "position")
    assert found.shape == (3, 6)
    assert found.cells == ("123456", "789900", "900000")
    assert len(LEVELS) == 9


def test_what_does_not_count_is_outside_and_hides_no_error_beside_it():
    error = torch.zeros(3, 6, 4)
    error[1, 4:] = math.nan
    keep = np.ones((3, 6, 4), dtype=bool)
    keep[1, 4:] = False
    keep[2, 5, :3] = False
    error[2, 5] = 1.0
    assert _mapped(error, keep).cells == ("000000", "0000" + 2 * OUTSIDE, "000006")
    assert _mapped(error, np.zeros_like(keep)) is None


def test_no_limit_at_all_leaves_equal_or_not():
    error = torch.zeros(3, 6)
    error[0, 1] = 1e-12
    assert _mapped(error, limit=0.0).cells == ("090000", "000000", "000000")


def test_integers_and_booleans():
    port = torch.eye(6, dtype=torch.bool)
    keep = np.ones((6, 6), dtype=bool)
    found = error_map(torch.zeros(6, 6, dtype=torch.int64), port, keep, 0.0, 3, SEQUENCE)
    assert found.axes == ("position", "position")
    assert found.cells[:2] == ("900000", "090000")


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
    found = _mapped(error)
    assert (found.axes, found.shape) == (axes, size)
    assert found.cells[0][0] == "6"
    assert "".join(found.cells).count("0") == math.prod(size) - 1


@pytest.mark.parametrize("shape", [(), (3,), (3, 1), (1, 1, 6)])
def test_a_tensor_without_two_axes_has_no_map(shape):
    assert _mapped(torch.zeros(shape)) is None


def test_many_rows_share_cells_and_none_is_lost():
    error = torch.zeros(131, 211)
    error[130, 210] = 1.0
    found = _mapped(error, batch_size=131)
    rows, columns = len(found.cells), len(found.cells[0])
    assert rows <= MAX_ROWS
    assert columns <= MAX_COLUMNS
    assert found.shape == (131, 211)
    assert [line.count("6") for line in found.cells] == [0] * (rows - 1) + [1]
    assert found.cells[-1].endswith("6")


def test_only_telling_modules_keep_their_maps():
    maps = {"isolated": DIAGONAL}
    failing = [module(f"failing.{n}", alone=10.0 + n, maps=maps) for n in range(FAILING + 2)]
    passing = [
        module(f"passing.{n}", alone=0.0, inside=0.1 + 0.01 * n, maps=maps) for n in range(PASSING + 2)
    ]
    gap = module("gap", status="GAP", gap="none", isolated=None, accumulated=None)
    kept = with_telling_pictures(made_reports.port("fp32", (*passing, gap, *failing)))
    assert {m.tap for m in kept.modules if m.maps} == {
        *(f"failing.{n}" for n in range(FAILING)),
        *(f"passing.{n}" for n in range(2, PASSING + 2)),
    }


def test_the_module_that_padding_reaches_keeps_its_map():
    leaking = module("leaking", alone=0.0, inside=0.0, maps={"poisoned": DIAGONAL})
    others = [module(f"passing.{n}") for n in range(PASSING + 1)]
    kept = with_telling_pictures(
        made_reports.port("fp32", (*others, leaking), padding_leak="leaking", verdict="FAIL")
    )
    assert kept.modules[-1].maps == {"poisoned": DIAGONAL}


def test_a_run_has_maps_of_its_port_with_the_padding_marked(report, runners_of):
    mapped = [m for m in runners_of(report)["torch_jagged"].modules if m.maps]
    assert len(mapped) == PASSING
    for each in mapped:
        (found,) = each.maps.values()
        assert found.axes[0] == "batch"
        lengths = [len(line.rstrip(OUTSIDE)) for line in found.cells]
        assert found.axes[1] != "position" or 0 < min(lengths) < len(found.cells[0])
        assert all(level == OUTSIDE or int(level) <= 4 for line in found.cells for level in line)


def test_a_leak_in_a_run_shows_where(saved_run, replayed, runners_of, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(saved_run.folder, folder)
    stem = folder / "hstu_tiny" / "batch_0000" / "fp32" / "torch_jagged" / "poisoned"
    poisoned = load_capture(stem)
    poisoned.tensors["_hstu"][1, 2:4, 7] += 1e-3
    save_capture(poisoned, stem)
    code, report, _ = replayed(folder)
    assert code == 1
    jagged = runners_of(report)["torch_jagged"]
    assert jagged.padding_leak == "_hstu"
    assert "2 of" in jagged.diagnosis.why[0]
    (module,) = (module for module in jagged.modules if module.tap == "_hstu")
    cells = module.maps["poisoned"].cells
    assert module.maps["poisoned"].axes == ("batch", "position")
    assert cells[1].startswith("009900")
    assert "9" not in "".join((cells[0], *cells[2:]))
