"""The TensorRT library that builds engines: `tensorrt`, or `tensorrt_rtx`, which builds without a GPU."""

from __future__ import annotations

import importlib
from types import ModuleType

LIBRARIES = ("tensorrt", "tensorrt_rtx")
"""Import names by preference; the stand-in named `tensorrt` is skipped."""


class NoTensorRT(ImportError):
    """Neither library can be imported; the message has the reasons and the fix."""


def load() -> ModuleType:
    """The TensorRT module that builds engines.

    Raises:
        NoTensorRT: no library can be imported; the message has the reasons.
    """
    reasons = []
    for name in LIBRARIES:
        try:
            library = importlib.import_module(name)
        except (ImportError, OSError) as error:
            reasons.append(f"{name}: {error}")
            continue
        if getattr(library, "__portable__", False):
            reasons.append(f"{name}: this is the portable stand-in, which builds no engines")
            continue
        return library
    raise NoTensorRT(
        f"no TensorRT library can be imported ({'; '.join(reasons)}); "
        "`pip install setuptools wheel && pip install --no-build-isolation tensorrt-rtx-cu13` installs one "
        "that builds engines without a GPU"
    )


def available() -> str | None:
    """None if engines can be built, else the reason for their absence."""
    try:
        load()
    except NoTensorRT as error:
        return str(error)
    return None


def describe() -> str:
    """The library and its version, such as `tensorrt_rtx 1.7.1.116`.

    Raises:
        NoTensorRT: no library can be imported.
    """
    library = load()
    return f"{library.__name__} {library.__version__}"
