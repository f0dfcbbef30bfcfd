"""The benchmark's users, drawn again: the same numbers as the public program, for any of its users.

A file's users share two streams of random numbers, Python's and NumPy's, both seeded by the file. A user's
draws begin where those of the user in front end. So all users in front are drawn, too, and forgotten. Items
have ratings of their own, from a third stream. They are looked up last, in one pass over that stream.

Legend: C categories of a user, S items that a user sees in one period, K possible ratings.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np

from datasets.dlrmv3.users import Period, User
from datasets.errors import DataError

_SEED = 1001
"""Seed of the items' ratings; that of a file is this number plus the file's."""
_ITEM_STARS = np.array([5.0, 4.0, 3.0, 2.0, 1.0])
_ITEM_SHARES = np.array([0.2, 0.25, 0.25, 0.2, 0.1])
_LARGEST_ALPHA = 500
"""The largest weight of a user's first tastes, beside the events so far."""
_PIECE = 1 << 20
"""Ratings of items that are drawn at a time."""


@dataclass(frozen=True)
class Settings:
    """Sizes of the benchmark's data; the defaults are the benchmark's own.

    Attributes:
        num_users, num_items, num_categories: in all files.
        num_files: files with equal numbers of users.
        categories_per_user: categories that a user takes items from.
        num_timestamps: periods behind the base.
        num_training: periods of training among them, the first ones.
        avg_samples_per_item: the mean number of events of an item.
        user_sampling_ratio: the probability that a user is there in a period.
        num_eval_candidates, num_inference_candidates: candidates of a period before and in the inference.
    """

    num_users: int = 5_000_000
    num_items: int = 1_000_000_000
    num_categories: int = 128
    num_files: int = 100
    categories_per_user: int = 4
    num_timestamps: int = 100
    num_training: int = 90
    avg_samples_per_item: int = 50
    user_sampling_ratio: float = 0.7
    num_eval_candidates: int = 32
    num_inference_candidates: int = 2048

    @property
    def users_per_file(self) -> int:
        """Users of one file."""
        return self.num_users // self.num_files

    @property
    def generated_users(self) -> int:
        """Users of all files: a remainder has no file."""
        return self.users_per_file * self.num_files

    @property
    def items_per_category(self) -> int:
        """Items of one category, which have neighbouring numbers."""
        return self.num_items // self.num_categories

    @property
    def mean_events(self) -> int:
        """Mean number of events of a period."""
        return int(self.num_items * self.avg_samples_per_item / self.num_users / self.num_timestamps)


def users(settings: Settings, numbers: Collection[int]) -> Iterator[User]:
    """Some users, in the order of their numbers. Memory follows from their count alone.

    Raises:
        DataError: there is no such user.
    """
    last = settings.generated_users - 1
    for number in numbers:
        if not 0 <= number <= last:
            raise DataError("user", number, "is no user of the data", f"give 0 to {last}")
    drawn = [user for file in range(settings.num_files) for user in _of_file(settings, file, set(numbers))]
    if not drawn:
        return
    periods = [period for user in drawn for period in user.periods if period is not None]
    items = np.unique(np.concatenate([values for p in periods for values in (p.candidates, p.events)]))
    stars = item_stars(settings.num_items, items)
    for user in drawn:
        yield _rated(user, lambda of: stars[np.searchsorted(items, of)])


def every_user(settings: Settings) -> Iterator[User]:
    """All users, one at a time, in the order of their numbers.

    Memory holds a rating of every item, in place of the users.
    """
    stars = item_stars(settings.num_items, np.arange(settings.num_items))
    for file in range(settings.num_files):
        for user in _drawn(settings, file, settings.users_per_file):
            yield _rated(user, stars.__getitem__)


def item_stars(num_items: int, items: np.ndarray) -> np.ndarray:
    """Ratings of some items, each of one to five stars, from a stream of `num_items` draws taken in pieces.

    Args:
        num_items: items of the data.
        items: ascending int64.

    Returns:
        float64, one rating for each of `items`.
    """
    stream = np.random.RandomState(_SEED)
    edges = _edges(_ITEM_SHARES)
    stars = np.empty(items.size)
    for first in range(0, num_items, _PIECE):
        if first > items[-1]:
            break
        draws = stream.random_sample(min(_PIECE, num_items - first))
        here = slice(*np.searchsorted(items, [first, first + draws.size]))
        stars[here] = _ITEM_STARS[np.searchsorted(edges, draws[items[here] - first], side="right")]
    return stars


def _of_file(settings: Settings, file: int, numbers: set[int]) -> list[User]:
    """The users of a file among `numbers`, whose ratings lack the items' part."""
    first = settings.users_per_file * file
    wanted = {number for number in numbers if first <= number < first + settings.users_per_file}
    if not wanted:
        return []
    drawn = _drawn(settings, file, max(wanted) + 1 - first)
    return [user for user in drawn if user.number in wanted]


def _drawn(settings: Settings, file: int, count: int) -> Iterator[User]:
    """The first users of a file, whose ratings lack the items' part."""
    first, draw = settings.users_per_file * file, _Draw(settings, _SEED + file)
    return (User(number, draw.periods()) for number in range(first, first + count))


def _rated(user: User, stars_of: Callable[[np.ndarray], np.ndarray]) -> User:
    """A user whose ratings have the items' part, too."""

    def rated(period: Period) -> Period:
        return replace(
            period,
            candidate_ratings=(period.candidate_ratings + stars_of(period.candidates)) / 2,
            event_ratings=(period.event_ratings + stars_of(period.events)) / 2,
        )

    return replace(user, periods=[None if period is None else rated(period) for period in user.periods])


class _Draw:
    """The two streams of a file, and the draws of its users in turn."""

    def __init__(self, settings: Settings, seed: int) -> None:
        self._settings = settings
        self._python = random.Random(seed)
        self._numpy = np.random.RandomState(seed)

    def periods(self) -> list[Period | None]:
        """The periods of the next user."""
        settings = self._settings
        categories_C = np.array(
            self._python.sample(range(settings.num_categories), settings.categories_per_user)
        )
        counts_C = np.zeros(categories_C.size, dtype=np.int64)
        periods: list[Period | None] = [self._period(categories_C, counts_C, -1, self._length())]
        for time in range(settings.num_training):
            there = self._is_there()
            periods.append(self._period(categories_C, counts_C, time, self._length()) if there else None)
        evaluation = settings.num_eval_candidates
        periods.append(self._period(categories_C, counts_C, settings.num_training, evaluation))
        for time in range(settings.num_training, settings.num_timestamps):
            there = self._is_there()
            length = self._length() if there else 0
            periods.append(self._period(categories_C, counts_C, time, length, True) if there else None)
        return periods

    def _is_there(self) -> bool:
        ratio = self._settings.user_sampling_ratio
        return bool(self._choice(np.array([ratio, 1 - ratio]), 1)[0] == 0)

    def _choice(self, shares: np.ndarray, size: int) -> np.ndarray:
        """`size` places, as NumPy's ``choice`` draws them with these probabilities."""
        return _edges(shares).searchsorted(self._numpy.random_sample(size), side="right")

    def _length(self) -> int:
        """Events of a period."""
        mean = self._settings.mean_events
        return max(round(self._python.gauss(mean, mean // 4)), self._settings.num_eval_candidates + 1)

    def _period(
        self, categories_C: np.ndarray, counts_C: np.ndarray, time: int, length: int, inference: bool = False
    ) -> Period:
        """One period of `length` events; `counts_C`, the user's items so far, grows.

        Before the inference, candidates are some of the events. In it, events are some of the candidates.
        """
        settings = self._settings
        size = settings.num_inference_candidates if inference else length
        alpha = self._python.randint(1, _LARGEST_ALPHA)
        shares_C = (alpha / categories_C.size + counts_C) / (alpha + counts_C.sum())
        category_S = self._choice(shares_C, size)
        counts_C += np.bincount(category_S, minlength=categories_C.size)
        # New items appear from period to period.
        known = int(settings.items_per_category * max(time + 1, 1) / settings.num_timestamps)
        items_S = self._numpy.randint(0, known, size=size)
        items_S = items_S + categories_C[category_S] * settings.items_per_category
        # Each category draws ratings of all items, and those of its own items are taken.
        draws_S = self._numpy.random_sample((categories_C.size, size))[category_S, np.arange(size)]
        stars_CK, edges_CK = _tastes(categories_C.size, time)
        chosen_S = (edges_CK[category_S] <= draws_S[:, None]).sum(axis=1)
        stars_S = stars_CK[category_S, chosen_S]
        chosen = self._python.sample(range(size), length if inference else settings.num_eval_candidates)
        all_of_them, some = (items_S, stars_S), (items_S[chosen], stars_S[chosen])
        return Period(*all_of_them, *some) if inference else Period(*some, *all_of_them)


def _edges(shares: np.ndarray) -> np.ndarray:
    """The upper ends of the intervals in which a number of [0, 1) chooses each place."""
    edges = np.cumsum(shares)
    return edges / edges[-1]


@functools.cache
def _tastes(categories: int, time: int) -> tuple[np.ndarray, np.ndarray]:
    """(C, K) each: the possible ratings of a user's categories, and the edges of their intervals.

    A category of fewer ratings has empty intervals at the end.
    """
    stars_CK, edges_CK = np.zeros((categories, 3)), np.full((categories, 3), np.inf)
    for place in range(categories):
        stars, shares = _stars_of(place, categories, time)
        stars_CK[place, : stars.size], edges_CK[place, : stars.size] = stars, _edges(shares)
    return stars_CK, edges_CK


def _stars_of(place: int, categories: int, time: int) -> tuple[np.ndarray, np.ndarray]:
    """The possible ratings of a category, by its place among the user's, and their probabilities.

    Tastes turn with a period of eight.
    """
    turns = [0.5 * math.cos((time + shift) * math.pi / 4) for shift in (0, 2, 4)]
    quarter = categories // 4
    if place < quarter:
        return np.array([4.5 + turns[0], 4.0 + turns[1]]), np.array([0.8, 0.2])
    if place < categories // 2:
        middle = 4.0
    else:
        middle = 3.0 if place < 3 * quarter else 2.0
    stars = [middle + 0.5 + turns[0], middle + turns[1], middle - 0.5 + turns[2]]
    return np.array(stars), np.array([0.1, 0.8, 0.1])
