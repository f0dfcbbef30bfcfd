"""A block by the equations of the paper's section 3.1 and the public code, one row at a time in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from reference.relative_attention_bias import RelativePositionalBias
from reference.transduction_dense import SequentialTransductionUnitDense
from tests.reference.rounding import unit_roundoff

B, N, D, H, K, V, W = 2, 5, 6, 2, 3, 4, 8
EPSILON = 1e-3


def silu(x):
    return x / (1 + np.exp(-x))


def layer_norm(x):
    centred = x - x.mean()
    return centred / np.sqrt((centred**2).mean() + EPSILON)


def block_by_definition(x_ND, state, normalization, linear_activation, concat_ua):
    """One batch element. Divisor W; softmax over all N columns, one dot product over the heads."""
    projected = np.stack([layer_norm(row) @ state["_uvqk"] for row in x_ND])
    if linear_activation == "silu":
        projected = silu(projected)
    ends = np.cumsum([H * V, H * V, H * K])
    u, v, q, k = np.split(projected, ends, axis=1)
    weight = state["_rel_attn_bias._w"]
    out = np.zeros_like(x_ND)
    for i in range(len(x_ND)):
        a = np.zeros(H * V)
        bias = np.array([weight[W - 1 + j - i] for j in range(len(x_ND))])
        if normalization == "softmax_rel_bias":
            exponentials = np.exp((k @ q[i] + bias) / np.sqrt(K))
            for j in range(i + 1):
                a += exponentials[j] / exponentials.sum() * v[j]
        else:
            for h in range(H):
                for j in range(i + 1):
                    logit = q[i, h * K : (h + 1) * K] @ k[j, h * K : (h + 1) * K] + bias[j]
                    a[h * V : (h + 1) * V] += silu(logit) / W * v[j, h * V : (h + 1) * V]
        normed = layer_norm(a)
        o_input = np.concatenate([u[i], normed, u[i] * normed]) if concat_ua else u[i] * normed
        out[i] = state["_o.weight"] @ o_input + state["_o.bias"] + x_ND[i]
    return out


@pytest.mark.parametrize("concat_ua", [False, True])
@pytest.mark.parametrize("linear_activation", ["silu", "none"])
@pytest.mark.parametrize("normalization", ["rel_bias", "hstu_rel_bias", "softmax_rel_bias"])
def test_block_by_definition(normalization, linear_activation, concat_ua):
    torch.manual_seed(0)
    unit = SequentialTransductionUnitDense(
        embedding_dim=D,
        linear_hidden_dim=V,
        attention_dim=K,
        dropout_ratio=0.3,
        attn_dropout_ratio=0.0,
        num_heads=H,
        linear_activation=linear_activation,
        divisor=W,
        relative_attention_bias_module=RelativePositionalBias(W),
        normalization=normalization,
        concat_ua=concat_ua,
        epsilon=EPSILON,
    ).eval()
    for parameter in unit.parameters():
        torch.nn.init.normal_(parameter)
    x, mask = torch.randn(B, N, D), torch.tril(torch.ones(N, N))
    timestamps = torch.zeros(B, N, dtype=torch.int64)
    with torch.no_grad():
        in_float32 = unit(x, timestamps, mask)[0].double()
        actual = unit.double()(x.double(), timestamps, mask.double())[0]
    state = {name: tensor.numpy() for name, tensor in unit.state_dict().items()}
    expected = np.stack(
        [
            block_by_definition(row.double().numpy(), state, normalization, linear_activation, concat_ua)
            for row in x
        ]
    )
    # As in `rounding_bound`: what float32 loses here, times u64 / u32, times the longest sum, twice.
    ratio = unit_roundoff(torch.float64) / unit_roundoff(torch.float32)
    measured = (in_float32 - actual).abs().max().item() * ratio
    floor = unit_roundoff(torch.float64) * actual.abs().max().item()
    longest = H * V * (3 if concat_ua else 1)
    assert np.abs(actual.numpy() - expected).max() <= 2 * longest * (measured + floor)
