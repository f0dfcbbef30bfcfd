"""A training run's folder: one checkpoint to continue from, and the best weights to use.

* ``checkpoint.pt``: the state of the run, replaced as a whole. A killed process leaves the old file or
  the new one, never a part.
* ``best.safetensors``: the state dict with the smallest validation loss, a copy of the checkpoint's.
"""

from __future__ import annotations

import functools
import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import safetensors.torch
import torch

SCHEMA = "reference.training/1"
_PART = ".part"
CHECKPOINT, BEST = "checkpoint.pt", "best.safetensors"


class TrainingError(ValueError):
    """Training cannot start or continue. The message is ``field: value problem; fix``."""

    def __init__(self, field: str, value: object, problem: str, fix: str) -> None:
        super().__init__(f"{field}: {value} {problem}; {fix}")


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Writes or replaces a file as a whole; it gets its name when the disk has all of it.

    Args:
        path: the file.
        write: puts the content into an open file.

    Raises:
        TrainingError: the folder cannot be written.
    """
    part = path.with_name(f".{path.name}{_PART}")
    try:
        with part.open("wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except OSError as error:
        raise unwritable(path, error) from error


def remove_parts(folder: Path) -> None:
    """Removes the files that `write_atomically` has begun and not finished."""
    for path in folder.glob(f".*{_PART}"):
        path.unlink(missing_ok=True)


def unwritable(path: Path, error: OSError) -> TrainingError:
    """The error of a folder that cannot be written."""
    problem = f"cannot be written ({error.strerror})"
    return TrainingError("out", path, problem, "choose a folder that you can write to")


class TrainingFolder:
    """The folder of one run. The constructor checks that a run may use it.

    Args:
        path: the folder; the first `save` makes a missing one.
        resume: whether the run continues the one in the folder.

    Raises:
        TrainingError: the folder is not empty without ``resume``, or has no checkpoint with it.
    """

    def __init__(self, path: Path, resume: bool) -> None:
        self.path = path
        if resume and not os.path.isdir(path):
            raise TrainingError("--resume", path, "is no folder", "give the --out of the run to continue")
        try:
            names = [entry.name for entry in path.iterdir()] if path.exists() else []
        except (OSError, ValueError) as error:
            raise unwritable(path, error) from error
        if names and not resume:
            raise TrainingError("out", path, "is not empty", "choose a new folder, or continue with --resume")
        self._check_writable()
        # A run that is killed before its first checkpoint leaves at most a part of one.
        foreign = [name for name in names if not name.startswith(".")]
        if foreign and CHECKPOINT not in names:
            raise TrainingError(
                "--resume", path, f"has no {CHECKPOINT}", "give the --out of the run to continue"
            )

    def _check_writable(self) -> None:
        """Checks the nearest folder that exists: bad data that come later must leave no new folder."""
        nearest = next(folder for folder in (self.path, *self.path.absolute().parents) if folder.exists())
        if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
            problem = "Permission denied" if nearest.is_dir() else "Not a directory"
            raise unwritable(self.path, OSError(0, problem))

    def load(self, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """The state of the last `save`, or None. Nothing in the file is executed.

        Args:
            settings: the settings of the run, by name; those of the checkpoint must be equal.

        Raises:
            TrainingError: the checkpoint is damaged, of another kind, or from a run with other settings.
        """
        path = self.path / CHECKPOINT
        if not path.exists():
            return None
        fix = "start again in a new folder"
        try:
            with zipfile.ZipFile(path) as archive:
                # torch.load does not check the sums that torch.save writes.
                damaged = archive.testzip()
            content = torch.load(path, map_location="cpu", weights_only=True) if damaged is None else None
        except Exception as error:  # a broken file makes the unpickler raise errors of any type
            reason = str(error).strip().split("\n")[0]
            raise TrainingError("--resume", path, f"is damaged, or no checkpoint ({reason})", fix) from error
        if damaged is not None:
            raise TrainingError("--resume", path, f"is damaged in {damaged}", fix)
        whole = isinstance(content, dict) and content.get("schema") == SCHEMA
        if not whole or not all(isinstance(content.get(part), dict) for part in ("settings", "state")):
            raise TrainingError("--resume", path, f"is no checkpoint of {SCHEMA}", fix)
        theirs, ours = content["settings"], dict(settings)
        unknown = sorted(theirs.keys() ^ ours.keys())
        if unknown:
            problem = f"is of another version of this program: only one has the settings {', '.join(unknown)}"
            raise TrainingError("--resume", path, problem, fix)
        changed = [
            f"{name} {theirs[name]} there, {ours[name]} here"
            for name in sorted(ours)
            if theirs[name] != ours[name]
        ]
        if changed:
            raise TrainingError(
                "--resume", path, f"was made with other settings ({', '.join(changed)})", "give the same ones"
            )
        return content["state"]

    def save(self, settings: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Writes a checkpoint: tensors, numbers and text in mappings and lists."""
        content = {"schema": SCHEMA, "settings": dict(settings), "state": dict(state)}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(self.path, error) from error
        write_atomically(self.path / CHECKPOINT, functools.partial(torch.save, content))

    def write_best(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Writes the best weights."""
        content = safetensors.torch.save(dict(weights))
        write_atomically(self.path / BEST, lambda stream: stream.write(content))
