"""A small port with every form of place."""

from __future__ import annotations

import nvtripy as tp


def require(condition: bool, text: str) -> None:
    """Raise without the condition."""
    if not condition:
        raise ValueError(text)


class Small(tp.Module):
    """Counts below a limit, with an option."""

    def __init__(self, limit: int, option: str = "plain") -> None:
        super().__init__()
        require(limit > 0, "limit")
        self.limit = limit
        self.option = option
        self.rows = max(limit, 3)

    def forward(self, counts: tp.Tensor) -> tp.Tensor:
        """(B,) int32 -> (B,) int32."""
        if self.option == "doubled":
            counts = counts + counts
        is_below = counts < self.limit
        chosen = tp.where(is_below, counts, 0)
        clamped = tp.minimum(chosen, 2)
        return clamped if self.limit > 1 else clamped + 1

    def unused(self) -> str:
        """Never called."""
        return "unused"
