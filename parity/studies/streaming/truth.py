"""The truth of a stream: full forwards over the whole of it, without a cache.

Legend: B rows, M new positions, C capacity in positions, N positions, X slots or positions, K samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from parity.base.precision import Precision
from parity.base.trees import map_tree
from parity.capture.longest_sums import WHOLE
from parity.capture.torch_hooks import tapped
from parity.case.streams import Change, FullForward, Stream, Streams
from parity.inputs.weights import rounded
from parity.runners.oracle.rounding import Errors, Roundings

SAMPLES = 7
"""Rounding samples of the truth. A step has few rows, which say little about the precision's error."""
LENGTHS = "lengths"
"""Name of the state's first tensor: positions of each row so far, (B,)."""

Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Place:
    """The place of a step in a stream, in positions.

    Attributes:
        begun: (B,) int64, positions of each row before the step.
        new: M.
        entering: (B,) int64, new positions of each row that enter the cache.
    """

    begun: np.ndarray
    new: int
    entering: np.ndarray

    @property
    def end(self) -> np.ndarray:
        """(B,) int64, positions of each row after the step."""
        return self.begun + self.entering

    def outputs_of(self, values: torch.Tensor) -> torch.Tensor:
        """The new positions' values: (B, N, ...) -> (B, M, ...)."""
        return _rows_of(values, torch.from_numpy(self.begun).unsqueeze(1) + torch.arange(self.new))

    def slots(self, capacity: int) -> torch.Tensor:
        """(B, C) int64, the position that belongs into each slot; negative for an empty slot."""
        return torch.from_numpy(self.end).unsqueeze(1) - capacity + torch.arange(capacity)


def _rows_of(values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """(B, N, ...) and (B, X) -> (B, X, ...), zero where the index is negative."""
    chosen = values[torch.arange(values.size(0)).unsqueeze(1), index.clamp(min=0)]
    exists = (index >= 0).reshape(index.shape + (1,) * (values.ndim - 2))
    return chosen * exists.to(values.dtype)


class Truth:
    """Full forwards over one stream: in float64, in the tested precision, and under random roundings.

    Args:
        streams: The case's models.
        weights: Weights of the case, float32.
        precision: The tested precision.
        stream: The stream.
        capacity: C.

    Attributes:
        oracle, reference: In float64 and in the tested precision, on the rounded weights.
        samples: (K, B, N, D), outputs under random roundings.
        longest_sum: Terms of the longest sum in the largest step.
        modules: Number of modules with arithmetic in a step.
    """

    def __init__(
        self, streams: Streams, weights: Weights, precision: Precision, stream: Stream, capacity: int
    ) -> None:
        self.streams, self.stream, self.precision, self.capacity = streams, stream, precision, capacity
        self.weights = rounded(weights, precision.dtype)
        self.oracle = self.altered(capacity)
        self.reference = self._run(self._model(capacity).to(precision.dtype))
        model = self._model(capacity).double()
        samples = []
        for seed in range(SAMPLES):
            with Roundings(Errors(precision, seed)):
                samples.append(self._run(model).outputs)
        self.samples = torch.stack(samples)
        sums = self._sums_of_a_step()
        self.longest_sum = max(sums.values())
        self.modules = sum(length > 0 for path, length in sums.items() if path != WHOLE)

    def _sums_of_a_step(self) -> dict[str, int]:
        """Terms of the longest sum of each module and of the whole in the largest step, or 0."""
        step = max(self.stream.steps, key=lambda step: step.new)
        arguments = self.streams.arguments(self.stream, np.zeros_like(step.entering), step)
        model = self.streams.build_reference()
        state = self.streams.empty_state(model, self.stream.rows, self.capacity)
        with torch.inference_mode(), tapped(model, record_calls=True) as capture:
            self.streams.append(model, state, **map_tree(arguments, torch.from_numpy))
        return capture.longest_sums

    def altered(self, window: int, change: Change | None = None) -> FullForward:
        """The float64 forward of a model with another window or a change."""
        model = self._model(window).double()
        if change is not None:
            change(model)
        return self._run(model)

    def _model(self, window: int) -> torch.nn.Module:
        return self.streams.build_full(self.weights, self.stream.items, window)

    def _run(self, model: torch.nn.Module) -> FullForward:
        with torch.inference_mode():
            return self.streams.run_full(model, self.stream)

    def taps(self, full: FullForward, place: Place) -> dict[str, torch.Tensor]:
        """The tensors of a step by name, as a full forward gives them. Empty slots are zero."""
        slots = place.slots(self.capacity)
        cached = {name: _rows_of(full.cached[name], slots) for name in self.streams.cached}
        outputs = {self.streams.output: place.outputs_of(full.outputs)}
        return {LENGTHS: torch.from_numpy(place.end)} | cached | outputs
