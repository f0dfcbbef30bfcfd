"""Taps on a PyTorch model: every submodule's inputs and outputs, through forward hooks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from parity.captures import Capture, ModuleCall, map_tree, tensor_leaves
from parity.sums import LongestSums


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


@contextlib.contextmanager
def tapped(model: torch.nn.Module, record_calls: bool = False) -> Iterator[Capture]:
    """Record every submodule's outputs while the body runs the model.

    Args:
        model: Any module tree; containers that are never called leave no tap.
        record_calls: Also record the calls with their inputs, and the longest sum of each module.
    """
    capture = Capture()
    seen: dict[str, int] = {}
    pending: list[tuple[str, tuple, dict]] = []
    sums = LongestSums() if record_calls else None
    handles = []

    def before(path: str, args: tuple, kwargs: dict) -> None:
        if sums is not None:
            # Inputs are copied now: a module may overwrite them.
            pending.append((path, map_tree(args, _freeze), map_tree(kwargs, _freeze)))
            sums.enter(path)

    def _freeze(leaf: Any) -> Any:
        return capture.intern(leaf) if _is_tensor(leaf) else leaf

    def after(path: str, kind: str, result: Any) -> None:
        if sums is not None:
            sums.leave()
        count = seen.get(path, 0)
        seen[path] = count + 1
        tap = path if count == 0 else f"{path}@{count}"
        outputs = []
        for suffix, tensor in tensor_leaves(result, _is_tensor):
            outputs.append(tap + suffix)
            capture.tensors[tap + suffix] = tensor.detach().cpu().clone()
            if sums is not None:
                capture.longest_sums_before[tap + suffix] = sums.longest_so_far
        if sums is not None:
            _, args, kwargs = pending.pop()
            capture.calls.append(ModuleCall(path, tap, kind, list(args), kwargs, tuple(outputs)))

    for path, module in model.named_modules():
        if path == "":
            continue
        kind = type(module).__name__
        handles.append(
            module.register_forward_pre_hook(
                lambda _, args, kwargs, path=path: before(path, args, kwargs), with_kwargs=True
            )
        )
        handles.append(
            module.register_forward_hook(
                lambda _, args, result, path=path, kind=kind: after(path, kind, result)
            )
        )
    try:
        with sums if sums is not None else contextlib.nullcontext():
            yield capture
    finally:
        for handle in handles:
            handle.remove()
    if sums is not None:
        capture.longest_sums.update(sums.lengths)
