"""Causes of wrong modules: each planted fault is told, and another fault of the same size is not."""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.parity.verdict.planted import told, told_alone

B, N, D, H = 3, 6, 8, 2


def _tensor(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = _tensor(1, B, N, D)
SQUARE = _tensor(2, D, D)
BIAS = _tensor(3, D)
TABLE = _tensor(4, 20, D)
IDS = torch.arange(B * N).reshape(B, N) % 17 + 1
MASK = torch.rand(B, N, generator=torch.Generator().manual_seed(5)) < 0.5


def _norm(x, eps=1e-6, axis=-1):
    mean, variance = x.mean(axis, keepdim=True), x.var(axis, unbiased=False, keepdim=True)
    return (x - mean) / torch.sqrt(variance + eps)


SCALE = 1 / math.sqrt(D)


def _attention(x, scale=SCALE, transposed=False, diagonal=0):
    scores = x @ x.transpose(-1, -2) * scale
    mask = torch.ones(N, N, dtype=torch.bool).tril(diagonal)
    return torch.softmax(scores.masked_fill(~mask, -1e9), -1) @ (x @ (SQUARE.T if transposed else SQUARE))


def _heads(x, interleaved=False):
    parts = x.view(B, N, D // H, H).transpose(-1, -2) if interleaved else x.view(B, N, H, D // H)
    return F.silu(parts).transpose(1, 2)


def _folded(x, interleaved=(), joined=True):
    """Attention of H heads. Those of some operands, and of the result, may be in the other order."""

    def fold(name, parts):
        size = (B, N, D // H, H) if name in interleaved else (B, N, H, D // H)
        parts = parts.view(size)
        return (parts.transpose(-1, -2) if name in interleaved else parts).transpose(1, 2)

    q, k, v = fold("q", x), fold("k", torch.sin(x)), fold("v", torch.cos(x))
    mixed = (torch.softmax(q @ k.transpose(-1, -2), -1) @ v).transpose(1, 2)
    return (mixed if joined else mixed.transpose(-1, -2)).reshape(B, N, D)


def _gated(x, exchanged=False):
    u, v, q, k = (x @ SQUARE).split(D // 4, -1)
    u, v = (v, u) if exchanged else (u, v)
    return F.silu(u) * v + torch.sigmoid(q) * k


def _bucket(x, constant=0.301):
    return torch.log1p(x.abs()) / constant


# The reference, the port, and words of the cause.
PLANTED = {
    "epsilon by hand": (
        lambda x: _norm(x),
        lambda x: _norm(x, 1e-5),
        "an epsilon of 1e-05 in place of 1e-06",
    ),
    "epsilon": (
        lambda x: F.layer_norm(x, (D,), eps=1e-6),
        lambda x: F.layer_norm(x, (D,), eps=1e-5),
        "an epsilon of 1e-05 in place of 1e-06 in layer_norm",
    ),
    "epsilon of a batch norm": (
        lambda x: F.batch_norm(x.transpose(1, 2), x.new_zeros(D), x.new_ones(D), eps=1e-5),
        lambda x: F.batch_norm(x.transpose(1, 2), x.new_zeros(D), x.new_ones(D), eps=1e-3),
        r"an epsilon of 0\.001 in place of 1e-05 in batch_norm$",
    ),
    "gelu": (F.gelu, lambda x: F.gelu(x, approximate="tanh"), "GELU by tanh in place of erf"),
    "gelu by erf": (lambda x: F.gelu(x, approximate="tanh"), F.gelu, "GELU by erf in place of tanh"),
    "gelu by tanh, written out": (
        lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        F.gelu,
        "GELU by erf in place of tanh",
    ),
    "gelu by erf, written out": (
        lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
        lambda x: F.gelu(x, approximate="tanh"),
        "GELU by tanh in place of erf",
    ),
    "scale dropped": (
        lambda x: _attention(x),
        lambda x: _attention(x, 1.0),
        r"without the step times 0\.353553|the result of \w+ times 2.82843 = sqrt\(8\)",
    ),
    "scale of a width": (
        lambda x: _attention(x, 1.0),
        lambda x: _attention(x, 1 / math.sqrt(D)),
        r"times 0\.353553 = 1/sqrt\(8\)",
    ),
    "transposed operand": (
        lambda x: _attention(x),
        lambda x: _attention(x, transposed=True),
        "of b?mm transposed",
    ),
    "mask shifted": (
        lambda x: _attention(x),
        lambda x: _attention(x, diagonal=-1),
        "mask shifted: diagonal -1 in place of 0 in tril",
    ),
    "heads in the other order": (
        lambda x: _heads(x),
        lambda x: _heads(x, interleaved=True),
        "the last two axes of view exchanged",
    ),
    "heads in the other order in all views": (
        lambda x: _folded(x),
        lambda x: _folded(x, "qkv", joined=False),
        "with 4 views with the last two axes exchanged",
    ),
    "heads in the other order in three views": (
        lambda x: _folded(x),
        lambda x: _folded(x, "qkv"),
        "with 3 views with the last two axes exchanged",
    ),
    "heads joined in the other order": (
        lambda x: _folded(x),
        lambda x: _folded(x, joined=False),
        "with the last two axes exchanged before a view",
    ),
    "parts exchanged": (
        lambda x: F.silu(_gated(x)),
        lambda x: F.silu(_gated(x, exchanged=True)),
        "parts 0 and 1 of split.* exchanged",
    ),
    "norm over another axis": (
        lambda x: torch.softmax(x, -1),
        lambda x: torch.softmax(x, 1),
        "softmax over axis 1 in place of 2",
    ),
    "layer norm over another axis": (
        lambda x: F.layer_norm(x, (D,)),
        lambda x: F.layer_norm(x.transpose(1, 2), (N,)).transpose(1, 2),
        "layer_norm over axis 1 in place of 2",
    ),
    "dropped bias": (
        lambda x: torch.tanh(F.linear(x, SQUARE, BIAS)),
        lambda x: torch.tanh(F.linear(x, SQUARE)),
        "without the (added )?bias",
    ),
    "constant rounded": (
        lambda x: torch.floor(_bucket(x, 0.30103) * 64),
        lambda x: torch.floor(_bucket(x, 0.3) * 64),
        r"the constant 0\.3 in place of 0\.30103 in div",
    ),
    "argument of another type": (
        lambda x: torch.sin(50 * x),
        lambda x: torch.sin(50 * x.half().double()),
        "x as float16",
    ),
}


def _cause(reference, port, **arguments):
    return told(reference, port, arguments or {"x": X})


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_told_and_another_one_of_the_same_module_is_not(name):
    reference, port, words = PLANTED[name]
    assert re.search(words, told_alone(reference, port, X))


def test_shifted_positions_and_masks_of_the_arguments_are_told():
    def reference(ids):
        return torch.tanh(F.embedding(ids, TABLE))

    shifted = _cause(reference, lambda ids: reference(ids + 1), ids=IDS)
    assert shifted.startswith("fits the reference with ids shifted by +1 or with indices of embedding")
    own = _cause(lambda x: x + TABLE[torch.arange(N)], lambda x: x + TABLE[torch.arange(N) + 1])
    assert own.endswith("with positions shifted by +1")

    def masked(mask):
        return X.masked_fill(mask.unsqueeze(-1), 0.0)

    shifted = _cause(masked, lambda mask: masked(mask.roll(1, 1)), mask=MASK)
    assert shifted.endswith("with mask shifted by +1 along axis 1")
    assert _cause(masked, lambda mask: masked(~mask), mask=MASK).endswith("with mask inverted")


def test_the_nearest_change_is_the_cause():
    """Two constants are within a wide limit of each other; the port's own is told."""
    text = _cause(lambda x: _norm(x, 1e-3), lambda x: _norm(x, 1e-4))
    assert text == "fits the reference with an epsilon of 0.0001 in place of 0.001 in add"


def test_composite_operations_are_taken_apart_in_inference_mode():
    linear = nn.Linear(D, D).double()
    with torch.inference_mode():
        text = _cause(lambda x: torch.tanh(linear(x)), lambda x: torch.tanh(x @ linear.weight.T))
    assert "without the" in text


def test_a_run_without_operations_has_no_cause():
    assert _cause(lambda x: x, lambda x: x + 1.0) == ""


@pytest.mark.parametrize(
    "error",
    [
        KeyError("ids"),
        AssertionError("ids"),
        ZeroDivisionError("ids"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_code_that_refuses_a_changed_argument_has_no_cause(error):
    def reference(ids):
        if not torch.equal(ids, IDS):
            raise error
        return torch.tanh(F.embedding(ids, TABLE))

    assert _cause(reference, lambda ids: 2 * reference(ids), ids=IDS) == ""


def test_changes_of_a_loop_meet_their_own_operations_alone():
    """With another axis of the norm, its result is not contiguous, and `reshape` copies elsewhere."""

    def reference(x):
        for _ in range(3):
            x = F.layer_norm(x, x.shape[-1:]).transpose(0, 1).reshape(x.shape)
        return x

    assert _cause(reference, lambda x: 2 * reference(x)) == ""
