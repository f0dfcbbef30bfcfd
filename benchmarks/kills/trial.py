"""One kill of one verb: the signal, the checks behind it, and the call that goes on."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.kills import leftovers, own_group
from benchmarks.kills.verbs import OUT, ROOT, VERBS, Verb, furnish

PROMPT_SECONDS = 2.0
"""Longest time from SIGINT or SIGTERM to the end of all processes."""
PATIENCE = 300.0
_POLL = 0.01
_MARK = "PARITY_KILLS"


@dataclass(frozen=True)
class Kill:
    """A signal, and its receivers: the process alone, or its whole group as at a terminal."""

    number: signal.Signals
    whole_group: bool = False

    def __str__(self) -> str:
        return f"{self.number.name}{', group' if self.whole_group else ''}"

    def send(self, process: subprocess.Popen[str]) -> None:
        """Send the signal."""
        if self.whole_group:
            os.killpg(process.pid, self.number)
        else:
            process.send_signal(self.number)


KILLS = (
    Kill(signal.SIGKILL),
    Kill(signal.SIGTERM),
    Kill(signal.SIGINT),
    Kill(signal.SIGTERM, whole_group=True),
    Kill(signal.SIGINT, whole_group=True),
)


@dataclass
class Finding:
    """The result of a kill.

    Attributes:
        verb, kill: Names.
        moment: Seconds from the start to the signal.
        seconds: Seconds from the signal to the end of all processes; None if the call had ended before.
        code: Exit code.
        message: Last line on stderr.
        problems: Everything that is not as it has to be.
    """

    verb: str
    kill: str
    moment: float
    seconds: float | None = None
    code: int | None = None
    message: str = ""
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Ended:
    """The end of a call."""

    code: int
    out: str
    err: str
    seconds: float


class Bench:
    """Undisturbed calls, and kills of the same calls.

    Args:
        folder: A new folder for everything.
        prompt: Longest time from SIGINT or SIGTERM to the end of all processes, s.
    """

    def __init__(self, folder: Path, prompt: float = PROMPT_SECONDS) -> None:
        self._folder = folder
        self._prompt = prompt
        self._furnished = folder / "furnished"
        furnish(self._furnished)
        self._undisturbed: dict[str, tuple[Ended, object]] = {}
        self._count = 0

    def seconds(self, name: str) -> float:
        """Seconds of an undisturbed call."""
        return self._reference(name)[0].seconds

    def kill(self, name: str, kill: Kill, moment: float) -> Finding:
        """Start a verb, kill it at a moment in seconds, and go on to its end."""
        verb, (undisturbed, expected) = VERBS[name], self._reference(name)
        finding = Finding(name, str(kill), round(moment, 3))
        place = self._prepared(name)
        process = self._start(place, verb.words)
        time.sleep(moment)
        watches = _watches(process.pid)
        kill.send(process)
        began = time.monotonic()
        out, err = process.communicate(timeout=PATIENCE)
        while leftovers.processes(self._mark(place)) and time.monotonic() - began < PATIENCE:
            time.sleep(_POLL)
        seconds = time.monotonic() - began
        finding.code, finding.message = process.returncode, (err.splitlines() or [""])[-1]
        if process.returncode != undisturbed.code:
            finding.seconds = round(seconds, 3)
            if watches or kill.number is signal.SIGKILL:
                finding.problems += _at_the_end(kill, finding, err, verb.saves(place), self._prompt)
        finding.problems += _remains(place, kill)
        words = verb.go_on(place)
        if words is not None:
            ended = self._call(place, words)
            out = ended.out
            if ended.code != undisturbed.code:
                finding.problems.append(f"{' '.join(words[1:])} ends with {ended.code}: {ended.err[-300:]}")
        finding.problems += self._at_last(place, verb, out, expected)
        shutil.rmtree(place)
        return finding

    def _at_last(self, place: Path, verb: Verb, out: str, expected: object) -> list[str]:
        problems = [
            *(f"a file is damaged at last: {text}" for text in leftovers.damaged(place)),
            *(f"an unfinished file remains at last: {text}" for text in leftovers.unfinished(place)),
            *(f"a temporary file remains at last: {path}" for path in _temporary_files(place)),
        ]
        try:
            if verb.result(place, out) != expected:
                problems.append("the result differs from an undisturbed call's")
        except (OSError, ValueError, KeyError) as error:
            problems.append(f"there is no result: {error}")
        return problems

    def _reference(self, name: str) -> tuple[Ended, object]:
        if name not in self._undisturbed:
            place = self._prepared(name)
            ended = self._call(place, VERBS[name].words)
            if ended.code not in (0, 1):
                raise RuntimeError(f"{name} ends with {ended.code}: {ended.err}")
            self._undisturbed[name] = ended, VERBS[name].result(place, ended.out)
            shutil.rmtree(place)
        return self._undisturbed[name]

    def _prepared(self, name: str) -> Path:
        """A new folder in which the verb can start."""
        self._count += 1
        place = self._folder / str(self._count)
        before = VERBS[name].before
        filled = self._furnished if before is None else self._before(*before)
        # A killed program leaves sockets among its temporary files, which cannot be copied.
        shutil.copytree(filled, place, ignore=shutil.ignore_patterns(_temporary(place).name))
        _temporary(place).mkdir()
        return place

    def _before(self, words: Sequence[str], until: str) -> Path:
        """A folder with the result of a call, or with what its kill leaves when a file exists."""
        place = self._folder / ("interrupted" if until else "complete")
        if not place.exists():
            shutil.copytree(self._furnished, place)
            _temporary(place).mkdir()
            process = self._start(place, words)
            if until:
                _wait_for(lambda: any(place.glob(until)))
                process.kill()
            process.communicate(timeout=PATIENCE)
            _wait_for(lambda: not leftovers.processes(self._mark(place)))
        return place

    def _start(self, place: Path, words: Sequence[str]) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "TMPDIR": str(_temporary(place)),
            "PYTHONPATH": str(ROOT),
            **dict([self._mark(place).split("=")]),
        }
        return own_group.start(words, place, environment)

    def _call(self, place: Path, words: Sequence[str]) -> Ended:
        began = time.monotonic()
        process = self._start(place, words)
        out, err = process.communicate(timeout=PATIENCE)
        return Ended(process.returncode, out, err, time.monotonic() - began)

    def _mark(self, place: Path) -> str:
        return f"{_MARK}={place}"


def _temporary(place: Path) -> Path:
    return place / "t"


def _temporary_files(place: Path) -> list[Path]:
    """Temporary files of the program; PyTorch keeps a cache of compiled code there."""
    return [path for path in _temporary(place).iterdir() if not path.name.startswith("torchinductor_")]


def _watches(pid: int) -> bool:
    """Whether a process or its child waits for signals, or has ended.

    Python needs a moment to the first line, and has no handlers behind the last one.
    """
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        texts = [Path(f"/proc/{number}/status").read_text() for number in (pid, *children)]
    except OSError:
        return True
    # The child blocks them until it has its handlers.
    masks = [int(mask, 16) for text in texts for mask in re.findall(r"Sig(?:Blk|Cgt):\s+(\w+)", text)]
    return not masks or any(mask >> (signal.SIGTERM - 1) & 1 for mask in masks)


def _wait_for(is_so: Callable[[], bool]) -> None:
    began = time.monotonic()
    while not is_so():
        if time.monotonic() - began > PATIENCE:
            raise TimeoutError
        time.sleep(_POLL)


def _at_the_end(kill: Kill, finding: Finding, err: str, has_saved: bool | None, prompt: float) -> list[str]:
    """Problems with the end of the process."""
    problems = []
    assert finding.seconds is not None
    if kill.number is signal.SIGKILL:
        return [] if finding.code == -signal.SIGKILL else [f"ends with {finding.code}"]
    if finding.seconds > prompt:
        problems.append(f"ends after {finding.seconds:.1f} s")
    if finding.code != 128 + kill.number:
        problems.append(f"ends with {finding.code}: {err[-300:]}")
    if "Traceback" in err:
        problems.append(f"prints a traceback: {err[-300:]}")
    told = re.fullmatch(rf"interrupted by {kill.number.name}; (.+)", finding.message)
    if told is None:
        problems.append(f"does not tell: {finding.message}")
    elif has_saved is not None and has_saved != (OUT in told[1] or "parity_reports" in told[1]):
        problems.append(f"tells wrongly what is saved: {told[1]}")
    return problems


def _remains(place: Path, kill: Kill) -> list[str]:
    """Problems with the files behind the end."""
    problems = [f"a file is damaged: {text}" for text in leftovers.damaged(place)]
    problems += [f"is locked: {text}" for text in leftovers.held_locks(place)]
    if kill.number is not signal.SIGKILL:
        problems += [f"a temporary file remains: {path}" for path in _temporary_files(place)]
        problems += [f"an unfinished file remains: {text}" for text in leftovers.unfinished(place)]
    return problems
