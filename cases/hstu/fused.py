"""Research HSTU with fused attention on jagged rows: `reference.hstu_fused` and `tripy_port.hstu_fused`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cases.fused import FusedForm
from cases.hstu.dense import DenseHSTU
from cases.hstu.jagged import pad_taps
from cases.jagged import offsets_of, unpad
from parity.case import Arrays

_STACK, _ATTENTION, _BIAS = "_hstu", "._attn", "._rel_attn_bias"


class HSTUFused(FusedForm, DenseHSTU):
    """`DenseHSTU` with neither bias nor mask between the modules."""

    fused_builder = "build_hstu_fused"

    def require_fused(self) -> None:
        from reference.fused_attention import require_heads
        from reference.hstu_fused import require_fused

        require_fused(self.model.normalization, self.model.relative_attention_bias)
        require_heads(attention_dim=self.model.attention_dim, linear_dim=self.model.linear_dim)

    def pad_taps(self, tensors: Mapping[str, torch.Tensor], arrays: Arrays) -> dict[str, torch.Tensor]:
        return pad_taps(tensors, self.lengths(arrays), self.width(arrays))

    def width(self, arrays: Arrays) -> int:
        return arrays["timestamps"].shape[1]

    def entry_arguments(self, arrays: Arrays) -> dict[str, Any]:
        arguments = super().entry_arguments(arrays)
        rows = {"valid_rows": self.row_numbers(arrays)}
        return arguments | {"past_payloads": arguments["past_payloads"] | rows}

    def module_arguments(
        self, path: str, args: list, kwargs: dict, arrays: Arrays, modules: Mapping[str, Any]
    ) -> tuple[list, dict]:
        lengths_B = self.lengths(arrays)
        timestamps_BN = torch.tensor(arrays["timestamps"])
        shared = {"x_offsets": offsets_of(lengths_B).to(torch.int32), "all_timestamps": timestamps_BN}
        if path == _STACK:
            rows = {
                "valid_rows": torch.tensor(self.row_numbers(arrays)),
                "all_timestamps": timestamps_BN,
            }
            return [], {name: kwargs[name] for name in ("x", "x_lengths")} | rows
        if path.endswith(_ATTENTION):
            bias = modules[path.removesuffix(_ATTENTION) + _BIAS]
            return [unpad(x, lengths_B) for x in args[:3]], shared | {"rel_attn_bias": bias}
        if path.split(".")[-1].isdigit():
            return [], {"x": unpad(kwargs["x"], lengths_B), **shared}
        return args, kwargs
