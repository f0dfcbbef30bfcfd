"""Next-item prediction over the whole catalogue: hit rate, NDCG, mean reciprocal rank.

The metrics follow the public evaluation (meta-recsys/generative-recommenders, ``research/data/eval.py``). A
user's state is compared with every item, divided by its Euclidean norm (``item_l2_norm`` of the public
configurations). Items of the input history are filtered out. The target's rank among the other items counts.

There are three differences. The target is never filtered out, even if the history holds it. Ranks beyond 2500
are not cut to 2501. Equal scores count against the target, so that a model with collapsed states scores low.

States have the tested precision. Items are the rounded weights of the tested precision. Scores are float64,
so that ranking adds no error of its own. Two scores are equal if the order of summation in float64 can
explain their difference.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from parity.base.task import Arrays, Metric, Task

CUTOFFS = (10, 50, 200)
"""Ranks of the public evaluation."""
_NORM_EPSILON = 1e-6
_BLOCK_SCORES = 1 << 22
"""Number of scores in memory at once."""


class Ranking(Task):
    """Labels `targets` (B,) int64, the item that came next; rows are its ranks, from 1.

    Args:
        output: Tap name of the users' states, (B, D).
        items_VD: (V, D) float64, the vectors of the items 1..V: the catalogue, without the padding item.
    """

    unusable = "a state with NaN or Inf"

    def __init__(self, output: str, items_VD: np.ndarray) -> None:
        self.output = output
        norms_V = np.linalg.norm(items_VD, axis=1)
        self._items_VD = items_VD / np.maximum(norms_V, _NORM_EPSILON)[:, None]
        self.metrics = (
            *(Metric(f"HR@{k}", partial(_hit_rate, k)) for k in CUTOFFS),
            *(Metric(f"NDCG@{k}", partial(_ndcg, k)) for k in CUTOFFS),
            Metric("MRR", _reciprocal_rank),
        )

    def rows(self, output: np.ndarray, labels: Arrays, inputs: Arrays) -> np.ndarray:
        past_BN = inputs["past_ids"]
        valid_BN = np.arange(past_BN.shape[1]) < inputs["past_lengths"][:, None]
        ranks_B = np.full(len(output), np.nan)
        usable = np.flatnonzero(np.isfinite(output).all(axis=1))
        block = max(1, _BLOCK_SCORES // len(self._items_VD))
        for start in range(0, usable.size, block):
            users = usable[start : start + block]
            ranks_B[users] = self._ranks(
                output[users], labels["targets"][users], past_BN[users], valid_BN[users]
            )
        return ranks_B

    def truth(self, labels: Arrays) -> np.ndarray:
        return labels["targets"]

    def _ranks(
        self, states_BD: np.ndarray, targets_B: np.ndarray, past_BN: np.ndarray, valid_BN: np.ndarray
    ) -> np.ndarray:
        scores_BV = states_BD @ self._items_VD.T
        users = np.arange(len(states_BD))
        target_scores_B = scores_BV[users, targets_B - 1]
        row, position = np.nonzero(valid_BN)
        scores_BV[row, past_BN[row, position] - 1] = -np.inf
        scores_BV[users, targets_B - 1] = target_scores_B
        # Items have norm 1: a sum of D products is off by at most D * 2^-53 times the state's norm.
        terms = states_BD.shape[1]
        same_B = 2 * terms * 2.0**-53 * np.linalg.norm(states_BD, axis=1)
        return (scores_BV >= (target_scores_B - same_B)[:, None]).sum(axis=1)


def _hit_rate(k: int, ranks: np.ndarray, targets: np.ndarray) -> np.ndarray:
    return (ranks <= k).mean(axis=-1)


def _ndcg(k: int, ranks: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """With one target the ideal gain is 1."""
    return np.where(ranks <= k, 1.0 / np.log2(ranks + 1.0), 0.0).mean(axis=-1)


def _reciprocal_rank(ranks: np.ndarray, targets: np.ndarray) -> np.ndarray:
    return (1.0 / ranks).mean(axis=-1)
