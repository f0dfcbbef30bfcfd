"""The verbs that write, on small models: their calls, the calls that go on after a kill, their results."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
PARITY = (sys.executable, str(ROOT / "run_parity.py"))
TRAIN = (sys.executable, "-m", "reference.train")
OUT = "out"
"""Name of every call's result, in the folder where the call runs."""
_MODEL = ("--model", "small_model:case", "--precision", "fp32,fp16")
_RUN = ("--runners", "tripy")
_SAVE = ("run", *_MODEL, *_RUN, "--save", OUT)
_TRAIN = ("--case", "hstu_tiny", "--data", "u.data", "--batch", "10", "--epochs", "3", "--out", OUT)

Words = tuple[str, ...]


@dataclass(frozen=True)
class Verb:
    """A call that writes.

    Attributes:
        words: The call.
        go_on: From the folder after a kill to the call that goes on; None where the work is complete.
        result: From the folder and stdout of the last call to a result that equals an undisturbed one's.
        saves: From the folder to whether the call has left something there; None where an earlier call has.
        before: A call that fills the folder first, with files that end it: it is killed when all exist.
    """

    words: Words
    go_on: Callable[[Path], Words | None]
    result: Callable[[Path, str], object]
    saves: Callable[[Path], bool | None]
    before: tuple[Words, str] | None = None


def verdicts(report: Path) -> object:
    """Everything in a report that is the same in each run."""
    content = json.loads(report.read_text())
    rows = [
        (
            runner["runner"],
            runner["status"],
            runner["verdict"],
            [(m["tap"], m["status"]) for m in runner["modules"]],
        )
        for case in content["cases"]
        for precision in case["precisions"]
        for runner in precision["runners"]
    ]
    return content["exit_code"], rows


def _of_latest_report(folder: Path, out: str) -> object:
    return verdicts(max((folder / "parity_reports").glob("*/report.json")))


def _of_saved(folder: Path, out: str) -> object:
    names = {path.relative_to(folder).as_posix() for path in (folder / OUT).rglob("*")}
    return verdicts(folder / OUT / "report.json"), sorted(names)


def _of_search(folder: Path, out: str) -> object:
    content = json.loads((folder / OUT / "precision.json").read_text())
    return content["best"], content["evaluations"], (folder / OUT / "policy.yaml").read_text()


def _of_campaign(folder: Path, out: str) -> object:
    lines = (folder / OUT / "findings.jsonl").read_text().splitlines()
    return sorted(lines), (folder / OUT / "table.md").read_text()


def _of_files(folder: Path, out: str) -> object:
    """All bytes below the result; of a script's weights and problem too."""
    target = folder / OUT
    paths = [target.with_suffix(".py")] if not target.exists() else sorted(target.rglob("*"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths if path.is_file()}


def _of_training(folder: Path, out: str) -> object:
    return (folder / OUT / "best.safetensors").read_bytes(), out.splitlines()[-3:]


def _of_serving(folder: Path, out: str) -> object:
    content = json.loads((folder / OUT / "serving.json").read_text())
    tables = {path.name: path.read_bytes() for path in sorted((folder / "tables").iterdir())}
    return content["accuracy"]["verdict"], content["requests"], tables


def _of_stream(folder: Path, out: str) -> object:
    # Rates and times differ.
    return [re.sub(r"[\d.e+-]+ (ms|us|s)\b", "", line) for line in out.splitlines()]


def _of_comparison(folder: Path, out: str) -> object:
    # Each call has a folder of its own, which stdout names.
    path = max((folder / "parity_reports").glob("*/compare.json"))
    return path.read_text(), out.replace(path.parent.name, "")


def _again(words: Words) -> Callable[[Path], Words]:
    return lambda folder: words


def _resumed(folder: Path) -> Words:
    saved = folder / OUT
    if (saved / "manifest.json").exists():
        return (*PARITY, "replay", OUT)
    return (*PARITY, *(("resume", OUT) if (saved / "started.json").exists() else _SAVE))


def _unless(path: str, words: Words) -> Callable[[Path], Words | None]:
    return lambda folder: None if (folder / path).exists() else words


def _trained_on(folder: Path) -> Words:
    has_begun = any((folder / OUT).iterdir()) if (folder / OUT).exists() else False
    return (*TRAIN, *_TRAIN, *(("--resume",) if has_begun else ()))


def _has(pattern: str) -> Callable[[Path], bool]:
    return lambda folder: any(folder.glob(pattern))


def _verb(words: Words, result: Callable[[Path, str], object], pattern: str) -> Verb:
    """A call that starts anew after a kill."""
    call = (*PARITY, *words)
    return Verb(call, _again(call), result, _has(pattern))


_SEARCH = ("precision", "--model", "small_model:case", "--save", OUT)
_CAMPAIGN = (
    *("self-test", "--model", "small_model:case", "--precision", "fp32", "--share", "0.05"),
    *("--clean-runs", "0", "--save", OUT),
)
_SHRINK = (*PARITY, "shrink", OUT, "--model", "broken_model:case", "--precision", "fp32")
_SERVE = (
    *("serve", "--case", "dlrmv3_tiny", "--precision", "fp32", "--accuracy-only", "--samples", "8"),
    *("--tables", "tables", "--save", OUT),
)
_INTERRUPTED = ((*PARITY, *_SAVE), f"{OUT}/*/batch_0000/*/files.json")
_REPORTED = "parity_reports/*/report.json"
VERBS = {
    "run": _verb(("run", *_MODEL, *_RUN), _of_latest_report, _REPORTED),
    "run --save": Verb((*PARITY, *_SAVE), _resumed, _of_saved, _has(f"{OUT}/started.json")),
    "resume": Verb((*PARITY, "resume", OUT), _resumed, _of_saved, lambda folder: None, _INTERRUPTED),
    "replay": Verb(
        (*PARITY, "replay", OUT),
        _again((*PARITY, "replay", OUT)),
        _of_latest_report,
        _has(_REPORTED),
        ((*PARITY, *_SAVE), ""),
    ),
    "compare": Verb(
        (*PARITY, "compare", OUT, OUT),
        _again((*PARITY, "compare", OUT, OUT)),
        _of_comparison,
        _has("parity_reports/*/compare.json"),
        ((*PARITY, *_SAVE), ""),
    ),
    "shrink": Verb(_SHRINK, _unless(OUT, _SHRINK), _of_files, _has(OUT)),
    "precision": Verb(
        (*PARITY, *_SEARCH),
        _unless(f"{OUT}/precision.json", (*PARITY, *_SEARCH)),
        _of_search,
        _has(f"{OUT}/*"),
    ),
    "self-test": _verb(_CAMPAIGN, _of_campaign, f"{OUT}/*"),
    "stream": _verb(
        ("stream", "--case", "hstu_tiny", "--precision", "fp32", "--steps", "3"), _of_stream, "parity_reports"
    ),
    "serve": Verb((*PARITY, *_SERVE), _unless(OUT, (*PARITY, *_SERVE)), _of_serving, _has(OUT)),
    "new": Verb(
        (*PARITY, "new", OUT), _unless(f"{OUT}.py", (*PARITY, "new", OUT)), _of_files, _has(f"{OUT}.py")
    ),
    "train": Verb((*TRAIN, *_TRAIN), _trained_on, _of_training, _has(f"{OUT}/checkpoint.pt")),
}
"""The verbs by name."""


def furnish(folder: Path) -> None:
    """Write the models and data of the calls into a new folder."""
    folder.mkdir()
    for name in ("small_model", "broken_model"):
        subprocess.run([*PARITY, "new", name], cwd=folder, check=True, capture_output=True)
    broken = folder / "broken_model.py"
    text = broken.read_text()
    broken.write_text(text.replace("return self.second(tp.relu(", "return self.second(2.0 * tp.relu("))
    rng = np.random.default_rng(0)
    lines = [
        f"{user}\t{rng.integers(1, 40)}\t{rng.integers(1, 6)}\t{881250949 + 1000 * place}\n"
        for user in range(1, 41)
        for place in range(6)
    ]
    (folder / "u.data").write_text("".join(lines))
    for name in ("__pycache__", "parity_reports"):
        shutil.rmtree(folder / name, ignore_errors=True)
