"""Terms of products, of layers that are one operation, of distances and of transforms."""

from __future__ import annotations

import math

import torch

from parity.capture.terms.call import Call, by_name, parts


def _product(call: Call) -> int:
    factor = call.tensor(0)
    return factor.shape[-1] * parts(factor)


def _added_product(call: Call) -> int:
    """A sum `beta * self + alpha * a @ b`, of one product or of a batch of products."""
    factor = call.tensor(1)
    batches = factor.shape[0] if call.func.overloadpacket.__name__.startswith("addbmm") else 1
    return batches * factor.shape[-1] * parts(factor) + (call.get("beta", 1) != 0)


def _trilinear(call: Call) -> int:
    """Products of three tensors, each with axes of size 1 inserted, summed over some axes."""
    operands = []
    for name, expand in (("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")):
        shape = list(call[name].shape)
        for axis in sorted(call[expand]):
            shape.insert(axis, 1)
        operands.append(shape)
    sizes = [max(axis) for axis in zip(*operands, strict=True)]
    return math.prod(sizes[axis] for axis in call["sumdim"])


def _attention(call: Call) -> int:
    """The longest of the products over features, and of the softmax and the products over keys."""
    query, key = call.tensor(0), call.tensor(1)
    keys = key.shape[-2]
    if call.get("is_causal", False):
        keys = min(keys, query.shape[-2])
    return max(query.shape[-1], keys)


def _packed_attention(call: Call) -> int:
    """A whole layer in one operation: every matrix's columns and bias, and the softmax over keys."""
    keys = call.tensor(1) if call.func._schema.arguments[1].name == "key" else call.tensor(0)
    matrices = [
        argument
        for argument in (*call.args, *call.kwargs.values())
        if isinstance(argument, torch.Tensor) and argument.ndim == 2
    ]
    columns = max(matrix.shape[1] for matrix in matrices)
    return max(columns + 1, keys.shape[-2])


def _recurrent(call: Call) -> int:
    """One step's gates: products of the input and of the hidden state, and two biases."""
    weights = call.get("weight") or [call[f"weight{number}"] for number in range(4)]
    of_a_layer = call.get("weight_stride0", len(weights))
    layers = zip(weights[::of_a_layer], weights[1::of_a_layer], strict=True)
    has_biases = call.get("has_biases", any(weight.ndim == 1 for weight in weights))
    return max(of_input.shape[1] + of_hidden.shape[1] for of_input, of_hidden in layers) + 2 * has_biases


def _distance(call: Call) -> int:
    order = call.get("p", 2.0)
    return 1 if math.isinf(order) else call.tensor(0).shape[-1]


def _euclidean(call: Call) -> int:
    """Both squared lengths and the products, in one product of matrices."""
    return call.tensor(0).shape[-1] + 2


def _fourier(call: Call) -> int:
    """All elements of the transformed axes; both parts of a complex one."""
    operand, axes = call.tensor(0), call["dim"]
    sizes = [operand.shape[axis] for axis in axes]
    if (real := call.get("last_dim_size")) is not None:
        return math.prod([*sizes[:-1], real])
    return math.prod(sizes) * parts(operand)


PRODUCTS = by_name(
    {
        "mm bmm mv dot vdot _grouped_mm _scaled_mm _weight_int8pack_mm mkldnn_linear": _product,
        "addmm addmv baddbmm addbmm _addmm_activation": _added_product,
        "addr linalg_cross": lambda call: 2,
        "_trilinear": _trilinear,
        """
        _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu
        _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
        _scaled_dot_product_fused_attention_overrideable
        """: _attention,
        "_native_multi_head_attention _transformer_encoder_layer_fwd": _packed_attention,
        "mkldnn_rnn_layer _cudnn_rnn miopen_rnn": _recurrent,
        "_thnn_fused_lstm_cell _thnn_fused_gru_cell": lambda call: 4,
        "trace": lambda call: min(call.tensor(0).shape),
        "_cdist_forward _pdist_forward": _distance,
        "_euclidean_dist": _euclidean,
        "_fft_r2c _fft_c2c _fft_c2r": _fourier,
    }
)
"""Formulas of products, of layers that are one operation, of distances and of transforms."""
