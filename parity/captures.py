"""What one runner saw: tensors by tap name, and the calls that the reference made.

A tap is named by the path of its module in the model, so that both sides agree on names and nothing
is ever matched by position:

    _hstu._attention_layers.0._attn        the module's only tensor
    _input_features_preproc[1]             the second of several results
    _embedding_module@1                    the second call of a module that is called more than once
    score.encoded                          an output of the model's entry point

Captures are saved as safetensors with a JSON file beside them, and read back bit for bit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from parity.errors import UserError


@dataclass(frozen=True)
class ModuleCall:
    """One call of one module of the reference, replayable on any side.

    Attributes:
        path: Path of the module in the model, as in its state-dict keys.
        tap: Base name of its outputs: the path, with `@k` from the second call on.
        kind: Class name of the reference's module.
        args: Positional arguments: a tree of lists, dicts, constants and `TensorKey`s.
        kwargs: Keyword arguments, likewise.
        outputs: Names of the tensors that the call returned.
    """

    path: str
    tap: str
    kind: str
    args: list
    kwargs: dict
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class TensorKey:
    """Stands for a tensor inside a `ModuleCall`; `key` finds it in `Capture.call_inputs`."""

    key: str


@dataclass
class Capture:
    """Tensors by tap name in the order in which the modules finished, and the calls that made them."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    calls: list[ModuleCall] = field(default_factory=list)
    call_inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    longest_sums: dict[str, int] = field(default_factory=dict)
    """Terms of the longest sum inside the module at each path; see `parity.sums`."""
    longest_sums_before: dict[str, int] = field(default_factory=dict)
    """Likewise of everything that had run when the tap was taken, by tap."""

    def intern(self, tensor: torch.Tensor) -> TensorKey:
        """Keep one copy of an input tensor, however many calls receive it."""
        content = tensor.detach().contiguous()
        raw = content.reshape(-1).view(torch.uint8) if content.numel() else content.reshape(-1)
        digest = hashlib.sha256(raw.cpu().numpy().tobytes())
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        key = digest.hexdigest()[:16]
        if key not in self.call_inputs:
            self.call_inputs[key] = content.cpu().clone()
        return TensorKey(key)


def tensor_leaves(result: Any, is_tensor: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    """Yield `(suffix, tensor)` for each tensor in a module's result, `None`s left out.

    A result with a single tensor has the empty suffix, others `[i]` or `.key`, nested as they come.
    """
    leaves = list(_walk(result, "", is_tensor))
    if len(leaves) == 1:
        yield "", leaves[0][1]
    else:
        yield from leaves


def _walk(value: Any, suffix: str, is_tensor: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    if value is None:
        return
    if is_tensor(value):
        yield suffix, value
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _walk(item, f"{suffix}[{index}]", is_tensor)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, f"{suffix}.{key}", is_tensor)
    else:
        raise TypeError(f"a module returned a {type(value).__name__}, which cannot be compared")


def map_tree(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Apply `convert` to every leaf of nested dicts, lists and tuples."""
    if isinstance(value, dict):
        return {key: map_tree(item, convert) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map_tree(item, convert) for item in value)
    return convert(value)


def save_capture(capture: Capture, stem: Path) -> None:
    """Write `stem.safetensors` and `stem.json`."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    # Insertion order is the order in which modules finished; safetensors sorts, so the JSON keeps it.
    tensors = {f"tap:{name}": tensor.contiguous().clone() for name, tensor in capture.tensors.items()}
    tensors |= {f"input:{key}": tensor for key, tensor in capture.call_inputs.items()}
    save_file(tensors, stem.with_suffix(".safetensors"))
    description = {
        "order": list(capture.tensors),
        "longest_sums": capture.longest_sums,
        "longest_sums_before": capture.longest_sums_before,
        "calls": [
            {
                "path": call.path,
                "tap": call.tap,
                "kind": call.kind,
                "args": map_tree(call.args, _encode_leaf),
                "kwargs": map_tree(call.kwargs, _encode_leaf),
                "outputs": list(call.outputs),
            }
            for call in capture.calls
        ],
    }
    stem.with_suffix(".json").write_text(json.dumps(description))


def load_capture(stem: Path) -> Capture:
    """Read what `save_capture` wrote. Raises `UserError` if a part is missing or damaged."""
    try:
        description = json.loads(stem.with_suffix(".json").read_text())
        capture = Capture(
            longest_sums=description["longest_sums"], longest_sums_before=description["longest_sums_before"]
        )
        with safe_open(stem.with_suffix(".safetensors"), framework="pt") as file:
            for name in description["order"]:
                capture.tensors[name] = file.get_tensor(f"tap:{name}")
            for name in file.keys():
                if name.startswith("input:"):
                    capture.call_inputs[name.removeprefix("input:")] = file.get_tensor(name)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise UserError("capture", str(stem), f"is missing or damaged ({error})", "run again") from error
    for call in description["calls"]:
        capture.calls.append(
            ModuleCall(
                call["path"],
                call["tap"],
                call["kind"],
                _decode(call["args"]),
                _decode(call["kwargs"]),
                tuple(call["outputs"]),
            )
        )
    return capture


def _encode_leaf(leaf: Any) -> Any:
    if isinstance(leaf, TensorKey):
        return {"tensor": leaf.key}
    if leaf is None or isinstance(leaf, (bool, int, float, str)):
        return leaf
    raise TypeError(f"a module received a {type(leaf).__name__}, which cannot be replayed")


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"tensor"}:
            return TensorKey(value["tensor"])
        return {key: _decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_decode(item) for item in value]
    return value
