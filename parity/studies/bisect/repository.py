"""A user's git repository: its history, and its commits checked out beside the user's files.

The commits lie in a work tree of their own. The user's files, index and branches do not change.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from parity.base.errors import UserError
from parity.base.interruption import undone
from parity.studies.bisect.search import Commit

_TREE = "parity_bisect"
"""Name of the work tree's folder."""
_NO = 1
"""Git's exit code for the answer no."""
_FORMAT = "%H%x1f%P%x1f%T%x1f%an <%ae>%x1f%s"
_PLAIN = ("-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false")
"""No hook of the user runs for a work tree that is none of the user's."""


_LEADING = {
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX", "GIT_NAMESPACE"),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_SHALLOW_FILE", "GIT_GRAFT_FILE"),
}
"""Variables that lead git to another repository or index, as in a hook."""


class _Refused(UserError):
    """A call of git that fails, with its last line on stderr as `said`."""

    def __init__(self, call: str, code: int, said: str) -> None:
        super().__init__("git", call, f"fails: {said}", "repair the repository")
        self.code, self.said = code, said


def environment() -> dict[str, str]:
    """The environment without the variables that lead git elsewhere."""
    return {name: value for name, value in os.environ.items() if name not in _LEADING}


@dataclass(frozen=True)
class Checkout:
    """A work tree that holds one commit at a time.

    Attributes:
        tree: Its folder.
        inner: The folder inside that corresponds to the one where the user works.
    """

    tree: Path
    inner: Path

    def show(self, commit: Commit) -> None:
        """Check a commit out, without any other file.

        Raises:
            UserError: Git cannot.
        """
        try:
            _git(self.tree, *_PLAIN, "checkout", "--quiet", "--force", "--detach", commit.name)
            _git(self.tree, "clean", "-ffdxq")
        except _Refused as error:
            raise UserError(
                "commit", commit.name, f"cannot be checked out ({error.said})", "see git checkout"
            ) from error


class Repository:
    """The repository around a folder.

    Args:
        folder: The folder where the user works.

    Raises:
        UserError: There is no repository, or no git.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self._prefix = _git(folder, "rev-parse", "--show-prefix").strip("\n")
        except _Refused as error:
            problem = f"is in no git repository ({error.said})"
            raise UserError("bisect", str(folder), problem, "call it in your repository") from error

    def commit(self, argument: str, name: str) -> Commit:
        """A commit by any name that git knows.

        Raises:
            UserError: Git knows none.
        """
        try:
            # Git would take a name with a dash in front for an option.
            if not name or name.startswith("-") or "\0" in name:
                raise _Refused("rev-parse", 1, "no name")
            full = _git(self._folder, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").strip()
        except _Refused as error:
            raise UserError(argument, repr(name), "is no commit", "see git log") from error
        return self._commits("--max-count=1", full)[0]

    def between(self, good: Commit, bad: Commit) -> tuple[Commit, ...]:
        """The commits of `bad`'s past that are not of `good`'s, parents first.

        Raises:
            UserError: `good` is no ancestor of `bad`.
        """
        try:
            _git(self._folder, "merge-base", "--is-ancestor", good.name, bad.name)
        except _Refused as error:
            if error.code != _NO:
                raise
            problem = f"is no ancestor of {bad.short}"
            raise UserError("GOOD", good.short, problem, "give an earlier commit of BAD's history") from error
        return self._commits("--topo-order", "--reverse", bad.name, f"^{good.name}")

    def digest(self, commit: Commit, paths: Sequence[str]) -> tuple[str, ...]:
        """What decides the result of a commit: the files at these paths; without paths, all files.

        A path is relative to the user's folder. An absent one has an empty digest.
        """
        if not paths:
            return (commit.tree,)
        return tuple(self._object(commit, path) for path in paths)

    def _object(self, commit: Commit, path: str) -> str:
        inside = os.path.normpath(os.path.join(self._prefix, path))
        try:
            name = f"{commit.name}:{'' if inside == '.' else inside}"
            return _git(self._folder, "rev-parse", "--verify", "--quiet", name).strip()
        except _Refused:
            return ""

    def _commits(self, *selection: str) -> tuple[Commit, ...]:
        listed = _git(self._folder, "rev-list", "--encoding=UTF-8", f"--format={_FORMAT}", *selection, "--")
        commits = []
        for line in listed.split("\n"):
            # Every commit has a line with its hash alone before the one with the format.
            if "\x1f" in line:
                name, parents, tree, author, subject = line.split("\x1f", 4)
                commits.append(Commit(name, tuple(parents.split()), tree, author, subject))
        return tuple(commits)

    @contextlib.contextmanager
    def checkout(self, commit: Commit) -> Iterator[Checkout]:
        """A work tree with a commit, which ends with the body, or at an interruption in it.

        Raises:
            UserError: Git cannot make one.
        """
        self._remove_abandoned()
        with tempfile.TemporaryDirectory(prefix="bisect-") as folder:
            tree = Path(folder) / _TREE
            with undone(lambda: self._remove(tree)):
                try:
                    _git(self._folder, *_PLAIN, "worktree", "add", "--detach", str(tree), commit.name)
                except _Refused as error:
                    problem = f"gets no work tree ({error.said})"
                    raise UserError("bisect", str(self._folder), problem, "see git worktree add") from error
                yield Checkout(tree, tree / self._prefix)

    def _remove(self, tree: Path) -> None:
        # It is absent where git could not make it, and in the second call of an interruption.
        with contextlib.suppress(_Refused):
            _git(self._folder, "worktree", "remove", "--force", "--force", str(tree))

    def _remove_abandoned(self) -> None:
        """Let git forget the work trees of killed programs, whose folders are gone."""
        for line in _git(self._folder, "worktree", "list", "--porcelain").split("\n"):
            path = Path(line.removeprefix("worktree "))
            if line.startswith("worktree ") and path.name == _TREE and not path.exists():
                self._remove(path)


def _git(folder: Path, *words: str) -> str:
    """The stdout of git in a folder. Raises `_Refused`."""
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=folder,
            env={**environment(), "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except FileNotFoundError as error:
        raise UserError("bisect", "git", "is not installed", "install git") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise _Refused(words[0], done.returncode, lines[-1] if lines else f"exit code {done.returncode}")
    return done.stdout
