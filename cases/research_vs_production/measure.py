"""Distances of the models: each difference alone, all differences in turn, and the options.

Legend: B users, N rows of a padded sequence, X candidates, D embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from cases.research_vs_production.between import Answer, Between, Rows
from cases.research_vs_production.differences import ALL, DIFFERENCES, OPTIONS, Difference
from cases.research_vs_production.made_equal import TARGETS, build_pair
from configs import HSTUConfig
from reference.hstu_dense import HSTUDenseModel
from reference.hstu_transducer import HSTUTransducer

TOP = 10
#: Roundings of a sum of some hundred terms through every layer, in units of float64's round-off.
ROUND_OFF = 1e4 * 2.0**-53


@dataclass(frozen=True)
class Distance:
    """Distance of one model's answer from another's.

    Attributes:
        states: ||s - s0|| / ||s0|| over all states of histories, each divided by its norm, as in research
            HSTU; sqrt(2) for unrelated states.
        top: Share of the ten best candidates that both have, mean over users.
        rank: Spearman's correlation of the candidates' ranks, mean over users.
    """

    states: float
    top: float
    rank: float


@dataclass(frozen=True)
class Row:
    """Distances of a difference, alone and with all before it; several draws of each."""

    difference: Difference
    alone: tuple[Distance, ...]
    cumulative: tuple[Distance, ...]


@dataclass(frozen=True)
class Result:
    """All distances, and the relative errors of both ends against the references."""

    rows: tuple[Row, ...]
    options: tuple[Row, ...]
    start_error: float
    end_error: float


class EndsDiffer(RuntimeError):
    """The model between does not start at research HSTU, or does not end at the production STU."""


def measure(
    config: HSTUConfig,
    weights: dict[str, torch.Tensor],
    requests: list[Rows],
    candidates: torch.Tensor,
    progress: Callable[[str], None],
) -> Result:
    """Distances over several draws: of the weights that only one model has, and of `requests`.

    Args:
        config, weights: of the research model.
        requests: histories, one batch a draw.
        candidates: (X,) ids, X a multiple of `made_equal.TARGETS`.

    Raises:
        EndsDiffer: the ends differ by more than round-off. Nothing is measured then.
        UserError: a research model that the production one cannot equal.
    """
    draws = [
        _Draw(config, weights, rows, candidates, seed, partial(_say, progress, f"draw {seed + 1}"))
        for seed, rows in enumerate(requests)
    ]
    distances = [draw.distances() for draw in draws]
    rows = tuple(
        Row(
            difference,
            tuple(alone[at] for alone, _, _ in distances),
            tuple(total[at] for _, total, _ in distances),
        )
        for at, difference in enumerate(DIFFERENCES)
    )
    options = tuple(
        Row(option, tuple(options[at] for _, _, options in distances), ())
        for at, option in enumerate(OPTIONS)
    )
    return Result(
        rows, options, max(draw.start_error for draw in draws), max(draw.end_error for draw in draws)
    )


def _say(progress: Callable[[str], None], draw: str, step: str) -> None:
    progress(f"{draw}: {step}")


class _Draw:
    """One batch of requests, with one draw of the weights that only the production model has."""

    def __init__(
        self,
        config: HSTUConfig,
        weights: dict[str, torch.Tensor],
        rows: Rows,
        candidates: torch.Tensor,
        seed: int,
        progress: Callable[[str], None],
    ) -> None:
        assert candidates.numel() % TARGETS == 0, "candidates are ranked in whole requests"
        self._rows, self._candidates, self._progress = rows, candidates, progress
        self._pair = build_pair(config, weights, seed)
        window = config.max_sequence_len // 4
        self._with_option = {
            "window": build_pair(config, weights, seed, max_attn_len=window),
            "group_norm": build_pair(config, weights, seed, use_group_norm=True),
            "attn_scale": self._pair,
        }
        progress("both ends")
        self._start, self._end = self._answer(frozenset()), self._answer(ALL)
        self.start_error, self.end_error = self._check()

    def _answer(
        self, on: frozenset[str], pair: tuple[HSTUDenseModel, HSTUTransducer] | None = None
    ) -> Answer:
        with torch.inference_mode():
            return Between(*(pair or self._pair), on).answer(self._rows, self._candidates)

    def _check(self) -> tuple[float, float]:
        """Relative errors of both ends against the references."""
        research, production = self._pair
        with torch.inference_mode():
            states, _, scores = research.score(
                self._rows.lengths,
                self._rows.ids,
                {"timestamps": self._rows.timestamps},
                self._candidates.unsqueeze(0),
            )
            start = max(
                relative(self._valid(self._start.states), self._valid(states)),
                relative(self._start.scores, scores),
            )
            end = relative(self._end.scores, production_scores(production, self._rows, self._candidates))
        for name, error in (("research HSTU", start), ("the production STU", end)):
            if error > ROUND_OFF:
                raise EndsDiffer(f"{name} and the model between differ by {error:.3g}, relative")
        return start, end

    def distances(self) -> tuple[list[Distance], list[Distance], list[Distance]]:
        """Differences: alone and with all before it, from research HSTU. Options: from production."""
        alone, cumulative = [], []
        on: frozenset[str] = frozenset()
        for difference in DIFFERENCES:
            self._progress(difference.name)
            on |= {difference.name}
            without = self._answer(frozenset(difference.needs)) if difference.needs else self._start
            alone.append(
                self._distance(self._answer(frozenset({difference.name, *difference.needs})), without)
            )
            cumulative.append(self._distance(self._answer(on), self._start))
        options = []
        for option in OPTIONS:
            self._progress(option.name)
            with_option = self._answer(ALL | {option.name}, self._with_option[option.name])
            options.append(self._distance(with_option, self._end))
        return alone, cumulative, options

    def _valid(self, states: torch.Tensor) -> torch.Tensor:
        """(B, N, D) -> (rows, D), the rows of the histories."""
        return states[torch.arange(states.size(1)) < self._rows.lengths.unsqueeze(1)]

    def _distance(self, answer: Answer, other: Answer) -> Distance:
        ours, theirs = (F.normalize(self._valid(side.states), dim=-1) for side in (answer, other))
        return Distance(
            relative(ours, theirs),
            top_overlap(answer.scores.numpy(), other.scores.numpy()),
            rank_correlation(answer.scores.numpy(), other.scores.numpy()),
        )


def production_scores(production: HSTUTransducer, rows: Rows, candidates: torch.Tensor) -> torch.Tensor:
    """(B, X): scores of the production reference, in requests of `made_equal.TARGETS` candidates."""
    scores = []
    for requested in candidates.split(TARGETS):
        request = rows.with_targets(requested).trimmed()
        states = production(request.lengths, request.ids, request.timestamps, request.num_targets)
        items = production._embedding_module.get_item_embeddings(requested)
        scores.append((states * items).sum(dim=-1))
    return torch.cat(scores, dim=1)


def relative(result: torch.Tensor, expected: torch.Tensor) -> float:
    """||result - expected|| / ||expected||."""
    return float((result - expected).norm() / expected.norm())


def top_overlap(a_BX: np.ndarray, b_BX: np.ndarray) -> float:
    """Share of the `TOP` best candidates that both have, mean over users."""
    best = [np.argsort(-scores, axis=1, kind="stable")[:, :TOP] for scores in (a_BX, b_BX)]
    return float(np.mean([np.intersect1d(a, b).size / TOP for a, b in zip(*best, strict=True)]))


def rank_correlation(a_BX: np.ndarray, b_BX: np.ndarray) -> float:
    """Spearman's correlation over the candidates, mean over users. Ties of scores are ignored."""
    ranks = [scores.argsort(axis=1).argsort(axis=1).astype(float) for scores in (a_BX, b_BX)]
    return float(np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(*ranks, strict=True)]))


def mean(distances: Iterable[Distance]) -> Distance:
    """The mean over several draws, field by field."""
    draws = list(distances)
    return Distance(
        *(float(np.mean([getattr(d, field) for d in draws])) for field in ("states", "top", "rank"))
    )


def spread(distances: Iterable[Distance]) -> float:
    """Largest distance of a draw's states from the draws' mean."""
    states = [distance.states for distance in distances]
    return max(abs(state - float(np.mean(states))) for state in states)
