"""A campaign: inputs of all kinds for some seconds, in processes of their own, with counts and findings."""

from __future__ import annotations

import hashlib
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.attempt import Attempt, Outcome, tried
from tests.locations import ROOT

SEEDS = Path(__file__).with_name("seeds")
"""Inputs that showed a mistake once, in a folder for each kind."""
KINDS = ("yaml", "checkpoints", "saved", "reports", "data", "options", "served")
BLOCK = 50
"""Inputs of one draw of the strategies. The end of a campaign is looked at after each."""
_MEMORY = 4 << 30
"""Address space of a process besides that of its libraries, bytes."""
_SILENT = 600.0
"""Seconds after which an input counts as endless, on a machine with much other work."""


@dataclass
class Counts:
    """The results of one kind.

    Attributes:
        outcomes: Number of inputs by kind of outcome.
        findings: By problem, the shortest input that shows it, its message, and the number of such inputs.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    findings: dict[str, tuple[str, str, int]] = field(default_factory=dict)

    def add(self, attempt: Attempt, outcome: Outcome) -> None:
        """Count an input."""
        self.outcomes[outcome.kind] += 1
        if outcome.kind == "finding":
            text = attempt.text()
            shortest, message, number = self.findings.get(outcome.problem, (text, outcome.message, 0))
            if len(text) < len(shortest):
                shortest, message = text, outcome.message
            self.findings[outcome.problem] = (shortest, message, number + 1)


def strategy(kind: str, folder: Path) -> tuple[st.SearchStrategy[Attempt], Mapping[str, Path]]:
    """The inputs of a kind, and the folders that they change; `folder` keeps these."""
    from tests.fuzz import checkpoints, data_files, options, reports, saved_folders, served_files, yaml_files

    if kind == "served":
        bases = served_files.make(folder)
        return served_files.attempts(bases), bases
    bases = saved_folders.make(folder) if kind in ("saved", "reports") else {}
    if bases:
        of_bases = {"saved": saved_folders.attempts, "reports": reports.attempts}
        return of_bases[kind](bases), bases
    simple: dict[str, Callable[[], st.SearchStrategy[Attempt]]] = {
        "yaml": yaml_files.attempts,
        "checkpoints": checkpoints.attempts,
        "data": data_files.attempts,
        "options": options.attempts,
    }
    return simple[kind](), bases


def seeds(kind: str) -> list[Attempt]:
    """The corpus of a kind."""
    return [Attempt.of(path.read_text()) for path in sorted((SEEDS / kind).glob("*.json"))]


def save_seed(kind: str, text: str) -> Path:
    """Add an input to the corpus."""
    path = SEEDS / kind / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@dataclass(frozen=True)
class End:
    """The end of a campaign of one kind, whichever comes first.

    Attributes:
        seconds: Time for new inputs, s.
        blocks: Number of blocks of `BLOCK` new inputs. With it, the inputs follow from the seed alone.
    """

    seconds: float = math.inf
    blocks: float = math.inf


def fuzz(kind: str, end: End, start: int, folder: Path) -> None:
    """Try the corpus of a kind, then new inputs, in this process, and leave the counts for `in_process`.

    Args:
        kind: One of `KINDS`.
        end: The end.
        start: Seed of the first block of inputs.
        folder: Folder for the bases, the counts so far and the present input.
    """
    current = _current(kind, folder)
    inputs, bases = strategy(kind, folder)
    counts = Counts()
    number = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:

        def attempt(one: Attempt) -> None:
            nonlocal number
            number += 1
            current.write_text(one.text())
            counts.add(one, tried(one, Path(scratch) / str(number), bases))

        for one in seeds(kind):
            attempt(one)
        _limit_memory()
        latest = time.monotonic() + end.seconds
        block = start
        while time.monotonic() < latest and block - start < end.blocks:

            @seed(block)
            @settings(
                max_examples=BLOCK, database=None, deadline=None, phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            @given(inputs)
            def draw(one: Attempt) -> None:
                if time.monotonic() < latest:
                    attempt(one)

            draw()
            block += 1
            _write_result(counts, kind, folder)


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def in_process(kind: str, end: End, start: int, folder: Path) -> Counts:
    """`fuzz` in a process of its own, whose end by the system is a finding too."""
    current, result = _current(kind, folder), _result(kind, folder)
    for path in (current, result):
        path.unlink(missing_ok=True)
    arguments = ["--worker", kind, "--seconds", str(end.seconds), "--blocks", str(end.blocks)]
    arguments += ["--seed", str(start), "--folder", str(folder)]
    # Threads of a machine with many cores would take the address space for memory of their own.
    environment = {**os.environ, "MALLOC_ARENA_MAX": "2"}
    process = subprocess.Popen([sys.executable, "-m", "tests.fuzz", *arguments], cwd=ROOT, env=environment)
    written, since = 0.0, time.monotonic()
    while process.poll() is None:
        time.sleep(0.2)
        latest = current.stat().st_mtime if current.exists() else 0.0
        if latest != written:
            written, since = latest, time.monotonic()
        elif written and time.monotonic() - since > _SILENT:
            process.kill()
    counts = Counts()
    if result.exists():
        content = json.loads(result.read_text())
        findings = {name: tuple(entry) for name, entry in content["findings"].items()}
        counts = Counts(Counter(content["outcomes"]), findings)
    if process.returncode:
        problem = f"the process ends with {process.returncode}"
        counts.add(Attempt.of(current.read_text()), Outcome("finding", problem))
    return counts


def _current(kind: str, folder: Path) -> Path:
    """File that has the present input, for an end of the process by the system."""
    return folder / f"{kind}.current"


def _result(kind: str, folder: Path) -> Path:
    return folder / f"{kind}.result"


def _write_result(counts: Counts, kind: str, folder: Path) -> None:
    content = {"outcomes": counts.outcomes, "findings": counts.findings}
    part = _result(kind, folder).with_suffix(".part")
    part.write_text(json.dumps(content))
    part.replace(_result(kind, folder))
