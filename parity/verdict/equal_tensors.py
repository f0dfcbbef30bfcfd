"""Another tensor that a wrong one is: a result of another name, an argument of the call, an input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch

from parity.capture.names import TapName
from parity.verdict.evidence import Evidence, shape_of
from parity.verdict.patterns import FailedTensor

NamedTensor = tuple[str, Mapping[str, torch.Tensor], str]
"""A tensor: its words, the tensors that it is one of, and its name there."""


def equal_tensor(failed: FailedTensor, others: Iterable[NamedTensor]) -> tuple[str, ...]:
    """The first other tensor that a wrong one is, in words.

    Args:
        failed: The wrong tensor.
        others: Other tensors, in the order to look at them.
    """
    for words, tensors, name in others:
        # Most have another shape, and are not read.
        if name not in tensors or shape_of(tensors, name) != failed.oracle.shape:
            continue
        tensor = tensors[name].to(torch.float64).numpy()
        # Integers that are all equal, such as one count, may be so by chance.
        tells = failed.dtype.is_floating_point or np.unique(tensor[failed.counted]).size > 1
        if tells and failed.is_explained_by(tensor):
            return (f"equals {words}",)
    return ()


def of_call(evidence: Evidence, tap: str) -> Iterator[NamedTensor]:
    """Other results of a tap's call alone, and then its arguments."""
    call, reference = evidence.kinds.get(tap), evidence.reference
    if call is None:
        return
    yield from _of_oracle(evidence.oracle_isolated, call.outputs, tap)
    received = reference.arguments.get(call.tap)
    for argument in () if received is None else received.arguments:
        tensors = reference.tensors if argument.tensor in reference.tensors else reference.call_inputs
        yield f"its argument {argument.name}", tensors, argument.tensor


def of_model(evidence: Evidence, tap: str) -> Iterator[NamedTensor]:
    """The oracle's outputs, then its other results of the full forward, the last first, then the inputs."""
    names = [name for name in map(TapName.parse, evidence.oracle) if not (name.samples or name.appends)]
    outputs = [name for name in names if name.is_output_of(evidence.entry)]
    ordered = (*outputs, *(name for name in reversed(names) if name not in outputs))
    yield from _of_oracle(evidence.oracle, map(str, ordered), tap)
    inputs = {} if evidence.rerun is None else evidence.rerun.inputs()
    for name in inputs:
        yield f"the input {name}", inputs, name


def _of_oracle(tensors: Mapping[str, torch.Tensor], names: Iterable[str], tap: str) -> Iterator[NamedTensor]:
    """The oracle's tensors of these names but the tap itself."""
    return ((f"the oracle's {name}", tensors, name) for name in names if name != tap)
