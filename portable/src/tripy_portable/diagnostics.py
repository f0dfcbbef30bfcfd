"""Errors, in the format that nvtripy parses for the user's line.

While it compiles, nvtripy redirects file descriptor 2 and searches its text for locations. An exception's
`error_diagnostics` add more. Both carry `loc(fused<"...">["inputs;;<out>;;outputs"])`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from tripy_portable.ir.context import Location, current_location


class MTRTException(Exception):
    """A failure of the compiler or the runtime, under the name that nvtripy catches."""


@dataclass(frozen=True)
class DiagnosticInfo:
    """One diagnostic of an `MLIRError`."""

    message: str
    location: Location


class MLIRError(Exception):
    """An operation that could not be built; `error_diagnostics` say where."""

    def __init__(self, message: str, error_diagnostics: list[DiagnosticInfo]):
        details = "".join(f"\nerror: {info.message}" for info in error_diagnostics)
        super().__init__(f"{message}:{details}" if details else message)
        self.message = message
        self.error_diagnostics = error_diagnostics


class VerificationError(ValueError):
    """Operands, attributes or types of an operation that break the dialect's definition."""


class GraphError(MTRTException):
    """An operation of a program that cannot be planned, with the problem and the operation's location."""

    def __init__(self, text: str, location: Location | None, origin: str):
        where = f"\nThe operation was recorded at {origin}" if origin else ""
        super().__init__(f"InternalError: {text}{where}")
        self.text = text
        self.location = location


class UnsupportedOperation(NotImplementedError):
    """An operation that exists in TensorRT and not here; the message names it.

    `error_diagnostics` point at the operation that was being built, if any.
    """

    def __init__(self, message: str, error_diagnostics: list[DiagnosticInfo] | None = None):
        super().__init__(message)
        self.error_diagnostics = error_diagnostics or []


def unsupported_plugin(namespace: str, name: str, version: str) -> UnsupportedOperation:
    """The error for a plugin, located at the operation that asks for it."""
    plugin = f"{namespace}::{name}" if namespace else name
    code = "native TensorRT code, which the portable runtime cannot run"
    message = f"plugin '{plugin}' (version {version}) is {code}"
    return UnsupportedOperation(message, [DiagnosticInfo(message, current_location())])


def unsupported_outputs(plugin_id: str, count: int) -> UnsupportedOperation:
    """The error for a plugin with several outputs, located at the operation that asks for it."""
    message = f"plugin '{plugin_id}' has {count} outputs, and nvtripy 0.1.7 can call plugins with one"
    return UnsupportedOperation(message, [DiagnosticInfo(message, current_location())])


def emit_error(location: Location, message: str) -> None:
    """Writes a located error to file descriptor 2, where nvtripy listens while it compiles."""
    os.write(2, f"{location}: error: {message}\n".encode())


class MissingNative(AttributeError):
    """A name that only NVIDIA's native packages have."""

    def __init__(self, message: str, error_diagnostics: list[DiagnosticInfo]):
        super().__init__(message)
        self.error_diagnostics = error_diagnostics


def missing_native(name: str) -> MissingNative:
    """The error for a name that the stand-ins lack; while an operation is being built, located at it."""
    message = (
        f"the portable stand-in has no '{name}': TensorRT's engines and plugins need NVIDIA's native packages"
    )
    return MissingNative(message, [DiagnosticInfo(message, current_location())])
