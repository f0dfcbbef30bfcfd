"""Captures on disk, read back bit for bit.

    <runner>/tapped.json                    names, calls, shapes; written last
    <runner>/tapped.safetensors             the small tensors of a capture
    tensors/<digest>.safetensors            a large tensor or some of its rows, see `parity.capture.spool`

A tensor is read when it is asked for, and not held.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from parity.base.errors import UserError
from parity.base.files import parse_json, replacing
from parity.base.precision import dtype_name
from parity.base.trees import decode_tree, encode_tree
from parity.capture.arguments import Argument, Received
from parity.capture.captures import Capture, ModuleCall, TensorKey, large_folder
from parity.capture.spool import Spool, is_floating_point, load_rows, writing
from parity.capture.values import decode_value, encode_value

_TAP, _INPUT = "tap:", "input:"
"""Begin the names of tensors in a capture's file."""
_TENSOR, _COMPLEX = "tensor", "complex"
"""Kinds of tensors among the arguments of a call."""

_FLOATING_TYPES = {
    dtype_name(value): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype) and value.is_floating_point
}
"""PyTorch's floating-point types by name."""


_Count = Annotated[int, Field(ge=0, lt=2**63)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _TensorFacts(_Strict):
    order: list[str]
    stored: dict[str, list[str]]
    shapes: dict[str, list[_Count]]
    sizes: dict[str, _Count]


class _CallFacts(_Strict):
    path: str
    tap: str
    kind: str
    args: list[Any]
    kwargs: dict[str, Any]
    outputs: list[str]
    method: str


class _ArgumentFacts(_Strict):
    name: str
    parameter: _Count
    tensor: str
    origin: str
    constant: bool | int | float | str | None
    other: str
    is_default: bool


class _ReceivedFacts(_Strict):
    parent: str
    finished: _Count
    longest_sum_before: _Count
    arguments: list[_ArgumentFacts]
    source: str


class _Description(_Strict):
    """The types of a capture's JSON, which `save_capture` writes."""

    taps: _TensorFacts
    inputs: _TensorFacts
    longest_sums: dict[str, _Count]
    coarsest_types: dict[str, str]
    unknown_sums: dict[str, dict[str, str]]
    longest_sums_before: dict[str, _Count]
    largest_results: dict[str, _Count]
    forms: dict[str, str]
    padded: list[str]
    evaluated: dict[str, str]
    calls: list[_CallFacts]
    arguments: dict[str, _ReceivedFacts]


def save_capture(capture: Capture, stem: Path) -> None:
    """Write a capture under a stem. Raises `CannotWrite`."""
    taps, inputs = (_spooled(tensors, stem) for tensors in (capture.tensors, capture.call_inputs))
    tensors = {f"{_TAP}{name}": tensor for name, tensor in taps.small.items()}
    tensors |= {f"{_INPUT}{key}": tensor for key, tensor in inputs.small.items()}
    description = {
        # The order in which modules finished; safetensors sorts names.
        "taps": _facts(taps),
        "inputs": _facts(inputs),
        "longest_sums": capture.longest_sums,
        "coarsest_types": {path: dtype_name(dtype) for path, dtype in capture.coarsest_types.items()},
        "unknown_sums": capture.unknown_sums,
        "longest_sums_before": capture.longest_sums_before,
        "largest_results": capture.largest_results,
        "forms": capture.forms,
        "padded": sorted(capture.padded),
        "evaluated": capture.evaluated,
        "calls": [_encoded(call) for call in capture.calls],
        "arguments": {tap: _facts_of(received) for tap, received in capture.arguments.items()},
    }
    with writing(stem):
        with replacing(stem.with_suffix(".safetensors")) as temporary:
            save_file(tensors, temporary)
        with replacing(stem.with_suffix(".json")) as temporary:
            temporary.write_text(json.dumps(description))


def _spooled(tensors: Mapping[str, torch.Tensor], stem: Path) -> Spool:
    if isinstance(tensors, Spool):
        return tensors
    spool = Spool(large_folder(stem))
    spool.update(tensors)
    return spool


def _facts(spool: Spool) -> dict[str, Any]:
    return {"order": list(spool), "stored": spool.stored, "shapes": spool.shapes, "sizes": spool.sizes}


def is_saved(stem: Path) -> bool:
    """Whether `save_capture` has written a capture to `stem`."""
    return stem.with_suffix(".json").exists()


def open_capture(stem: Path) -> Capture:
    """A saved capture for reading, whose tensors are read when they are asked for.

    Raises:
        UserError: A file is missing or damaged, now or when a tensor is read.
    """
    with _reading(stem):
        description = _described(stem.with_suffix(".json"))
        return Capture(
            tensors=Stored(stem, _TAP, **description["taps"]),  # type: ignore[arg-type]
            calls=[_decoded(call) for call in description["calls"]],
            arguments={tap: _received(facts) for tap, facts in description["arguments"].items()},
            call_inputs=Stored(stem, _INPUT, **description["inputs"]),  # type: ignore[arg-type]
            longest_sums=description["longest_sums"],
            coarsest_types={
                path: _FLOATING_TYPES[name] for path, name in description["coarsest_types"].items()
            },
            unknown_sums=description["unknown_sums"],
            longest_sums_before=description["longest_sums_before"],
            largest_results=description["largest_results"],
            forms=description["forms"],
            padded=set(description["padded"]),
            evaluated=description["evaluated"],
        )


def open_recorded(stem: Path) -> Capture:
    """The reference's saved capture, in which each call has its longest sums. Raises as `open_capture`."""
    capture = open_capture(stem)
    with _reading(stem):
        for call in capture.calls:
            if call.path not in capture.longest_sums or {*call.outputs} - capture.longest_sums_before.keys():
                raise ValueError(f"it has no longest sum of {call.tap}")
    return capture


def _described(path: Path) -> dict[str, Any]:
    """The JSON of a capture. Raises `ValueError` if it is damaged."""
    description: dict[str, Any] = parse_json(path.read_bytes())
    try:
        read = _Description.model_validate(description)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise ValueError(f"{place or 'it'} has another type or size") from error
    for facts in (read.taps, read.inputs):
        if not set(facts.order) == facts.shapes.keys() == facts.sizes.keys() >= facts.stored.keys():
            raise ValueError("its lists of tensors differ")
    return description


def load_tap(stem: Path, name: str) -> torch.Tensor | None:
    """One tensor of a saved capture; None if it has no such tap. Raises `UserError` as `open_capture`."""
    return open_capture(stem).tensors.get(name)


def load_longest_sum(stem: Path) -> int:
    """Terms of the longest sum in a whole model, by a saved capture; 1 if it has none.

    Raises `UserError` as `open_capture`.
    """
    return max(open_capture(stem).longest_sums.values(), default=1)


def _encoded(call: ModuleCall) -> dict[str, Any]:
    arguments = {name: encode_tree(getattr(call, name), _encode_leaf) for name in ("args", "kwargs")}
    return {**vars(call), **arguments}


def _encode_leaf(leaf: Any) -> Any:
    if not isinstance(leaf, TensorKey):
        return encode_value(leaf)
    return {_COMPLEX if leaf.is_complex else _TENSOR: leaf.key}


def _decoded(call: dict[str, Any]) -> ModuleCall:
    arguments = {name: decode_tree(call[name], _decode_leaf) for name in ("args", "kwargs")}
    return ModuleCall(**{**call, **arguments, "outputs": tuple(call["outputs"])})


def _facts_of(received: Received) -> dict[str, Any]:
    return vars(received) | {"arguments": [vars(argument) for argument in received.arguments]}


def _received(facts: dict[str, Any]) -> Received:
    return Received(**facts | {"arguments": tuple(Argument(**fields) for fields in facts["arguments"])})


def _decode_leaf(value: Any) -> Any:
    if isinstance(value, dict) and len(value) == 1:
        ((kind, key),) = value.items()
        if kind in (_TENSOR, _COMPLEX):
            return TensorKey(key, kind == _COMPLEX)
    return decode_value(value)


class Stored(Mapping[str, torch.Tensor]):
    """The tensors of a saved capture, each read when it is asked for.

    Args:
        stem: Stem of the capture.
        prefix: Beginning of the tensors' names in its file.
        order: Names of the tensors.
        stored, shapes, sizes: See `Spool`.

    Raises:
        UserError: A file is missing or damaged.
    """

    def __init__(
        self,
        stem: Path,
        prefix: str,
        order: list[str],
        stored: Mapping[str, list[str]],
        shapes: Mapping[str, list[int]],
        sizes: Mapping[str, int],
    ) -> None:
        self._stem = stem
        self._prefix = prefix
        self._order = dict.fromkeys(order)
        self._stored = stored
        # Opened by the first tensor that is read from it: most captures have many small ones.
        self._file: safe_open | None = None
        # Views of the file's memory, by name: several verdicts read a tensor, and a view takes long to make.
        self._views: dict[str, torch.Tensor] = {}
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.sizes = sizes

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._order:
            raise KeyError(name)
        with _reading(self._stem):
            if name in self._stored:
                return load_rows(large_folder(self._stem), self._stored[name])
            if name not in self._views:
                self._views[name] = self._view(name)
            return self._views[name]

    def _view(self, name: str) -> torch.Tensor:
        """A small tensor, in the memory of the mapped file."""
        if self._file is None:
            self._file = safe_open(self._stem.with_suffix(".safetensors"), framework="pt")
        # Callers in and outside of inference mode share it.
        with torch.inference_mode(False):
            return self._file.get_tensor(self._prefix + name)

    def is_floating_point(self, name: str) -> bool:
        """Whether a tensor's elements are floating-point numbers, without reading them."""
        with _reading(self._stem):
            if name in self._stored:
                return is_floating_point(large_folder(self._stem), self._stored[name])
            return bool(self[name].is_floating_point())

    def __iter__(self) -> Iterator[str]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, name: object) -> bool:
        return name in self._order


@contextlib.contextmanager
def _reading(stem: Path) -> Iterator[None]:
    """Turn errors of reading a saved capture into a `UserError`."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise UserError("capture", str(stem), f"is missing or damaged ({error})", "run again") from error
