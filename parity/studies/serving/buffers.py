"""Host memory of batches, in pinned memory where there is a GPU, and its copy to the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nvtripy as tp
import torch

from parity.base.trees import leaves, map_tree, plain_tree
from parity.runners.tripy.compiled import to_device


class Buffers:
    """Host memory for the entry's arguments of one batch.

    Args:
        arguments: Arguments of the right shapes and types, on the host.
    """

    def __init__(self, arguments: Any) -> None:
        is_pinned = torch.cuda.is_available()
        self.arguments = map_tree(
            plain_tree(arguments),
            lambda leaf: torch.empty_like(leaf, pin_memory=is_pinned) if _is_tensor(leaf) else leaf,
        )
        self._copied = torch.cuda.Event() if is_pinned else None

    def fill(self, arguments: Any) -> None:
        """Overwrite every element. Waits until the copy of the last content has ended."""
        if self._copied is not None:
            self._copied.synchronize()
        for (_, buffer), (_, values) in zip(leaves(self.arguments), leaves(arguments), strict=True):
            if _is_tensor(buffer):
                buffer.copy_(values)

    def on_device(
        self,
        copies: torch.cuda.Stream | None,
        work: torch.cuda.Stream | None,
        looked_up: Callable[[], dict[str, torch.Tensor]] = dict,
    ) -> Any:
        """The content as device tensors. The work's stream waits for the copy, and the host does not.

        Args:
            copies: Stream of the copies; None without a GPU.
            work: Stream of the work; None without a GPU.
            looked_up: Further arguments, on the CPU or the device, which come in the stream of the copies.
        """
        if copies is None or work is None or self._copied is None:
            return map_tree({**self.arguments, **looked_up()}, to_device)
        with torch.cuda.stream(copies):
            copied = map_tree(
                self.arguments,
                lambda leaf: leaf.to("cuda", non_blocking=True) if _is_tensor(leaf) else leaf,
            )
            # Rows of tables on the CPU are copied too.
            copied = {**copied, **map_tree(looked_up(), lambda leaf: leaf.to("cuda", non_blocking=True))}
            self._copied.record(copies)
        work.wait_event(self._copied)
        for _, leaf in leaves(copied):
            if _is_tensor(leaf):
                leaf.record_stream(work)
        return map_tree(copied, lambda leaf: tp.Tensor(leaf) if _is_tensor(leaf) else leaf)


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)
