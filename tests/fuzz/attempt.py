"""One hostile input: a command line with files around it, tried in this process and judged.

An input is accepted where the program begins its work behind the boundary: the runners of a run, a search, a
campaign or a training. Comparisons, replays and all other verbs run to their end.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import sys
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from tests.locations import ROOT

MAX_LINES, MAX_CHARACTERS = 6, 1000
"""Bounds of a refusal."""
CPU_SECONDS = 20
"""CPU time of one input, s."""
REFUSED = 2
_LONG = 2000
"""Bytes from which a text is packed in a corpus."""

_WORK = (
    "parity.pipeline._finish",
    "parity.execution.fork_server.start",
    "parity.studies.shrink.shrink",
    "parity.studies.precision_search.command.Bench",
    "parity.studies.fault_injection.campaign.workers.reports",
    "parity.studies.streaming.command.judge_streams",
    "parity.studies.serving.command.ServedPort",
    "reference.train.fit",
)
_PREPARATION = {"parity.execution.fork_server.start"}
"""Work before the boundary, for speed; it does nothing here."""


class Accepted(BaseException):
    """The program begins its work."""


class TooSlow(BaseException):
    """The input takes more than its CPU time."""


@dataclass(frozen=True)
class Attempt:
    """A hostile input.

    Attributes:
        arguments: The command line without the program; `train` begins one of `reference.train`.
        files: Contents by path relative to the working folder; None for a folder.
        base: Folder whose files are there too, under its name; see `tests.fuzz.saved_folders`.
        removed: Paths of the base's files that are not there.
        codes: Exit codes that are right; 0 and 1 stand for an accepted input, too.
    """

    arguments: tuple[str, ...]
    files: Mapping[str, bytes | None] = field(default_factory=dict)
    base: str = ""
    removed: tuple[str, ...] = ()
    codes: tuple[int, ...] = (0, 1, 2)

    def text(self) -> str:
        """The input as JSON."""
        content = {
            "arguments": [_packed(os.fsencode(one)) for one in self.arguments],
            "files": {name: None if data is None else _packed(data) for name, data in self.files.items()},
            "base": self.base,
            "removed": self.removed,
            "codes": self.codes,
        }
        return json.dumps(content, indent=1) + "\n"

    @classmethod
    def of(cls, text: str) -> Attempt:
        """The input of a `text`."""
        content = json.loads(text)
        arguments = (os.fsdecode(_unpacked(one)) for one in content["arguments"])
        files = {name: None if data is None else _unpacked(data) for name, data in content["files"].items()}
        removed, codes = tuple(content["removed"]), tuple(content["codes"])
        return cls(tuple(arguments), files, content["base"], removed, codes)


def _packed(data: bytes) -> str | dict[str, str]:
    """Text of printable lines as it is, all else in base 85."""
    text = data.decode(errors="replace")
    plain = text.encode() == data and all(line.isprintable() for line in text.split("\n"))
    if plain and len(data) < _LONG:
        return text
    return {"base85": base64.b85encode(zlib.compress(data, 9)).decode()}


def _unpacked(packed: str | dict[str, str]) -> bytes:
    return packed.encode() if isinstance(packed, str) else zlib.decompress(base64.b85decode(packed["base85"]))


@dataclass(frozen=True)
class Outcome:
    """The end of one input.

    Attributes:
        kind: Whether the input was accepted, refused well, or shows a mistake of the program.
        problem: The mistake in one line, the same for inputs that show the same one; empty without one.
        message: The text on stderr, or the traceback.
    """

    kind: str
    problem: str = ""
    message: str = ""


def tried(attempt: Attempt, folder: Path, bases: Mapping[str, Path]) -> Outcome:
    """Try an input in a new working folder, which is removed behind it.

    Args:
        attempt: The input.
        folder: The working folder; it does not exist.
        bases: Folders by name, for `Attempt.base`.
    """
    folder.mkdir()
    here = os.getcwd()
    try:
        _lay_out(attempt, folder, bases)
        before = _content(folder)
        os.chdir(folder)
        outcome = _judged(attempt, *_called(attempt.arguments))
        if outcome.kind == "refused" and (changed := _changes(before, _content(folder))):
            return Outcome("finding", f"a refusal changes files: {_first_word(attempt)}", changed)
        return outcome
    finally:
        os.chdir(here)
        _forget_modules(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _forget_modules(folder: Path) -> None:
    """Let the next input import a module of its own under the same name."""
    # A copy in one step: threads that an attempt leaves behind may still import.
    for name, module in sys.modules.copy().items():
        if (getattr(module, "__file__", None) or "").startswith(f"{folder}{os.sep}"):
            del sys.modules[name]


def _first_word(attempt: Attempt) -> str:
    return attempt.arguments[0] if attempt.arguments else "no argument"


def _lay_out(attempt: Attempt, folder: Path, bases: Mapping[str, Path]) -> None:
    if attempt.base:
        shutil.copytree(bases[attempt.base], folder / attempt.base, copy_function=os.link)
    for name in attempt.removed:
        path = folder / attempt.base / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for name, content in attempt.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # The base's own file must not change: it is linked.
        path.unlink(missing_ok=True)
        path.mkdir() if content is None else path.write_bytes(content)


def _content(folder: Path) -> dict[str, str]:
    """Digests of all files below a folder; folders have none. Python compiles a case of the input's own."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts
    }


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    return ", ".join(sorted(name for name in before | after if before.get(name) != after.get(name)))[:300]


def _program(arguments: tuple[str, ...]) -> Callable[[], Any]:
    if arguments[:1] == ("train",):
        from reference.train import main as train

        return lambda: train.main(list(arguments[1:]), prog_name="train")
    import run_parity

    return lambda: run_parity.main.main(list(arguments), prog_name="parity")


def _called(arguments: tuple[str, ...]) -> tuple[int | BaseException, str, str]:
    """Exit code, or the error that ends the program, and its texts on stdout and stderr."""
    call = _program(arguments)
    # A real file below, since the program writes to descriptors too.
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="replace") for _ in range(2))
    code: int | BaseException = 0
    try:
        with (
            _stopped_at_work(),
            _timed(),
            warnings.catch_warnings(),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            warnings.simplefilter("ignore")
            call()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:  # noqa: BLE001, every other end is the finding
        code = error
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode(errors="replace"))  # type: ignore[attr-defined]
    return code, texts[0], texts[1]


def _judged(attempt: Attempt, code: int | BaseException, out: str, err: str) -> Outcome:
    name = _first_word(attempt)
    if isinstance(code, Accepted):
        code = 0
    elif isinstance(code, BaseException):
        return Outcome("finding", _signature(code), "".join(traceback.format_exception(code))[-3000:])
    if code not in attempt.codes:
        right = " or ".join(map(str, attempt.codes))
        return Outcome("finding", f"{name}: exit code {code}, not {right}", (out + err)[-1500:])
    if code != REFUSED:
        return Outcome("accepted", message=err[-300:])
    text = err or out
    message = "\n".join(line for line in text.strip().split("\n"))
    # A table of differences is the answer of `compare`, not a refusal.
    if not err and out:
        return Outcome("accepted")
    if not message:
        return Outcome("finding", f"{name}: a refusal without a message")
    if message.count("\n") + 1 > MAX_LINES or len(message) > MAX_CHARACTERS:
        shape = f"{message.count(chr(10)) + 1} lines, {len(message)} characters"
        return Outcome("finding", f"a long refusal: {_generic(message)}", f"{shape}: {message[:600]}")
    if not all(character.isprintable() or character == "\n" for character in message):
        return Outcome("finding", f"control characters: {_generic(message)}", repr(message)[:600])
    if message.endswith("; correct that code") and f"{ROOT}/" in message:
        return Outcome("finding", f"an error of the project's own code: {name}", message)
    if message.startswith("error: memory:"):
        return Outcome("finding", f"refused by allocation: {name}", message)
    return Outcome("refused", message=message)


def _generic(message: str) -> str:
    """The beginning of a message, without values."""
    return " ".join(message.split())[:40]


def _signature(error: BaseException) -> str:
    """The type of an error and its places in the project, innermost last."""
    root = str(ROOT)
    places = [
        f"{Path(frame.filename).relative_to(root)}:{frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.startswith(root)
        and "/fuzz/" not in frame.filename
        and ".venv" not in frame.filename
    ]
    return f"{type(error).__name__} at {' > '.join(places[-2:])}"


@contextlib.contextmanager
def _stopped_at_work() -> Iterator[None]:
    """Let the program's work raise `Accepted`."""

    def begin(*_: Any, **__: Any) -> None:
        raise Accepted

    with contextlib.ExitStack() as stack:
        for name in _WORK:
            module = name.rpartition(".")[0]
            # Modules that the program has not imported are imported here: that is no finding.
            if module.partition(".")[0] != "reference" or "reference.train" in sys.modules:
                stub = (lambda *_: None) if name in _PREPARATION else begin
                stack.enter_context(mock.patch(name, stub))
        yield


@contextlib.contextmanager
def _timed() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TooSlow

    previous = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)
