"""Between the taps of the dense HSTU and of its jagged twin.

Inside `_hstu`, the jagged model keeps the valid rows of all users in one (L, ...) tensor. This module pads
its taps and unpads the arguments of its modules, so that both layouts compare tap by tap.

Legend: B batch, N sequence, L total jagged length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cases.hstu.dense import DenseHSTU
from cases.jagged import offsets_of, pad, unpad
from parity.case import Arrays, Form

_STACK = "_hstu"
_ATTENTION = "_attn"
_MASK = "_valid_attn_mask"
_BIAS = "._rel_attn_bias"


class HSTUJagged(DenseHSTU, Form):
    """The reference on jagged rows; the port has no such layout."""

    def build_reference(self) -> torch.nn.Module:
        from reference.build import build_hstu

        return build_hstu(self.model, "jagged")

    def pad_taps(self, tensors: Mapping[str, torch.Tensor], arrays: Arrays) -> dict[str, torch.Tensor]:
        width = arrays["past_ids"].shape[1] * self.model.positions_per_item
        if self.model.normalization == "softmax_rel_bias":
            # Both layouts compute it at full width.
            width = self.model.sequence_width
        cropped = {tap: _cropped(tap, tensor, width) for tap, tensor in tensors.items()}
        return pad_taps(cropped, self._position_lengths(arrays), width)

    def module_arguments(
        self, path: str, args: list, kwargs: dict, arrays: Arrays, modules: Mapping[str, Any]
    ) -> tuple[list, dict]:
        return jagged_arguments(path, args, kwargs, self._position_lengths(arrays))

    def _position_lengths(self, arrays: Arrays) -> torch.Tensor:
        """(B,) positions that each row takes: its items, twice that where ratings follow items."""
        return torch.tensor(arrays["past_lengths"]) * self.model.positions_per_item


def _cropped(tap: str, tensor: torch.Tensor, width: int) -> torch.Tensor:
    """Masks, biases and the stack's result have the model's width in the jagged layout."""
    if tap == _MASK:
        return tensor[:width, :width].contiguous()
    if _BIAS in tap:
        return tensor[:, :width, :width].contiguous()
    return tensor[:, :width].contiguous() if tap == f"{_STACK}[0]" or tap == _STACK else tensor


def pad_taps(
    tensors: Mapping[str, torch.Tensor], lengths_B: torch.Tensor, width: int
) -> dict[str, torch.Tensor]:
    """Rename and pad the taps of a jagged run as the dense model would have them.

    Args:
        tensors: Taps of the jagged model.
        lengths_B: Positions of each row.
        width: N.
    """
    padded = {}
    for tap, tensor in tensors.items():
        if f".{_ATTENTION}[" in tap:
            # The jagged attention also returns the padded q and k for its cache.
            if not tap.endswith("[0]"):
                continue
            tap = tap.removesuffix("[0]")
        if tap.startswith(f"{_STACK}.") and tensor.dim() == 2:
            tensor = pad(tensor, lengths_B, width)
        padded[tap] = tensor
    return padded


def jagged_arguments(path: str, args: list, kwargs: dict, lengths_B: torch.Tensor) -> tuple[list, dict]:
    """Arguments of the dense module at `path` as those of its jagged twin."""
    offsets = offsets_of(lengths_B)
    if path == _STACK:
        kwargs = {name: value for name, value in kwargs.items() if name != "x_lengths"}
        return args, kwargs | {"x_offsets": offsets}
    if path.endswith(f".{_ATTENTION}"):
        q, k, v, *others = args
        return [*(unpad(x, lengths_B) for x in (q, k, v)), *others, offsets], kwargs
    if path.split(".")[-1].isdigit():
        return args, kwargs | {"x": unpad(kwargs["x"], lengths_B), "x_offsets": offsets}
    # Norms, projections and biases are the same classes on the same tensors in both layouts.
    return args, kwargs
