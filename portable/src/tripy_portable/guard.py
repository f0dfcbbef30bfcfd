"""Refuses to install or import the stand-ins beside NVIDIA's native packages.

This module imports only the standard library: the build runs it before any dependency is installed.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

SUPPORTED_NVTRIPY = ("0.1.6", "0.1.7")

# `tensorrt` itself, its CUDA-specific and split distributions (tensorrt-cu12, tensorrt_libs...), and
# MLIR-TensorRT.
# `tensorrt-rtx*` is left out on purpose: it provides `tensorrt_rtx`, a name that the stand-ins don't take.
_NATIVE_NAME = re.compile(r"mlir[-_]tensorrt[-_](compiler|runtime)$|tensorrt([-_](?!rtx).*)?$", re.IGNORECASE)


class NativePackagesPresent(ImportError):
    """Raised where `tripy-portable` would shadow NVIDIA's own packages."""


class UnsupportedNvtripy(ImportError):
    """Raised where nvtripy is a version that the stand-ins were not written for."""


def is_native_distribution(name: str) -> bool:
    """Whether a distribution name is one of NVIDIA's native packages that own the stand-ins' import names."""
    return _NATIVE_NAME.match(name) is not None


def _message(native: list[str]) -> str:
    return (
        f"tripy-portable refuses to shadow native packages: {', '.join(sorted(native))}.\n"
        "nvtripy runs on TensorRT in this environment. Uninstall tripy-portable here "
        "(`pip uninstall tripy-portable`), or install it in an environment without the native packages."
    )


def refuse_to_shadow_installation(directories: list[Path] | None = None) -> None:
    """Fails a build or installation where native packages are installed.

    pip builds in an isolated environment that hides installed distributions, so the interpreter's own
    site-packages directories are listed instead.

    Args:
        directories: directories to search; the interpreter's site-packages by default.

    Raises:
        NativePackagesPresent: native packages exist; the message has their names and the fix.
    """
    if directories is None:
        directories = [Path(sysconfig.get_path(key)) for key in ("purelib", "platlib")]
    native = {
        entry.name.split("-")[0]
        for directory in directories
        if directory.is_dir()
        for entry in directory.iterdir()
        if entry.suffix in (".dist-info", ".egg-info") and is_native_distribution(entry.name.split("-")[0])
    }
    if native:
        raise NativePackagesPresent(_message(list(native)))


def refuse_to_shadow_import() -> None:
    """Fails the import of a stand-in beside a native distribution.

    Raises:
        NativePackagesPresent: native packages exist; the message has their names and the fix.
    """
    names = {dist.metadata["Name"] or "" for dist in metadata.distributions()}
    native = [name for name in names if is_native_distribution(name)]
    if native:
        raise NativePackagesPresent(_message(native))


def check_nvtripy_version() -> None:
    """Fails the import under an unsupported version of nvtripy.

    A checkout of nvtripy on PYTHONPATH has no distribution; its module states the version.

    Raises:
        UnsupportedNvtripy: the version is not supported; the message has the supported ones and the fix.
    """
    importing = sys.modules.get("nvtripy")
    version = getattr(importing, "__version__", None) if importing is not None else None
    if version is None:
        try:
            version = metadata.version("nvtripy")
        except metadata.PackageNotFoundError:
            return
    if version not in SUPPORTED_NVTRIPY:
        raise UnsupportedNvtripy(
            f"tripy-portable supports nvtripy {', '.join(SUPPORTED_NVTRIPY)}, but found {version}. "
            f"Install a supported one: `pip install --no-deps nvtripy=={SUPPORTED_NVTRIPY[-1]}`."
        )
