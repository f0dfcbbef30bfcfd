"""Where constants live: uploaded to the GPU once, however many plans use them."""

from __future__ import annotations

from collections.abc import Iterable

import torch


class Placement:
    """Puts host constants where a plan computes; on the CPU they stay where they are."""

    def __init__(self, device: torch.device, lasting: Iterable[torch.Tensor]):
        """A placement on one device.

        Args:
            device: where the data goes.
            lasting: tensors that live as long as the placement (weights); each is uploaded once.
        """
        self._device = device
        self._lasting = {id(tensor): tensor for tensor in lasting}
        self._placed: dict[int, torch.Tensor] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the device. It is complete when this returns."""
        if self._device.type == "cpu":
            return tensor
        if id(tensor) not in self._lasting:
            return moved(tensor, self._device)
        if id(tensor) not in self._placed:
            self._placed[id(tensor)] = moved(tensor, self._device)
        return self._placed[id(tensor)]


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on a device, in which an expanded dimension takes no memory either."""
    box = tensor
    for dim, (extent, stride) in enumerate(zip(tensor.shape, tensor.stride())):
        if stride == 0 and extent > 1:
            box = box.narrow(dim, 0, 1)
    return box.to(device).expand(tensor.shape)
