"""Reference and port over a stream, each with the state that one step hands on to the next.

Legend: B rows, M new items.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

import numpy as np
import nvtripy as tp
import torch

from configs import HSTUConfig
from parity.base.precision import Precision
from parity.base.trees import map_tree
from parity.inputs.weights import rounded
from parity.runners.tripy.call_stacks import no_call_stacks
from parity.runners.tripy.compiled import tripy_dtype
from reference.build import build_hstu_stream
from tripy_port.build import build_hstu_stream as build_port

Results = dict[str, torch.Tensor]


class Side(abc.ABC):
    """One model over one batch of streams."""

    _state: list

    def append(
        self, ids: np.ndarray, ratings: np.ndarray, timestamps: np.ndarray, kept: np.ndarray
    ) -> Results:
        """Append items (B, M), of whose positions' times ``timestamps`` has one more, and keep ``kept`` (B,).

        Returns:
            The states of the new positions, "encoded", and every tensor of the new state, on the host.
        """
        encoded, *self._state = self._extend(
            {"new_lengths": kept, "new_ids": ids, "ratings": ratings, "timestamps": timestamps}
        )
        lengths, times, *cache = self._state
        found = {"lengths": lengths, "timestamps": times}
        for block in range(len(cache) // 2):
            found |= {f"blocks.{block}.k": cache[2 * block], f"blocks.{block}.v": cache[2 * block + 1]}
        return {name: self._to_host(tensor) for name, tensor in (found | {"encoded": encoded}).items()}

    @abc.abstractmethod
    def _extend(self, new: dict[str, np.ndarray]) -> list:
        """The states of the new positions, and the new state."""

    @abc.abstractmethod
    def _to_host(self, tensor: Any) -> torch.Tensor:
        """A tensor of the side's as PyTorch's."""


def _extend(model: Any, state: list, new_lengths: Any, new_ids: Any, ratings: Any, timestamps: Any) -> list:
    """One step of a model of either side."""
    payloads = {"timestamps": timestamps, "ratings": ratings}
    encoded, state = model.extend(state, new_lengths, new_ids, model.get_item_embeddings(new_ids), payloads)
    return [encoded, *state]


class ReferenceSide(Side):
    """`reference.hstu_stream`, in a dtype."""

    def __init__(
        self,
        config: HSTUConfig,
        weights: Mapping[str, torch.Tensor],
        dtype: torch.dtype,
        rows: int,
        capacity: int,
    ) -> None:
        self._model = build_hstu_stream(config).to(dtype)
        self._model.load_state_dict(rounded(weights, dtype))
        self._state = self._model.empty_state(rows, capacity)

    def _extend(self, new: dict[str, np.ndarray]) -> list:
        with torch.inference_mode():
            return _extend(self._model, self._state, **map_tree(new, torch.from_numpy))

    def _to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


class PortSide(Side):
    """`tripy_port.hstu_stream`, an executable for each M. The state stays on the device, in Tripy tensors."""

    def __init__(
        self,
        config: HSTUConfig,
        weights: Mapping[str, torch.Tensor],
        precision: Precision,
        rows: int,
        capacity: int,
    ) -> None:
        self._model = build_port(config, tripy_dtype(precision.dtype))
        tensors = rounded(weights, precision.dtype)
        self._model.load_state_dict(
            {name: tp.Tensor(tensor.contiguous()) for name, tensor in tensors.items()}
        )
        self._state = self._model.empty_state(rows, capacity)
        self._executables: dict[int, tp.Executable] = {}

    def _extend(self, new: dict[str, np.ndarray]) -> list:
        count = new["new_ids"].shape[1]
        if count not in self._executables:
            self._executables[count] = self._compile(new)
        return self._executables[count]({"state": self._state} | map_tree(new, _to_device))

    def _compile(self, new: dict[str, np.ndarray]) -> tp.Executable:
        state = [tp.InputInfo(tuple(map(int, tensor.shape)), tensor.dtype) for tensor in self._state]
        infos = {"state": state} | map_tree(new, lambda array: tp.InputInfo(array.shape, tp.int64))
        with no_call_stacks():
            return tp.compile(lambda arguments: _extend(self._model, **arguments), args=[infos])

    def _to_host(self, tensor: tp.Tensor) -> torch.Tensor:
        return torch.from_dlpack(tensor).cpu().clone()


def _to_device(array: np.ndarray) -> tp.Tensor:
    return tp.copy(tp.Tensor(np.ascontiguousarray(array)), tp.device("gpu"))
