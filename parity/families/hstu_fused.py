"""Research HSTU with fused attention on jagged rows: `reference.hstu_fused` and `tripy_port.hstu_fused`.

No family that a case can name: the runners of fused models take a case of research HSTU and run it as one of
this family. Their taps are those of the dense reference, padded; what the kernel computes itself has none.
"""

from __future__ import annotations

from typing import Any

import torch

from configs import HSTUConfig
from parity.captures import map_tree
from parity.families.base import Arrays
from parity.families.hstu import HSTUFamily
from parity.families.hstu_jagged import offsets_of, unpad

_STACK, _ATTENTION, _BIAS = "_hstu", "._attn", "._rel_attn_bias"


class HSTUFusedFamily(HSTUFamily):
    """`HSTUFamily` with the valid rows among the inputs, and neither bias nor mask between the modules."""

    name = "hstu_fused"
    builder = "build_hstu_fused"
    layouts = ("jagged",)

    def build_reference(self, config: HSTUConfig, layout: str) -> torch.nn.Module:
        from reference.build import build_hstu_fused

        return build_hstu_fused(config)

    def entry_arguments(self, arrays: Arrays) -> dict[str, Any]:
        arguments = super().entry_arguments(arrays)
        rows = self._valid_rows(arrays).numpy()
        return arguments | {"past_payloads": arguments["past_payloads"] | {"valid_rows": rows}}

    def dynamic_sizes(self, arrays: Arrays) -> dict[int, int]:
        """The number of valid rows is dynamic as well."""
        rows = self._valid_rows(arrays).numel()
        return {rows: 1, **super().dynamic_sizes(arrays)} if rows > 1 else {}

    def fused_arguments(
        self, path: str, args: list, kwargs: dict, arrays: Arrays, modules: dict[str, Any]
    ) -> tuple[list, dict]:
        """Host tensors that the dense module at `path` got, as arguments of its fused twin in `modules`."""
        lengths_B = self._lengths(arrays)
        timestamps_BN = torch.tensor(arrays["timestamps"])
        shared = {"x_offsets": offsets_of(lengths_B).to(torch.int32), "all_timestamps": timestamps_BN}
        if path == _STACK:
            rows = {"valid_rows": self._valid_rows(arrays), "all_timestamps": timestamps_BN}
            return [], {name: kwargs[name] for name in ("x", "x_lengths")} | rows
        if path.endswith(_ATTENTION):
            bias = modules[path.removesuffix(_ATTENTION) + _BIAS]
            return [unpad(x, lengths_B) for x in args[:3]], shared | {"rel_attn_bias": bias}
        if path.split(".")[-1].isdigit():
            return [], {"x": unpad(kwargs["x"], lengths_B), **shared}
        return args, kwargs

    def incremental_arguments(self, config: HSTUConfig, arrays: Arrays) -> None:
        return None

    def _valid_rows(self, arrays: Arrays) -> torch.Tensor:
        """(L,) int32, ascending: the positions in the flattened (B, N) that hold something."""
        width = arrays["timestamps"].shape[1]
        is_valid_BN = torch.arange(width) < self._lengths(arrays)[:, None]
        return is_valid_BN.reshape(-1).nonzero().squeeze(1).to(torch.int32)


HSTU_FUSED_FAMILY = HSTUFusedFamily()


def placed(arguments: tuple[list, dict], place: Any) -> tuple[list, dict]:
    """Arguments with `place` applied to every tensor."""

    def moved(leaf: Any) -> Any:
        return place(leaf) if isinstance(leaf, torch.Tensor) else leaf

    return map_tree(arguments[0], moved), map_tree(arguments[1], moved)
