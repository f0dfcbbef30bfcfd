"""The input of a run: made once, seeded, digested, checked, and read-only for every runner.

Legend: B users, N items in a padded row, X candidates. The layout is the public one
(meta-recsys/generative-recommenders, ``research/modeling/sequential/features.py``): a history is
left-aligned and in order of time, id 0 is padding, and the timestamp at position ``length`` is that of
the query, the moment for which the next item is asked. Everything behind it is padding.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import numpy as np
import safetensors
import safetensors.numpy

from configs import HSTUConfig
from parity.errors import UserError
from parity.files import write_new

SCHEMA = "parity.inputs/1"
NAMES = ("past_lengths", "past_ids", "ratings", "timestamps", "item_ids")


@dataclass(frozen=True)
class CaseInputs:
    """Arrays that a model is run on, all int64.

    ``past_lengths`` (B,): items in each history. ``past_ids`` and ``ratings`` (B, N).
    ``timestamps`` (B, N) in seconds, or (B, 2N) with each one twice where ratings take positions of
    their own. ``item_ids`` (1, X), candidates for everybody, or (B, X), for each user.
    """

    arrays: Mapping[str, np.ndarray]

    def __post_init__(self) -> None:
        own = {}
        for name, array in self.arrays.items():
            own[name] = np.array(array, order="C")
            own[name].setflags(write=False)
        object.__setattr__(self, "arrays", MappingProxyType(own))

    def __reduce__(self) -> tuple[type[CaseInputs], tuple[dict[str, np.ndarray]]]:
        return CaseInputs, (dict(self.arrays),)  # mapping proxies cannot be pickled

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    @property
    def batch_size(self) -> int:
        return self["past_lengths"].shape[0]

    @property
    def positions_per_item(self) -> int:
        """2 where the ratings take positions of their own, else 1."""
        return self["timestamps"].shape[1] // self["past_ids"].shape[1]

    def valid_mask(self) -> np.ndarray:
        """Bool (B, N): True where an item of the history is, by length and not by id."""
        return np.arange(self["past_ids"].shape[1]) < self["past_lengths"][:, None]

    def position_mask(self) -> np.ndarray:
        """Bool (B, W'): ``valid_mask`` in sequence positions, ``positions_per_item`` for each item."""
        return np.repeat(self.valid_mask(), self.positions_per_item, axis=1)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over every array's name, type, shape and bytes."""
        hasher = hashlib.sha256()
        for name in sorted(self.arrays):
            array = self.arrays[name]
            little_endian = array.astype(array.dtype.newbyteorder("<"), copy=False)
            hasher.update(f"{name} {little_endian.dtype.str} {array.shape}\n".encode())
            hasher.update(little_endian.tobytes())
        return hasher.hexdigest()


def poison(inputs: CaseInputs, seed: int) -> CaseInputs:
    """The same histories with garbage in the padding: nothing valid may change when a model runs on it.

    Padded ids become ids of the table, other than 0, so that a mask made from the ids alone no longer
    finds the padding; ratings become any rating; timestamps become any, negative ones included. The
    query's timestamp is not padding and stays.
    """
    rng = np.random.default_rng([seed, 0xBAD])
    per_item = inputs.positions_per_item
    padding_BN = ~inputs.valid_mask()
    behind_query_BN = np.arange(padding_BN.shape[1]) > inputs["past_lengths"][:, None]
    largest = max(int(inputs["past_ids"].max()), int(inputs["item_ids"].max()))
    ids = rng.integers(1, largest + 1, padding_BN.shape)
    ratings = rng.integers(0, int(inputs["ratings"].max()) + 1, padding_BN.shape)
    timestamps = rng.integers(-(2**31), 2**31, inputs["timestamps"].shape)
    behind_query = np.repeat(behind_query_BN, per_item, axis=1)
    return CaseInputs(
        {
            **inputs.arrays,
            "past_ids": np.where(padding_BN, ids, inputs["past_ids"]),
            "ratings": np.where(padding_BN, ratings, inputs["ratings"]),
            "timestamps": np.where(behind_query, timestamps, inputs["timestamps"]),
        }
    )


def validate(inputs: CaseInputs, model: HSTUConfig) -> None:
    """Checks that a model of this configuration can be run on these inputs.

    Ids and ratings are checked in the padding too: what lies outside a table cannot be looked up, even
    where the result is thrown away. Timestamps are checked up to the query's.

    Raises:
        UserError: with the array and the index of the first bad element, its value, and the fix.
    """
    _validate_layout(inputs, model)
    lengths_B, longest = inputs["past_lengths"], model.max_sequence_len
    _first(
        "past_lengths",
        lengths_B,
        (lengths_B < 1) | (lengths_B > longest),
        f"is not a length of 1..{longest} (max_sequence_len)",
        f"drop users without a history, and keep the latest {longest} items of the others",
    )
    width = inputs["past_ids"].shape[1]
    _first(
        "past_lengths",
        lengths_B,
        lengths_B >= width,
        f"leaves no position for the query in rows of {width}",
        "pad past_ids, ratings and timestamps by at least one position",
    )
    table = f"1..{model.num_items} (num_items)"
    ids_BN, valid_BN = inputs["past_ids"], inputs.valid_mask()
    _first(
        "past_ids",
        ids_BN,
        valid_BN & (ids_BN == 0),
        "inside the history is the id of padding",
        f"give ids of {table}, or correct past_lengths",
    )
    _first(
        "past_ids",
        ids_BN,
        (ids_BN < 0) | (ids_BN > model.num_items),
        f"is outside the item table {table}",
        "map the ids into the table, or use a case with more items",
    )
    ratings_BN = inputs["ratings"]
    _first(
        "ratings",
        ratings_BN,
        (ratings_BN < 0) | (ratings_BN >= model.num_ratings),
        f"is not a rating of 0..{model.num_ratings - 1} (num_ratings {model.num_ratings})",
        "map the ratings into that range, or raise num_ratings",
    )
    per_item = model.positions_per_item
    seconds = inputs["timestamps"]
    meaningful = np.arange(seconds.shape[1]) < (lengths_B[:, None] + 1) * per_item
    _first(
        "timestamps",
        seconds[:, 1:],
        meaningful[:, 1:] & (np.diff(seconds, axis=1) < 0),
        "comes before the timestamp to its left",
        "sort each history by time; the query comes last",
        offset=1,
    )
    if per_item == 2:
        _first(
            "timestamps",
            seconds[:, 1::2],
            meaningful[:, 1::2] & (seconds[:, ::2] != seconds[:, 1::2]),
            "differs from the timestamp of its item",
            "repeat each timestamp twice, for the item and for its rating",
            scale=2,
            offset=1,
        )
    candidates = inputs["item_ids"]
    _first(
        "item_ids",
        candidates,
        (candidates < 1) | (candidates > model.num_items),
        f"is outside the item table {table}",
        "give candidates that the table has",
    )


def _validate_layout(inputs: CaseInputs, model: HSTUConfig) -> None:
    missing, extra = set(NAMES) - set(inputs.arrays), set(inputs.arrays) - set(NAMES)
    if missing or extra:
        raise UserError(
            "inputs",
            f"missing {sorted(missing)}, unknown {sorted(extra)}",
            "is not the set of arrays that a model takes",
            f"give exactly {', '.join(NAMES)}",
        )
    for name, array in inputs.arrays.items():
        if array.dtype != np.int64:
            bad = np.argwhere(~np.isfinite(array)) if array.dtype.kind == "f" else ()
            where = f", with {array[tuple(bad[0])]} at {bad[0].tolist()}" if len(bad) else ""
            raise UserError(name, f"{array.dtype}{where}", "is not int64", "give whole numbers as int64")
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
        "timestamps": (batch, width * model.positions_per_item),
    }
    for name, shape in expected.items():
        if inputs[name].shape != shape or 0 in shape:
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


def _first(
    name: str, values: np.ndarray, bad: np.ndarray, problem: str, fix: str, scale: int = 1, offset: int = 0
) -> None:
    """Raises for the first bad element; ``scale`` and ``offset`` turn its column into the array's own."""
    if not bad.any():
        return
    index = tuple(np.argwhere(bad)[0].tolist())
    own = (*index[:-1], index[-1] * scale + offset)
    count = int(bad.sum())
    more = f" ({count} such elements)" if count > 1 else ""
    raise UserError(f"{name}[{', '.join(map(str, own))}]", int(values[index]), problem + more, fix)


def save(inputs: CaseInputs, path: Path) -> None:
    """Writes the arrays and their digest as safetensors; see ``parity.files.write_new`` for the errors."""
    # One key: safetensors writes several in no fixed order, and equal inputs are to give equal files.
    header = {"parity": json.dumps({"schema": SCHEMA, "digest": inputs.digest}, sort_keys=True)}
    write_new(path, safetensors.numpy.save(dict(inputs.arrays), metadata=header))


def load(path: Path) -> CaseInputs:
    """Reads what ``save`` wrote.

    Raises:
        UserError: the file cannot be read, is no file of inputs, or was changed since.
    """
    fix = "give a file that a run with --save wrote"
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get("parity", "{}"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}
    except OSError as error:
        raise UserError("inputs", str(path), f"cannot be read ({error.strerror or error})", fix) from error
    except (safetensors.SafetensorError, ValueError) as error:
        raise UserError("inputs", str(path), f"is truncated or not safetensors ({error})", fix) from error
    if header.get("schema") != SCHEMA:
        raise UserError("inputs", str(path), f"has schema {header.get('schema')}, not {SCHEMA}", fix)
    inputs = CaseInputs(arrays)
    if inputs.digest != header["digest"]:
        raise UserError("inputs", str(path), "does not have the digest that was saved with it", fix)
    return inputs
