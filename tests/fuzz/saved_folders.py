"""Hostile folders of saved runs: a complete one for `replay`, an interrupted one for `resume`."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from hypothesis import strategies as st

from parity.base.code import present_code
from parity.base.sealed import sealed
from tests.fuzz.attempt import REFUSED, Attempt
from tests.fuzz.values import changed_bytes, changed_documents
from tests.locations import ROOT

CASE = "parity.cli.new_case:case"
COMPLETE, BEGUN, REPORT = "complete", "begun", "report"
_LAST = ("manifest.json", "report.json", "report.html", "report.md", "report.junit.xml")


def make(folder: Path) -> dict[str, Path]:
    """The bases by name: a saved run of a small case, which runs if none is there, and parts of it."""
    complete, begun = folder / COMPLETE, folder / BEGUN
    if not (complete / "manifest.json").exists():
        options = ("--model", CASE, "--precision", "fp32", "--runners", "tripy", "--save", str(complete))
        subprocess.run(
            [sys.executable, "run_parity.py", "run", *options], cwd=ROOT, check=True, capture_output=True
        )
    shutil.rmtree(begun, ignore_errors=True)
    shutil.copytree(complete, begun)
    for name in _LAST:
        (begun / name).unlink()
    for path in begun.rglob("files.json"):
        # The code may have changed since the run.
        content = json.loads(path.read_text())["content"]
        digests = present_code(content["code"])
        code = {name: own | {"digest": digests[name]} for name, own in content["code"].items()}
        path.write_bytes(sealed({**content, "code": code}))
    report = folder / REPORT
    report.mkdir(exist_ok=True)
    shutil.copy(complete / "report.json", report)
    return {COMPLETE: complete, BEGUN: begun, REPORT: report}


@functools.cache
def _files(base: Path) -> dict[str, bytes]:
    paths = sorted(path for path in base.rglob("*") if path.is_file())
    return {path.relative_to(base).as_posix(): path.read_bytes() for path in paths}


def _resealed(base: Mapping[str, bytes], changed: Mapping[str, bytes]) -> dict[str, bytes]:
    """The changed files, and all files whose digests they change, as if the run had written them so."""
    files = dict(changed)
    for name in sorted((name for name in base if name.endswith("/files.json")), key=len):
        folder = name.removesuffix("files.json")
        _reseal(base, files, name, folder)
    _reseal(base, files, "manifest.json", "")
    return files


def _reseal(base: Mapping[str, bytes], files: dict[str, bytes], name: str, folder: str) -> None:
    if name in files or name not in base:
        return
    content = json.loads(base[name])["content"]
    digests = {
        inner.removeprefix(folder): hashlib.sha256(data).hexdigest()
        for inner, data in files.items()
        if inner.removeprefix(folder) in content["files"] and inner.startswith(folder)
    }
    if digests:
        content["files"] |= digests
        files[name] = sealed(content)


def sealed_text(text: str) -> bytes:
    """A sealed file with this text as content, where it is JSON."""
    try:
        return sealed(json.loads(text))
    except (ValueError, RecursionError):
        return f'{{"sha256": "", "content": {text}}}'.encode(errors="surrogatepass")


@st.composite
def attempts(draw: st.DrawFn, bases: Mapping[str, Path]) -> Attempt:
    """`replay` or `resume` of a folder with other files."""
    verb, name = draw(st.sampled_from((("replay", COMPLETE), ("resume", BEGUN))))
    base = _files(bases[name])
    command = (verb, name)
    kind = draw(
        st.sampled_from(("content", "content", "content", "bytes", "sealed bytes", "drop", "swap", "add"))
    )
    path = draw(st.sampled_from(_interesting(base)))
    read = (
        path not in _LAST[1:]
        and "/polygraphy/" not in path
        and "/onnx/" not in path
        and "worker_" not in path
    )
    must = (REFUSED,) if read and (verb == "replay" or "/fp32/" in path) else (0, 1, 2)
    if kind == "drop":
        return Attempt(
            command, base=name, removed=(path,), codes=must if not path.endswith("files.json") else (0, 1, 2)
        )
    if kind == "add":
        added = draw(
            st.sampled_from(
                ("new_case/x", "new_case/batch_0000/fp32/torch/x", "x", ".lock", "new_case/batch_0009/x")
            )
        )
        return Attempt(command, {f"{name}/{added}": b"x"}, name)
    if kind == "swap":
        other = draw(st.sampled_from(_interesting(base)))
        swapped = {path: base[other], other: base[path]}
        return _attempt(command, name, draw(st.booleans()) and _resealed(base, swapped) or swapped)
    if kind == "bytes":
        content = draw(changed_bytes(base[path]))
        return _attempt(command, name, {path: content}, must if content != base[path] else (0, 1, 2))
    if kind == "sealed bytes" or not path.endswith(".json"):
        return _attempt(command, name, _resealed(base, {path: draw(changed_bytes(base[path]))}))
    document = json.loads(base[path])
    if path.endswith(("files.json", "/manifest.json", "started.json")) or path == "manifest.json":
        if "content" in document:
            return _attempt(command, name, {path: sealed_text(draw(changed_documents(document["content"])))})
    text = draw(changed_documents(document)).encode(errors="surrogatepass")
    return _attempt(command, name, _resealed(base, {path: text}))


def _attempt(
    command: tuple[str, ...], name: str, files: Mapping[str, bytes], codes: tuple[int, ...] = (0, 1, 2)
) -> Attempt:
    return Attempt(command, {f"{name}/{path}": content for path, content in files.items()}, name, codes=codes)


def _interesting(base: Mapping[str, bytes]) -> list[str]:
    """Files of the run and of its first two batches; sealed files and records weigh more."""
    own = [path for path in base if "batch_0002" not in path and "batch_0003" not in path]
    heavy = [
        path for path in own if path.endswith((".json", "inputs.safetensors")) and "polygraphy" not in path
    ]
    top = [
        path
        for path in own
        if path in ("manifest.json", "started.json") or path.endswith(("record.json", "files.json"))
    ]
    return own + heavy * 2 + top * 4
