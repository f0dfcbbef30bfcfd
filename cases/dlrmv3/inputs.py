"""Requests for DLRMv3: the arrays, synthetic ones, and the checks of both.

Legend: B users, H rows of a padded history, T candidates at most, C contextual rows, E columns of the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from configs import CaseConfig, DLRMv3Config
from parity.base.errors import UserError
from parity.inputs.arrays import CaseInputs, require_all_good, require_int64, require_names

UIH = ("uih_embeddings", "uih_category_embeddings", "uih_timestamps")
"""Arrays with H rows a user; `ACTIONS` is another."""
CANDIDATES = ("candidate_embeddings", "candidate_category_embeddings", "query_times")
"""Arrays with T rows a user."""
ACTIONS, CONTEXT = "uih_actions", "contextual_embeddings"
"""Arrays of models with actions and with context."""
_LENGTHS = ("uih_lengths", "num_candidates")
_TIMES = ("uih_timestamps", "query_times")
_FIRST_QUERY = 1_443_000_000
"""Moment of the first request; the others follow within four weeks."""
_QUERY_SPAN = 28 * 24 * 3600
_NOT_A_NUMBER = 0.1
"""Share of the numbers in poisoned padding that are NaN, as in memory that nothing has written."""
_STEPS = 32
"""Numbers of the tables are multiples of the inverse."""


@dataclass(frozen=True)
class Requests:
    """Rows of history and candidates of each user, the query's second, and the padded width of a history."""

    history: tuple[int, ...]
    candidates: tuple[int, ...]
    queries: tuple[int, ...]
    width: int


class Drawing:
    """Random requests of a case, of given lengths and ages."""

    def __init__(self, case: CaseConfig, stream: int) -> None:
        self.model, self._table_rows = case.model, case.input.table_rows
        self.rng = np.random.default_rng([case.input.seed, stream])
        # The tables are the case's own, so that batches share rows.
        tables = np.random.default_rng([case.input.seed, 0xD3])
        shape = (3, self._table_rows, self.model.embedding_table_dim)
        # Every precision holds these numbers exactly: half types round the inputs of a case, too.
        self._tables = np.rint(_STEPS * tables.standard_normal(shape, dtype=np.float32)) / np.float32(_STEPS)

    def batch(self, requests: Requests, ages_BH: np.ndarray, ages_BT: np.ndarray | int = 0) -> CaseInputs:
        """Requests of the given lengths.

        Args:
            requests: The lengths and queries.
            ages_BH: Seconds of each event in front of the query.
            ages_BT: Likewise of each candidate but a user's last, whose moment is the query's.
        """
        model, rng = self.model, self.rng
        history_B, candidates_B = (np.array(rows) for rows in (requests.history, requests.candidates))
        valid_BH = np.arange(requests.width) < history_B[:, None]
        valid_BT = np.arange(model.max_num_candidates) < candidates_B[:, None]
        query_B1 = np.array(requests.queries)[:, None]
        is_last_BT = np.arange(model.max_num_candidates) == candidates_B[:, None] - 1
        ids_BH, ids_BT = (self._ids(valid.shape) for valid in (valid_BH, valid_BT))
        # A candidate that is the latest event, and one that is another candidate.
        for row, length in enumerate(history_B):
            ids_BT[row, 0] = ids_BH[row, max(length - 1, 0)]
        ids_BT[:, -1] = ids_BT[:, len(ids_BT[0]) // 2]
        arrays = {
            "uih_lengths": history_B,
            "num_candidates": candidates_B,
            "uih_embeddings": self._rows(0, ids_BH, valid_BH),
            "uih_category_embeddings": self._rows(1, ids_BH // 2, valid_BH),
            "uih_timestamps": np.where(valid_BH, query_B1 - ages_BH, 0),
            "candidate_embeddings": self._rows(0, ids_BT, valid_BT),
            "candidate_category_embeddings": self._rows(1, ids_BT // 2, valid_BT),
            "query_times": np.where(valid_BT, query_B1 - ages_BT * ~is_last_BT, 0),
        }
        if model.action_weights is not None:
            # Every set of bits, and one bit of no action.
            largest = 2 ** (max(model.action_weights).bit_length() + 1)
            arrays[ACTIONS] = np.where(valid_BH, rng.integers(0, largest, valid_BH.shape), 0)
        if model.contextual_seq_len > 0:
            shape = (history_B.size, model.contextual_seq_len)
            arrays[CONTEXT] = self._rows(2, self._ids(shape), rng.random(shape) > 0.1)
        return CaseInputs(arrays)

    def _ids(self, shape: tuple[int, int]) -> np.ndarray:
        return self.rng.integers(0, self._table_rows, shape)

    def _rows(self, table: int, ids: np.ndarray, valid: np.ndarray) -> np.ndarray:
        return np.where(valid[..., None], self._tables[table][ids], np.float32(0))


def synthetic(case: CaseConfig) -> CaseInputs:
    """Requests that look like logged ones and reach every part of the model.

    One history is the longest and one is empty. One request has the most candidates and one has one. The ages
    of a history's events are spread over the time buckets, from zero to beyond the last.
    """
    draw = Drawing(case, 0xD30)
    model, rng, batch = draw.model, draw.rng, case.input.batch_size
    history_B = rng.integers(1, model.max_uih_len + 1, batch)
    candidates_B = rng.integers(1, model.max_num_candidates + 1, batch)
    ends = [(model.max_uih_len, model.max_num_candidates), (0, max(1, model.max_num_candidates - 1))]
    ends += [(history_B[-1], 1), (1, candidates_B[-1])]
    for row, (history, candidates) in enumerate(ends[:batch]):
        history_B[row], candidates_B[row] = history, candidates
    # The longest history is not the first one.
    order = np.roll(np.arange(batch), 1 + batch // 2)
    query_B = _FIRST_QUERY + rng.integers(0, _QUERY_SPAN, batch)
    width = model.max_uih_len
    # One event in twenty is older than the last bucket's edge.
    bucket_BH = rng.uniform(0.0, 1.05 * (model.num_time_buckets + 1), (batch, width))
    ages_BH = -np.sort(-(60.0 * bucket_BH**2).astype(np.int64), axis=1)
    lengths = (tuple(rows[order].tolist()) for rows in (history_B, candidates_B))
    return draw.batch(Requests(*lengths, tuple(query_B.tolist()), width), ages_BH)


def valid_masks(arrays: Mapping[str, np.ndarray], contextual_seq_len: int) -> dict[int, np.ndarray]:
    """Bool (B, size) for the padded sizes: history, candidates, both, and both behind the context."""
    history_B, candidates_B = arrays["uih_lengths"], arrays["num_candidates"]
    h, t = arrays["uih_timestamps"].shape[1], arrays["query_times"].shape[1]
    lengths_B = history_B + candidates_B
    rows = {h: history_B, t: candidates_B, h + t: lengths_B}
    rows[contextual_seq_len + h + t] = contextual_seq_len + lengths_B
    return {size: np.arange(size) < lengths[:, None] for size, lengths in rows.items()}


def poison(inputs: CaseInputs, seed: int) -> CaseInputs:
    """The same requests with garbage in the padding: nothing valid may change when a model runs on it."""
    rng = np.random.default_rng([seed, 0xBAD])
    lengths = dict.fromkeys((*UIH, ACTIONS), "uih_lengths") | dict.fromkeys(CANDIDATES, "num_candidates")
    changed = dict(inputs.arrays)
    for name, counts in lengths.items():
        if name not in changed:
            continue
        array = changed[name]
        padding = np.arange(array.shape[1]) >= inputs[counts][:, None]
        if array.dtype == np.float32:
            garbage, padding = rng.uniform(-50.0, 50.0, array.shape).astype(np.float32), padding[..., None]
            garbage[rng.random(array.shape) < _NOT_A_NUMBER] = np.nan
        elif name == ACTIONS:
            garbage = rng.integers(0, 2**31, array.shape)
        else:
            garbage = rng.integers(-(2**31), 2**31, array.shape)
        changed[name] = np.where(padding, garbage, array)
    return CaseInputs(changed)


def validate(inputs: CaseInputs, model: DLRMv3Config) -> None:
    """Refuse inputs on which a model of this configuration cannot run.

    Raises:
        UserError: A bad element, with its array, index and value.
    """
    _validate_layout(inputs, model)
    history_B, candidates_B = inputs["uih_lengths"], inputs["num_candidates"]
    h = inputs["uih_timestamps"].shape[1]
    require_all_good(
        "uih_lengths",
        history_B,
        (history_B < 0) | (history_B > h),
        f"is not a number of 0..{h}, the padded rows",
        "pad the histories to the longest one; keep the latest events",
    )
    require_all_good(
        "num_candidates",
        candidates_B,
        (candidates_B < 0) | (candidates_B > model.max_num_candidates),
        f"is not a number of 0..{model.max_num_candidates} (max_num_candidates)",
        "rank the candidates in several requests",
    )
    require_all_good(
        "num_candidates",
        candidates_B,
        history_B + candidates_B + model.contextual_seq_len < 1,
        "leaves a user without any row",
        "give every user a candidate",
    )
    for name, array in inputs.arrays.items():
        if array.dtype == np.float32:
            require_all_good(
                name, array, ~np.isfinite(array), "is not finite", "give finite rows of the tables"
            )
    if ACTIONS in inputs.arrays:
        require_all_good(
            ACTIONS,
            inputs[ACTIONS],
            inputs[ACTIONS] < 0,
            "is negative",
            "give the bits of the event's actions",
        )


def _validate_layout(inputs: CaseInputs, model: DLRMv3Config) -> None:
    optional = (ACTIONS,) if model.action_weights is not None else ()
    optional += (CONTEXT,) if model.contextual_seq_len > 0 else ()
    require_names(inputs, (*_LENGTHS, *UIH, *CANDIDATES, *optional))
    b = len(np.atleast_1d(inputs["uih_lengths"]))
    h = (*inputs["uih_timestamps"].shape, 0)[1] if inputs["uih_timestamps"].ndim else 0
    if not 1 <= h <= model.max_uih_len or b == 0:
        raise UserError(
            "uih_timestamps",
            inputs["uih_timestamps"].shape,
            f"is not (users, rows) with 1..{model.max_uih_len} rows (max_uih_len)",
            "give at least one user, and histories padded to one width",
        )
    e, t = model.embedding_table_dim, model.max_num_candidates
    shapes = dict.fromkeys(_LENGTHS, (b,)) | dict.fromkeys((*UIH, ACTIONS), (b, h))
    shapes |= dict.fromkeys(CANDIDATES, (b, t)) | {CONTEXT: (b, model.contextual_seq_len)}
    for name, array in inputs.arrays.items():
        is_index = name in (*_LENGTHS, *_TIMES, ACTIONS)
        shape = shapes[name] if is_index else (*shapes[name], e)
        if array.shape != shape:
            raise UserError(
                name, array.shape, f"is not the shape {shape} of {b} users and {h} rows", "pad to this shape"
            )
        if is_index:
            require_int64(name, array)
        elif array.dtype != np.float32:
            raise UserError(name, str(array.dtype), "is not float32", "give float32")
