"""The production STU with fused attention on jagged rows: the function of the dense model."""

from __future__ import annotations

import pytest
import torch

from reference.build import build_stu_fused
from tests.reference.rounding import max_difference, rounding_bound
from tests.reference.stu_setup import (
    VARIANTS,
    assert_same_function,
    longest_sum,
    make_batch,
    make_model,
    small_config,
)


def fused_twin(config, dense, whole_layers=False):
    fused = build_stu_fused(config, whole_layers).to(torch.float64)
    fused.load_state_dict(dense.state_dict(), strict=True)
    return fused


def rows_of(batch):
    return batch.valid.reshape(-1).nonzero().squeeze(1)


def factors(batch):
    """(B, N) of every size, as `attn_scale` has them; garbage as padding."""
    generator = torch.Generator().manual_seed(3)
    return torch.rand(batch.valid.shape, generator=generator, dtype=torch.float64) / 10


def run(model, batch, *more):
    with torch.no_grad():
        return model(*batch.arguments, *more)


@pytest.mark.parametrize("whole_layers", [False, True], ids=["attention", "whole layers"])
@pytest.mark.parametrize("scaled", [False, True], ids=["divided by N", "factors"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_fused_equals_dense(variant, scaled, whole_layers):
    config = small_config(variant)
    batch, dense = make_batch(config), make_model(config)
    scale = (factors(batch),) if scaled else ()
    fused = fused_twin(config, dense, whole_layers)
    actual, expected = run(fused, batch, rows_of(batch), *scale), run(dense, batch, *scale)
    low = run(dense.float(), batch, *(entry.float() for entry in scale))
    assert_same_function(config, actual, expected, low)


@pytest.mark.parametrize("variant", ["all", "plain"])
def test_padding_is_not_read(variant):
    config = small_config(variant)
    batch = make_batch(config)
    fused = fused_twin(config, make_model(config))
    scale = factors(batch)
    clean = run(fused, batch, rows_of(batch), scale)
    padding = ~batch.valid
    batch.seq_ids[padding] = 7
    batch.seq_timestamps[padding] = 12345
    scale[padding] = float("nan")
    assert torch.equal(clean, run(fused, batch, rows_of(batch), scale))


def rows_shifted(batch):
    return (rows_of(batch) - 1).clamp(min=0)


def a_row_too_few(batch):
    rows = rows_of(batch)
    return torch.cat([rows[1:], rows[-1:]])


@pytest.mark.parametrize("wrong", [rows_shifted, a_row_too_few])
def test_rows_that_are_not_the_valid_ones_give_something_else(wrong):
    config = small_config("contextual")
    batch, dense = make_batch(config), make_model(config)
    fused = fused_twin(config, dense)
    exact, right = run(dense, batch), run(fused, batch, rows_of(batch))
    actual = run(fused, batch, wrong(batch))
    # A hundred times what two evaluations in float32 may differ by.
    limit = rounding_bound(longest_sum(config), run(dense.float(), batch), exact, torch.float32)
    assert max_difference(actual, right) > 100 * limit


def test_heads_that_the_kernel_does_not_take_are_refused():
    with pytest.raises(ValueError, match="hidden_dim=257: fused attention takes heads of at most 256"):
        build_stu_fused(small_config(hidden_dim=257))
    build_stu_fused(small_config(hidden_dim=256, num_layers=1))


def test_whole_layers_do_not_train():
    config = small_config()
    batch = make_batch(config)
    fused = build_stu_fused(config, whole_layers=True).train()
    with pytest.raises(RuntimeError, match="training=True: whole layers have no dropout"):
        run(fused, batch, rows_of(batch))


@pytest.mark.parametrize("whole_layers", [False, True], ids=["attention", "whole layers"])
@pytest.mark.parametrize("layer", [0, 2])
def test_every_layer_counts(whole_layers, layer):
    config = small_config("all")
    batch, dense = make_batch(config), make_model(config)
    fused = fused_twin(config, dense, whole_layers)
    right = run(fused, batch, rows_of(batch))
    limit = rounding_bound(longest_sum(config), run(dense.float(), batch), right, torch.float32)
    with torch.no_grad():
        fused._stu_module._stu_layers[layer]._output_norm_bias += 1
    assert max_difference(run(fused, batch, rows_of(batch)), right) > 100 * limit


def test_there_is_no_cache():
    config = small_config()
    batch, fused = make_batch(config), build_stu_fused(config)
    for method in (fused.prefill, fused.extend):
        with pytest.raises(NotImplementedError, match="no k/v cache; use the dense model"):
            method(*batch.arguments)
