"""A reference, its port, another port and a case in one file, as a user may write them."""

import functools

import numpy as np
import nvtripy as tp
import torch

import parity


def of_the_reference(x):
    return torch.relu(x)


def by_name(x):
    return tp.relu(x)


def in_a_table(x):
    return tp.tanh(x)


def bound(x, factor):
    return x * factor


def received(x):
    return x


ACTIVATIONS = {"tanh": in_a_table, "times": functools.partial(bound, factor=2.0)}


class Reference(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x):
        return of_the_reference(self.layer(x))


class Base(tp.Module):
    def forward(self, x):
        return self.last(by_name(self.layer(x)))


class Port(Base):
    def __init__(self, dtype, last=received):
        super().__init__()
        self.layer = tp.Linear(4, 3, dtype=dtype)
        self.last = last

    def never(self, x):
        return ACTIVATIONS["tanh"](x)


class OtherPort(tp.Module):
    def forward(self, x):
        return x


class Mixed(parity.Case):
    name = "mixed"
    batch_size = 8

    def build_reference(self):
        return Reference()

    def build_port(self, dtype):
        return Port(dtype)

    def make_inputs(self):
        rng = np.random.default_rng(self.seed)
        return {"x": rng.standard_normal((self.batch_size, 4)).astype(np.float32)}


case = Mixed()
