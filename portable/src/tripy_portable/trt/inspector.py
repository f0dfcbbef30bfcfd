"""The layers of a built engine, from TensorRT's own inspector.

Inspecting a deserialized engine needs a GPU. A builder with detailed profiling writes the inspector's listing
to its log without a GPU; this module parses that text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

QUANTISED = ("Int8", "FP8", "Int4")
"""TensorRT's names of quantised element types."""
_LISTING = "Layers:\n"
_LAYER = re.compile(
    r"^Name: (?P<name>.*?), LayerType: (?P<type>\w+), Inputs: \[(?P<inputs>.*?)\], "
    r"Constants: \[(?P<constants>.*?)\], Outputs: \[(?P<outputs>.*?)\], "
    r"TacticName: (?P<tactic>.*?), StreamId: \d+, Metadata: ?(?P<metadata>.*)$"
)
_TENSOR = re.compile(r"\{ Name: (.*?), Dimensions: \[([^\]]*)\],.*?Datatype: (\w+)")
_BINDING = re.compile(
    r"^ Name: (.*?), IOMode: (\w+), DataType: (\w+), Dimensions: \[([^\]]*)\], Location: (\w+)"
)


def read_listing(log: Sequence[str]) -> dict[str, Any]:
    """The engine's layers and bindings from a builder's log.

    Args:
        log: TensorRT's verbose messages.

    Returns:
        `layers`, `bindings` and `text`, TensorRT's own listing. Each layer has name, type, tactic, metadata
        (fused Tripy tensors and the user's lines), and inputs, constants and outputs with shape and dtype.
        All are empty without a listing.
    """
    text = next((entry for entry in reversed(log) if entry.startswith(_LISTING)), "")
    layers, bindings = [], []
    for line in text.splitlines():
        layer, binding = _LAYER.match(line), _BINDING.match(line)
        if layer:
            layers.append(
                {
                    "name": layer["name"],
                    "type": layer["type"],
                    "tactic": layer["tactic"],
                    "metadata": [part for part in re.split("[\x1e\x1f]", layer["metadata"]) if part],
                    **{part: _tensors(layer[part]) for part in ("inputs", "constants", "outputs")},
                }
            )
        elif binding:
            name, mode, dtype, dims, location = binding.groups()
            bindings.append(
                {"name": name, "mode": mode, "dtype": dtype, "shape": _dims(dims), "location": location}
            )
    return {"layers": layers, "bindings": bindings, "text": text}


def dtypes(listing: dict[str, Any]) -> list[str]:
    """Names of all element types that the engine's layers read or write, sorted."""
    names = {
        tensor["dtype"]
        for layer in listing["layers"]
        for part in ("inputs", "constants", "outputs")
        for tensor in layer[part]
    }
    return sorted(names)


def quantised(listing: dict[str, Any]) -> list[dict[str, Any]]:
    """The engine's layers that read quantised numbers: each with its type, operands and Tripy tensors.

    Args:
        listing: See `read_listing`.
    """
    found = []
    for layer in listing["layers"]:
        operands = [tensor["dtype"] for part in ("inputs", "constants") for tensor in layer[part]]
        kinds = [dtype for dtype in operands if dtype in QUANTISED]
        if kinds:
            found.append({"type": layer["type"], "operands": kinds, "tensors": layer["metadata"]})
    return found


def _tensors(text: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "shape": _dims(dims), "dtype": dtype} for name, dims, dtype in _TENSOR.findall(text)
    ]


def _dims(text: str) -> list[int]:
    return [int(extent) for extent in text.split(",") if extent]
