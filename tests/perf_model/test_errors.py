"""Error statistics in the notebook's form."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perf_model.__main__ import main
from perf_model.errors import BINS, ErrorStatistics, bin_names


def test_statistics_by_hand():
    actual = ErrorStatistics.of([1.1, 0.6, 3.0], [1.0, 1.0, 2.0])
    errors = np.array([0.1, 0.4, 0.5])
    assert actual.points == 3
    assert actual.gmae == pytest.approx(float(np.exp(np.log(errors).mean())))
    assert actual.mean == pytest.approx(float(errors.mean()))
    # pandas' standard deviation, which the notebook prints, is the sample's.
    assert actual.std == pytest.approx(float(errors.std(ddof=1)))


def test_the_histogram_has_the_seeds_bins_and_loses_nothing():
    measured = [1.0] * 6
    actual = ErrorStatistics.of([1.01, 1.05, 1.31, 2.2, 4.9, 9.0], measured)
    shares = dict(zip(bin_names(), actual.histogram, strict=True))
    assert len(BINS) == 16
    assert sum(actual.histogram) == pytest.approx(1.0)
    assert shares["0% - 5%"] == pytest.approx(1 / 6)
    assert shares["5% - 10%"] == pytest.approx(1 / 6)
    assert shares["30% - 40%"] == pytest.approx(1 / 6)
    assert shares["100% - 150%"] == pytest.approx(1 / 6)
    assert shares["300% - 400%"] == pytest.approx(1 / 6)
    assert shares["over 400%"] == pytest.approx(1 / 6)


def test_an_exact_prediction_does_not_make_the_geometric_mean_zero():
    assert ErrorStatistics.of([1.0, 1.1], [1.0, 1.0]).gmae == pytest.approx(math.sqrt(1e-6 * 0.1), rel=1e-6)


def test_the_line_is_the_seeds():
    assert ErrorStatistics.of([1.1, 1.2], [1.0, 1.0]).summary() == "GMAE: 14.14%, mean: 15.00%, std: 7.07%"


@pytest.mark.parametrize(
    ("predicted", "measured", "said"),
    [
        ([1.0], [1.0], "at least two"),
        ([1.0, 2.0], [1.0], "give equal numbers"),
        ([1.0, 2.0], [1.0, 0.0], "not positive"),
        ([1.0, math.nan], [1.0, 1.0], "not positive"),
    ],
)
def test_what_has_no_errors_is_refused(predicted, measured, said):
    with pytest.raises(ValueError, match=said):
        ErrorStatistics.of(predicted, measured)


def test_a_folder_without_measurements_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["perf_model", str(tmp_path)])
    assert main() == 2
    fix = "give one with points.json and models.json"
    assert capsys.readouterr().err == f"folder: {tmp_path} has no points.json; {fix}\n"
