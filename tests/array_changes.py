"""Changes of named arrays, for tests of refused inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Change = Callable[[dict[str, np.ndarray]], None]


def put(name: str, index: Any, value: Any) -> Change:
    """Sets elements of one array, in a copy of it."""

    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays[name] = arrays[name].copy()
        arrays[name][index] = value

    return change


def swap(name: str, make: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Puts a function of one array in its place."""

    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays[name] = make(arrays[name])

    return change
