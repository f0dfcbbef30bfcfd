"""A small convolutional net and its port, as a user of `parity.compare` has them."""

import numpy as np
import nvtripy as tp
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.GroupNorm(2, 8)
        self.drop = torch.nn.Dropout(0.5)
        self.act = torch.nn.ReLU()
        self.head = torch.nn.Linear(8, 5)

    def forward(self, image):
        x = self.drop(self.act(self.norm(self.conv(image))))
        return self.head(x.mean((2, 3)))


class Port(tp.Module):
    def __init__(self, dtype=tp.float32, negative_slope=0.0):
        super().__init__()
        self.slope = negative_slope
        self.conv = tp.Conv(3, 8, (3, 3), padding=[(1, 1), (1, 1)], dtype=dtype)
        self.norm = tp.GroupNorm(2, 8, dtype=dtype)
        self.head = tp.Linear(8, 5, dtype=dtype)

    def forward(self, image):
        x = self.norm(self.conv(image))
        x = tp.relu(x) + self.slope * tp.minimum(x, 0.0) if self.slope else tp.relu(x)
        return self.head(tp.mean(x, dim=(2, 3)))


IMAGES = {"image": np.random.default_rng(0).standard_normal((4, 3, 12, 10)).astype(np.float32)}


def modules(result):
    """The port's modules in the first precision, by tap."""
    return {module.tap: module for module in result.report.cases[0].precisions[0].runners[1].modules}
