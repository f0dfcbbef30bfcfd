"""The queue of a server, and its batches: requests of one width, in the size that takes least time a query.

Sizes are fixed, one executable each, and their times are measured before the first query comes. Times of
batches that follow one another choose among them: a busy server has such ones. A deadline bounds them.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from parity.studies.serving.requests import Shape


@dataclass(frozen=True)
class Query:
    """One question of LoadGen.

    Attributes:
        id: LoadGen's number of the question.
        request: Number of the request.
        width: The request's width.
    """

    id: int
    request: int
    width: int


@dataclass(frozen=True)
class Batch:
    """Queries of one width, in the order of their rows."""

    shape: Shape
    queries: tuple[Query, ...]


def in_time(times: Mapping[Shape, float], deadline: float | None, running: int) -> dict[Shape, float]:
    """The shapes whose batches answer a query before a deadline; of each width at least the fastest.

    A query may wait for the batches that are queued on the device, and for one that is ahead of it, before
    its own batch runs.

    Args:
        times: Measured seconds of a batch by shape, alone.
        deadline: Seconds from a query to its answer; None for none.
        running: Most batches that are queued on the device.
    """
    if deadline is None:
        return dict(times)
    fastest: dict[int, Shape] = {}
    for shape in sorted(times, key=times.__getitem__):
        fastest.setdefault(shape.width, shape)
    return {
        shape: seconds
        for shape, seconds in times.items()
        if (running + 2) * seconds <= deadline or shape == fastest[shape.width]
    }


class TokenQueue:
    """Queries in the order of their arrival, taken as batches.

    A batch has the width of the query that has waited longest, and does not wait for more queries. Of the
    shapes of this width it has the one that takes least time for each of its queries.

    Args:
        times: Seconds of a batch by shape while batches follow one another.
    """

    def __init__(self, times: Mapping[Shape, float]) -> None:
        self._times = times
        self._waiting: deque[Query] = deque()
        self._by_width: Counter[int] = Counter()
        self._changed = threading.Condition()
        self._is_closed = False

    def put(self, queries: Iterable[Query]) -> None:
        """Add queries."""
        with self._changed:
            for query in queries:
                self._waiting.append(query)
                self._by_width[query.width] += 1
            self._changed.notify()

    def close(self) -> None:
        """No query comes any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def take(self, wait: bool) -> Batch | None:
        """The next batch; None if there is no query, and, with `wait`, if the queue is closed."""
        with self._changed:
            while wait and not self._waiting and not self._is_closed:
                self._changed.wait()
            if not self._waiting:
                return None
            shape = self._shape(self._waiting[0].width)
            chosen: list[Query] = []
            others: list[Query] = []
            while self._waiting and len(chosen) < shape.rows:
                query = self._waiting.popleft()
                (chosen if query.width == shape.width else others).append(query)
            self._waiting.extendleft(reversed(others))
            self._by_width[shape.width] -= len(chosen)
            return Batch(shape, tuple(chosen))

    def _shape(self, width: int) -> Shape:
        """The shape of the next batch of a width, of which at least one query waits."""
        waiting = self._by_width[width]
        shapes = (shape for shape in self._times if shape.width == width)
        return min(shapes, key=lambda shape: self._times[shape] / min(shape.rows, waiting))

    def is_empty(self) -> bool:
        """Whether no query waits."""
        with self._changed:
            return not self._waiting

    def is_closed(self) -> bool:
        """Whether no query comes any more and none waits."""
        with self._changed:
            return self._is_closed and not self._waiting
