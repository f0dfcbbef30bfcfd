"""HSTU with fused attention on jagged rows: the function of the dense model."""

from __future__ import annotations

import pytest
import torch

from reference.build import build_hstu_fused
from reference.hstu_fused import VALID_ROWS_KEY
from tests.reference import rounding
from tests.reference.hstu_setup import longest_sum, make_batch, make_model, rounding_bound, small_config
from tests.reference.rounding import max_difference

BIAS = {"relative_attention_bias": "bucketed_time_and_position"}


def fused_twin(config, dense):
    fused = build_hstu_fused(config)
    fused.load_state_dict(dense.state_dict(), strict=True)
    return fused


def valid_rows(batch):
    width = batch.ids.size(1) * batch.positions_per_item
    is_valid = torch.arange(width) < (batch.lengths * batch.positions_per_item).unsqueeze(1)
    return is_valid.reshape(-1).nonzero().squeeze(1)


def score_fused(fused, batch):
    payloads = batch.payloads | {VALID_ROWS_KEY: valid_rows(batch)}
    with torch.no_grad():
        return fused.score(batch.lengths, batch.ids, payloads, batch.candidates)


@pytest.mark.parametrize("options", [{}, {"concat_ua": True, "linear_activation": "none"}], ids=str)
@pytest.mark.parametrize("normalization", ["rel_bias", "hstu_rel_bias"])
@pytest.mark.parametrize("preprocessor", ["positional", "rated", "combined"])
def test_fused_equals_dense(preprocessor, normalization, options):
    config = small_config(preprocessor, normalization=normalization, **BIAS, **options)
    batch, dense = make_batch(config), make_model(config)
    in_float32 = batch.score(dense)
    expected = batch.score(dense.double())
    actual = score_fused(fused_twin(config, dense).double(), batch)
    # Padded rows too: both leave zeros there.
    for low, a, b in zip(in_float32, expected, actual, strict=True):
        assert max_difference(a, b) <= rounding_bound(config, low, a)


def test_padding_is_not_read():
    config = small_config(**BIAS)
    batch, dense = make_batch(config), make_model(config)
    fused = fused_twin(config, dense)
    clean = score_fused(fused, batch)
    position = torch.arange(batch.ids.size(1))
    padding = position >= batch.lengths.unsqueeze(1)
    batch.ids[padding] = 7
    batch.timestamps[position > batch.lengths.unsqueeze(1)] = 12345
    for a, b in zip(clean, score_fused(fused, batch), strict=True):
        assert torch.equal(a, b)


def test_rows_that_are_not_the_valid_ones_give_something_else():
    config = small_config(**BIAS)
    batch, dense = make_batch(config), make_model(config)
    fused = fused_twin(config, dense)
    payloads = batch.payloads | {VALID_ROWS_KEY: valid_rows(batch) - 1}
    with torch.no_grad():
        actual = fused.score(batch.lengths, batch.ids, payloads, batch.candidates)[0]
    right, exact = score_fused(fused, batch)[0], batch.score(dense.double())[0]
    # A hundred times what two evaluations in float32 may differ by.
    assert max_difference(actual, right) > 100 * rounding.rounding_bound(
        longest_sum(config), right, exact, torch.float32
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"normalization": "softmax_rel_bias", **BIAS}, "normalization='softmax_rel_bias': fused attention"),
        ({"relative_attention_bias": "positional"}, "relative_attention_bias='positional': fused attention"),
        ({"attention_dim": 257, **BIAS}, "attention_dim=257: fused attention takes heads of at most 256"),
    ],
)
def test_what_the_kernel_does_not_compute_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        build_hstu_fused(small_config(**{"normalization": "rel_bias", **changes}))
