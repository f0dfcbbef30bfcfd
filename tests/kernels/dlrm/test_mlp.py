"""Linear layers with bias and activation in a kernel, one layer and two."""

import math

import pytest
import torch
from torch.nn import functional

from kernels.dlrm import KernelError, linear_activation, two_layer_mlp
from tests.kernels.dlrm.kernel_setup import (
    DEVICE,
    assert_right,
    backends,
    drawn,
    needs_products,
    placed,
)

BACKENDS = pytest.mark.parametrize("backend", backends())
PRECISION = pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
ACTIVATIONS = {"none": lambda x: x, "relu": torch.relu, "sigmoid": torch.sigmoid}
# As batch, columns, outputs: one element, DLRM's 13 features, edges on no block and on a block.
LINEAR = [(1, 1, 1), (70, 13, 33), (3, 100, 17), (130, 64, 128), (65, 200, 1)]
# As batch, columns, hidden, outputs.
TWO_LAYERS = [(1, 1, 1, 1), (37, 13, 40, 1), (3, 100, 130, 33), (64, 64, 64, 16), (20, 30, 70, 256)]


@BACKENDS
@PRECISION
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("sizes", LINEAR, ids=str)
def test_linear_activation(backend, precision, activation, sizes):
    needs_products(precision, backend)
    batch, columns, outputs = sizes
    inputs = [
        drawn((batch, columns), 1, precision),
        drawn((outputs, columns), 2, precision, columns**-0.5),
        drawn((outputs,), 3, precision),
    ]
    result = linear_activation(*placed(inputs), activation, backend=backend)

    def eager(x, weight, bias):
        return ACTIVATIONS[activation](functional.linear(x, weight, bias))

    assert_right(result, eager, inputs, precision, longest_sum=columns)


@BACKENDS
@PRECISION
@pytest.mark.parametrize("activations", [("relu", "sigmoid"), ("sigmoid", "relu"), ("relu", "none")], ids=str)
@pytest.mark.parametrize("sizes", TWO_LAYERS, ids=str)
def test_two_layer_mlp(backend, precision, activations, sizes):
    needs_products(precision, backend)
    batch, columns, hidden, outputs = sizes
    inputs = [
        drawn((batch, columns), 1, precision),
        drawn((hidden, columns), 2, precision, columns**-0.5),
        drawn((hidden,), 3, precision),
        drawn((outputs, hidden), 4, precision, hidden**-0.5),
        drawn((outputs,), 5, precision),
    ]
    result = two_layer_mlp(*placed(inputs), activations, backend=backend)

    def eager(x, weight1, bias1, weight2, bias2):
        hidden_BH = ACTIVATIONS[activations[0]](functional.linear(x, weight1, bias1))
        return ACTIVATIONS[activations[1]](functional.linear(hidden_BH, weight2, bias2))

    assert_right(result, eager, inputs, precision, max(columns, hidden), modules=2)


@BACKENDS
def test_rows_further_apart_than_long(backend):
    """NaN between rows of the input is not read, and NaN between rows of the result is not overwritten."""
    inputs = [drawn((20, 24), 1), drawn((9, 24), 2), drawn((9,), 3)]
    wide_in = torch.full((20, 32), math.nan, device=DEVICE)
    wide_in[:, :24] = inputs[0].to(DEVICE)
    wide_out = torch.full((20, 12), math.nan, device=DEVICE)
    weight, bias = placed(inputs[1:])
    result = linear_activation(wide_in[:, :24], weight, bias, backend=backend, out=wide_out[:, :9])
    assert_right(result, lambda x, w, b: torch.relu(functional.linear(x, w, b)), inputs, "fp32", 24)
    assert wide_out[:, 9:].isnan().all()


@BACKENDS
def test_an_empty_batch_and_no_columns(backend):
    x, weight, bias = placed([torch.empty(0, 5), drawn((7, 5), 1), drawn((7,), 2)])
    assert linear_activation(x, weight, bias, backend=backend).shape == (0, 7)
    assert two_layer_mlp(x, weight, bias, weight.T.contiguous(), weight[0], backend=backend).shape == (0, 5)
    x, weight = placed([torch.empty(3, 0), torch.empty(7, 0)])
    result = linear_activation(x, weight, bias, "none", backend=backend)
    assert torch.equal(result, bias.expand(3, 7))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weight_HC": torch.zeros(6, 4)}, r"weight_HC has shape \(6, 4\): give \(6, 5\)"),
        ({"bias_H": torch.zeros(5)}, r"bias_H has shape \(5,\): give \(6,\)"),
        ({"weight_OH": torch.zeros(2, 5)}, r"weight_OH has shape \(2, 5\): give \(2, 6\)"),
        ({"bias_O": torch.zeros(2).half()}, "bias_O has dtype torch.float16"),
        ({"x_BC": torch.zeros(5)}, r"x_BC has shape \(5,\): give \(batch, columns\)"),
        ({"x_BC": torch.zeros(5, 3).T}, r"x_BC has strides \(1, 3\): the last must be 1"),
        ({"activations": ("relu",)}, "activations=.*: give two of none, relu, sigmoid"),
        ({"activations": ("relu", "tanh")}, "give two of none, relu, sigmoid"),
        ({"backend": "cuda"}, "backend='cuda': choose one of torch, triton"),
    ],
    ids=str,
)
def test_errors(change, words):
    arguments = {
        "x_BC": torch.zeros(3, 5),
        "weight_HC": torch.zeros(6, 5),
        "bias_H": torch.zeros(6),
        "weight_OH": torch.zeros(2, 6),
        "bias_O": torch.zeros(2),
        "backend": "torch",
    }
    with pytest.raises(KernelError, match=words):
        two_layer_mlp(**{**arguments, **change})


@pytest.mark.parametrize("backend", backends(["triton"]))
def test_more_outputs_than_a_program_holds(backend):
    x, weight, bias = placed([torch.zeros(3, 5), torch.zeros(257, 5), torch.zeros(257)])
    with pytest.raises(KernelError, match=r"weight_OH.shape\[0\]=257: give 256 at most"):
        two_layer_mlp(x, weight[:5], bias[:5], weight, bias, backend=backend)
