"""The server: a thread that takes batches from the queue, runs the port and answers.

An answer has the number of its request in front of the predictions. LoadGen's log then shows whether a query
has the answer of its own request.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from parity.base.interruption import raisable
from parity.studies.serving.batching import Batch, Query, TokenQueue, in_time
from parity.studies.serving.cache import Entry, KVCache, Statistics
from parity.studies.serving.port import Running, ServedPort
from parity.studies.serving.requests import Requests, Shape

HEADER = 2
"""Numbers of an answer in front of its predictions: a time, which is always 0, and the request."""

Answer = Callable[[int, np.ndarray], None]
"""Gives LoadGen the answer, float32, to the query of an id."""


@dataclass
class Log:
    """The work of a server in one test.

    Attributes:
        batches: Numbers of the requests of each batch, in the order of its rows.
        dropped: Numbers of the requests of queries that no batch answered.
        hits: Numbers of requests whose shared rows were in the cache, each with that of the entry.
        cache: The work of the cache; all zero without one.
        error: The error that ended the work; None without one.
    """

    batches: list[tuple[int, ...]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    hits: list[tuple[int, int]] = field(default_factory=list)
    cache: Statistics = Statistics()
    error: BaseException | None = None


class Server:
    """Answers the queries of one test. A context: inside, the thread runs.

    LoadGen waits for an answer to every query. A query that the work loses has an empty answer, so that the
    test ends and names it.

    Args:
        requests: The requests.
        port: The port.
        answer: Gives LoadGen an answer.
        deadline: Seconds from a query to its answer, which bound the batches; None for none.
    """

    def __init__(
        self, requests: Requests, port: ServedPort, answer: Answer, deadline: float | None = None
    ) -> None:
        self._requests, self._port, self._answer = requests, port, answer
        fast = in_time(port.times, deadline, port.most_running)
        self._queue = TokenQueue({shape: port.queued[shape] for shape in fast})
        self._counted = {width: requests.counted(requests.of_width(width)) for width in requests.shapes}
        self._row = {
            number: row for width in requests.shapes for row, number in enumerate(requests.of_width(width))
        }
        # Each test begins with an empty one.
        self._cache = KVCache(port.kv_cache) if port.kv_cache else None
        self._open: dict[int, Query] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="server", daemon=True)
        self.log = Log()

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.close()
        self._thread.join()

    def ask(self, queries: Iterable[tuple[int, int]]) -> None:
        """Take queries: LoadGen's id and the number of the request of each."""
        asked = [Query(id, request, self._requests.width[request]) for id, request in queries]
        with self._lock:
            self._open.update((query.id, query) for query in asked)
            self._queue.put(asked)

    def _work(self) -> None:
        running: deque[tuple[Batch, Running]] = deque()
        while not (self._queue.is_closed() and not running):
            batch = self._queue.take(wait=not running)
            try:
                if batch is not None and self.log.error is None:
                    running.extend(self._start(batch))
                most = self._port.most_running - 1 if batch is not None else max(0, len(running) - 1)
                while len(running) > most:
                    first, work = running.popleft()
                    self._respond(first, work.result())
            except raisable() as error:
                # LoadGen must end before it can be raised.
                self.log.error = error
                running.clear()
            if not running:
                self._answer_lost()

    def _start(self, batch: Batch) -> list[tuple[Batch, Running]]:
        """Queue a batch; with a cache, the requests that hit are a batch of their own."""
        if self._cache is None:
            return [(batch, self._port.start(batch.shape, self._staged(batch)))]
        missing: dict[bytes, Query] = {}
        hits: list[tuple[Query, Entry]] = []
        again: list[tuple[Query, bytes]] = []
        for query in batch.queries:
            key = self._requests.key(query.request)
            if key in missing:
                # The first one's keys and values are there when its batch is queued.
                again.append((query, key))
            elif (entry := self._cache.get(key)) is not None:
                hits.append((query, entry))
            else:
                missing[key] = query
        started = []
        if missing:
            part = self._part(batch, list(missing.values()))
            running = self._port.start(part.shape, self._staged(part), len(missing))
            entries = {
                key: Entry(query.request, kept)
                for (key, query), kept in zip(missing.items(), running.kept, strict=True)
            }
            for key, entry in entries.items():
                self._cache.put(key, entry)
            hits += [(query, self._cache.get(key) or entries[key]) for query, key in again]
            started.append((part, running))
        if hits:
            part = self._part(batch, [query for query, _ in hits])
            started.append((part, self._resume(part, [entry for _, entry in hits])))
            self.log.hits += [(query.request, entry.request) for query, entry in hits]
        self.log.cache = self._cache.statistics
        return started

    def _part(self, batch: Batch, queries: Sequence[Query]) -> Batch:
        """Some queries of a batch, in the smallest shape that holds them."""
        fitting = (
            shape
            for shape in self._port.times
            if shape.width == batch.shape.width and shape.rows >= len(queries)
        )
        return Batch(min(fitting, key=lambda shape: shape.rows), tuple(queries))

    def _resume(self, batch: Batch, entries: Sequence[Entry]) -> Running:
        """Queue a batch whose shared rows are in the cache, by request."""
        numbers = self._requests.full(self._logged(batch), batch.shape)
        return self._port.resume(
            batch.shape, self._requests.staged(numbers, self._port.case.resumed), entries
        )

    def _staged(self, batch: Batch) -> dict[str, np.ndarray]:
        """All inputs of a batch."""
        return self._stage(self._logged(batch), batch.shape)

    def _logged(self, batch: Batch) -> list[int]:
        """The numbers of a batch's requests, which are logged."""
        numbers = [query.request for query in batch.queries]
        self.log.batches.append(tuple(numbers))
        return numbers

    def _stage(self, numbers: Sequence[int], shape: Shape) -> dict[str, np.ndarray]:
        """The inputs of a whole batch."""
        return dict(self._requests.staged(self._requests.full(numbers, shape)))

    def _respond(self, batch: Batch, output: torch.Tensor) -> None:
        values = output.float().numpy()
        for row, query in enumerate(batch.queries):
            counted = self._counted[query.width][self._row[query.request]]
            self._send(query.id, np.concatenate([header(query.request), values[row][counted]]))

    def _send(self, id: int, answer: np.ndarray) -> None:
        with self._lock:
            query = self._open.pop(id, None)
        if query is None:
            raise RuntimeError("the server answered a query twice, or one that LoadGen never asked")
        self._answer(id, np.ascontiguousarray(answer, np.float32))

    def _answer_lost(self) -> None:
        """Answer open queries if none waits: no batch has them."""
        with self._lock:
            lost = list(self._open.values()) if self._queue.is_empty() else []
        for query in lost:
            self.log.dropped.append(query.request)
            self._send(query.id, np.zeros(0, np.float32))


def header(request: int) -> np.ndarray:
    """The numbers in front of the predictions of a request."""
    return np.array([0, request], np.float32)


def row_of(batches: Iterable[Sequence[int]], request: int) -> tuple[int, int] | None:
    """The first batch and row of a request; None if no batch has it."""
    places = (
        (number, row)
        for number, batch in enumerate(batches)
        for row, own in enumerate(batch)
        if own == request
    )
    return next(places, None)
