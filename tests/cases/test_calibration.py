"""Scales of a calibration: the three rules, padding, and weights that carry their scales along."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cases import calibration
from cases.shipped import load_case
from parity.base.errors import UserError
from parity.base.quantisation import Scheme
from parity.inputs.weights import case_weights, export
from reference.quantisers import InputQuantiser, WeightQuantiser, observing

CASES = ("dlrm_tiny_quantised", "hstu_tiny_quantised", "stu_tiny_quantised")


def scale(rule, tensors, numbers="int8"):
    return float(calibration.scales_of(InputQuantiser(numbers), tensors, rule))


def test_the_largest_number_has_the_largest_code():
    tensors = [torch.tensor([0.5, -2.0]), torch.tensor([[1.0]])]
    assert scale("largest", tensors) == pytest.approx(2.0 / 127)
    assert scale("largest", tensors, "fp8") == pytest.approx(2.0 / 448)


def test_the_percentile_leaves_the_largest_thousandth_outside():
    numbers = torch.arange(1.0, 1001.0)
    assert scale("percentile", [numbers]) * 127 == pytest.approx(np.quantile(numbers, 0.999))
    with_outlier = torch.cat([numbers, torch.tensor([1e6])])
    assert scale("percentile", [with_outlier]) * 127 < 1001.0


@pytest.mark.parametrize("numbers", ["int8", "fp8", "int4"])
def test_the_squared_error_is_the_least_of_the_tried_scales(numbers):
    drawn = torch.randn(2000, generator=torch.Generator().manual_seed(0)).double()
    quantiser = WeightQuantiser(Scheme(numbers, "tensor"), 2000, 1)

    def error(step):
        from reference.quantisers import round_to_codes

        return float((round_to_codes(drawn / step, numbers)[0] * step - drawn).square().sum())

    chosen = float(calibration.scales_of(quantiser, [drawn.unsqueeze(1)], "squared_error"))
    whole = float(calibration.scales_of(quantiser, [drawn.unsqueeze(1)], "largest"))
    tried = [error(whole * fraction) for fraction in calibration.FRACTIONS.tolist()]
    assert error(chosen) == pytest.approx(min(tried), rel=1e-4)
    if numbers == "int4":
        assert chosen < 0.95 * whole


def test_numbers_that_are_all_zero_have_a_scale_of_1():
    for rule in calibration.RULES:
        assert scale(rule, [torch.zeros(5)]) == 1.0


@pytest.mark.parametrize("name", CASES)
def test_all_scales_follow_from_the_cases_inputs(name):
    case = load_case(name)
    weights, _ = case_weights(case)
    again, _ = case_weights(case)
    scales = {key for key in weights if case.is_scale(key)}
    assert scales
    assert all(torch.equal(weights[key], again[key]) for key in weights)
    assert weights.keys() == case.build_reference().state_dict().keys()
    other = case.calibrated(weights, [case.with_overrides(seed=7).make_inputs().inputs[0].arrays])
    moved = {key for key in weights if not torch.equal(weights[key], other[key])}
    # Every seed has the largest count, so that a scale of counts may stay.
    assert moved
    assert moved <= {key for key in scales if ".quantise_input." in key}


@pytest.mark.parametrize("name", ["hstu_tiny_quantised", "stu_tiny_quantised"])
def test_padded_rows_do_not_count(name):
    case = load_case(name)
    weights, _ = case_weights(case)
    arrays = case.make_inputs().inputs[0].arrays
    poisoned = case.poison(arrays, seed=1)
    assert any((poisoned[key] != arrays[key]).any() for key in arrays)
    own = case.calibrated(weights, [arrays])
    other = case.calibrated(weights, [poisoned])
    assert all(torch.equal(own[key], other[key]) for key in own)


def test_scales_are_saved_with_the_weights_and_replayed(tmp_path):
    case = load_case("dlrm_tiny_quantised")
    weights, _ = case_weights(case)
    weights["bot_l.0.product.quantise_input.scale"] = torch.tensor(0.5)
    export(weights, tmp_path)
    replayed, source = case_weights(case, tmp_path / "weights.safetensors")
    assert all(torch.equal(replayed[key], weights[key]) for key in weights)
    assert "calibration" not in source


def test_a_checkpoint_without_scales_gets_those_of_a_calibration(tmp_path):
    case = load_case("dlrm_tiny_quantised")
    expected, _ = case_weights(case)
    plain = {name: tensor for name, tensor in expected.items() if not case.is_scale(name)}
    assert plain.keys() == case_weights(case.quantised({}))[0].keys() < expected.keys()
    export(plain, tmp_path)
    weights, source = case_weights(case, tmp_path / "weights.safetensors")
    assert source.endswith("with scales of a calibration")
    assert all(torch.equal(weights[key], expected[key]) for key in expected)


def test_a_checkpoint_with_some_scales_is_refused(tmp_path):
    case = load_case("dlrm_tiny_quantised")
    weights, _ = case_weights(case)
    del weights["bot_l.0.product.quantise_input.scale"]
    export(weights, tmp_path)
    with pytest.raises(UserError, match="only in the model: bot_l.0.product.quantise_input.scale"):
        case_weights(case, tmp_path / "weights.safetensors")


def test_observing_ends_with_an_error():
    model = load_case("dlrm_tiny_quantised").build_reference()
    with pytest.raises(ZeroDivisionError), observing(model) as quantisers:
        raise ZeroDivisionError
    assert all(quantiser.observed is None for quantiser in quantisers.values())
