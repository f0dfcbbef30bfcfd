"""The STU stack against its definition, written out row by row, and its layouts and cache against each
other."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from reference.jagged_ops import backend_reasons, dense_to_jagged
from reference.stu import NORM_EPS, STULayer
from reference.stu_attention import STUAttention, STUAttentionMask
from tests.reference.rounding import max_difference, rounding_bound
from tests.reference.stu_setup import (
    MAX_TARGETS,
    VARIANTS,
    assert_same_function,
    make_batch,
    make_model,
    small_config,
)


def sees(i: int, j: int, length: int, targets: int, contextual: int, window: int) -> bool:
    """Whether row i sees column j, by the rules of the mask, one after the other."""
    if i == j:
        return True
    first_target = length - targets
    if contextual and i < contextual:
        return j < first_target
    if j >= first_target or j > i:
        return False
    # Places: contextual rows share one, so do targets.
    place = [max(min(row, first_target) - max(contextual - 1, 0), 0) for row in (i, j)]
    distance = place[0] - place[1]
    return distance > 0 and (window == 0 or distance <= window)


@pytest.mark.parametrize("contextual", [0, 1, 3])
@pytest.mark.parametrize("window", [0, 1, 4])
def test_the_mask_follows_its_rules(contextual, window):
    n = 12
    lengths, targets = torch.tensor([12, 7, 4, 5]), torch.tensor([4, 0, 1, 2])
    mask = STUAttentionMask(contextual, window)(lengths, targets, torch.zeros(4, n, 3, dtype=torch.float16))
    assert mask.dtype == torch.float16
    for b, (length, num_targets) in enumerate(zip(lengths.tolist(), targets.tolist(), strict=True)):
        expected = [
            [sees(i, j, length, num_targets, contextual, window) for j in range(n)] for i in range(length)
        ]
        assert torch.equal(mask[b, :length], torch.tensor(expected).half())
        assert not mask[b, :length, length:].any()


def layer_by_rows(layer, x, mask, scale, heads, width, alpha, group_norm):
    """One sequence (N, D) through a layer, a row and a head at a time."""
    n = x.size(0)
    normed = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + NORM_EPS).sqrt()
    normed = normed * layer._input_norm_weight + layer._input_norm_bias
    projected = normed @ layer._uvqk_weight + layer._uvqk_beta
    u, v, q, k = projected.split([heads * width, heads * width, heads * 5, heads * 5], dim=-1)
    u = u * torch.sigmoid(u)
    rows = []
    for i in range(n):
        a = torch.zeros(heads, width, dtype=x.dtype)
        for h in range(heads):
            for j in range(n):
                if mask[i, j]:
                    logit = alpha * torch.dot(q[i, 5 * h : 5 * h + 5], k[j, 5 * h : 5 * h + 5])
                    weight = logit / (1 + math.exp(-logit)) * scale[i]
                    a[h] += weight * v[j, width * h : width * (h + 1)]
        weight, bias = layer._output_norm_weight, layer._output_norm_bias
        over = a if group_norm else a.flatten()
        b = (over - over.mean(-1, keepdim=True)) / (
            over.var(-1, keepdim=True, unbiased=False) + NORM_EPS
        ).sqrt()
        b = (b * weight.unsqueeze(1) + bias.unsqueeze(1)).flatten() if group_norm else b * weight + bias
        rows.append(x[i] + torch.cat([u[i], a.flatten(), u[i] * b]) @ layer._output_weight)
    return torch.stack(rows)


@pytest.mark.parametrize("group_norm", [False, True])
@pytest.mark.parametrize("alpha", [None, 0.4])
@pytest.mark.parametrize("own_factors", [False, True])
def test_a_layer_is_its_definition(group_norm, alpha, own_factors):
    generator = torch.Generator().manual_seed(3)
    layer = STULayer(12, 2, 7, 5, 0.0, alpha, group_norm).to(torch.float64).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.4)
        x = torch.randn(2, 6, 12, generator=generator, dtype=torch.float64)
        mask = (torch.rand(2, 6, 6, generator=generator) < 0.5).double()
        scale = torch.rand(2, 6, generator=generator, dtype=torch.float64) if own_factors else None
        actual, cache = layer(x, mask, scale)
        assert cache is None
        expected = []
        for b in range(2):
            factors = scale[b] if own_factors else torch.full((6,), 1 / 6, dtype=torch.float64)
            expected.append(layer_by_rows(layer, x[b], mask[b], factors, 2, 7, alpha or 5**-0.5, group_norm))
        low, _ = layer.float()(x.float(), mask.float(), None if scale is None else scale.float())
    # The output projection sums u, the attention and their product, 7 a head.
    assert max_difference(actual, torch.stack(expected)) <= rounding_bound(3 * 2 * 7, low, actual)


def test_norms_are_float32_in_a_half_model():
    layer = STULayer(12, 2, 7, 5).to(torch.bfloat16).eval()
    x = torch.randn(2, 6, 12, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    with torch.no_grad():
        weight = torch.full_like(layer._input_norm_weight, 1.0078125)
        normed = layer._input_norm(x, weight, layer._input_norm_bias)
        assert normed.dtype == torch.bfloat16
        assert torch.equal(normed, F.layer_norm(x.float(), (12,), weight.float(), eps=NORM_EPS).bfloat16())
        a = torch.randn(2, 6, 14).to(torch.bfloat16)
        gated = layer._output_norm(a, layer._output_norm_weight, layer._output_norm_bias)
        assert gated.dtype == torch.float32


def stack_arguments(config, seed=0):
    batch = make_batch(config, seed)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*batch.seq_ids.shape, config.embedding_dim, generator=generator, dtype=torch.float64)
    scale = torch.rand(batch.seq_ids.shape, generator=generator, dtype=torch.float64) / x.size(1)
    return x, batch, scale


@pytest.mark.parametrize("backend", ["auto", "plain", "fbgemm"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("own_factors", [False, True])
def test_both_layouts_are_the_same_function(backend, variant, own_factors):
    dtype = torch.float32 if backend == "fbgemm" else torch.float64  # fbgemm has no float64 kernel
    if backend == "fbgemm" and backend in backend_reasons():
        pytest.skip(backend_reasons()[backend])
    config = small_config(variant)
    x, batch, scale = stack_arguments(config)
    dense = make_model(config)._stu_module
    jagged = make_model(config, "jagged", jagged_backend=backend)._stu_module
    assert jagged.state_dict().keys() == dense.state_dict().keys()

    def evaluated(stack, of):
        """The stack's output, and keys and values of every layer, in a type, of what float32 can hold."""
        values, factors = (entry.float().to(of) for entry in (x, scale))
        stack = copy.deepcopy(stack).float().to(of)
        with torch.no_grad():
            output, cache = stack(
                values,
                batch.seq_lengths,
                batch.num_targets,
                factors if own_factors else None,
                return_cache_states=True,
            )
        return [output, *(entry[batch.valid] for state in cache for entry in state)]

    actual, expected = evaluated(jagged, dtype), evaluated(dense, dtype)
    exact, low = evaluated(dense, torch.float64), evaluated(dense, torch.float32)
    assert not actual[0][~batch.valid].any()
    for ours, theirs, in_float32, in_float64 in zip(actual, expected, low, exact, strict=True):
        assert_same_function(config, ours, theirs, in_float32, in_float64)


def test_the_jagged_layers_hold_no_padding():
    config = small_config()
    x, batch, _ = stack_arguments(config)
    seen = []
    stack = make_model(config, "jagged")._stu_module
    stack._stu_layers[0].register_forward_hook(lambda module, args, output: seen.append(args[0].shape))
    stack(x, batch.seq_lengths, batch.num_targets)
    assert seen == [(int(batch.seq_lengths.sum()), config.embedding_dim)]
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), batch.seq_lengths.cumsum(0)])
    assert dense_to_jagged(x, offsets, "plain").shape == seen[0]


def in_float32(stack, x, batch, scale=None):
    """Results of the full forward in float32."""
    factors = None if scale is None else scale.float()
    return copy.deepcopy(stack).float()(x.float(), batch.seq_lengths, batch.num_targets, factors)


def new_rows(x, first, count):
    """Rows first[b], first[b] + 1, ... of each sequence (N, D), count of them."""
    row = torch.arange(count)
    return torch.stack([x[b, (start + row).clamp(max=x.size(1) - 1)] for b, start in first])


@pytest.mark.parametrize("layout", ["dense", "jagged"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("own_factors", [False, True])
def test_targets_behind_a_cache_have_the_states_of_the_full_forward(layout, variant, own_factors):
    config = small_config(variant)
    x, batch, scale = stack_arguments(config)
    scale = scale if own_factors else None
    stack = make_model(config, layout)._stu_module
    before = batch.seq_lengths - batch.num_targets
    with torch.no_grad():
        full, _ = stack(x, batch.seq_lengths, batch.num_targets, scale)
        _, cache = stack(x, before, torch.zeros_like(before), scale, return_cache_states=True)
        stored = [tuple(entry.clone() for entry in state) for state in cache]
        delta_x = new_rows(x, enumerate(before.tolist()), MAX_TARGETS)
        actual, extended = stack.cached_forward(
            delta_x, batch.seq_lengths, before, batch.num_targets, cache, scale
        )
        low, _ = in_float32(stack, x, batch, scale)
    for b, (start, count) in enumerate(zip(before.tolist(), batch.num_targets.tolist(), strict=True)):
        if count:
            rows = slice(start, start + count)
            assert_same_function(config, actual[b, :count], full[b, rows], low[b, rows])
    for old, state in zip(stored, cache, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(old, state, strict=True))
    assert len(extended) == config.num_layers


def appended_history(config, batch, stack, x):
    """The last history row and the targets behind a cache of the rest; the same of the full forward, and of
    that in float32."""
    before = (batch.seq_lengths - batch.num_targets - 1).clamp(min=config.contextual_seq_len)
    with torch.no_grad():
        full, _ = stack(x, batch.seq_lengths, batch.num_targets)
        _, cache = stack(x, before, torch.zeros_like(before), return_cache_states=True)
        delta_x = new_rows(x, enumerate(before.tolist()), MAX_TARGETS + 1)
        actual, _ = stack.cached_forward(delta_x, batch.seq_lengths, before, batch.num_targets, cache)
        low, _ = in_float32(stack, x, batch)
    counts = (batch.seq_lengths - before).tolist()
    return [
        (actual[b, :count], full[b, start : start + count], low[b, start : start + count])
        for b, (start, count) in enumerate(zip(before.tolist(), counts, strict=True))
    ]


@pytest.mark.parametrize("variant", ["plain", "contextual_prefix", "window"])
def test_history_may_be_appended_too(variant):
    config = small_config(variant)
    x, batch, _ = stack_arguments(config)
    for entry, full, low in appended_history(config, batch, make_model(config)._stu_module, x):
        assert_same_function(config, entry, full, low)


def test_history_behind_contextual_rows_changes_them():
    """`STUStack.cached_forward` therefore allows it only without them."""
    config = small_config("contextual")
    x, batch, _ = stack_arguments(config)
    actual, full, _ = appended_history(config, batch, make_model(config)._stu_module, x)[0]
    assert max_difference(actual, full) > 1e-3


@pytest.mark.parametrize("variant", VARIANTS)
def test_targets_know_nothing_of_each_other(variant):
    config = small_config(variant)
    x, batch, _ = stack_arguments(config)
    stack = make_model(config)._stu_module
    first = batch.seq_lengths - batch.num_targets
    row = torch.arange(x.size(1))
    last_target = (row == (batch.seq_lengths - 1).unsqueeze(1)) & (batch.num_targets > 1).unsqueeze(1)
    other = torch.where(last_target.unsqueeze(2), x + 1.0, x)
    with torch.no_grad():
        actual, changed = (stack(entry, batch.seq_lengths, batch.num_targets)[0] for entry in (x, other))
    assert torch.equal(actual[~last_target], changed[~last_target])
    assert (actual[last_target] - changed[last_target]).abs().max() > 0.1
    assert (first > 0).any()


def test_the_divisor_is_the_width_of_the_call():
    config = small_config("plain")
    x, batch, _ = stack_arguments(config)
    stack = make_model(config)._stu_module
    wider = F.pad(x, (0, 0, 0, 5))
    factor = torch.full(wider.shape[:2], 1 / x.size(1), dtype=x.dtype)
    with torch.no_grad():
        actual = stack(x, batch.seq_lengths, batch.num_targets)[0][batch.valid]
        padded = stack(wider, batch.seq_lengths, batch.num_targets)[0][:, : x.size(1)][batch.valid]
        values = stack(wider, batch.seq_lengths, batch.num_targets, factor)[0][:, : x.size(1)][batch.valid]
        low = in_float32(stack, x, batch)[0][batch.valid]
    assert max_difference(actual, padded) > 1e-3
    assert_same_function(config, values, actual, low)


@pytest.mark.parametrize("layout", ["dense", "jagged"])
def test_padding_may_hold_anything(layout):
    config = small_config("all")
    x, batch, _ = stack_arguments(config)
    stack = make_model(config, layout)._stu_module
    poisoned = x.masked_fill(~batch.valid.unsqueeze(2), math.nan)
    with torch.no_grad():
        actual, clean = (stack(entry, batch.seq_lengths, batch.num_targets)[0] for entry in (poisoned, x))
    assert torch.equal(actual, clean)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: STUAttentionMask(-1, 0), "contextual_seq_len"),
        (lambda: STUAttentionMask(0, -1), "max_attn_len"),
        (lambda: STUAttention(0, 5, 7), "num_heads"),
        (lambda: STUAttention(2, 5, 7, attn_alpha=0.0), "attn_alpha"),
        (lambda: STULayer(12, 2, 7, 5, output_dropout_ratio=1.0), "output_dropout_ratio"),
        (lambda: STULayer(0, 2, 7, 5), "embedding_dim"),
    ],
)
def test_what_cannot_be_built_is_refused_by_its_name(make, field):
    with pytest.raises(ValueError, match=field):
        make()
