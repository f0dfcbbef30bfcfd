"""The queue of a server, and batches by tokens: requests of one width, as many as a batch's tokens allow."""

from __future__ import annotations

import threading
from collections import deque
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


class TokenQueue:
    """Queries in the order of their arrival, taken as batches.

    A batch has the width of the query that has waited longest, and does not wait for more queries.

    Args:
        shapes: Shapes by width.
    """

    def __init__(self, shapes: Mapping[int, Shape]) -> None:
        self._shapes = shapes
        self._waiting: deque[Query] = deque()
        self._changed = threading.Condition()
        self._is_closed = False

    def put(self, queries: Iterable[Query]) -> None:
        """Add queries."""
        with self._changed:
            self._waiting.extend(queries)
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
            shape = self._shapes[self._waiting[0].width]
            chosen: list[Query] = []
            others: list[Query] = []
            while self._waiting and len(chosen) < shape.rows:
                query = self._waiting.popleft()
                (chosen if query.width == shape.width else others).append(query)
            self._waiting.extendleft(reversed(others))
            return Batch(shape, tuple(chosen))

    def is_empty(self) -> bool:
        """Whether no query waits."""
        with self._changed:
            return not self._waiting

    def is_closed(self) -> bool:
        """Whether no query comes any more and none waits."""
        with self._changed:
            return self._is_closed and not self._waiting
