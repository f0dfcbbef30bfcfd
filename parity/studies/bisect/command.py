"""The study: both ends of a history judged, the search between them, and its result in words."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from parity.base.errors import UserError, bounded
from parity.studies.bisect import judging
from parity.studies.bisect.judging import Judgement
from parity.studies.bisect.repository import Checkout, Repository
from parity.studies.bisect.search import Commit, Outcome, suspects_of

_MOST = 10
"""Most commits, or places of divergence, that are listed."""


@dataclass(frozen=True)
class Result:
    """The end of a search.

    Attributes:
        suspects: The first bad commit alone, or all commits that may be it.
        judgements: By hash of a commit, as far as judged.
        range: Number of commits between both ends.
        runs: Number of calls of the command.
    """

    suspects: tuple[Commit, ...]
    judgements: dict[str, Judgement]
    range: int
    runs: int

    @property
    def exit_code(self) -> int:
        """0 if one commit is left."""
        return int(len(self.suspects) > 1)


class _Judge:
    """The judgements of commits; the command runs once for commits that are equal in what decides.

    Args:
        repository: The user's repository.
        code: Paths that decide the result; empty for all files.
        command: The command's words.
        checkout, scratch: Folders for the commit, and for the files of calls.
        advance: Called with each step.
    """

    def __init__(
        self,
        repository: Repository,
        code: Sequence[str],
        command: Sequence[str],
        checkout: Checkout,
        scratch: Path,
        advance: Callable[[str], None],
    ) -> None:
        self._repository, self._code, self._command = repository, code, command
        self._checkout, self._scratch, self._advance = checkout, scratch, advance
        self._by_digest: dict[tuple[str, ...], Judgement] = {}
        self.by_commit: dict[str, Judgement] = {}

    @property
    def runs(self) -> int:
        """Number of calls of the command."""
        return len(self._by_digest)

    def __call__(self, commit: Commit) -> Outcome:
        """The outcome of a commit."""
        digest = self._repository.digest(commit, self._code)
        if digest not in self._by_digest:
            self._advance(bounded(f"judging {commit.short} {commit.subject}"))
            self._checkout.show(commit)
            scratch = self._scratch / commit.name
            self._by_digest[digest] = judging.judge(self._command, self._checkout, scratch)
        judgement = self.by_commit[commit.name] = self._by_digest[digest]
        self._advance(bounded(f"{commit.short} {judgement.outcome.value} ({judgement.end})"))
        return judgement.outcome


def bisect(
    good: str, bad: str, command: Sequence[str], code: Sequence[str], advance: Callable[[str], None]
) -> Result:
    """Find the commit of the present folder's repository that makes a command fail.

    Args:
        good, bad: Names of a commit where the command ends with 0, and of a descendant where it ends with 1.
        command: Its words.
        code: Paths that decide the result; empty for all files.
        advance: Called with each step.

    Raises:
        UserError: Bad input; an end that has another outcome.
    """
    judging.check(command)
    repository = Repository(Path.cwd())
    first, last = repository.commit("GOOD", good), repository.commit("BAD", bad)
    between = repository.between(first, last)
    _check_paths(repository, code, first, last)
    with tempfile.TemporaryDirectory(prefix="bisect-") as scratch, repository.checkout(first) as checkout:
        judge = _Judge(repository, code, command, checkout, Path(scratch), advance)
        _expect("GOOD", first, Outcome.PASSES, judge)
        _expect("BAD", last, Outcome.FAILS, judge)
        suspects = suspects_of(between, judge)
    return Result(suspects, judge.by_commit, len(between), judge.runs)


def _check_paths(repository: Repository, code: Sequence[str], first: Commit, last: Commit) -> None:
    for path in code:
        if not any(any(repository.digest(commit, [path])) for commit in (first, last)):
            raise UserError(
                "--code", path, "is in neither GOOD nor BAD", "give a path from the present folder"
            )
    if repository.digest(first, code) == repository.digest(last, code):
        at = ", ".join(code) or "all files"
        raise UserError("BAD", last.short, f"is equal to GOOD in {at}", "give commits that differ there")


def _expect(argument: str, commit: Commit, outcome: Outcome, judge: _Judge) -> None:
    actual = judge(commit)
    if actual is not outcome:
        wanted = "0" if outcome is Outcome.PASSES else "1"
        end = judge.by_commit[commit.name].end
        fix = f"give a commit where the command ends with {wanted} and runs the files of its folder"
        raise UserError(argument, commit.short, f"{actual.value} ({end})", fix)


def render(result: Result) -> list[str]:
    """The result in lines."""
    *others, last = result.suspects
    if others:
        lines = [f"the first bad commit is one of {len(result.suspects)}; the others cannot be judged"]
        shown = result.suspects[-_MOST:]
        lines += [f"  {commit.short} {commit.subject} ({commit.author})" for commit in shown]
        if len(shown) < len(result.suspects):
            lines.append(f"  and {len(result.suspects) - len(shown)} before them")
    else:
        lines = [f"first bad commit: {last.name}", f"  subject: {last.subject}", f"  author:  {last.author}"]
    before = next((parent for parent in result.suspects[0].parents if parent in result.judgements), None)
    for label, name in (("before", before), ("after", last.name)):
        lines += _diverging(label, None if name is None else result.judgements[name])
    unknown = sum(one.outcome is Outcome.UNKNOWN for one in result.judgements.values())
    equal = len(result.judgements) - result.runs
    commits = "1 commit" if result.range == 1 else f"{result.range} commits"
    counts = [f"{result.runs} runs for {commits} behind GOOD"]
    counts += [f"{equal} equal to a judged one"] * (equal > 0)
    counts += [f"{unknown} cannot be judged"] * (unknown > 0)
    return [bounded(line) for line in [*lines, "; ".join(counts)]]


def _diverging(label: str, judgement: Judgement | None) -> list[str]:
    """Where runners diverge first in a commit; nothing if the command writes no report."""
    if judgement is None or judgement.places is None:
        return []
    places = judgement.places or ("nothing diverges",)
    left = len(places) - _MOST
    return [f"  {label}: {place}" for place in places[:_MOST]] + [f"  and {left} more"] * (left > 0)
