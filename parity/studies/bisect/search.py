"""The search: halve the suspects of a history until one is left, or until the others cannot be judged."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Commit:
    """A commit.

    Attributes:
        name: Its full hash.
        parents: Hashes of its parents, also of those outside a range.
        tree: Hash of all its files.
        author, subject: Its author and the first line of its message.
    """

    name: str
    parents: tuple[str, ...]
    tree: str
    author: str
    subject: str

    @property
    def short(self) -> str:
        """The first twelve characters of its hash."""
        return self.name[:12]


class Outcome(enum.Enum):
    """What the command says of a commit."""

    PASSES = "passes"
    FAILS = "fails"
    UNKNOWN = "cannot be judged"


def suspects_of(commits: Sequence[Commit], judge: Callable[[Commit], Outcome]) -> tuple[Commit, ...]:
    """The first failing commit, or all commits that may be it where some cannot be judged.

    Args:
        commits: The suspects, parents first. The last one fails, and descends from all others.
        judge: The outcome of a commit. It is called about log2(len(commits)) times.
    """
    suspects = {commit.name: commit for commit in commits}
    unknown: set[str] = set()
    while (commit := _middle(suspects, unknown)) is not None:
        outcome = judge(commit)
        if outcome is Outcome.UNKNOWN:
            unknown.add(commit.name)
            continue
        past = _past(suspects, commit.name)
        fails = outcome is Outcome.FAILS
        suspects = {name: one for name, one in suspects.items() if (name in past) == fails}
    return tuple(suspects.values())


def _middle(suspects: Mapping[str, Commit], unknown: set[str]) -> Commit | None:
    """The commit to judge next; None if no suspect can be ruled out.

    Behind it lies half of the suspects. Near commits that cannot be judged, others often cannot either: each
    one moves the aim to another share of the suspects, far from the earlier ones.
    """
    *others, _ = suspects
    open_ones = [name for name in others if name not in unknown]
    if not open_ones:
        return None
    sizes = _sizes(suspects)
    aim = len(suspects) * _share(sum(name in unknown for name in others) + 1)
    return suspects[min(open_ones, key=lambda name: abs(sizes[name] - aim))]


def _share(number: int) -> float:
    """1/2, 1/4, 3/4, 1/8, 5/8, ...: the digits of a number from 1 on, mirrored at the point."""
    digits = f"{number:b}"
    return int(digits[::-1], 2) / 2 ** len(digits)


def _sizes(suspects: Mapping[str, Commit]) -> dict[str, int]:
    """The number of suspects in the past of each one, itself included."""
    sizes: dict[str, int] = {}
    for name, commit in suspects.items():
        parents = [parent for parent in commit.parents if parent in suspects]
        if len(parents) > 1:
            sizes[name] = len(_past(suspects, name))
        else:
            sizes[name] = 1 + sum(sizes[parent] for parent in parents)
    return sizes


def _past(suspects: Mapping[str, Commit], name: str) -> set[str]:
    """A commit and the suspects that it descends from."""
    past: set[str] = set()
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one in suspects and one not in past:
            past.add(one)
            waiting += suspects[one].parents
    return past
