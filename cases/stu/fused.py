"""The production STU with fused kernels on jagged rows: `reference.stu_fused`, `tripy_port.stu_fused`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch

from cases.fused import FusedForm
from cases.jagged import offsets_of, unpad
from cases.stu.dense import DenseSTU
from cases.stu.jagged import pad_taps
from parity.case import Arrays

ATTENTION = "._attn"
"""End of the path of a layer's attention."""


class FusedStack(FusedForm):
    """A dense case whose STU layers are on jagged rows, without a mask between the modules."""

    stack: ClassVar[str]
    """Path of the stack in the model."""
    targets: ClassVar[str]
    """Name of the array with the numbers of targets."""

    def require_fused(self) -> None:
        from reference.fused_attention import require_heads

        require_heads(attention_dim=self.model.attention_dim, hidden_dim=self.model.hidden_dim)

    def pad_taps(self, tensors: Mapping[str, torch.Tensor], arrays: Arrays) -> dict[str, torch.Tensor]:
        return pad_taps(tensors, self.lengths(arrays), self.width(arrays))

    def entry_arguments(self, arrays: Arrays) -> dict[str, Any]:
        return super().entry_arguments(arrays) | {"valid_rows": self.row_numbers(arrays)}

    def module_arguments(
        self, path: str, args: list, kwargs: dict, arrays: Arrays, modules: Mapping[str, Any]
    ) -> tuple[list, dict]:
        if path == self.stack:
            x, x_lengths, num_targets, *attn_scale = args
            return [x, x_lengths, num_targets, torch.tensor(self.row_numbers(arrays)), *attn_scale], kwargs
        cached = {}
        if path.endswith(ATTENTION):
            *ragged, _, attn_scale = args
        elif path.split(".")[-1].isdigit() and path.startswith(f"{self.stack}."):
            *ragged, _, attn_scale, cached["return_cache_states"] = args
        else:
            return args, kwargs
        lengths_B = self.lengths(arrays)
        shared = {
            "x_offsets": offsets_of(lengths_B).to(torch.int32),
            "num_targets": torch.tensor(arrays[self.targets], dtype=torch.int32),
            "padded": torch.zeros(self.width(arrays), dtype=torch.int32),
            "valid_attn_mask": modules[f"{self.stack}._valid_attn_mask"],
            "attn_scale": None if attn_scale is None else unpad(attn_scale, lengths_B),
        }
        return [unpad(x, lengths_B) for x in ragged], shared | cached


class STUFused(FusedStack, DenseSTU):
    """`DenseSTU` with fused attention."""

    fused_builder = "build_stu_fused"
    stack, targets = "_stu_module", "num_targets"

    def width(self, arrays: Arrays) -> int:
        return arrays["seq_ids"].shape[1]


WHOLE_LAYERS = MappingProxyType({"whole_layers": True})
"""Options of the builders of whole layers."""
INSIDE_WHOLE_LAYERS = MappingProxyType(
    {
        **FusedForm.computed_inside,
        "STUOutputNorm": "computed inside the gate's kernel, never as a tensor",
    }
)
"""Classes that whole layers compute inside another module."""


class STUWholeLayers(STUFused):
    """`STUFused` with kernels for norms, activation and gate too."""

    fused_options = WHOLE_LAYERS
    computed_inside = INSIDE_WHOLE_LAYERS
