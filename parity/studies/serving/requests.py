"""The requests of a test, at the fixed shapes that the port is compiled for."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path

import numpy as np

from parity.base.errors import UserError
from parity.base.memory import require
from parity.case import Arrays, Case
from parity.case.serving import DeviceLookup, Lookup
from parity.inputs.arrays import CaseInputs, poisoned_inputs

MOST_REQUESTS = 1 << 24
"""Numbers of requests from here on are no float32."""


@dataclass(frozen=True)
class Shape:
    """A fixed shape of a batch.

    Attributes:
        width: Tokens of a padded request.
        rows: Requests of a batch.
    """

    width: int
    rows: int


class Requests:
    """Requests of one case, each at its own width.

    The reference takes `clean` ones. The server takes `served` ones: they have garbage in their padding, and
    rows of tables are looked up.

    Args:
        case: The case.
        number: Number of requests.
        seed: Seed of the requests.
        tokens: Most tokens of a batch, padding included; None for the case's batch at the largest width.
        data: Recorded requests; None for the case's own.
        returning: Whether the requests of `Serving.returning` come behind the drawn ones.

    Attributes:
        shapes: The largest shape of each width that some request has, by width, ascending.
        width: Width of each request, by its number.
        source: Origin of the requests in words.
        lookup: Service of rows of tables; None for a case without them, and before the tables are open.
        device_lookup: The same on a device, in place of the host's; None for tables of the host.
        looked_up: Names of the inputs that are rows of tables.

    Raises:
        UserError: A number that does not fit, or a case that cannot be served.
    """

    def __init__(
        self,
        case: Case,
        number: int,
        seed: int,
        tokens: int | None = None,
        data: Path | None = None,
        returning: bool = False,
    ) -> None:
        serving = case.serving()
        if not 0 < number < MOST_REQUESTS:
            raise UserError("--samples", number, "is no number of requests", f"give 1 to {MOST_REQUESTS - 1}")
        budget = case.batch_size * serving.widths[-1] if tokens is None else tokens
        if budget < serving.widths[-1]:
            problem = f"are fewer than the {serving.widths[-1]} of the longest request"
            raise UserError("--tokens", budget, problem, f"give at least {serving.widths[-1]}")
        self.case, self.serving = case, serving
        rows = budget // serving.widths[-1]
        require("--tokens", budget, rows * serving.widths[-1], "give fewer")
        try:
            drawn = serving.draw(number, seed, data)
        except UserError as error:
            raise error if data is None else error.of("--data") from error
        if returning:
            drawn = serving.returning(drawn)
        self.source = drawn.source
        self.lookup: Lookup | None = None
        self.width = [serving.width_of(int(tokens)) for tokens in serving.tokens(drawn.arrays)]
        request = sum(array.nbytes for array in drawn.arrays.values()) // len(self.width)
        require("--tokens", budget, rows * request, "give fewer")
        self.shapes = {width: Shape(width, budget // width) for width in sorted(set(self.width))}
        self._clean = {width: self._padded(drawn.arrays, width) for width in self.shapes}
        self._ids = {width: self._padded(drawn.ids, width) for width in self.shapes}
        self.device_lookup: DeviceLookup | None = None
        self.looked_up = frozenset(drawn.ids)
        self._served = {width: self._without_rows(width) for width in self.shapes}
        seen: Counter[int] = Counter()
        self._row = []
        for width in self.width:
            self._row.append(seen[width])
            seen[width] += 1

    def __len__(self) -> int:
        return len(self.width)

    @property
    def have_tables(self) -> bool:
        """Whether the server looks up rows of tables."""
        return bool(self.looked_up)

    def _padded(self, drawn: Arrays, width: int) -> Arrays:
        rows = np.flatnonzero(np.array(self.width) == width)
        return self.serving.padded({name: array[rows] for name, array in drawn.items()}, width)

    def _without_rows(self, width: int) -> Arrays:
        """Requests of a width with garbage in their padding, and no number in place of rows of tables."""
        arrays = self._clean[width]
        arrays = dict(poisoned_inputs(self.case, CaseInputs(arrays)) or arrays)
        for name, ids in self._ids[width].items():
            arrays[name] = np.where((ids >= 0)[..., None], np.float32(np.nan), arrays[name])
        return arrays

    def _of_rows(self, arrays: Arrays, rows: np.ndarray) -> Arrays:
        chosen = self.case.rows(arrays, rows)
        if chosen is None:
            fix = "implement `rows` of the case"
            raise UserError("serve", self.case.name, "has requests that depend on each other", fix)
        return chosen

    def of_width(self, width: int) -> list[int]:
        """Numbers of the requests with a width, ascending."""
        return [number for number, own in enumerate(self.width) if own == width]

    def clean(self, numbers: Sequence[int]) -> Arrays:
        """Requests of one width, zero in their padding."""
        return self._batch(self._clean, numbers)

    def served(self, numbers: Sequence[int], names: Collection[str] | None = None) -> Arrays:
        """The same requests with garbage in their padding, where the case has padding, and looked up rows.

        Args:
            numbers: Requests of one width.
            names: The wanted inputs; all by default.
        """
        width, rows = self._places(numbers)
        arrays = dict(self._of_rows(_named(self._served[width], names), rows))
        if not self.have_tables:
            return arrays
        if self.lookup is None:
            raise RuntimeError("the tables of the requests are not open")
        for name, ids in _named(self._ids[width], names).items():
            looked_up = self.lookup(name, ids[rows])
            arrays[name] = np.where((ids[rows] >= 0)[..., None], looked_up, arrays[name])
        return arrays

    def staged(self, numbers: Sequence[int], names: Collection[str] | None = None) -> Arrays:
        """As `served`; with tables on a device, an input that is rows of tables is their numbers, int64."""
        if self.device_lookup is None:
            return self.served(numbers, names)
        return self._numbered(numbers, names)

    def _numbered(self, numbers: Sequence[int], names: Collection[str] | None = None) -> Arrays:
        """Requests with the numbers of rows in place of rows of tables."""
        width, rows = self._places(numbers)
        arrays = _named(self._served[width], names)
        others = {name: array for name, array in arrays.items() if name not in self.looked_up}
        ids = {name: ids[rows] for name, ids in _named(self._ids[width], names).items()}
        return {**self._of_rows(others, rows), **ids}

    def key(self, number: int) -> bytes:
        """A digest of everything that a request's shared rows depend on, its width included."""
        inputs = self._numbered([number])
        shared = self.serving.shared(inputs)
        missing = sorted(inputs.keys() - self.serving.fresh - shared.keys())
        if missing:
            raise RuntimeError(f"the key of shared rows leaves out {', '.join(missing)}")
        digest = hashlib.sha256(f"{self.width[number]}".encode())
        for name, array in sorted(shared.items()):
            digest.update(f" {name} {array.dtype} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.digest()

    def has_other_history(self, number: int, other: int) -> str:
        """The input by which shared rows of two requests differ, without their keys; empty if none does."""
        if self.width[number] != self.width[other]:
            return "width"
        one, two = (self.clean([request]) for request in (number, other))
        fresh = self.serving.fresh
        return next((name for name in one if name not in fresh and not _are_equal(one[name], two[name])), "")

    def open_on_device(self, lookup: DeviceLookup) -> None:
        """Take rows of tables from a device."""
        self.device_lookup = lookup
        self.lookup = lambda name, ids: lookup(name, ids).cpu().numpy()

    def has_other_rows(self, number: int) -> str:
        """The input of a request whose looked up rows differ from the reference's; empty if none do."""
        clean, served = self.clean([number]), self.served([number])
        width, rows = self._places([number])
        for name, ids in self._ids[width].items():
            if not np.array_equal(clean[name][ids[rows] >= 0], served[name][ids[rows] >= 0]):
                return name
        return ""

    def _batch(self, by_width: Mapping[int, Arrays], numbers: Sequence[int]) -> Arrays:
        width, rows = self._places(numbers)
        return self._of_rows(by_width[width], rows)

    def _places(self, numbers: Sequence[int]) -> tuple[int, np.ndarray]:
        """The width of some requests, and their rows among all requests of that width."""
        (width,) = {self.width[number] for number in numbers}
        return width, np.array([self._row[number] for number in numbers])

    @property
    def sizes(self) -> tuple[Shape, ...]:
        """All shapes, ascending: of each width the largest one, and powers of two below its rows."""
        return tuple(
            Shape(width, rows)
            for width, largest in self.shapes.items()
            for rows in (*takewhile(largest.rows.__gt__, map((1).__lshift__, count())), largest.rows)
        )

    def full(self, numbers: Sequence[int], shape: Shape | None = None) -> list[int]:
        """The numbers of a whole batch, of the largest shape by default: behind the last, the first again."""
        rows = (shape or self.shapes[self.width[numbers[0]]]).rows
        return [numbers[place % len(numbers)] for place in range(rows)]

    def counted(self, numbers: Sequence[int]) -> np.ndarray:
        """Mask of the predictions of requests of one width, (B, ...)."""
        return self.serving.counted(self.clean(numbers))


def _named(arrays: Arrays, names: Collection[str] | None) -> Arrays:
    """The arrays of these names; all by default."""
    return arrays if names is None else {name: array for name, array in arrays.items() if name in names}


def _are_equal(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and np.array_equal(one, other)
