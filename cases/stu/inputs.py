"""Requests for the production model: the arrays, synthetic ones, and the checks of both.

Legend: B users, N rows of a padded sequence, C contextual rows, T targets at most.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from configs import CaseConfig, STUConfig
from parity.base.errors import UserError
from parity.inputs.arrays import CaseInputs, require_all_good, require_int64, require_names

NAMES = ("seq_lengths", "seq_ids", "seq_timestamps", "num_targets")
#: Factors of rows, (B, N) float32; only in the inputs of cases with such factors.
SCALE = "attn_scale"
#: Moment of the first request, the autumn of 2015; the others follow within four weeks.
_FIRST_QUERY = 1_443_000_000
_QUERY_SPAN = 28 * 24 * 3600


def synthetic(case: CaseConfig) -> CaseInputs:
    """Requests that look like logged ones and reach every part of the model.

    A row of the batch is a sequence. C contextual rows have time 0, as in the public preprocessor. A history
    in order of time follows, then targets at the query's time, then padding. One history is the longest and
    one is empty. One request has the most targets and one has none. The ages of a history's events are spread
    over the time buckets, from zero to beyond the last.
    """
    model, batch = case.model, case.input.batch_size
    streams = np.random.default_rng([case.input.seed, 0x57]).spawn(4)
    history_B, targets_B = _lengths(streams[0], model, batch)
    lengths_B = model.contextual_seq_len + history_B + targets_B
    row_N = np.arange(model.padded_length)
    valid_BN = row_N < lengths_B[:, None]
    ids_BN = streams[1].integers(1, model.num_items + 1, valid_BN.shape)
    arrays = {
        "seq_lengths": lengths_B,
        "seq_ids": np.where(valid_BN, ids_BN, 0),
        "seq_timestamps": _timestamps(streams[2], model, history_B, targets_B),
        "num_targets": targets_B,
    }
    if case.input.attn_scale:
        # As far apart as short and long sequences would have them.
        factor_BN = np.exp(streams[3].uniform(-1.0, 1.0, valid_BN.shape)) * usual_factor(model, row_N.size)
        arrays[SCALE] = np.where(valid_BN, factor_BN, 0.0).astype(np.float32)
    return CaseInputs(arrays)


def usual_factor(model: STUConfig, width: int) -> float:
    """The usual size of a row's factor: 1 / N, by which logits of a large `attn_alpha` are divided, too."""
    return 1.0 / (width * max(1.0, model.attn_alpha or 0.0))


def _lengths(rng: np.random.Generator, model: STUConfig, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """(B,) lengths of the histories and of the targets, with both ends of each where there is room."""
    history_B = rng.integers(1, model.max_uih_len + 1, batch)
    targets_B = rng.integers(1, model.max_num_targets + 1, batch)
    ends = [(model.max_uih_len, model.max_num_targets), (0, 1), (history_B[-1], 0)]
    for row, (history, targets) in enumerate(ends[:batch]):
        history_B[row], targets_B[row] = history, targets
    order = rng.permutation(batch)
    return history_B[order], targets_B[order]


def _timestamps(
    rng: np.random.Generator, model: STUConfig, history_B: np.ndarray, targets_B: np.ndarray
) -> np.ndarray:
    """Seconds (B, N)."""
    batch, n, c = history_B.size, model.padded_length, model.contextual_seq_len
    query_B = _FIRST_QUERY + rng.integers(0, _QUERY_SPAN, batch)
    seconds_BN = np.zeros((batch, n), dtype=np.int64)
    for row in range(batch):
        end = c + history_B[row]
        # Uniform in the bucket: one in twenty is older than the last bucket's edge.
        bucket = rng.uniform(0.0, 1.05 * (model.num_time_buckets + 1), history_B[row])
        age = np.sort(60.0 * bucket**2)[::-1].astype(np.int64)
        seconds_BN[row, c:end] = query_B[row] - age
        seconds_BN[row, end : end + targets_B[row]] = query_B[row]
        if targets_B[row] == 0 and age.size:
            # Without targets the latest event gives the query's time.
            seconds_BN[row, c:end] += age[-1]
    return seconds_BN


def valid_mask(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Bool (B, N): True where a sequence has a row."""
    return np.arange(arrays["seq_ids"].shape[1]) < arrays["seq_lengths"][:, None]


def poison(inputs: CaseInputs, seed: int) -> CaseInputs:
    """The same requests with garbage in the padding: nothing valid may change when a model runs on it."""
    rng = np.random.default_rng([seed, 0xBAD])
    padding_BN = ~valid_mask(inputs.arrays)
    garbage = {
        "seq_ids": rng.integers(1, int(inputs["seq_ids"].max()) + 1, padding_BN.shape),
        "seq_timestamps": rng.integers(-(2**31), 2**31, padding_BN.shape),
        SCALE: rng.uniform(-2.0, 2.0, padding_BN.shape).astype(np.float32),
    }
    return CaseInputs(
        {
            name: np.where(padding_BN, garbage[name], array) if name in garbage else array
            for name, array in inputs.arrays.items()
        }
    )


def validate(inputs: CaseInputs, model: STUConfig) -> None:
    """Refuse inputs on which a model of this configuration cannot run.

    Ids are checked in the padding too: a lookup outside a table fails, even if a mask drops the result.

    Raises:
        UserError: A bad element, with its array, index and value.
    """
    _validate_layout(inputs, model)
    c, targets_B = model.contextual_seq_len, inputs["num_targets"]
    require_all_good(
        "num_targets",
        targets_B,
        (targets_B < 0) | (targets_B > model.max_num_targets),
        f"is not a number of 0..{model.max_num_targets} (max_num_targets)",
        "rank the candidates in several requests",
    )
    history_B = inputs["seq_lengths"] - targets_B - c
    require_all_good(
        "seq_lengths",
        inputs["seq_lengths"],
        (history_B < 0) | (history_B > model.max_uih_len) | (inputs["seq_lengths"] < 1),
        f"leaves {c} contextual rows and the targets no history of 0..{model.max_uih_len} (max_uih_len)",
        "count contextual rows, history and targets; keep the latest of the history",
    )
    ids_BN = inputs["seq_ids"]
    require_all_good(
        "seq_lengths",
        inputs["seq_lengths"],
        inputs["seq_lengths"] > ids_BN.shape[1],
        f"is more than the {ids_BN.shape[1]} rows of a padded sequence",
        "pad the sequences to the longest one",
    )
    require_all_good(
        "seq_ids",
        ids_BN,
        (ids_BN < 0) | (ids_BN > model.num_items),
        f"is outside the table 0..{model.num_items} (num_items)",
        "map the ids into the table, or use a case with more",
    )
    if SCALE in inputs.arrays:
        scale_BN = inputs[SCALE]
        require_all_good(
            SCALE, scale_BN, ~np.isfinite(scale_BN), "is not finite", "give each row a finite factor"
        )


def _validate_layout(inputs: CaseInputs, model: STUConfig) -> None:
    require_names(inputs, NAMES + ((SCALE,) if SCALE in inputs.arrays else ()))
    for name in NAMES:
        require_int64(name, inputs[name])
    batch, n = len(np.atleast_1d(inputs["seq_lengths"])), (inputs["seq_ids"].shape or (0,))[-1]
    if not 1 <= n <= model.padded_length:
        raise UserError(
            "seq_ids",
            inputs["seq_ids"].shape,
            f"is wider than {model.padded_length}, all rows of the model, or empty",
            f"give sequences of 1..{model.padded_length} rows",
        )
    for name, array in inputs.arrays.items():
        shape = (batch,) if name in ("seq_lengths", "num_targets") else (batch, n)
        if array.shape != shape or batch == 0:
            raise UserError(
                name,
                array.shape,
                f"is not the shape {shape} that follows from seq_lengths and seq_ids",
                "give every array the same users, at least one, and rows padded to one width",
            )
    if SCALE in inputs.arrays and inputs[SCALE].dtype != np.float32:
        raise UserError(SCALE, str(inputs[SCALE].dtype), "is not float32", "give float32")
