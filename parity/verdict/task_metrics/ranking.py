"""Next-item prediction over the whole catalogue: hit rate, NDCG, mean reciprocal rank.

As the public evaluation has them (meta-recsys/generative-recommenders, ``research/data/eval.py``): a user's
state is compared with every item, the items divided by their Euclidean norms (``item_l2_norm`` of the public
configurations); the history that the model was given is filtered out; the target's rank among the others is
all that counts. Differences: the target is never filtered out, not even where the history holds it; ranks
beyond 2500 are counted as they are, not as 2501; and equal scores count against the target, so that a model
whose states have collapsed, to which all items are the same, is no good one.

States are those of the tested precision, items are the tested precision's rounded weights; scores are
float64, so that ranking adds no error of its own. Scores that differ by no more than the order of summation
can make in float64 are equal.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from parity.base.task import Arrays, Metric, Task

#: Of the public evaluation's.
CUTOFFS = (10, 50, 200)
_NORM_EPSILON = 1e-6
#: Scores that are held at once.
_BLOCK_SCORES = 1 << 22


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
