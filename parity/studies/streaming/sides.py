"""Reference and port over a stream, each with the state that one step hands to the next.

Legend: B rows, C capacity in positions.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

import nvtripy as tp
import torch

from parity.base.precision import Precision
from parity.base.trees import map_tree
from parity.case.streams import Streams
from parity.inputs.weights import rounded
from parity.runners.tripy.compiled import to_device, to_host, tripy_dtype
from parity.runners.tripy.lean_traces import lean_traces
from parity.studies.streaming.truth import LENGTHS, Weights

Results = dict[str, torch.Tensor]


class Side(abc.ABC):
    """One model over one batch of streams."""

    _streams: Streams
    _state: list

    def append(self, arguments: Mapping[str, Any]) -> Results:
        """Append items, the arguments of `Streams.append` as arrays.

        Returns:
            Every tensor of the new state and the outputs of the new positions, by name, on the host.
        """
        outputs, self._state = self._append(map_tree(dict(arguments), torch.from_numpy))
        names = (LENGTHS, *self._streams.cached, self._streams.output)
        results = dict(zip(names, [*self._state, outputs], strict=True))
        return {name: self._to_host(tensor) for name, tensor in results.items()}

    @abc.abstractmethod
    def _append(self, arguments: dict[str, Any]) -> tuple[Any, list]:
        """The outputs of the new positions, and the new state."""

    @abc.abstractmethod
    def _to_host(self, tensor: Any) -> torch.Tensor:
        """A tensor of this side as a PyTorch tensor on the host."""


class ReferenceSide(Side):
    """The PyTorch model of streams.

    Args:
        streams: The case's models.
        weights: Weights of the case.
        dtype: Dtype of the model.
        rows: B.
        capacity: C.
    """

    def __init__(
        self, streams: Streams, weights: Weights, dtype: torch.dtype, rows: int, capacity: int
    ) -> None:
        self._streams = streams
        self._model = streams.build_reference().to(dtype)
        self._model.load_state_dict(rounded(weights, dtype))
        self._state = streams.empty_state(self._model, rows, capacity)

    def _append(self, arguments: dict[str, Any]) -> tuple[Any, list]:
        with torch.inference_mode():
            return self._streams.append(self._model, self._state, **arguments)

    def _to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


class PortSide(Side):
    """The Tripy model of streams, an executable for each shape of a step. The state stays on the device.

    Args:
        streams: The case's models.
        weights: Weights of the case.
        precision: The tested precision.
        rows: B.
        capacity: C.
    """

    def __init__(
        self, streams: Streams, weights: Weights, precision: Precision, rows: int, capacity: int
    ) -> None:
        self._streams = streams
        self._model = streams.build_port(tripy_dtype(precision.dtype))
        tensors = rounded(weights, precision.dtype)
        self._model.load_state_dict(
            {name: tp.Tensor(tensor.contiguous()) for name, tensor in tensors.items()}
        )
        self._state = streams.empty_state(self._model, rows, capacity)
        self._executables: dict[tuple, tp.Executable] = {}

    def _append(self, arguments: dict[str, Any]) -> tuple[Any, list]:
        shapes: list[tuple[int, ...]] = []
        map_tree(arguments, lambda tensor: shapes.append(tuple(tensor.shape)))
        key = tuple(shapes)
        if key not in self._executables:
            self._executables[key] = self._compile(arguments)
        inputs = {"state": self._state, "arguments": map_tree(arguments, to_device)}
        outputs, *state = self._executables[key](inputs)
        return outputs, state

    def _compile(self, arguments: dict[str, Any]) -> tp.Executable:
        def append(inputs: dict[str, Any]) -> list[tp.Tensor]:
            outputs, state = self._streams.append(self._model, inputs["state"], **inputs["arguments"])
            return [outputs, *state]

        infos = {
            "state": [tp.InputInfo(tuple(map(int, tensor.shape)), tensor.dtype) for tensor in self._state],
            "arguments": map_tree(
                arguments, lambda tensor: tp.InputInfo(tuple(tensor.shape), tripy_dtype(tensor.dtype))
            ),
        }
        with lean_traces():
            return tp.compile(append, args=[infos])

    def _to_host(self, tensor: tp.Tensor) -> torch.Tensor:
        return to_host(tensor)
