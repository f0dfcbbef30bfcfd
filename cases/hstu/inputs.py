"""Histories for HSTU: the arrays, their padding, and the checks of both.

Legend: B users, N items in a padded row, X candidates. The layout is the public one
(meta-recsys/generative-recommenders, `research/modeling/sequential/features.py`). A history is left-aligned
and in order of time, and id 0 is padding. The timestamp at position `length` is the query's, the moment of
the next item. Everything behind it is padding.

A history with generated items may be longer than `max_sequence_len`, up to the model's width. A history that
fills its row has no query, and its last item repeats its own timestamp. Where the bias is a function of time,
only rows of the model's width may be full. In narrower ones the layouts do not agree on the last item: ragged
rows read 0 at their full width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from configs import HSTUConfig
from parity.base.errors import UserError
from parity.inputs.arrays import CaseInputs, require_all_good, require_int64, require_names

TIMESTAMPS = "timestamps"
NAMES = ("past_lengths", "past_ids", "ratings", "item_ids")

TIMELESS = ("positional", "none")
"""Relative attention biases that are no function of timestamps."""


@dataclass(frozen=True)
class HSTUInputs(CaseInputs):
    """Histories and candidates, all int64.

    ``past_lengths`` (B,): items in each history. ``past_ids`` and ``ratings`` (B, N).
    ``timestamps`` (B, N) in seconds, or (B, 2N) with each one twice where ratings take positions of
    their own; a batch may have none. ``item_ids`` (1, X), candidates for everybody, or (B, X), for each user.
    A candidate may be 0, the padding item: lists of several users may differ in length.
    """

    @property
    def batch_size(self) -> int:
        return self["past_lengths"].shape[0]

    @property
    def positions_per_item(self) -> int:
        """2 where the ratings take positions of their own, else 1. It needs timestamps."""
        return self[TIMESTAMPS].shape[1] // self["past_ids"].shape[1]

    def valid_mask(self) -> np.ndarray:
        """Bool (B, N): True where an item of the history is, by length and not by id."""
        return np.arange(self["past_ids"].shape[1]) < self["past_lengths"][:, None]


def poison(inputs: HSTUInputs, seed: int) -> HSTUInputs:
    """The same histories with garbage in the padding, which may change no valid result.

    Padded ids become ids of the table, other than 0: a mask from ids alone then misses the padding. Ratings
    become any rating. Timestamps become any number, also negative. The query's timestamp is no padding.
    """
    rng = np.random.default_rng([seed, 0xBAD])
    padding_BN = ~inputs.valid_mask()
    largest = max(int(inputs["past_ids"].max()), int(inputs["item_ids"].max()))
    ids = rng.integers(1, largest + 1, padding_BN.shape)
    ratings = rng.integers(0, int(inputs["ratings"].max()) + 1, padding_BN.shape)
    garbage = {
        "past_ids": np.where(padding_BN, ids, inputs["past_ids"]),
        "ratings": np.where(padding_BN, ratings, inputs["ratings"]),
    }
    if TIMESTAMPS in inputs:
        timestamps = rng.integers(-(2**31), 2**31, inputs[TIMESTAMPS].shape)
        behind_query_BN = np.arange(padding_BN.shape[1]) > inputs["past_lengths"][:, None]
        behind_query = np.repeat(behind_query_BN, inputs.positions_per_item, axis=1)
        garbage[TIMESTAMPS] = np.where(behind_query, timestamps, inputs[TIMESTAMPS])
    return HSTUInputs({**inputs.arrays, **garbage})


def validate(inputs: HSTUInputs, model: HSTUConfig) -> None:
    """Refuse inputs on which a model of this configuration cannot run.

    Ids and ratings are checked in the padding too: a lookup outside a table fails, even if a mask drops the
    result. Timestamps are checked up to the query's.

    Raises:
        UserError: A bad element, with its array, index and value.
    """
    _validate_layout(inputs, model)
    lengths_B, longest = inputs["past_lengths"], model.padded_length
    require_all_good(
        "past_lengths",
        lengths_B,
        (lengths_B < 1) | (lengths_B > longest),
        f"is not a length of 1..{longest} (max_sequence_len + max_output_len)",
        f"drop users without a history, and keep the latest {model.max_sequence_len} items of the others",
    )
    width = inputs["past_ids"].shape[1]
    needs_query = width < model.padded_length and model.relative_attention_bias not in TIMELESS
    require_all_good(
        "past_lengths",
        lengths_B,
        lengths_B > width - needs_query,
        f"leaves no position for the query in rows of {width}"
        if needs_query
        else f"is longer than its row of {width}",
        "pad past_ids, ratings and timestamps by at least one position",
    )
    table = f"1..{model.num_items} (num_items)"
    ids_BN, valid_BN = inputs["past_ids"], inputs.valid_mask()
    require_all_good(
        "past_ids",
        ids_BN,
        valid_BN & (ids_BN == 0),
        "inside the history is the id of padding",
        f"give ids of {table}, or correct past_lengths",
    )
    require_all_good(
        "past_ids",
        ids_BN,
        (ids_BN < 0) | (ids_BN > model.num_items),
        f"is outside the item table {table}",
        "map the ids into the table, or use a case with more items",
    )
    ratings_BN = inputs["ratings"]
    require_all_good(
        "ratings",
        ratings_BN,
        (ratings_BN < 0) | (ratings_BN >= model.num_ratings),
        f"is not a rating of 0..{model.num_ratings - 1} (num_ratings {model.num_ratings})",
        "map the ratings into that range, or raise num_ratings",
    )
    if TIMESTAMPS in inputs:
        _validate_times(inputs, model)
    candidates = inputs["item_ids"]
    require_all_good(
        "item_ids",
        candidates,
        (candidates < 0) | (candidates > model.num_items),
        f"is outside the item table {table}",
        "give candidates that the table has, and 0 behind the last one of a user",
    )


def _validate_times(inputs: HSTUInputs, model: HSTUConfig) -> None:
    """Refuse timestamps out of order. Raises `UserError`, see `validate`."""
    per_item = model.positions_per_item
    seconds, lengths_B = inputs[TIMESTAMPS], inputs["past_lengths"]
    meaningful = np.arange(seconds.shape[1]) < (lengths_B[:, None] + 1) * per_item
    require_all_good(
        TIMESTAMPS,
        seconds[:, 1:],
        meaningful[:, 1:] & (np.diff(seconds, axis=1) < 0),
        "comes before the timestamp to its left",
        "sort each history by time; the query comes last",
        offset=1,
    )
    if per_item == 2:
        require_all_good(
            TIMESTAMPS,
            seconds[:, 1::2],
            meaningful[:, 1::2] & (seconds[:, ::2] != seconds[:, 1::2]),
            "differs from the timestamp of its item",
            "repeat each timestamp twice, for the item and for its rating",
            scale=2,
            offset=1,
        )


def _validate_layout(inputs: HSTUInputs, model: HSTUConfig) -> None:
    is_timed = TIMESTAMPS in inputs or model.relative_attention_bias not in TIMELESS
    require_names(inputs, [*NAMES, TIMESTAMPS] if is_timed else NAMES)
    for name, array in inputs.arrays.items():
        require_int64(name, array)
    batch, width = len(np.atleast_1d(inputs["past_lengths"])), (inputs["past_ids"].shape or (0,))[-1]
    if not 1 <= width <= model.padded_length:
        raise UserError(
            "past_ids",
            inputs["past_ids"].shape,
            f"is wider than {model.padded_length}, max_sequence_len + max_output_len, or empty",
            f"give rows of 1..{model.padded_length} positions",
        )
    expected = {
        "past_lengths": (batch,),
        "past_ids": (batch, width),
        "ratings": (batch, width),
        TIMESTAMPS: (batch, width * model.positions_per_item),
    }
    for name, shape in expected.items():
        if name in inputs and (inputs[name].shape != shape or 0 in shape):
            raise UserError(
                name,
                inputs[name].shape,
                f"is not the shape {shape} that follows from past_lengths, past_ids and the model",
                "give every array the same users, at least one, and the same positions",
            )
    candidates = inputs["item_ids"].shape
    if len(candidates) != 2 or candidates[0] not in (1, batch) or candidates[1] == 0:
        raise UserError(
            "item_ids",
            candidates,
            f"is not (1, X) or ({batch}, X) with at least one candidate",
            "give one list of candidates for all users, or one for each",
        )
