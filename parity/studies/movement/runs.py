"""Two saved runs: their facts, and the batches that both have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from parity.base.errors import UserError
from parity.execution.case_files import BatchDescription, CaseDescription
from parity.execution.folder import PrecisionFolder, RunFolder
from parity.execution.manifest import Manifest, read_manifest

_DIGITS = 12
"""Digits of a digest that tell two states of code apart."""


@dataclass(frozen=True)
class SavedRun:
    """A complete saved run whose files are as it wrote them."""

    folder: RunFolder
    manifest: Manifest

    @property
    def cases(self) -> dict[str, CaseDescription]:
        """Facts about each case, by name."""
        return {description.case.name: description for description in self.manifest.cases}


@dataclass(frozen=True)
class BatchPair:
    """A batch of a case in one precision, in both runs.

    Attributes:
        case, precision, batch: Names.
        old, new: Its folders.
    """

    case: str
    precision: str
    batch: str
    old: PrecisionFolder
    new: PrecisionFolder


def is_saved_run(path: Path) -> bool:
    """Whether a folder is one of `run --save`. Its run may not be complete, which `open_run` refuses."""
    folder = RunFolder(path)
    return folder.manifest.is_file() or folder.started.is_file()


def open_run(path: Path) -> SavedRun:
    """A saved run, checked. Raises `UserError` if it is not as the run wrote it."""
    # Its cases are imported, which may go to another folder.
    folder = RunFolder(path.absolute())
    return SavedRun(folder, read_manifest(folder, "compare"))


def require_same(old: SavedRun, new: SavedRun) -> None:
    """Raise `UserError` unless both runs have the same cases, precisions, weights and inputs."""
    problems = list(_problems(old, new))
    if problems:
        raise UserError(
            "compare",
            f"{old.folder.path} and {new.folder.path}",
            f"are not runs of the same: {'; '.join(problems)}",
            "save both with the same cases, precisions, --weights, --seed, --batch and --data",
        )


def _problems(old: SavedRun, new: SavedRun) -> Iterator[str]:
    yield from _only("case", old.cases, new.cases)
    for name, one in old.cases.items():
        other = new.cases.get(name)
        if other is None:
            continue
        precisions = dict.fromkeys(one.precisions), dict.fromkeys(other.precisions)
        yield from (f"{name}: {text}" for text in _only("precision", *precisions))
        if one.weights_digest != other.weights_digest:
            yield f"{name} has other weights ({one.weights_source} and {other.weights_source})"
        batches = _planned(one), _planned(other)
        yield from (f"{name}: {text}" for text in _only("batch", *batches))
        yield from (
            f"{name}: batch {batch} has other inputs"
            for batch, description in _by_name(one).items()
            if _by_name(other).get(batch, description).digest != description.digest
        )


def _only(kind: str, old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[str]:
    """The names that one run alone has."""
    yield from (f"{kind} {name} is in the old run alone" for name in old if name not in new)
    yield from (f"{kind} {name} is in the new run alone" for name in new if name not in old)


def _by_name(case: CaseDescription) -> dict[str, BatchDescription]:
    return {batch.name: batch for batch in case.batches}


def _planned(case: CaseDescription) -> dict[str, BatchDescription]:
    """The batches that do not depend on a run's results."""
    return {name: batch for name, batch in _by_name(case).items() if not batch.further}


def batch_pairs(old: SavedRun, new: SavedRun) -> Iterator[BatchPair]:
    """The batches of both runs by case and precision, in the order of the old run."""
    for name, one in old.cases.items():
        numbers = {batch.name: number for number, batch in enumerate(new.cases[name].batches)}
        for precision in one.precisions:
            for number, batch in enumerate(one.batches):
                other = numbers.get(batch.name)
                if other is None or precision not in batch.precisions:
                    continue
                if precision in new.cases[name].batches[other].precisions:
                    folders = (
                        run.folder.case(name).batch(place).precision(precision)
                        for run, place in ((old, number), (new, other))
                    )
                    yield BatchPair(name, precision, batch.name, *folders)


def left_out(old: SavedRun, new: SavedRun) -> list[str]:
    """Batches that one run alone has in a precision, in words: it drew more rows for its checks."""
    both = {(pair.case, pair.precision, pair.batch) for pair in batch_pairs(old, new)}
    return [
        f"{name}, {precision}: batch {batch.name} is in the {label} run alone"
        for label, run in (("old", old), ("new", new))
        for name, case in run.cases.items()
        for batch in case.batches
        for precision in batch.precisions
        if (name, precision, batch.name) not in both
    ]


def differing_facts(old: SavedRun, new: SavedRun) -> dict[str, tuple[str, str]]:
    """Facts of the environments and digests of code that differ, by name; "none" for an absent one."""
    facts = [
        run.manifest.environment
        | {f"code {name}": own.digest[:_DIGITS] for name, own in run.manifest.code.items()}
        for run in (old, new)
    ]
    pairs = {name: tuple(side.get(name, "none") for side in facts) for name in {**facts[0], **facts[1]}}
    return {name: (a, b) for name, (a, b) in pairs.items() if a != b}
