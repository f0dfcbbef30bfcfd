"""Folding on the device of the plans.

A GPU's exponential or long sum has other last bits than the host's. With folding on the host, an operation's
result would depend on whether its operands are known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch

from tripy_portable.constant_folding import Compute, compute_on_host
from tripy_portable.kernels import Lowered
from tripy_portable.runtime.placement import moved
from tripy_portable.runtime.precision import MatrixPrecision

Tensor = torch.Tensor
_HOST = torch.device("cpu")


def folding(device: torch.device, allow_tf32: bool) -> Compute:
    """The arithmetic of `constant_folding.fold` for plans on a device."""
    return compute_on_host if device.type == "cpu" else DeviceFolding(device, MatrixPrecision(allow_tf32))


class DeviceFolding:
    """Computes with floats on a device, and with the integers of shapes on the host.

    Results go to the host, where a program stores its constants. Their originals stay on the device during
    folding, with their strides: the next operation gets the same operands as in a plan.
    """

    def __init__(self, device: torch.device, precision: contextlib.AbstractContextManager):
        self._device = device
        self._precision = precision
        # By the host tensor's identity, which is valid while this holds the tensor.
        self._originals: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, lowered: Lowered, arguments: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The operation's results, as host tensors."""
        if lowered.is_view:
            # A view has the same bits on any device.
            (result,) = compute_on_host(lowered, arguments)
            if id(arguments[0]) in self._originals:
                rest = [self._placed(argument) for argument in arguments]
                self._originals[id(result)] = result, lowered.run(*rest)
            return (result,)
        if not any(argument.is_floating_point() for argument in arguments):
            return compute_on_host(lowered, arguments)
        tables = [moved(table, self._device) for table in lowered.tables]
        with self._precision:
            computed = lowered.run(*(self._placed(argument) for argument in arguments), *tables)
        originals = computed if isinstance(computed, tuple) else (computed,)
        results = tuple(moved(original, _HOST) for original in originals)
        for result, original in zip(results, originals):
            self._originals[id(result)] = result, original
        return results

    def _placed(self, tensor: Tensor) -> Tensor:
        if id(tensor) not in self._originals:
            self._originals[id(tensor)] = tensor, moved(tensor, self._device)
        return self._originals[id(tensor)][1]
