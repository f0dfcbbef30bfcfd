"""Click prediction: log loss, AUC, normalized entropy, calibration.

Log loss and AUC are scikit-learn's definitions (natural logarithm; equal predictions count half). Normalized
entropy is the log loss over the entropy of the base rate (He et al., "Practical lessons from predicting
clicks on ads at Facebook", 2014). Below 1 it is better than the base rate as the only prediction. Calibration
is the mean prediction over the mean label.

A prediction of exactly 1 stands for all numbers that round to 1 in the tested precision. Its loss is that of
the number furthest from 1. A prediction of exactly 0 counts as 2.2e-16, as in scikit-learn.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.special import entr
from scipy.stats import rankdata
from sklearn.metrics import log_loss, roc_auc_score

from parity.base.precision import Precision
from parity.base.task import Arrays, Metric, Task

_EPSILON = np.finfo(np.float64).eps


class Clicks(Task):
    """Labels `clicks` (B,) int64, 0 or 1; rows are probabilities.

    Args:
        output: Tap name of the probabilities, (B, 1).
        precision: The precision that they were stored in.
    """

    unusable = "no probability of 0..1"

    def __init__(self, output: str, precision: Precision) -> None:
        self.output = output
        # The spacing below 1 is half of the spacing above. Numbers within half of it round to 1.
        self._largest = 1.0 - torch.finfo(precision.dtype).eps / 4.0
        self.metrics = (
            Metric("log loss", self._log_loss),
            Metric("AUC", _auc, _one_class),
            Metric("normalized entropy", self._normalized_entropy, _one_class),
            Metric("calibration", calibration, _no_click),
        )

    def rows(self, output: np.ndarray, labels: Arrays, inputs: Arrays) -> np.ndarray:
        p_B = output.reshape(-1)
        return np.where((p_B >= 0.0) & (p_B <= 1.0), p_B, np.nan)

    def truth(self, labels: Arrays) -> np.ndarray:
        return labels["clicks"]

    def nearest(self, output: np.ndarray) -> np.ndarray:
        return output.clip(0.0, 1.0)

    def _below_one(self, p: np.ndarray) -> np.ndarray:
        return np.where(p == 1.0, self._largest, p)

    def _log_loss(self, p: np.ndarray, y: np.ndarray) -> np.ndarray:
        p = self._below_one(p)
        if p.ndim == 1:
            return np.asarray(log_loss(y, p, labels=(0, 1)))
        p = p.clip(_EPSILON, 1.0 - _EPSILON)
        return -np.where(y == 1, np.log(p), np.log1p(-p)).mean(axis=-1)

    def _normalized_entropy(self, p: np.ndarray, y: np.ndarray) -> np.ndarray:
        base = y.mean(axis=-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            # Infinite for labels of one class, which is undefined.
            ratio = self._log_loss(p, y) / (entr(base) + entr(1.0 - base))
        return np.where(np.isfinite(ratio), ratio, np.nan)


def _auc(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    """AUC; of resamples the rank sum of Mann and Whitney, all at once."""
    if p.ndim == 1:
        return np.asarray(roc_auc_score(y, p))
    clicks = y.sum(axis=-1)
    others = y.shape[-1] - clicks
    with np.errstate(divide="ignore", invalid="ignore"):
        return ((rankdata(p, axis=-1) * y).sum(axis=-1) - clicks * (clicks + 1) / 2) / (clicks * others)


def calibration(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The mean probability by the share of clicks, over the last axis; NaN without a click."""
    with np.errstate(divide="ignore"):
        ratio = p.mean(axis=-1) / y.mean(axis=-1)
    return np.where(np.isfinite(ratio), ratio, np.nan)


def _one_class(y: np.ndarray) -> str:
    return f"all {y.size} labels are {y[0]}" if (y == y[0]).all() else ""


def _no_click(y: np.ndarray) -> str:
    return "" if y.any() else f"all {y.size} labels are 0"
