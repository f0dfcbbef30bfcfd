"""Requests of DLRMv3 with the history of an earlier one: the key of their keys and values, and such requests.

Rows of context and history see no candidate. All that enters them: history and context, the second of the
query, which the time before it needs, and whether there are rows enough for each contextual feature, which
candidates count for. The padded width divides the attention's weights. A longer history moves the place of
each of its rows, which counts from its end, so that no row of it is shared.

Legend: B requests, H rows of a padded history, T candidates at most, C contextual rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from operator import or_

import numpy as np

from cases.dlrmv3.inputs import ACTIONS, CANDIDATES, CONTEXT, UIH
from configs import DLRMv3Config
from parity.case import Arrays
from parity.case.serving import Drawn

FRESH = frozenset({"num_candidates", *CANDIDATES})
"""Inputs that differ among requests with one history."""
QUERY_TIME, HAS_CONTEXT = "query_time", "has_context"
"""Values of fresh inputs that enter the history's rows."""
_DAYS = 10 * 24 * 3600
"""Change of a time, s."""
_NO_ROW = -1


def shared(inputs: Arrays, model: DLRMv3Config) -> Arrays:
    """All that keys and values of context and history depend on; see `parity.case.serving.Serving.shared`."""
    history_B, candidates_B = inputs["uih_lengths"], inputs["num_candidates"]
    of_history = (*UIH, ACTIONS)
    key = {
        name: _valid(array, history_B) if name in of_history else array
        for name, array in inputs.items()
        if name not in FRESH
    }
    key[QUERY_TIME] = _query_time(inputs)
    if model.contextual_seq_len:
        least = np.array(model.contextual_min_seq_lengths)
        key[HAS_CONTEXT] = (history_B + candidates_B)[:, None] >= least
    return key


def _valid(array: np.ndarray, lengths_B: np.ndarray) -> np.ndarray:
    """The rows in front of the padding, and zeros."""
    is_row_BH = np.arange(array.shape[1]) < lengths_B[:, None]
    return np.where(is_row_BH.reshape(*is_row_BH.shape, *[1] * (array.ndim - 2)), array, 0)


def _query_time(inputs: Arrays) -> np.ndarray:
    """(B,) seconds of each request's last row: the last candidate's, without candidates the last event's."""
    seconds_B = np.zeros_like(inputs["uih_lengths"])
    for times, lengths in (("uih_timestamps", "uih_lengths"), ("query_times", "num_candidates")):
        own_B = np.take_along_axis(inputs[times], np.maximum(inputs[lengths] - 1, 0)[:, None], axis=1)[:, 0]
        seconds_B = np.where(inputs[lengths] > 0, own_B, seconds_B)
    return seconds_B


def returning(drawn: Drawn, model: DLRMv3Config) -> Drawn:
    """The requests, each again with the next one's candidates, and some with one changed input each.

    A changed one is a copy of the first request that the change can be made in. All changed inputs but
    candidates enter the keys and values.
    """
    count = len(drawn.arrays["uih_lengths"])
    requests = [_Request(drawn, number) for number in range(count)]
    again = [_with_candidates(drawn, number, (number + 1) % count) for number in range(count)]
    changed = []
    for change in (
        _shorter_history,
        _reversed_items,
        _reversed_categories,
        _earlier_history,
        _other_actions(model),
        _other_context(requests),
        _later_query,
        _fewer_candidates(model),
    ):
        copies = (change(_Request(drawn, number)) for number in range(count))
        changed += [copy for copy in (next(filter(None, copies), None),) if copy is not None]
    return _joined(drawn, [*requests, *again, *changed])


class _Request:
    """Copies of one request's arrays and numbers of rows, without their first axis."""

    def __init__(self, drawn: Drawn, number: int) -> None:
        self.arrays = {name: array[number].copy() for name, array in drawn.arrays.items()}
        self.ids = {name: array[number].copy() for name, array in drawn.ids.items()}

    @property
    def history(self) -> int:
        return int(self.arrays["uih_lengths"])

    @property
    def candidates(self) -> int:
        return int(self.arrays["num_candidates"])

    def set(self, name: str, rows: slice, value: Callable[[np.ndarray], np.ndarray]) -> None:
        """Replace some rows of an input, and their numbers if it is rows of tables."""
        for arrays in (self.arrays, self.ids):
            if name in arrays:
                arrays[name][rows] = value(arrays[name][rows])

    def clear(self, name: str, rows: slice) -> None:
        """Make rows of an input padding."""
        if name in self.arrays:
            self.arrays[name][rows] = 0
        if name in self.ids:
            self.ids[name][rows] = _NO_ROW


_Change = Callable[[_Request], _Request | None]
"""Changes a request; None if it cannot be changed so."""


def _with_candidates(drawn: Drawn, number: int, other: int) -> _Request:
    """A request with the candidates of another one, asked for in the same second."""
    request, donor = _Request(drawn, number), _Request(drawn, other)
    second = _query_time({name: array[number : number + 1] for name, array in drawn.arrays.items()})[0]
    for name in FRESH:
        request.arrays[name] = donor.arrays[name]
        if name in donor.ids:
            request.ids[name] = donor.ids[name]
    request.set("query_times", slice(donor.candidates), lambda times: np.full_like(times, second))
    return request


def _shorter_history(request: _Request) -> _Request | None:
    last = request.history - 1
    if last < 1:
        return None
    request.arrays["uih_lengths"] = np.array(last)
    for name in (*UIH, ACTIONS):
        request.clear(name, slice(last, None))
    return request


def _reversed(name: str) -> _Change:
    def change(request: _Request) -> _Request | None:
        rows = slice(request.history)
        own = request.arrays[name][rows]
        if np.array_equal(own, own[::-1]):
            return None
        request.set(name, rows, lambda values: values[::-1].copy())
        return request

    return change


_reversed_items, _reversed_categories = (_reversed(name) for name in UIH[:2])


def _earlier_history(request: _Request) -> _Request | None:
    if not request.history:
        return None
    request.set("uih_timestamps", slice(request.history), lambda times: times - _DAYS)
    return request


def _other_actions(model: DLRMv3Config) -> _Change:
    def change(request: _Request) -> _Request | None:
        if ACTIONS not in request.arrays or not request.history:
            return None
        bits = reduce(or_, model.action_weights or ())
        request.set(ACTIONS, slice(request.history), lambda actions: bits & ~actions)
        return request

    return change


def _other_context(requests: list[_Request]) -> _Change:
    def change(request: _Request) -> _Request | None:
        own = request.arrays.get(CONTEXT)
        donors = (other for other in requests if own is not None and (other.arrays[CONTEXT] != own).any())
        donor = next(donors, None)
        if donor is None:
            return None
        for arrays, others in ((request.arrays, donor.arrays), (request.ids, donor.ids)):
            if CONTEXT in others:
                arrays[CONTEXT] = others[CONTEXT].copy()
        return request

    return change


def _later_query(request: _Request) -> _Request | None:
    if not (request.candidates and request.history):
        return None
    request.set("query_times", slice(request.candidates), lambda times: times + _DAYS)
    return request


def _fewer_candidates(model: DLRMv3Config) -> _Change:
    def change(request: _Request) -> _Request | None:
        rows = request.history + request.candidates
        least = [least for least in model.contextual_min_seq_lengths if request.history < least - 1 < rows]
        if not least:
            return None
        left = min(least) - 1 - request.history
        request.arrays["num_candidates"] = np.array(left)
        for name in CANDIDATES:
            request.clear(name, slice(left, None))
        return request

    return change


def _joined(drawn: Drawn, requests: list[_Request]) -> Drawn:
    arrays = {name: np.stack([request.arrays[name] for request in requests]) for name in drawn.arrays}
    ids = {name: np.stack([request.ids[name] for request in requests]) for name in drawn.ids}
    return replace(drawn, arrays=arrays, ids=ids)
