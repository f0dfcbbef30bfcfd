"""A planted difference between a reference and its port, and the cause that the search names."""

from types import MappingProxyType

import numpy as np
import torch

from parity.verdict.causes import OtherResult, Program, cause
from parity.verdict.distances import Distance
from parity.verdict.patterns import FailedTensor

LIMIT = 1e-9


def told(reference, port, arguments, counted=None, oracle=None, others=(), exchanged=MappingProxyType({})):
    """The cause for a port's function in place of the reference's; both take the arguments by name.

    `others` are the arguments of other calls, `exchanged` other runs of the code, in words.
    """
    failed = _compared(reference, port, arguments, counted, oracle)

    def run(tensors):
        return reference(**tensors)

    def program(tensors):
        return Program(run, tensors, exchanged=exchanged)

    calls = [OtherResult(program(other), _compared(reference, port, other)) for other in others]
    return cause(program(arguments), failed, calls)


def told_of(reference, port, x):
    """The cause for functions of one tensor, whose parameter has any name."""
    return told(lambda x: reference(x), lambda x: port(x), {"x": x})


def told_alone(reference, port, x):
    """As `told_of`. Another error of the same size is not told."""
    assert told_of(reference, with_noise(reference, port, x), x) == ""
    return told_of(reference, port, x)


def _compared(reference, port, arguments, counted=None, oracle=None):
    exact = reference(**arguments) if oracle is None else oracle
    result = port(**arguments)
    mask = np.ones(exact.shape, bool) if counted is None else counted
    limit = Distance(LIMIT, LIMIT, LIMIT)
    axes = [f"axis {axis}" for axis in range(exact.ndim)]
    return FailedTensor(exact.double().numpy(), result.double().numpy(), mask, limit, axes, torch.float64)


def with_noise(reference, port, x):
    """The reference with noise of the size of the port's error on x."""
    generator = torch.Generator().manual_seed(9)
    noise = torch.randn(reference(x).shape, generator=generator, dtype=torch.float64)
    size = float((port(x) - reference(x)).norm() / noise.norm())
    return lambda x: reference(x) + size * noise
