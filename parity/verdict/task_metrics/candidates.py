"""Clicks on the candidates of a request: normalized entropy, accuracy, AUC by request, two of calibration.

The first three are the numbers of MLPerf's inference benchmark for ranking. Its formulas are those of
torchrec's ``metrics/ne.py``, ``metrics/accuracy.py`` and ``metrics/gauc.py``. AUC by request is the mean over
the requests that have a click, a candidate without one, and two different predictions.

There are two differences. Equal predictions count half of a pair; the public program takes their order from a
sort. The public AUC has small numbers in its divisors, which change it by less than 1e-9.

The calibration error is the mean distance of a probability's bin from the share of clicks in that bin.

Legend: B requests of a batch, T candidates at most, n candidates of all batches.
"""

from __future__ import annotations

import numpy as np
from scipy.special import entr

from parity.base.task import Arrays, Metric, Task
from parity.verdict.task_metrics.clicks import calibration

_CLIP = 1e-12
"""Least distance of a probability from 0 and 1 in the public logarithm."""
NORMALIZED_ENTROPY, ACCURACY, AUC = "normalized entropy", "accuracy", "AUC by request"
CALIBRATION, CALIBRATION_ERROR = "calibration", "calibration error"
_BINS = 10
"""Number of bins of equal width for the calibration error."""


class Candidates(Task):
    """Labels `clicks` (B, T) int64: 0, 1, or -1 where there is no candidate; `requests` (B,) int64, a number
    for each request. Rows are the candidates' probabilities.

    Args:
        output: Tap name of the probabilities, (B, T, 1).
    """

    unusable = "no probability of 0..1"

    def __init__(self, output: str) -> None:
        self.output = output
        self.metrics = (
            Metric(NORMALIZED_ENTROPY, _normalized_entropy, _one_class),
            Metric(ACCURACY, _accuracy),
            Metric(AUC, _auc_by_request, _no_pair),
            Metric(CALIBRATION, lambda p, truth: calibration(p, truth & 1), _no_click),
            Metric(CALIBRATION_ERROR, _calibration_error),
        )

    def rows(self, output: np.ndarray, labels: Arrays, inputs: Arrays) -> np.ndarray:
        p_n = predictions_of(output, labels)
        return np.where((p_n >= 0.0) & (p_n <= 1.0), p_n, np.nan)

    def truth(self, labels: Arrays) -> np.ndarray:
        """Twice the request's number, plus the click."""
        truth_BT = 2 * labels["requests"][:, None] + labels["clicks"]
        return truth_BT[labels["clicks"] >= 0]

    def nearest(self, output: np.ndarray) -> np.ndarray:
        return output.clip(0.0, 1.0)


def predictions_of(output: np.ndarray, labels: Arrays) -> np.ndarray:
    """The candidates' numbers (n,) of an output (B, T, 1), whatever they are."""
    return output.reshape(labels["clicks"].shape)[labels["clicks"] >= 0]


def reordered_requests(
    expected_BT: np.ndarray, actual_BT: np.ndarray, is_candidate_BT: np.ndarray, least_gap: float
) -> int:
    """Number of requests with two candidates in another order.

    Args:
        expected_BT: The expected numbers.
        actual_BT: The numbers that are judged.
        is_candidate_BT: Whether a place holds a candidate.
        least_gap: Least distance of two expected numbers whose order counts. Rounding explains an exchange of
            nearer ones.
    """
    reordered = 0
    for expected_T, actual_T, valid_T in zip(expected_BT, actual_BT, is_candidate_BT, strict=True):
        expected, actual = expected_T[valid_T], actual_T[valid_T]
        gap_TT = expected[:, None] - expected
        reordered += bool(((gap_TT > least_gap) & ~(actual[:, None] > actual)).any())
    return reordered


def _normalized_entropy(p: np.ndarray, truth: np.ndarray) -> np.ndarray:
    y = truth & 1
    p = p.clip(_CLIP, 1.0 - _CLIP)
    base = y.mean(axis=-1).clip(_CLIP, 1.0 - _CLIP)
    loss = -np.where(y == 1, np.log(p), np.log1p(-p)).mean(axis=-1)
    ratio = loss / (entr(base) + entr(1.0 - base))
    has_both = (y.max(axis=-1) == 1) & (y.min(axis=-1) == 0)
    return np.where(has_both, ratio, np.nan)


def _accuracy(p: np.ndarray, truth: np.ndarray) -> np.ndarray:
    return ((p >= 0.5) == (truth & 1)).mean(axis=-1)


def _calibration_error(p: np.ndarray, truth: np.ndarray) -> np.ndarray:
    shape, n = p.shape[:-1], p.shape[-1]
    samples = int(np.prod(shape, dtype=np.int64))
    bins = np.minimum((p * _BINS).astype(np.int64), _BINS - 1).reshape(samples, n)
    bins = (bins + _BINS * np.arange(samples)[:, None]).reshape(-1)
    # Sums of p - y over a bin are the bin's distance times its size.
    sums = np.bincount(bins, (p - (truth & 1)).reshape(-1), _BINS * samples)
    return np.abs(sums).reshape(samples, _BINS).sum(axis=1).reshape(shape) / n


def _auc_by_request(p: np.ndarray, truth: np.ndarray) -> np.ndarray:
    shape, n = p.shape[:-1], p.shape[-1]
    samples = int(np.prod(shape, dtype=np.int64))
    _, request = np.unique(truth >> 1, return_inverse=True)
    request = request.reshape(samples, n)
    groups = int(request.max()) + 1
    group = (request + groups * np.arange(samples)[:, None]).reshape(-1)
    auc, counts = _auc_of_groups(p.reshape(-1), (truth & 1).reshape(-1), group, samples * groups)
    total, used = (values.reshape(samples, groups).sum(axis=1) for values in (auc, counts))
    with np.errstate(invalid="ignore"):
        return (total / used).reshape(shape)


def _auc_of_groups(
    p: np.ndarray, y: np.ndarray, group: np.ndarray, groups: int
) -> tuple[np.ndarray, np.ndarray]:
    """AUC of each group by the rank sum of Mann and Whitney, and whether it is defined; 0 where it is not."""
    order = np.lexsort((p, group))
    p, y, group = p[order], y[order], group[order]
    place = np.arange(p.size)
    is_first = np.r_[True, group[1:] != group[:-1]]
    is_new = is_first | np.r_[True, p[1:] != p[:-1]]
    run = np.cumsum(is_new) - 1
    # Equal predictions share the mean of their places.
    mean_place = np.bincount(run, place) / np.bincount(run)
    first_place = np.maximum.accumulate(np.where(is_first, place, 0))
    rank = mean_place[run] - first_place + 1.0
    sizes, clicks, ranks = (np.bincount(group, weights, groups) for weights in (None, y, rank * y))
    has_two = np.bincount(group[is_new], minlength=groups) > 1
    defined = (clicks > 0) & (clicks < sizes) & has_two
    pairs = np.where(defined, clicks * (sizes - clicks), 1.0)
    return np.where(defined, (ranks - clicks * (clicks + 1.0) / 2.0) / pairs, 0.0), defined


def _one_class(truth: np.ndarray) -> str:
    y = truth & 1
    return f"all {y.size} labels are {y[0]}" if (y == y[0]).all() else ""


def _no_pair(truth: np.ndarray) -> str:
    _, request = np.unique(truth >> 1, return_inverse=True)
    clicks, sizes = np.bincount(request, truth & 1), np.bincount(request)
    has_pair = ((clicks > 0) & (clicks < sizes)).any()
    return "" if has_pair else f"none of {sizes.size} requests has a click and a candidate without one"


def _no_click(truth: np.ndarray) -> str:
    return "" if (truth & 1).any() else f"all {truth.size} labels are 0"
