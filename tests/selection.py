"""The tests of `make test`, and the tests marked `full`, which only `make test-full` runs.

A test function marked `sampled` stays in `make test` with few of its combinations of parameters: they show
every value of every parameter. Its other combinations are marked `full` here. The choice depends on the
parameters alone, so that every process and every run makes the same one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import pytest

Values = frozenset[Hashable]


def covering(combinations: Sequence[Values], preferred: Sequence[bool]) -> set[int]:
    """Positions of combinations that together hold every value that occurs.

    The combination with the most new values is taken first; of several, the one whose values were taken least
    often, then the earliest. Combinations that are not preferred are taken for values that no other has.
    """
    chosen: set[int] = set()
    missing: set[Hashable] = set().union(*combinations)
    times_taken: Counter[Hashable] = Counter()

    def worth(position: int) -> tuple[int, int]:
        values = combinations[position]
        return len(values & missing), -sum(times_taken[value] for value in values)

    for wanted in (True, False):
        pool = [position for position, prefers in enumerate(preferred) if prefers is wanted]
        while pool:
            best = max(pool, key=worth)
            if not combinations[best] & missing:
                break
            chosen.add(best)
            missing -= combinations[best]
            times_taken.update(combinations[best])
    return chosen


def first_in_test(values: Iterable[object]) -> list[Any]:
    """Parameters of a costly test, of which `make test` runs the first: the others are marked `full`."""
    return [pytest.param(value, marks=pytest.mark.full if at else ()) for at, value in enumerate(values)]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the combinations of sampled tests that `make test` leaves out."""
    functions: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec") and item.get_closest_marker("sampled"):
            functions[item.nodeid.partition("[")[0]].append(item)
    for group in functions.values():
        chosen = covering([_values(item) for item in group], [not _is_skipped(item) for item in group])
        for position, item in enumerate(group):
            if position not in chosen:
                item.add_marker("full")


def _values(item: pytest.Function) -> Values:
    """The entry of each of the item's lists of parameters; the same object is the same value."""
    params = item.callspec.params
    lists = [_names(mark.args[0]) for mark in item.iter_markers("parametrize")]
    listed = {name for names in lists for name in names}
    lists += [(name,) for name in params if name not in listed]
    return frozenset((names, *(id(params[name]) for name in names)) for names in lists)


def _names(argument: str | Sequence[str]) -> tuple[str, ...]:
    """Names of parameters as `parametrize` accepts them."""
    names = argument.split(",") if isinstance(argument, str) else argument
    return tuple(name.strip() for name in names if name.strip())


def _is_skipped(item: pytest.Item) -> bool:
    """Whether a mark skips the item on this machine: it proves nothing here."""
    return bool(item.get_closest_marker("skip")) or any(any(m.args) for m in item.iter_markers("skipif"))
