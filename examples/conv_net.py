"""A small convolutional net: PyTorch's weights, Tripy's convolutions, one call.

PYTHONPATH=. python examples/conv_net.py
"""

from __future__ import annotations

import nvtripy as tp
import torch

import parity

CHANNELS, CLASSES = 3, 5


class ConvNet(torch.nn.Module):
    """Two convolutions and a head, as a PyTorch user writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(CHANNELS, 8, 3, padding=1)
        self.second = torch.nn.Conv2d(8, 16, 3, stride=2)
        self.dropout = torch.nn.Dropout(0.1)
        self.head = torch.nn.Linear(16, CLASSES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Scores of the classes, (B, 5), of images (B, 3, H, W)."""
        x = torch.relu(self.second(torch.relu(self.first(image))))
        return self.head(self.dropout(x.mean((2, 3))))


class ConvNetPort(tp.Module):
    """The same in Tripy. Dropout does nothing in evaluation, so the port has none."""

    def __init__(self, dtype: tp.dtype) -> None:
        super().__init__()
        self.first = tp.Conv(CHANNELS, 8, (3, 3), padding=((1, 1), (1, 1)), dtype=dtype)
        self.second = tp.Conv(8, 16, (3, 3), stride=(2, 2), dtype=dtype)
        self.head = tp.Linear(16, CLASSES, dtype=dtype)

    def forward(self, image: tp.Tensor) -> tp.Tensor:
        """Scores of the classes, (B, 5), of images (B, 3, H, W)."""
        x = tp.relu(self.second(tp.relu(self.first(image))))
        return self.head(tp.mean(x, dim=(2, 3)))


def main() -> parity.Result:
    """Compare both in two precisions."""
    images = {"image": torch.randn(6, CHANNELS, 9, 11, generator=torch.Generator().manual_seed(0))}
    return parity.compare(ConvNet(), ConvNetPort, inputs=images, precisions=("fp32", "bf16"))


if __name__ == "__main__":
    result = main()
    print(result)
    result.raise_if_failed()
