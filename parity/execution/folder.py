"""The layout of a run's folder: the one home of the names of its files and folders.

<run>/started.json                              the request and the environment; the first file of a saved run
<run>/manifest.json                             the facts of the run, and digests of all files; the last file
<run>/report.json|html|md|junit.xml             the report
<run>/worker_0/<runner>.log                     output of the processes of one worker
<run>/<case>/weights/                           the exported weights, see `parity.inputs.weights`
<run>/<case>/onnx/<precision>/                  the reference as ONNX
<run>/<case>/batch_0000/inputs.safetensors      the inputs; `poisoned` and `labels` beside them, if any
<batch>/<precision>/record.json                 statuses and timings
<batch>/<precision>/files.json                  digests of a saved run: these files, code, origins; last
<batch>/<precision>/roofline.json               least times on the GPU that was timed
<batch>/<precision>/polygraphy/                 inputs and outputs in Polygraphy's formats
<batch>/<precision>/<runner>/                   captures by stem, see `parity.capture.store`; engines
<batch>/<precision>/tensors/                    large tensors of all captures
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from parity.base.errors import UserError
from parity.base.files import remove_unfinished
from parity.base.interruption import remaining, undoing
from parity.base.locks import LOCK, Locked, locked, made

_BATCH = "batch_"
_RECORD = "record.json"
STARTED = "started.json"
"""Name of the first file of a saved run."""
_FILES = "files.json"
LARGE_BATCH = 2**31
"""Bytes of captures from which a batch is judged, and its captures removed, before the next one is made."""


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run."""

    path: Path

    @property
    def started(self) -> Path:
        """The request, for a run that goes on after an interruption."""
        return self.path / STARTED

    @property
    def manifest(self) -> Path:
        """The facts of the run, and digests of its files. Written last: with it the run is complete."""
        return self.path / "manifest.json"

    @property
    def report(self) -> Path:
        """The report with every number; its first form to be written."""
        return self.path / "report.json"

    @property
    def html(self) -> Path:
        """The report as a page."""
        return self.path / "report.html"

    @property
    def junit(self) -> Path:
        """The report for continuous integration."""
        return self.path / "report.junit.xml"

    @property
    def markdown(self) -> Path:
        """The report as Markdown."""
        return self.path / "report.md"

    def worker(self, number: int) -> Path:
        """The folder of a worker's logs."""
        return self.path / f"worker_{number}"

    def case(self, name: str) -> CaseFolder:
        """The folder of a case."""
        return CaseFolder(self.path / name)

    def done(self) -> list[PrecisionFolder]:
        """Folders of the batches of a saved run that are done in a precision."""
        return [PrecisionFolder(path.parent) for path in sorted(self.path.glob(f"*/{_BATCH}*/*/{_FILES}"))]


@dataclass(frozen=True)
class CaseFolder:
    """The folder of a case in a run."""

    path: Path

    @property
    def weights(self) -> Path:
        """The folder of the exported weights."""
        return self.path / "weights"

    def onnx(self, precision: str) -> Path:
        """The folder of the reference as ONNX in a precision."""
        return self.path / "onnx" / precision

    def batch(self, number: int) -> BatchFolder:
        """The folder of a batch, counted from 0."""
        return BatchFolder(self.path / f"{_BATCH}{number:04d}")

    def done(self) -> list[PrecisionFolder]:
        """Folders of the case's batches that are done in a precision."""
        return [PrecisionFolder(path.parent) for path in sorted(self.path.glob(f"{_BATCH}*/*/{_FILES}"))]

    def collected(self, precision: str) -> list[PrecisionFolder]:
        """Folders of the batches that are done in a precision, in order."""
        records = sorted(self.path.glob(f"{_BATCH}*/{precision}/{_RECORD}"))
        return [PrecisionFolder(path.parent) for path in records]


@dataclass(frozen=True)
class BatchFolder:
    """The folder of one batch of a case."""

    path: Path

    @property
    def inputs(self) -> Path:
        """The model's inputs."""
        return self.path / "inputs.safetensors"

    @property
    def poisoned(self) -> Path:
        """The inputs with garbage in their padding; missing where they have no padding."""
        return self.path / "poisoned.safetensors"

    @property
    def labels(self) -> Path:
        """Labels of recorded data; missing where the data have none. No runner reads them."""
        return self.path / "labels.safetensors"

    @property
    def arrays(self) -> dict[str, Path]:
        """All files of arrays by their kind, whether they exist or not."""
        return {"inputs": self.inputs, "poisoned": self.poisoned, "labels": self.labels}

    @property
    def case(self) -> CaseFolder:
        """The folder of the case."""
        return CaseFolder(self.path.parent)

    @property
    def number(self) -> int:
        """The number of the batch, counted from 0."""
        return int(self.path.name.removeprefix(_BATCH))

    def done(self) -> list[PrecisionFolder]:
        """Folders of the precisions in which the batch is done."""
        return [PrecisionFolder(path.parent) for path in sorted(self.path.glob(f"*/{_FILES}"))]

    def precision(self, name: str) -> PrecisionFolder:
        """The folder of the batch in a precision."""
        return PrecisionFolder(self.path / name)


@dataclass(frozen=True)
class PrecisionFolder:
    """The folder of one batch in one precision."""

    path: Path

    @property
    def batch(self) -> BatchFolder:
        """The folder of the batch."""
        return BatchFolder(self.path.parent)

    @property
    def record(self) -> Path:
        """Statuses and timings, written when all captures are."""
        return self.path / _RECORD

    @property
    def files(self) -> Path:
        """Digests: files here, code, origins. A saved run's batch is done in the precision with it."""
        return self.path / _FILES

    @property
    def is_large(self) -> bool:
        """Whether the captures are too many to make others beside them."""
        return sum(path.stat().st_size for path in self.path.rglob("*")) >= LARGE_BATCH

    @property
    def roofline(self) -> Path:
        """Least times of the modules on the GPU that was timed; missing without a GPU."""
        return self.path / "roofline.json"

    @property
    def polygraphy(self) -> Path:
        """The folder of the files for Polygraphy."""
        return self.path / "polygraphy"

    def runner(self, name: str) -> RunnerFolder:
        """The folder of a runner's results."""
        return RunnerFolder(self.path / name)


@dataclass(frozen=True)
class RunnerFolder:
    """The folder of one runner's results on one batch in one precision; each capture is named by its stem."""

    path: Path

    @property
    def untapped(self) -> Path:
        """Outputs of the plain model."""
        return self.path / "untapped"

    @property
    def tapped(self) -> Path:
        """All taps of one forward; of the reference with its calls."""
        return self.path / "tapped"

    @property
    def poisoned(self) -> Path:
        """All taps of one forward on the poisoned inputs."""
        return self.path / "poisoned"

    @property
    def isolated(self) -> Path:
        """Outputs of each recorded call on the reference's inputs."""
        return self.path / "isolated"

    @property
    def incremental(self) -> Path:
        """Outputs of the last step of the incremental forward."""
        return self.path / "incremental"

    @property
    def appending(self) -> Path:
        """Calls of the incremental forward; missing unless its outputs fail."""
        return self.path / "appending"

    @property
    def coverage(self) -> Path:
        """The coverage of the port by the batch; missing where it is not measured."""
        return self.path / "coverage.json"

    @property
    def timed(self) -> Path:
        """Outputs of the run that was timed last."""
        return self.path / "timed"


@contextlib.contextmanager
def opened(save: Path | None) -> Iterator[RunFolder]:
    """A new folder for a run: `save`, or a temporary one that is removed after the body.

    Raises:
        UserError: `save` cannot be written, is in use, or is not empty.
    """
    if save is None:
        with tempfile.TemporaryDirectory(prefix="parity-") as name:
            yield RunFolder(Path(name))
        return
    with in_use("--save", save, STARTED):
        if has_content(save):
            raise UserError(
                "--save", str(save), "is not empty", "choose a new folder; nothing is written over"
            )
        yield RunFolder(save)


def has_content(folder: Path) -> bool:
    """Whether a folder holds anything besides its lock; an absent one does not."""
    return folder.is_dir() and any(path.name != LOCK for path in folder.iterdir())


def without_run(field: str, folder: Path, problem: str, fix: str) -> UserError:
    """The error of a folder that has no run for a verb: it is not there, is a file, or has the problem."""
    if not os.path.lexists(folder):
        problem = "does not exist"
    elif os.path.isfile(folder):
        problem = "is a file"
    return UserError(field, str(folder), problem, fix)


@contextlib.contextmanager
def in_use(field: str, folder: Path, mark: str) -> Iterator[None]:
    """Make a folder of results if it is missing, and keep other processes out of it.

    Args:
        field: The option or verb that names the folder.
        folder: The folder.
        mark: Name of the first file of such a folder.

    Raises:
        UserError: The folder is in use, lies in a saved run, or cannot be written.
    """
    # No error of a folder that cannot be looked into, unlike a path's own method.
    around = next((outer for outer in folder.absolute().parents if os.path.isfile(outer / STARTED)), None)
    if around is not None:
        problem = f"lies in the saved run {around}"
        raise UserError(field, str(folder), problem, "choose a folder outside of it")
    if os.path.isfile(folder):
        raise UserError(field, str(folder), "is a file", "choose a folder")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(made(folder))
            stack.enter_context(locked(folder))
            # Behind an interruption and before new work: killed runners leave unfinished files.
            remove_unfinished(folder, mark)
        except Locked as error:
            raise UserError(field, str(folder), str(error), "wait for its end, or choose another") from error
        except OSError as error:
            raise _unwritable(field, folder, error) from error
        stack.callback(undoing(functools.partial(remove_unfinished, folder, mark)))
        yield


def going_on(folder: RunFolder) -> AbstractContextManager[None]:
    """Tell, at an interruption in the body, that `resume` goes on with the run."""
    text = f"{folder.path} holds the batches that are done: `resume {shlex.quote(str(folder.path))}` goes on"
    return remaining(text, folder.started.exists)


def _unwritable(field: str, folder: Path, error: OSError) -> UserError:
    return UserError(
        field,
        str(folder),
        f"cannot be written ({error.strerror})",
        "choose a folder that you can write to",
    )
