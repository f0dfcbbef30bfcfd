"""Saved runs: quickly made, or changed on purpose and sealed again as if the run had written them."""

import contextlib
import json
from collections.abc import Iterator

import pytest

from parity import pipeline
from parity.base.code import file_digest
from parity.base.sealed import read_sealed, sealed
from parity.capture.captures import Capture
from parity.capture.store import open_capture, save_capture
from parity.execution.folder import RunFolder
from parity.timing import rounds

QUICK_PROGRAM = (
    "import run_parity; from tests.parity.saved_runs import quick_runs\nwith quick_runs(): run_parity.main()"
)
"""`run_parity.py` in a process of its own, for `python -c`, with quick runs."""


@contextlib.contextmanager
def quick_runs() -> Iterator[None]:
    """Inside, a run exports nothing to ONNX, which takes seconds a precision, and times each call once.

    Verdicts, captures and all other files are those of any run.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "write_polygraphy", lambda *_: None)
        for name in ("MIN_ROUNDS", "MODULE_REPEATS", "GPU_MIN_MODULE_ROUNDS", "GPU_MODULE_REPEATS"):
            patch.setattr(rounds, name, 1)
        for name in ("GPU_SECONDS", "CPU_SECONDS"):
            patch.setattr(rounds, name, 0.0)
        yield


@contextlib.contextmanager
def changed_capture(stem) -> Iterator[Capture]:
    """A saved capture whose tensors the body may change; it is saved in its own place."""
    capture = open_capture(stem)
    capture.tensors, capture.call_inputs = dict(capture.tensors), dict(capture.call_inputs)
    yield capture
    save_capture(capture, stem)


def seal(folder, **facts):
    """Give the sealed files of a run the digests of its files as they are, and the facts of a manifest."""
    shared = {name: facts[name] for name in ("environment", "command", "runners") if name in facts}
    if "cases" in facts:
        shared["cases"] = [case["case"] for case in facts["cases"]]
    if "runners_asked" in facts:
        shared["runners_asked"] = bool(facts["runners_asked"])
    rewrite(folder / "started.json", lambda content: content.update(shared))
    for batch in RunFolder(folder).done():
        content = read_sealed(batch.files)
        content["code"] = facts.get("code", content["code"])
        content["batch"] = "/".join(batch.path.parts[-3:])
        content["files"] = {name: file_digest(batch.path / name) for name in content["files"]}
        if (new := sealed(content)) != batch.files.read_bytes():
            batch.files.write_bytes(new)
    path = folder / "manifest.json"
    content = read_sealed(path) | facts
    content["files"] = {
        file.relative_to(folder).as_posix(): file_digest(file)
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file != path
    }
    # A run that is not changed is read by other processes meanwhile.
    if (new := sealed(content)) != path.read_bytes():
        path.write_bytes(new)


def manifest(folder):
    """The content of a run's manifest."""
    return read_sealed(folder / "manifest.json")


def rewrite(path, change):
    """Change the content of a sealed file in place, and seal it again."""
    before = path.read_bytes()
    content = json.loads(before)["content"]
    change(content)
    # A run that is not changed is read by other processes meanwhile.
    if (new := sealed(content)) != before:
        path.write_bytes(new)
