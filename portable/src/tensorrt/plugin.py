"""A stand-in for `tensorrt.plugin`: every quickly deployable plugin is absent, by name."""

from __future__ import annotations

from typing import NoReturn

from tripy_portable.diagnostics import UnsupportedOperation


class _Namespace:
    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> NoReturn:
        raise UnsupportedOperation(
            f"plugin '{self._name}::{name}' is compiled into TensorRT engines, which the portable runtime "
            "cannot run"
        )


class _Namespaces:
    def __getattr__(self, name: str) -> _Namespace:
        return _Namespace(name)


op = _Namespaces()
