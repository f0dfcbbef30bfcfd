"""Time buckets and relative biases, against integer arithmetic and loops."""

from __future__ import annotations

import bisect
import decimal

import numpy as np
import pytest
import torch

from reference.relative_attention_bias import (
    RelativeBucketedTimeAndPositionBasedBias,
    RelativePositionalBias,
    time_bucket,
)
from reference.transduction_dense import AttentionMask, HSTUAttentionDense, NonAffineLayerNorm

DIVISOR = "0.301"
LARGEST_DELTA = 3_000_000


def first_deltas(divisor: str, count: int) -> list[int]:
    """The smallest integer of each bucket from 1 to ``count``: ceil(exp(k * divisor)), to 50 digits."""
    with decimal.localcontext() as context:
        context.prec = 50
        step = decimal.Decimal(divisor)
        powers = [(step * k).exp() for k in range(1, count + 1)]
        return [int(power.to_integral_value(decimal.ROUND_CEILING)) for power in powers]


def deltas_that_an_ulp_moves() -> np.ndarray:
    """Deltas whose bucket differs between the float32 neighbours of the correctly rounded logarithm."""
    delta = np.arange(1, LARGEST_DELTA + 1)
    rounded = np.log(delta.astype(np.float64)).astype(np.float32)
    below, above = (np.nextafter(rounded, np.float32(end)) for end in (-np.inf, np.inf))
    divisor = np.float32(DIVISOR)
    return delta[(np.floor(below / divisor) != np.floor(above / divisor)) & (delta > 1)]


def test_an_ulp_of_the_logarithm_moves_22_deltas():
    fragile = deltas_that_an_ulp_moves()
    assert len(fragile) == 22
    assert fragile[0] == 37609


def test_buckets_follow_the_definition():
    """Every delta up to 3e6, against integer thresholds; only the 22 fragile ones may go either way."""
    delta = torch.arange(0, LARGEST_DELTA + 1)
    bucket = time_bucket(delta, 128, float(DIVISOR)).numpy()
    exact = np.searchsorted(np.array(first_deltas(DIVISOR, 60)), delta.numpy(), side="right")
    wrong = np.nonzero(bucket != exact)[0]
    fragile = deltas_that_an_ulp_moves()
    assert np.isin(wrong, fragile).all()
    assert np.abs(bucket[fragile] - exact[fragile]).max() <= 1
    assert bucket[1] == 0
    assert bucket[0] == 0


def test_a_bucket_base_off_by_one_percent_shows():
    delta = torch.arange(0, LARGEST_DELTA + 1)
    off = time_bucket(delta, 128, float(DIVISOR) * 1.01) != time_bucket(delta, 128, float(DIVISOR))
    assert off.sum() > 10_000


def test_bucket_is_even_and_cut():
    delta = torch.tensor([0, 1, 2, 86_400, 10**9, 2**62])
    bucket = time_bucket(delta, 20, float(DIVISOR))
    assert torch.equal(bucket, time_bucket(-delta, 20, float(DIVISOR)))
    assert bucket.tolist() == [0, 0, 2, 20, 20, 20]
    assert bucket.dtype == torch.int64


def test_bucket_ignores_the_default_dtype():
    delta = torch.arange(1, 200_000)
    expected = time_bucket(delta, 128, float(DIVISOR))
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(time_bucket(delta, 128, float(DIVISOR)), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_float64_logarithm_would_give_other_buckets():
    """Why the buckets are float32 under any model: at thresholds that are integers it shows."""
    powers = torch.tensor([2**k for k in range(1, 24)])
    divisor = float(np.log(2.0))
    in_float64 = torch.floor(torch.log(powers.double()) / divisor).long()
    assert (time_bucket(powers, 128, divisor) != in_float64).any()


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_positional_bias_by_loops(n):
    width = 8
    bias = RelativePositionalBias(width)
    value = bias(torch.zeros(3, n, dtype=torch.int64))
    assert value.shape == (1, n, n)
    for i in range(n):
        for j in range(n):
            assert value[0, i, j] == bias._w[width - 1 + j - i]
    if n == width:
        assert torch.equal(bias(None), value)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_time_and_position_bias_by_loops(n):
    width, num_buckets = 8, 30
    bias = RelativeBucketedTimeAndPositionBasedBias(width, num_buckets, float(DIVISOR))
    generator = torch.Generator().manual_seed(n)
    # Unsorted too: a padded row's zero behind a date gives a negative difference.
    timestamps = torch.randint(0, 30_000, (3, n), generator=generator)
    value = bias(timestamps)
    thresholds = first_deltas(DIVISOR, 60)
    assert value.shape == (3, n, n)
    for b, row in enumerate(timestamps.tolist()):
        following = [*row[1:], row[-1]]
        for i in range(n):
            for j in range(n):
                bucket = min(bisect.bisect_right(thresholds, abs(following[i] - row[j])), num_buckets)
                expected = bias._pos_w[width - 1 + j - i] + bias._ts_w[bucket]
                assert value[b, i, j] == expected


def test_mask_is_causal_with_the_diagonal():
    forbidden = torch.triu(torch.ones(6, 6, dtype=torch.bool), diagonal=1)
    mask = AttentionMask()(forbidden, torch.zeros(2, 4, 3, dtype=torch.bfloat16))
    assert mask.dtype == torch.bfloat16
    assert mask.tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def test_layer_norm_by_definition():
    x = torch.randn(4, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 1e-3
    centred = x - x.mean(dim=-1, keepdim=True)
    expected = centred / torch.sqrt((centred**2).mean(dim=-1, keepdim=True) + 1e-6)
    actual = NonAffineLayerNorm(7, 1e-6)(x)
    # A mean, a variance, a root and a quotient: of order (7 + 7 + 4) roundings of values below 3.
    assert (actual - expected).abs().max() <= 18 * 3 * torch.finfo(torch.float64).eps


@pytest.mark.parametrize("normalization", ["rel_bias", "hstu_rel_bias", "softmax_rel_bias"])
@pytest.mark.parametrize("with_bias", [True, False])
def test_attention_by_loops(normalization, with_bias):
    heads, k_dim, v_dim, b, n, divisor = 2, 3, 4, 2, 5, 11
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    q, k, v = draw(b, n, heads * k_dim), draw(b, n, heads * k_dim), draw(b, n, heads * v_dim)
    bias, mask = (draw(b, n, n) if with_bias else None), torch.tril(torch.ones(n, n, dtype=torch.float64))
    attention = HSTUAttentionDense(heads, k_dim, v_dim, normalization, divisor)
    actual = attention(q, k, v, bias, mask)
    expected = torch.zeros_like(actual)
    for row in range(b):
        added = bias[row] if with_bias else torch.zeros(n, n, dtype=torch.float64)
        for i in range(n):
            if normalization == "softmax_rel_bias":
                logits = (k[row] @ q[row, i] + added[i]) / k_dim**0.5
                weights = torch.exp(logits) / torch.exp(logits).sum()
                expected[row, i] = sum(weights[j] * v[row, j] for j in range(i + 1))
                continue
            for head in range(heads):
                ks, vs = slice(head * k_dim, (head + 1) * k_dim), slice(head * v_dim, (head + 1) * v_dim)
                for j in range(i + 1):
                    logit = q[row, i, ks] @ k[row, j, ks] + added[i, j]
                    expected[row, i, vs] += logit * torch.sigmoid(logit) / divisor * v[row, j, vs]
    # Sums of at most heads * k_dim, then n terms, a dozen further roundings; |logit| and |v| stay below 20.
    roundings = heads * k_dim + n + 12
    assert (actual - expected).abs().max() <= roundings * 20 * 20 * torch.finfo(torch.float64).eps
