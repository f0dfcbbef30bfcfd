"""Copies of a CUDA kernel's source with a changed text, compiled for a test."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kernels.marks import NVCC

KERNELS = Path(__file__).resolve().parents[2] / "kernels"


@dataclass(frozen=True)
class Edit:
    """A text of a file of the kernel's folder, once in it, and what stands there instead."""

    file: str
    old: str
    new: str

    def is_of(self, source: Path) -> bool:
        """Whether the text stands once in the file beside this source, and changes."""
        return (source.parent / self.file).read_text().count(self.old) == 1 and self.old != self.new


def edited(source: Path, edits: Iterable[Edit], folder: Path) -> Path:
    """The source in a copy of the CUDA folders in `folder`, with the edits."""
    for home in {source.parent, KERNELS / "hstu_attention" / "hopper"}:
        shutil.copytree(home, folder / home.relative_to(KERNELS))
    copy = folder / source.relative_to(KERNELS)
    for edit in edits:
        assert edit.is_of(copy), edit
        file = copy.parent / edit.file
        file.write_text(file.read_text().replace(edit.old, edit.new))
    return copy


def built(source: Path, flags: Iterable[str], function: str) -> Callable[..., int]:
    """The C function of a source, compiled beside it in a `lasting_folder`.

    See `kernels.cuda_build.launcher`.
    """
    library = source.with_suffix(".so")
    command = [NVCC, "-std=c++17", "-O3", *flags, "-shared", "-Xcompiler", "-fPIC", str(source)]
    subprocess.run([*command, "-o", str(library)], check=True, timeout=600)
    launch = ctypes.CDLL(str(library))[function]
    launch.argtypes, launch.restype = (ctypes.c_void_p, ctypes.c_void_p), ctypes.c_int
    return launch


def selected(names: Iterable[str], in_make_test: Iterable[str]) -> list:
    """Parameters of a test: those in `in_make_test` run there, all others in `make test-full`."""
    first = set(in_make_test)
    return [pytest.param(name, marks=() if name in first else pytest.mark.full) for name in names]
