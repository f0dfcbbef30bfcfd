"""Captures made by hand for tests of comparisons: padded sequences, a bias, a block with a module inside."""

import numpy as np
import torch

from parity.base.precision import PRECISIONS
from parity.capture.captures import Capture, ModuleCall
from parity.verdict.evidence import Evidence, Results

FP32 = PRECISIONS["fp32"]
B, N, D = 4, 5, 5
LENGTHS = np.array([5, 3, 1, 4])
VALID = np.arange(N) < LENGTHS[:, None]
OUTPUT, APPENDED = "score.out", "append:block"


def normal(seed, *shape):
    """Normal numbers in float32."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double().float()


TENSORS = {
    "bias": normal(1, B, N, D),
    "block.inner": normal(2, B, N, 3),
    "block": normal(3, B, N, 2),
    APPENDED: normal(4, B, 2),
    OUTPUT: normal(5, B, 7),
}
SUMS = {"bias": 1, "block.inner": 3, "block": 11}
CHECK = "incremental.out"


def module_call(tap, outputs=None):
    """A call without arguments."""
    path = tap.removeprefix("append:")
    return ModuleCall(path, tap, path.title(), [], {}, outputs or (tap,))


def wide(tensors):
    """The tensors in float64."""
    return {name: tensor.double() for name, tensor in tensors.items()}


def copies(*names):
    """Copies of some of the tensors; of all without names."""
    return {name: TENSORS[name].clone() for name in names or TENSORS}


def evidence_with(**changes):
    """The evidence of a batch whose reference is exact."""
    reference = Capture(
        tensors=copies(),
        calls=[module_call(tap) for tap in TENSORS if tap != OUTPUT],
        longest_sums=SUMS,
        longest_sums_before={"bias": 1, "block.inner": 4, "block": 15, APPENDED: 15},
    )
    fields = {
        "precision": FP32,
        "entry": "score",
        "reference": reference,
        "oracle": wide(TENSORS),
        "oracle_isolated": wide(copies("bias", "block.inner", "block", APPENDED)),
        "reference_incremental": {},
        "incremental_outputs": {CHECK: OUTPUT},
        "valid": {N: VALID},
        "batch_size": B,
    }
    return Evidence(**(fields | changes))


def results_with(**changes):
    """The results of a runner that equals the reference."""
    tapped = copies("bias", "block.inner", "block", OUTPUT)
    fields = {
        "untapped": copies(OUTPUT),
        "tapped": tapped,
        "isolated": copies("bias", "block.inner", "block", APPENDED),
        "poisoned": {name: tensor.clone() for name, tensor in tapped.items()},
    }
    return Results(**(fields | changes))
