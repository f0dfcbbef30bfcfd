"""The benchmark's files: users by their places, and the users of each period's requests.

A folder has a file for each group of users, ``0.csv`` and on, with a user on each line. A line has four lists
for each period: candidates, their ratings, events, their ratings. All four are empty for a user who is away.
``offset.csv`` has each line's place in bytes, a line for each file. ``requests_per_ts.csv`` has the users of
each period's requests, ``requests_per_ts_offset.csv`` the places of its lines.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import BinaryIO

import numpy as np

from datasets.dlrmv3.generator import Settings
from datasets.dlrmv3.users import FIELDS_OF_A_PERIOD, Period, User
from datasets.errors import DataError
from datasets.lines import open_file

_FIX = "download the file again, or generate it again"
_LEAST_STARS, _MOST_STARS = 1.0, 5.0
_MAX_LINE_BYTES = 1 << 28
"""The largest length of a line in bytes."""


class Folder:
    """A folder of the benchmark's files.

    Args:
        path: the folder.
        settings: the sizes of its data.

    Raises:
        DataError: a file is missing, or its places do not fit the settings.
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        self._path = path
        self._settings = settings
        self._offsets: dict[int, np.ndarray] = {}
        self._period_offsets = _numbers(path / "requests_per_ts_offset.csv", 0, settings.num_timestamps)

    def requests(self, time: int) -> np.ndarray:
        """Numbers of the users of one period's requests, in the benchmark's order.

        Raises:
            DataError: there is no such period, or its line is damaged.
        """
        last = self._settings.num_timestamps - 1
        if not 0 <= time <= last:
            raise DataError("time", time, "is no period of the data", f"give 0 to {last}")
        path = self._path / "requests_per_ts.csv"
        numbers = _whole(_line(path, int(self._period_offsets[time])), f"{path}, period {time}")
        wrong = numbers[(numbers < 0) | (numbers >= self._settings.num_users)]
        if wrong.size:
            raise DataError(str(path), int(wrong[0]), f"is no user, in period {time}", _FIX)
        return numbers

    def user(self, number: int) -> User:
        """One user, read from the place of the user's line.

        Raises:
            DataError: there is no such user, or the line is damaged: with file, user, and field.
        """
        settings = self._settings
        per_file = settings.users_per_file
        if not 0 <= number < per_file * settings.num_files:
            last = per_file * settings.num_files - 1
            raise DataError("user", number, "is no user of the data", f"give 0 to {last}")
        file, row = divmod(number, per_file)
        if file not in self._offsets:
            self._offsets[file] = _numbers(self._path / "offset.csv", file, per_file)
        path = self._path / f"{file}.csv"
        return from_line(_line(path, int(self._offsets[file][row])), number, settings, str(path))


def from_line(line: str, number: int, settings: Settings, source: str) -> User:
    """A user from a line of the benchmark's files.

    Args:
        line: the line.
        number: the user's number.
        settings: the sizes of the data.
        source: the file's name, for errors.

    Raises:
        DataError: the line is damaged: with file, user, and field.
    """
    place = f"{source}, user {number}"
    try:
        row = next(csv.reader([line], strict=True))
    except (csv.Error, StopIteration) as error:
        raise DataError(place, line[:40], f"is no line of a CSV file ({error})", _FIX) from error
    wanted = FIELDS_OF_A_PERIOD * (settings.num_timestamps + 2)
    if len(row) != wanted:
        raise DataError(
            place,
            len(row),
            f"is not the number of fields, {wanted} for {settings.num_timestamps} periods",
            "give the settings of this data, or generate the file again",
        )
    starts = range(0, wanted, FIELDS_OF_A_PERIOD)
    periods = [
        _period(row[start : start + FIELDS_OF_A_PERIOD], start, place, settings.num_items) for start in starts
    ]
    return User(number, periods)


def _period(lists: Sequence[str], first: int, place: str, num_items: int) -> Period | None:
    """One period of a user; `first` is the number of its first field."""
    if not any(lists):
        return None
    names = [f"{place}, field {first + offset} ({f.name})" for offset, f in enumerate(fields(Period))]
    candidates, candidate_stars, events, stars = lists
    period = Period(
        _items(candidates, names[0], num_items),
        _stars(candidate_stars, names[1]),
        _items(events, names[2], num_items),
        _stars(stars, names[3]),
    )
    for items, ratings, name in (
        (period.candidates, period.candidate_ratings, names[1]),
        (period.events, period.event_ratings, names[3]),
    ):
        if items.size != ratings.size:
            raise DataError(name, ratings.size, f"ratings for {items.size} items", _FIX)
    return period


def _items(text: str, name: str, num_items: int) -> np.ndarray:
    items = _whole(text, name)
    wrong = items[(items < 0) | (items >= num_items)]
    if wrong.size:
        raise DataError(name, int(wrong[0]), f"is no item of 0 to {num_items - 1}", _FIX)
    return items


def _stars(text: str, name: str) -> np.ndarray:
    try:
        stars = np.array(text.split(","), dtype=np.float64)
    except ValueError as error:
        raise DataError(name, text[:40], f"is no list of numbers ({error})", _FIX) from error
    wrong = stars[~((stars >= _LEAST_STARS) & (stars <= _MOST_STARS))]
    if wrong.size:
        raise DataError(name, float(wrong[0]), f"is no rating of {_LEAST_STARS} to {_MOST_STARS}", _FIX)
    return stars


def _whole(text: str, name: str) -> np.ndarray:
    try:
        return np.array([int(number) for number in text.strip().strip('"').split(",")], dtype=np.int64)
    except (ValueError, OverflowError) as error:
        raise DataError(name, text[:40], f"is no list of whole numbers ({error})", _FIX) from error


def _numbers(path: Path, row: int, count: int) -> np.ndarray:
    """The places on one line of a file of places."""
    with _opened(path) as stream:
        line = b""
        for _ in range(row + 1):
            line = stream.readline(_MAX_LINE_BYTES)
    if not line:
        raise DataError(str(path), row, "is behind its last line", _FIX)
    numbers = _whole(line.decode("latin-1"), f"{path}, line {row + 1}")
    if numbers.size != count:
        raise DataError(
            f"{path}, line {row + 1}",
            numbers.size,
            f"places for {count} lines",
            "give the settings of this data",
        )
    return numbers


def _line(path: Path, offset: int) -> str:
    """The line at a place of a file, which has to begin there."""
    with _opened(path) as stream:
        if offset > 0:
            stream.seek(offset - 1)
            if stream.read(1) != b"\n":
                raise DataError(str(path), offset, "is no place where a line begins", _FIX)
        elif offset < 0:
            raise DataError(str(path), offset, "is no place of a file", _FIX)
        line = stream.readline(_MAX_LINE_BYTES)
    if not line.endswith(b"\n"):
        raise DataError(str(path), offset, "begins a line without an end: the file is cut", _FIX)
    return line.decode("latin-1")


def _opened(path: Path) -> BinaryIO:
    try:
        return open_file(path)
    except OSError as error:
        raise DataError(
            str(path), "", f"cannot be read ({error.strerror})", "give the benchmark's folder"
        ) from error
