"""Recorded histories: the MovieLens rating files.

The reader tells three formats apart by their content:

* ``ml-100k``: ``u.data``, tab separated: user, item, rating, timestamp.
* ``ml-1m``: ``ratings.dat``, the same fields separated by ``::``.
* ``ml-20m``: ``ratings.csv``, the header ``userId,movieId,rating,timestamp``, half-star ratings.

Histories follow the public evaluation (meta-recsys/generative-recommenders,
``research/data/{preprocessor,dataset}.py``). A user's ratings are in order of time. The last one is the
target, and its timestamp is the query's. The latest ones before it are the history. Half stars become whole
stars, rounded down. The public sort leaves the order of ratings in the same second undefined; here they keep
the order of the file.

Legend: U users of the file, R ratings of the file, B users of a batch, N positions of a padded row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from datasets import lines
from datasets.errors import DataError

_CSV_HEADER = b"userId,movieId,rating,timestamp"
_SEPARATORS = {"ml-100k": b"\t", "ml-1m": b"::", "ml-20m": b","}
_SHOWN_LINES = 5


@dataclass(frozen=True)
class Ratings:
    """The ratings of a file, by user and then by time. All arrays are int64.

    Attributes:
        path: the file.
        format: the name of the format.
        user_ids: (U,) ids, ascending.
        offsets: (U + 1,) the ratings of user ``user_ids[i]`` have the places ``offsets[i]:offsets[i + 1]``.
        item_ids: (R,) ids, from 1 on.
        ratings: (R,) whole stars.
        timestamps: (R,) seconds.
    """

    path: Path
    format: str
    user_ids: np.ndarray
    offsets: np.ndarray
    item_ids: np.ndarray
    ratings: np.ndarray
    timestamps: np.ndarray

    @property
    def num_users(self) -> int:
        return self.user_ids.size

    @property
    def num_ratings(self) -> int:
        return self.item_ids.size

    @property
    def with_history(self) -> np.ndarray:
        """Places in ``user_ids`` of the users with two or more ratings: a history and a target."""
        return np.flatnonzero(np.diff(self.offsets) >= 2)


@dataclass(frozen=True)
class Histories:
    """Padded histories of B users, left-aligned, in order of time. All arrays are int64.

    The ratings of a user are the history, the target, and the older ratings beyond the longest history. Their
    number is `past_lengths + 1 + truncated`.

    Attributes:
        user_ids: (B,) ids of the users.
        past_lengths: (B,) number of items in each history, at least 1 and less than N.
        past_ids: (B, N) item ids; 0 in the padding.
        ratings: (B, N) whole stars; 0 in the padding.
        timestamps: (B, N) seconds; the target's at index ``past_lengths``, 0 behind it.
        targets: (B,) ids of the items that follow the histories.
        truncated: (B,) number of older ratings that are left out.
    """

    user_ids: np.ndarray
    past_lengths: np.ndarray
    past_ids: np.ndarray
    ratings: np.ndarray
    timestamps: np.ndarray
    targets: np.ndarray
    truncated: np.ndarray


def read_ratings(path: Path) -> Ratings:
    """Reads a rating file in blocks.

    Raises:
        DataError: the file cannot be read, is empty, has no known format, or has broken lines. The message
            has the number of broken lines, and the first five with the reason.
    """
    broken = _BrokenLines(path)
    try:
        with lines.open_file(path) as stream:
            layout = _sniff(path, stream.readline(256))
            first_line = 2 if layout == "ml-20m" else 1
            if first_line == 1:
                stream.seek(0)
            columns = [_parse(block, layout, broken) for block in lines.blocks(stream, first_line)]
    except OSError as error:
        raise DataError(
            "data", str(path), f"cannot be read ({error.strerror})", "give the path of a rating file"
        ) from error
    broken.raise_if_any()
    users, items, ratings, seconds = np.concatenate([np.empty((4, 0), np.int64), *columns], axis=1)
    if users.size == 0:
        raise DataError(
            "data", str(path), "has no ratings", "give the path of a rating file that is complete"
        )
    order = np.lexsort((seconds, users))  # stable: ratings of the same second stay in the file's order
    user_ids, starts = np.unique(users[order], return_index=True)
    return Ratings(
        path=path,
        format=layout,
        user_ids=user_ids,
        offsets=np.append(starts, users.size),
        item_ids=items[order],
        ratings=ratings[order],
        timestamps=seconds[order],
    )


def recognises(path: Path) -> bool:
    """Whether a file begins like one of the three formats."""
    try:
        with lines.open_file(path) as stream:
            line = stream.readline(256)
        # Four fields: other files with tabs have more.
        return line.count(_SEPARATORS[_sniff(path, line)]) == 3
    except (OSError, DataError):
        return False


def without_last(data: Ratings) -> Ratings:
    """The same ratings without the last one of each user, which training does not see."""
    remains = np.ones(data.num_ratings, dtype=bool)
    remains[data.offsets[1:] - 1] = False
    return replace(
        data,
        offsets=data.offsets - np.arange(data.offsets.size),
        item_ids=data.item_ids[remains],
        ratings=data.ratings[remains],
        timestamps=data.timestamps[remains],
    )


def check_fits(data: Ratings, num_items: int, num_ratings: int) -> None:
    """Checks that a model with these tables can predict some user's last item.

    Args:
        data: the ratings.
        num_items: the largest item id of the model.
        num_ratings: the number of ratings of the model; they start at 0.

    Raises:
        DataError: an item or a rating is outside the tables, or no user has a history.
    """
    largest = int(data.item_ids.max())
    if largest > num_items:
        count = int((data.item_ids > num_items).sum())
        ratings = "1 rating" if count == 1 else f"{count} ratings"
        raise DataError(
            "data",
            str(data.path),
            f"({data.format}) has item {largest}, and {ratings} above num_items {num_items}",
            f"use a case whose num_items is at least {largest}",
        )
    highest = int(data.ratings.max())
    if highest >= num_ratings:
        raise DataError(
            "data",
            str(data.path),
            f"has ratings up to {highest}, and num_ratings is {num_ratings}",
            f"use a case whose num_ratings is at least {highest + 1}",
        )
    if data.with_history.size == 0:
        raise DataError(
            "data",
            str(data.path),
            "has no user with two ratings",
            "give a file with histories to predict from",
        )


def histories(data: Ratings, users_B: np.ndarray, max_length: int, width: int) -> Histories:
    """The padded histories of some users, and the item that follows each history.

    Args:
        data: the ratings.
        users_B: (B,) places in ``data.user_ids``, each of a user with at least two ratings.
        max_length: the largest number of items in a history; older items are left out.
        width: the length N of the padded rows, at least ``max_length + 1``.
    """
    target_B = data.offsets[users_B + 1] - 1
    available_B = target_B - data.offsets[users_B]
    lengths_B = np.minimum(available_B, max_length)
    position_N = np.arange(width)
    # The place of each position in the order of the ratings; the query has the target's place.
    source_BN = np.minimum((target_B - lengths_B)[:, None] + position_N, target_B[:, None])
    valid_BN = position_N < lengths_B[:, None]
    return Histories(
        user_ids=data.user_ids[users_B],
        past_lengths=lengths_B,
        past_ids=np.where(valid_BN, data.item_ids[source_BN], 0),
        ratings=np.where(valid_BN, data.ratings[source_BN], 0),
        timestamps=np.where(position_N <= lengths_B[:, None], data.timestamps[source_BN], 0),
        targets=data.item_ids[target_B],
        truncated=available_B - lengths_B,
    )


def _sniff(path: Path, first_line: bytes) -> str:
    line, problem = first_line.strip(), lines.not_text(first_line)
    if not problem and line == _CSV_HEADER:
        return "ml-20m"
    for layout in ("ml-1m", "ml-100k"):
        if not problem and line.count(_SEPARATORS[layout]) >= 1:
            return layout
    raise DataError(
        "data",
        str(path),
        problem or lines.unknown_format(first_line),
        "give MovieLens u.data (tabs), ratings.dat ('::'), or ratings.csv "
        f"(with the header {_CSV_HEADER.decode()}), unpacked and in UTF-8 without a mark",
    )


class _BrokenLines:
    """The number of broken lines, and the first few with the reason."""

    def __init__(self, path: Path) -> None:
        self._path, self._count = path, 0
        self._shown: list[tuple[int, str]] = []

    def add(self, reasons: Mapping[int, str]) -> None:
        """Adds lines by number, each with the reason."""
        self._count += len(reasons)
        self._shown = sorted([*self._shown, *reasons.items()])[:_SHOWN_LINES]

    def raise_if_any(self) -> None:
        if self._count:
            shown = "; ".join(f"line {number}: {reason}" for number, reason in self._shown)
            more = "" if self._count <= _SHOWN_LINES else "; and more"
            raise DataError(
                "data",
                str(self._path),
                f"has {self._count} broken line{'s' if self._count > 1 else ''} ({shown}{more})",
                "correct or remove them; every line is user, item, rating, timestamp",
            )


def _parse(block: lines.Block, layout: str, broken: _BrokenLines) -> np.ndarray:
    """User, item, rating and second of the block's sound lines, int64 (4, sound lines)."""
    separator = _SEPARATORS[layout]
    if separator != b"\t":
        # A tab inside a field becomes a character that no number has.
        block = replace(block, text=block.text.replace(b"\t", b"\x01").replace(separator, b"\t"))
    columns = lines.cut(block, "\t", 4)
    reasons = dict.fromkeys(columns.torn, "not four fields") | block.too_long
    parse_rating = lines.parse_decimals if layout == "ml-20m" else lines.parse_naturals
    parsers = (lines.parse_naturals, lines.parse_naturals, parse_rating, lines.parse_naturals)
    numbers, bad = zip(
        *(parse(field) for parse, field in zip(parsers, columns.fields, strict=True)), strict=True
    )
    user, item, rating, _ = numbers
    low, step = (0.5, 0.5) if layout == "ml-20m" else (1.0, 1.0)
    checks = {
        "a field is not a number, or negative": ~np.any(bad, axis=0) & ~(rating < 0),
        f"the rating is not one of {low:g} to 5 in steps of {step:g}": (
            (rating >= low) & (rating <= 5.0) & (rating % step == 0)
        ),
        "user or item is 0": (user >= 1) & (item >= 1),
    }
    sound = np.ones(columns.lines_B.size, dtype=bool)
    for reason, passes in checks.items():
        reasons |= dict.fromkeys(columns.lines_B[sound & ~passes].tolist(), reason)
        sound &= passes
    broken.add(reasons)
    return np.stack([values[sound].astype(np.int64) for values in numbers])
