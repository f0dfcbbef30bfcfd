"""Causes of another window, gate, place or count, and of arguments in each other's place."""

import re

import pytest
import torch
import torch.nn.functional as F

from tests.parity.verdict.planted import told, told_alone


def tensor(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, Y, KERNEL = tensor(1, 6, 6, 8), tensor(2, 6, 6, 8).abs() + 0.3, tensor(3, 4, 6, 3)
TABLE, ROWS, COLUMNS = tensor(4, 6, 6), torch.tensor([0, 2, 5, 1]), torch.tensor([3, 4, 1, 0])
DEGREES = torch.tensor([1.0, 2.0, 1.0, 3.0, 2.0, 1.0], dtype=torch.float64)


def gated(x, is_exchanged=False):
    gate = torch.sigmoid(x)
    first, second = (Y, TABLE.sum()) if not is_exchanged else (TABLE.sum(), Y)
    return gate * first + (1 - gate) * second


# The reference, the port, and the words of the cause.
CONFUSED = {
    "side of a padding": (
        lambda x: F.pad(x, (1, 0)) * 1.1,
        lambda x: F.pad(x, (0, 1)) * 1.1,
        r"with a padding of \(0, 1\) in place of \(1, 0\)",
    ),
    "both sides in place of one": (
        lambda x: F.conv1d(F.pad(x, (2, 0)), KERNEL),
        lambda x: F.conv1d(x, KERNEL, padding=1),
        r"with a padding of \(1, 1\) in place of \(2, 0\)",
    ),
    "one side in place of both": (
        lambda x: F.conv1d(x, KERNEL, padding=1),
        lambda x: F.conv1d(F.pad(x, (2, 0)), KERNEL),
        r"with a padding of \(2, 0\) in place of \(1, 1\)",
    ),
    "side of the first of two axes": (
        lambda x: F.conv2d(x, KERNEL[:, :, None].expand(4, 6, 3, 3), padding=(1, 0)),
        lambda x: F.conv2d(F.pad(x, (0, 0, 0, 2)), KERNEL[:, :, None].expand(4, 6, 3, 3)),
        r"with a padding of \(0, 2\) in place of \(1, 1\)",
    ),
    "side of both axes of an image": (
        lambda x: F.pad(x, (0, 1, 0, 1)) * 1.1,
        lambda x: F.pad(x, (1, 0, 1, 0)) * 1.1,
        r"with a padding of \(1, 0, 1, 0\) in place of \(0, 1, 0, 1\)",
    ),
    "side of both axes of a convolution": (
        lambda x: F.conv2d(x, KERNEL[:, :, None].expand(4, 6, 3, 3), stride=2, padding=1),
        lambda x: F.conv2d(F.pad(x, (0, 1, 0, 1)), KERNEL[:, :, None].expand(4, 6, 3, 3), stride=2),
        r"with a padding of \(0, 2, 0, 2\) in place of \(1, 1, 1, 1\)",
    ),
    "groups of a norm": (
        lambda x: F.group_norm(x, 3),
        lambda x: F.group_norm(x, 2),
        "with 2 groups in place of 3",
    ),
    "kind of a padding": (
        lambda x: F.pad(x, (1, 1)) * 1.1,
        lambda x: F.pad(x, (1, 1), mode="replicate") * 1.1,
        "with padding by replicate in place of constant",
    ),
    "zeros in place of a reflection": (
        lambda x: F.pad(x, (1, 1), mode="reflect") * 1.1,
        lambda x: F.pad(x, (1, 1)) * 1.1,
        "with padding by constant in place of reflect",
    ),
    "dilation": (
        lambda x: F.conv1d(x, KERNEL, padding=1),
        lambda x: F.conv1d(x, KERNEL, padding=2, dilation=2),
        "with a dilation of 2 in place of 1",
    ),
    "mean of a pool": (
        lambda x: F.max_pool2d(x, 2),
        lambda x: F.avg_pool2d(x, 2),
        "with a pool's mean in place of its maximum",
    ),
    "maximum of a pool": (
        lambda x: F.avg_pool2d(x, 2),
        lambda x: F.max_pool2d(x, 2),
        "with a pool's maximum in place of its mean",
    ),
    "mean of an axis": (lambda x: x.max(1).values, lambda x: x.mean(1), "with mean in place of max"),
    "axis of a maximum": (
        lambda x: x.max(1).values,
        lambda x: x.max(0).values,
        "with max over axis 0 in place of 1",
    ),
    "axis of a place": (
        lambda x: x.argmax(1) * 1.5,
        lambda x: x.argmax(0) * 1.5,
        "with argmax over axis 0 in place of 1",
    ),
    "gate": (
        lambda x: torch.sigmoid(x) * Y,
        lambda x: (1 - torch.sigmoid(x)) * Y,
        "with 1 - x in place of the gate x of sigmoid",
    ),
    "gates of both sides": (
        gated,
        lambda x: gated(x, is_exchanged=True),
        "with 1 - x in place of the gate x of sigmoid",
    ),
    "complement": (
        lambda x: (1 - x.cos()) * Y,
        lambda x: x.cos() * Y,
        "with x in place of its complement 1 - x",
    ),
    "degree with the node itself": (
        lambda x: x / DEGREES[:, None],
        lambda x: x / (DEGREES + 1)[:, None],
        r"with \+1 at the divisor of div",
    ),
    "root of a degree": (
        lambda x: x * DEGREES.rsqrt()[:, None],
        lambda x: x * (DEGREES + 1).rsqrt()[:, None],
        r"with \+1 at the operand of rsqrt",
    ),
    "offset of a logarithm": (
        lambda x: torch.log(1 + Y + x**2),
        lambda x: torch.log(Y + x**2),
        "without the term 1 in add",
    ),
    "indices": (
        lambda x: TABLE[ROWS, COLUMNS] * x.sum(),
        lambda x: TABLE[COLUMNS, ROWS] * x.sum(),
        "with the indices of axes 0 and 1 exchanged",
    ),
    "indices of several lookups": (
        lambda x: TABLE[ROWS, COLUMNS] * x.sum() + TABLE[COLUMNS, ROWS.flip(0)] * x.mean(),
        lambda x: TABLE[COLUMNS, ROWS] * x.sum() + TABLE[ROWS.flip(0), COLUMNS] * x.mean(),
        "with 2 lookups that have the indices of axes 0 and 1 exchanged",
    ),
    "direction of a roll": (
        lambda x: x.roll(1, 1) * Y,
        lambda x: x.roll(-1, 1) * Y,
        r"with a roll by \[-1\] in place of \[1\]",
    ),
    "places in place of a number": (
        lambda x: torch.sin(3.3 * x),
        lambda x: torch.sin((3.3 * x).int().double()),
        "with the result of mul as int32",
    ),
    "product of 32 bits": (
        lambda x: (x * 100).long() * 1_000_000_007 % 97 * 1.0,
        lambda x: ((x * 100).long() * 1_000_000_007).int().long() % 97 * 1.0,
        "with the result of mul as int32",
    ),
}


@pytest.mark.parametrize("name", CONFUSED)
def test_the_change_is_told_and_another_error_of_the_same_size_is_not(name):
    reference, port, words = CONFUSED[name]
    assert re.search(words, told_alone(reference, port, X))


def summed(x, source, target):
    """Sums over the edges of a graph."""
    return torch.zeros(6, 8, dtype=x.dtype).index_add(0, target, x[:, 0][source])


@pytest.mark.parametrize(
    ("port", "words"),
    [
        (lambda x, source, target: summed(x, target, source), "with source and target exchanged"),
        (lambda x, source, target: summed(x, source, source), "with source in place of target"),
        (lambda x, source, target: summed(x, target, target), "with target in place of source"),
    ],
)
def test_arguments_in_each_others_place(port, words):
    arguments = {"x": X, "source": ROWS, "target": COLUMNS}
    assert told(summed, port, arguments) == f"fits the reference {words}"


def test_edges_in_the_other_direction():
    edges = torch.stack([ROWS, COLUMNS])
    text = told(
        lambda x, edges: summed(x, *edges),
        lambda x, edges: summed(x, *edges.flip(0)),
        {"x": X, "edges": edges},
    )
    changes = "both parts of edges along axis 0 exchanged or with parts 0 and 1 of unbind exchanged"
    assert text == f"fits the reference with {changes}, which give the same result"


def test_a_right_port_has_no_change_that_gives_its_result():
    """Arguments that are equal, and integers that 32 bits hold, have no other result to try."""
    assert (
        told(
            summed,
            lambda x, source, target: 1.5 * summed(x, source, target),
            {"x": X, "source": ROWS, "target": ROWS},
        )
        == ""
    )
