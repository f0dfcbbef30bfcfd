"""The production STU with fused attention on jagged rows: `reference.stu_fused`, `tripy_port.stu_fused`."""

from __future__ import annotations

from typing import Any

import torch

from cases.fused import FusedFamily
from cases.hstu.jagged import offsets_of, unpad
from cases.stu.case import STUFamily
from configs import STUConfig
from parity.case import Arrays

_STACK, _ATTENTION = "_stu_module", "._attn"
_MASK = f"{_STACK}._valid_attn_mask"


class STUFusedFamily(FusedFamily, STUFamily):
    """`STUFamily` without a mask between the modules."""

    name = "stu_fused"
    builder = "build_stu_fused"

    def require_fused(self, config: STUConfig) -> None:
        from reference.fused_attention import require_heads

        require_heads(attention_dim=config.attention_dim, hidden_dim=config.hidden_dim)

    def build_reference(self, config: STUConfig, layout: str) -> torch.nn.Module:
        from reference.build import build_stu_fused

        return build_stu_fused(config)

    def width(self, arrays: Arrays) -> int:
        return arrays["seq_ids"].shape[1]

    def entry_arguments(self, arrays: Arrays) -> dict[str, Any]:
        return super().entry_arguments(arrays) | {"valid_rows": self.row_numbers(arrays)}

    def fused_arguments(
        self, path: str, args: list, kwargs: dict, arrays: Arrays, modules: dict[str, Any]
    ) -> tuple[list, dict]:
        if path == _STACK:
            x, x_lengths, num_targets, attn_scale = args
            return [x, x_lengths, num_targets, torch.tensor(self.row_numbers(arrays)), attn_scale], kwargs
        if path.endswith(_ATTENTION):
            *ragged, _, attn_scale = args
        elif path.split(".")[-1].isdigit():
            *ragged, _, attn_scale, _ = args
        else:
            return args, kwargs
        lengths_B = self.lengths(arrays)
        shared = {
            "x_offsets": offsets_of(lengths_B).to(torch.int32),
            "num_targets": torch.tensor(arrays["num_targets"], dtype=torch.int32),
            "padded": torch.zeros(self.width(arrays), dtype=torch.int32),
            "valid_attn_mask": modules[_MASK],
            "attn_scale": None if attn_scale is None else unpad(attn_scale, lengths_B),
        }
        return [unpad(x, lengths_B) for x in ragged], shared


STU_FUSED_FAMILY = STUFusedFamily()
