"""Causes of another padding, dilation or pooling, at every place of more than one axis."""

import pytest
import torch
import torch.nn.functional as F

from parity.verdict.causes.operations import Operation
from parity.verdict.causes.windows import windows_of
from tests.parity.verdict.planted import told

aten = torch.ops.aten


def tensor(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, KERNEL, PLANE = tensor(1, 6, 6, 8), tensor(2, 4, 6, 3), tensor(3, 4, 6, 3, 3)


def padded(pad, mode="constant"):
    return lambda x: F.pad(x, pad, mode) * 1.1


def convolved(kernel, pad=(0, 0), **options):
    function = F.conv1d if kernel.ndim == 3 else F.conv2d
    return lambda x: function(F.pad(x, pad), kernel, **options)


# The reference, the port, and the words of the cause.
OTHER = {
    "one side in place of both": (padded((2, 0)), padded((1, 1)), "a padding of (1, 1) in place of (2, 0)"),
    "more before": (padded((1, 1)), padded((2, 0)), "a padding of (2, 0) in place of (1, 1)"),
    "more behind": (padded((1, 1)), padded((0, 2)), "a padding of (0, 2) in place of (1, 1)"),
    "first pair": (padded((1, 0, 1, 0)), padded((0, 1, 1, 0)), "a padding of (0, 1) in place of (1, 0)"),
    "second pair": (padded((2, 1, 1, 0)), padded((2, 1, 0, 1)), "a padding of (0, 1) in place of (1, 0)"),
    "second of three axes": (
        padded((1, 1, 1, 0, 2, 2)),
        padded((1, 1, 0, 1, 2, 2)),
        "a padding of (0, 1) in place of (1, 0)",
    ),
    "reflection": (padded((1, 1)), padded((1, 1), "reflect"), "padding by reflect in place of constant"),
    "circle": (padded((1, 1)), padded((1, 1), "circular"), "padding by circular in place of constant"),
    "second of two axes": (
        convolved(PLANE, padding=(0, 1)),
        convolved(PLANE, (2, 0)),
        "a padding of (2, 0) in place of (1, 1)",
    ),
    "first axis, and the second stays": (
        convolved(PLANE, padding=(1, 1)),
        convolved(PLANE, (0, 0, 0, 2), padding=(0, 1)),
        "a padding of (0, 2) in place of (1, 1)",
    ),
    "second axis, and the first stays": (
        convolved(PLANE, padding=(1, 1)),
        convolved(PLANE, (2, 0), padding=(1, 0)),
        "a padding of (2, 0) in place of (1, 1)",
    ),
    "second of two axes that have one padding": (
        lambda x: torch.convolution(x[None], PLANE, None, [1], [1], [1], False, [0], 1)[0],
        convolved(PLANE, (2, 0), padding=(1, 0)),
        "a padding of (2, 0) in place of (1, 1)",
    ),
    "dilation of a kernel of 2": (
        convolved(KERNEL[..., :2]),
        convolved(KERNEL[..., :2], padding=1, dilation=3),
        "a dilation of 3 in place of 1",
    ),
    "dilation without a padding": (
        convolved(KERNEL, padding=1, dilation=2),
        convolved(KERNEL),
        "a dilation of 1 in place of 2",
    ),
    "maximum with a stride": (
        lambda x: F.avg_pool2d(x, 3, stride=1),
        lambda x: F.max_pool2d(x, 3, stride=1),
        "a pool's maximum in place of its mean",
    ),
    "mean with a padding": (
        lambda x: F.max_pool2d(x, 3, padding=1),
        lambda x: F.avg_pool2d(x, 3, padding=1),
        "a pool's mean in place of its maximum",
    ),
    "mean of a window that is not whole": (
        lambda x: F.max_pool2d(x, (4, 3), ceil_mode=True),
        lambda x: F.avg_pool2d(x, (4, 3), ceil_mode=True),
        "a pool's mean in place of its maximum",
    ),
}


@pytest.mark.parametrize("name", OTHER)
def test_the_change_is_told(name):
    reference, port, words = OTHER[name]
    assert told(lambda x: reference(x), lambda x: port(x), {"x": X}) == f"fits the reference with {words}"


def paddings(function, *args):
    """The paddings that are tried in place of an operation's own."""
    texts = [change.text for change in windows_of(Operation(function, args, {}))]
    return [text.removeprefix("with a padding of ") for text in texts if "a padding of" in text]


def test_no_padding_is_tried_twice():
    """Of both axes together, only one that differs from the present one at both."""
    assert paddings(aten.constant_pad_nd.default, X, [1, 0, 1, 1]) == [
        "(0, 1) in place of (1, 0)",
        "(2, 0) in place of (1, 1)",
        "(0, 2) in place of (1, 1)",
        "(0, 1, 0, 2) in place of (1, 0, 1, 1)",
    ]


def test_a_convolution_without_padding_has_none_on_one_side():
    sides = ["(2, 0) in place of (1, 1)", "(0, 2) in place of (1, 1)"]
    for padding, expected in ((0, []), (1, sides)):
        arguments = (X, KERNEL, None, [1], [padding], [1], False, [0], 1)
        assert paddings(aten.convolution.default, *arguments) == expected
