"""Taps on a Tripy model: every submodule's outputs, as additional outputs of the traced graph.

Tripy has no hooks. During the trace, each submodule's `forward` is wrapped. Its results become outputs of the
compiled function. The model's own code stays unchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import nvtripy as tp

from parity.capture.captures import tensor_leaves
from parity.capture.names import TapName


def is_tripy_tensor(value: Any) -> bool:
    return isinstance(value, tp.Tensor)


def named_modules(module: tp.Module, prefix: str = "") -> Iterator[tuple[str, tp.Module]]:
    """Yield `(path, module)` for every submodule, depth first, as PyTorch's `named_modules` does."""
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        yield path, child
        yield from named_modules(child, f"{path}.")


@contextlib.contextmanager
def tapped(model: tp.Module) -> Iterator[dict[str, tp.Tensor]]:
    """Collect every submodule's results by tap name while the body traces the model."""
    taps: dict[str, tp.Tensor] = {}
    seen: dict[str, int] = {}
    wrapped: list[tp.Module] = []

    def wrap(path: str, module: tp.Module) -> None:
        forward = module.forward

        def recording_forward(*args: Any, **kwargs: Any) -> Any:
            result = forward(*args, **kwargs)
            count = seen.get(path, 0)
            seen[path] = count + 1
            for output, tensor in tensor_leaves(result, is_tripy_tensor):
                taps[str(TapName(path, count, output))] = tensor
            return result

        # An instance attribute hides the class's method; deleting it restores the method.
        module.forward = recording_forward
        wrapped.append(module)

    try:
        for path, module in named_modules(model):
            wrap(path, module)
        yield taps
    finally:
        for module in wrapped:
            del module.forward
