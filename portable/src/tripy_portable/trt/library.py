"""Which TensorRT builds engines here: `tensorrt` itself, or `tensorrt_rtx`, which needs no GPU to build."""

from __future__ import annotations

import importlib
from types import ModuleType

LIBRARIES = ("tensorrt", "tensorrt_rtx")
"""Import names by preference. The stand-in named `tensorrt` builds nothing and is passed over."""


class NoTensorRT(ImportError):
    """Neither library can be imported; the message says why, and what to install."""


def load() -> ModuleType:
    """The TensorRT module that engines are built with.

    Raises:
        NoTensorRT: with the reason for each library.
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
    """None where engines can be built, else the reason why not."""
    try:
        load()
    except NoTensorRT as error:
        return str(error)
    return None


def describe() -> str:
    """The library and its version, such as `tensorrt_rtx 1.7.1.116`.

    Raises:
        NoTensorRT: where there is none.
    """
    library = load()
    return f"{library.__name__} {library.__version__}"
