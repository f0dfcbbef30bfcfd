"""What one runner saw: tensors by tap name, and the calls that the reference made.

A tap is named by the path of its module in the model, so that both sides agree on names and nothing
is ever matched by position:

    _hstu._attention_layers.0._attn        the module's only tensor
    _input_features_preproc[1]             the second of several results
    _embedding_module@1                    the second call of a module that is called more than once
    score.encoded                          an output of the model's entry point
    append:_hstu                           the module while one item is appended to a cache

Captures are saved as safetensors with a JSON file beside them, and read back bit for bit.
`parity.capture.store` keeps those that would not fit into memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from parity.capture.store import FOLDER, LARGE_BYTES, Spool, Stored, content_digest, reading, writing

APPENDING = "append:"
"""Begins the taps of calls in which an item is appended to a cache, as in no other forward."""
METHODS = ("cached_forward",)
"""Methods of modules that are calls as `forward` is one."""
_TAP, _INPUT = "tap:", "input:"
"""Begin the names of tensors in a capture's file."""


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
        method: "forward", or one of `METHODS`.
    """

    path: str
    tap: str
    kind: str
    args: list
    kwargs: dict
    outputs: tuple[str, ...]
    method: str = "forward"

    def function(self, module: Any) -> Callable[..., Any]:
        """What is called, of the module at `path` on either side."""
        return module if self.method == "forward" else getattr(module, self.method)

    @property
    def tensor_keys(self) -> set[str]:
        """Keys of the tensors that the call receives."""
        return set(argument_keys(self.args, self.kwargs).values())

    @property
    def appends(self) -> bool:
        """Whether the call is one in which an item is appended to a cache."""
        return self.tap.startswith(APPENDING)


@dataclass(frozen=True)
class TensorKey:
    """Stands for a tensor inside a `ModuleCall`; `key` finds it in `Capture.call_inputs`."""

    key: str


@dataclass
class Capture:
    """Tensors by tap name in the order in which the modules finished, and the calls that made them."""

    tensors: MutableMapping[str, torch.Tensor] = field(default_factory=dict)
    calls: list[ModuleCall] = field(default_factory=list)
    call_inputs: MutableMapping[str, torch.Tensor] = field(default_factory=dict)
    longest_sums: dict[str, int] = field(default_factory=dict)
    """Terms of the longest sum inside the module at each path; see `parity.capture.longest_sums`."""
    longest_sums_before: dict[str, int] = field(default_factory=dict)
    """Likewise of everything that had run when the tap was taken, by tap."""
    largest_results: dict[str, int] = field(default_factory=dict)
    """Bytes of the largest tensor that was made inside the module at each path."""

    @classmethod
    def spooled(cls, stem: Path, large: int = LARGE_BYTES) -> Capture:
        """One whose tensors go to the disk as they come; `save_capture` to the same stem completes it."""
        folder = stem.parent / FOLDER
        return cls(tensors=Spool(folder, large), call_inputs=Spool(folder, large))

    def beside(self) -> Capture:
        """An empty one that keeps its tensors where this one does, and shares the inputs of its calls."""
        tensors = self.tensors.beside() if isinstance(self.tensors, Spool) else {}
        return Capture(tensors=tensors, call_inputs=self.call_inputs)

    def intern(self, tensor: torch.Tensor) -> TensorKey:
        """Keep one copy of an input tensor, however many calls receive it."""
        # A copy has the strides of its shape; `contiguous` leaves those of an axis of size 1 as they are.
        content = tensor.detach().clone(memory_format=torch.contiguous_format)
        key = content_digest(content)[:16]
        if key not in self.call_inputs:
            self.call_inputs[key] = content.cpu()
        return TensorKey(key)

    def add_appending(self, appending: Capture) -> None:
        """Keep the calls of a run that appends an item, those left out that are calls of this run again."""
        known = {(call.path, repr(call.args), repr(call.kwargs)) for call in self.calls}
        for call in appending.calls:
            if (call.path, repr(call.args), repr(call.kwargs)) in known:
                continue
            outputs = tuple(f"{APPENDING}{name}" for name in call.outputs)
            self.calls.append(replace(call, tap=f"{APPENDING}{call.tap}", outputs=outputs))
            for name, kept in zip(call.outputs, outputs, strict=True):
                self.tensors[kept] = appending.tensors[name]
                self.longest_sums_before[kept] = appending.longest_sums_before[name]
        if appending.call_inputs is not self.call_inputs:
            self.call_inputs.update(appending.call_inputs)
        for mine, others in (
            (self.longest_sums, appending.longest_sums),
            (self.largest_results, appending.largest_results),
        ):
            for path, size in others.items():
                mine[path] = max(size, mine.get(path, 0))


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


def leaves_by_path(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested dicts and lists with their paths, such as `past_payloads.timestamps` or `lS_i.3`."""
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, (list, tuple)):
        items = list(enumerate(value))
    else:
        yield prefix, value
        return
    for key, item in items:
        yield from leaves_by_path(item, f"{prefix}.{key}" if prefix else str(key))


def argument_keys(args: list, kwargs: dict) -> dict[str, str]:
    """Where the tensors of a recorded call stand, by path, each with the key of the tensor itself."""
    leaves = leaves_by_path({"args": args, "kwargs": kwargs})
    return {path: leaf.key for path, leaf in leaves if isinstance(leaf, TensorKey)}


def save_capture(capture: Capture, stem: Path) -> None:
    """Write `stem.safetensors` and `stem.json`. Raises `UserError` where they cannot be written."""
    taps, inputs = (_spooled(each, stem) for each in (capture.tensors, capture.call_inputs))
    tensors = {f"{_TAP}{name}": tensor for name, tensor in taps.small.items()}
    tensors |= {f"{_INPUT}{key}": tensor for key, tensor in inputs.small.items()}
    description = {
        # Insertion order is the order in which modules finished; safetensors sorts, so the JSON keeps it.
        "order": list(taps),
        "inputs": list(inputs),
        "stored": {"taps": taps.stored, "inputs": inputs.stored},
        "shapes": {"taps": taps.shapes, "inputs": inputs.shapes},
        "sizes": {"taps": taps.sizes, "inputs": inputs.sizes},
        "longest_sums": capture.longest_sums,
        "longest_sums_before": capture.longest_sums_before,
        "largest_results": capture.largest_results,
        "calls": [
            {
                "path": call.path,
                "tap": call.tap,
                "kind": call.kind,
                "args": map_tree(call.args, _encode_leaf),
                "kwargs": map_tree(call.kwargs, _encode_leaf),
                "outputs": list(call.outputs),
                "method": call.method,
            }
            for call in capture.calls
        ],
    }
    with writing(stem):
        stem.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, stem.with_suffix(".safetensors"))
        stem.with_suffix(".json").write_text(json.dumps(description))


def _spooled(tensors: Mapping[str, torch.Tensor], stem: Path) -> Spool:
    if isinstance(tensors, Spool):
        return tensors
    spool = Spool(stem.parent / FOLDER)
    spool.update(tensors)
    return spool


def is_saved(stem: Path) -> bool:
    """Whether `save_capture` has written a capture to `stem`."""
    return stem.with_suffix(".json").exists()


def open_capture(stem: Path) -> Capture:
    """What `save_capture` wrote, each tensor read when it is asked for; not to be changed.

    Raises:
        UserError: a part is missing or damaged, now or when it is read.
    """
    with reading(stem):
        description = json.loads(stem.with_suffix(".json").read_text())
        calls = [
            ModuleCall(
                call["path"],
                call["tap"],
                call["kind"],
                _decode(call["args"]),
                _decode(call["kwargs"]),
                tuple(call["outputs"]),
                call.get("method", "forward"),  # runs saved before there were others
            )
            for call in description["calls"]
        ]
        return Capture(
            tensors=_stored(stem, _TAP, description["order"], description, "taps"),
            calls=calls,
            call_inputs=_stored(stem, _INPUT, _input_names(description), description, "inputs"),
            longest_sums=description["longest_sums"],
            longest_sums_before=description["longest_sums_before"],
            largest_results=description.get("largest_results", {}),
        )


def _stored(stem: Path, prefix: str, names: list[str], description: dict, kind: str) -> Stored:
    # Runs saved before there were files of single tensors have all in the capture's own, and no sizes.
    facts = (description.get(fact, {}).get(kind, {}) for fact in ("stored", "shapes", "sizes"))
    return Stored(stem, prefix, names, *facts)


def _input_names(description: dict) -> list[str]:
    """Keys of the calls' inputs; runs saved before they were listed have them in their calls only."""
    if "inputs" in description:
        return description["inputs"]
    calls = ((_decode(call["args"]), _decode(call["kwargs"])) for call in description["calls"])
    return list(dict.fromkeys(key for call in calls for key in argument_keys(*call).values()))


def load_capture(stem: Path) -> Capture:
    """What `save_capture` wrote, with all of its tensors in memory. Raises `UserError` as `open_capture`."""
    capture = open_capture(stem)
    return replace(capture, tensors=dict(capture.tensors), call_inputs=dict(capture.call_inputs))


def load_tap(stem: Path, name: str) -> torch.Tensor | None:
    """One tensor of a saved capture; None where it has no such tap. Raises `UserError` as `open_capture`."""
    return open_capture(stem).tensors.get(name)


def load_longest_sum(stem: Path) -> int:
    """Terms of the longest sum in a whole model, as a saved capture counted them; 1 where there is none.

    Raises `UserError` as `open_capture`.
    """
    return max(open_capture(stem).longest_sums.values(), default=1)


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
