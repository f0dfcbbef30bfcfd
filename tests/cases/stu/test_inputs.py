"""Synthetic requests of the production STU reach every part of it; bad ones are refused; weights count."""

import numpy as np
import pytest
import torch

from cases.shipped import load_case
from cases.stu import inputs as stu_inputs
from parity.base.errors import UserError
from parity.capture.torch_hooks import tapped
from parity.inputs.arrays import CaseInputs
from parity.inputs.weights import case_weights

CASES = ("stu_tiny", "stu_tiny_group", "stu_dlrmv3")


def requests(name, **changes):
    case = load_case(name).with_input(**changes)
    (inputs,) = case.make_inputs().inputs
    return case, inputs


@pytest.mark.parametrize("name", CASES)
def test_synthetic_requests_reach_every_part(name):
    case, inputs = requests(name)
    model = case.model
    stu_inputs.validate(inputs, model)
    history = inputs["seq_lengths"] - inputs["num_targets"] - model.contextual_seq_len
    assert {0, model.max_uih_len} <= set(history.tolist())
    assert {0, model.max_num_targets} <= set(inputs["num_targets"].tolist())
    for row, (length, targets) in enumerate(zip(inputs["seq_lengths"], inputs["num_targets"], strict=True)):
        seconds = inputs["seq_timestamps"][row]
        assert not seconds[length:].any()
        assert not seconds[: model.contextual_seq_len].any()
        assert (np.diff(seconds[model.contextual_seq_len : length]) >= 0).all()
        assert len(set(seconds[length - targets : length].tolist())) == min(targets, 1)


@pytest.mark.parametrize("name", ["stu_tiny", "stu_tiny_group"])
def test_both_ends_of_the_time_and_position_tables_are_used(name):
    case, inputs = requests(name, batch_size=40)
    model = case.build_reference().eval()
    used = {"_timestamp_embeddings_weight": set(), "_position_embeddings_weight": set()}
    for key, parameter in model._positional_encoder.named_parameters():
        parameter.requires_grad_(True)
        arguments = {name: torch.tensor(array) for name, array in inputs.arrays.items()}
        model.zero_grad()
        model(**arguments).square().sum().backward()
        used[key] = set(torch.nonzero(parameter.grad.abs().sum(dim=1)).flatten().tolist())
    assert {0, case.model.num_time_buckets} <= used["_timestamp_embeddings_weight"]
    assert min(used["_position_embeddings_weight"]) == 0
    assert len(used["_timestamp_embeddings_weight"]) > min(80, case.model.num_time_buckets // 2)


def test_requests_are_those_of_their_seed():
    digests = [requests("stu_tiny", seed=seed)[1].digest for seed in (0, 0, 1)]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("name", CASES[:2])
def test_poison_changes_all_padding_and_nothing_else(name):
    _, inputs = requests(name)
    poisoned = stu_inputs.poison(inputs, 0)
    valid = stu_inputs.valid_mask(inputs.arrays)
    assert set(poisoned.arrays) == set(inputs.arrays)
    for array, clean in ((poisoned[entry], inputs[entry]) for entry in inputs.arrays):
        if array.ndim == 1:
            assert np.array_equal(array, clean)
        else:
            assert np.array_equal(array[valid], clean[valid])
            assert (array[~valid] != clean[~valid]).all()


def changed(inputs, name, index, value):
    array = inputs[name].copy()
    array[index] = value
    return CaseInputs({**inputs.arrays, name: array})


@pytest.mark.parametrize(
    ("name", "index", "value"),
    [
        ("seq_ids", (0, 0), 61),
        ("seq_ids", (1, -1), -1),
        ("num_targets", 2, 5),
        ("num_targets", 2, -1),
        ("seq_lengths", 0, 100),
        ("seq_lengths", 0, 0),
        ("attn_scale", (0, 0), np.nan),
    ],
)
def test_what_cannot_be_run_is_refused(name, index, value):
    case, inputs = requests("stu_tiny_group")
    with pytest.raises(UserError, match=name):
        case.validate(changed(inputs, name, index, value))


@pytest.mark.parametrize("name", ["seq_lengths", "seq_ids", "seq_timestamps", "num_targets", "attn_scale"])
def test_another_shape_or_type_is_refused(name):
    case, inputs = requests("stu_tiny_group")
    for array in (inputs[name][:-1], inputs[name].astype(np.float64)):
        with pytest.raises(UserError):
            case.validate(CaseInputs({**inputs.arrays, name: array}))


def test_a_batch_as_long_as_the_sequence_is_refused():
    case, inputs = requests("stu_tiny", batch_size=31)
    with pytest.raises(UserError, match="padded length"):
        case.validate(inputs)


def test_recorded_data_are_refused(tmp_path):
    case = load_case("stu_tiny")
    assert not case.recognises(tmp_path)
    with pytest.raises(UserError, match="--data"):
        case.read(tmp_path)


def test_times_at_a_buckets_edge_are_found():
    case, inputs = requests("stu_tiny")
    row = int(inputs["seq_lengths"].argmax())
    query = inputs["seq_timestamps"][row, inputs["seq_lengths"][row] - 1]
    edges = changed(inputs, "seq_timestamps", (row, slice(5, 9)), query - 60 * np.array([49, 16, 9, 4]))
    edges = changed(edges, "seq_timestamps", (row, slice(9, 12)), query - np.array([200, 59, 0]))
    boundaries = case.boundaries()
    assert list(boundaries) == ["HSTUPositionalEncoder"]
    actual = boundaries["HSTUPositionalEncoder"](*encoder_arguments(case, edges))
    assert actual.shape == (*inputs["seq_ids"].shape, case.model.embedding_dim)
    assert actual[row, :, 0].tolist()[5:12] == [True, True, True, True, False, False, False]


def encoder_arguments(case, inputs):
    model = case.build_reference().eval()
    arguments = {name: torch.tensor(array) for name, array in inputs.arrays.items()}
    with torch.inference_mode(), tapped(model, record_calls=True) as capture:
        model(**arguments)
    (call,) = (call for call in capture.calls if call.kind == "HSTUPositionalEncoder")
    return [capture.call_inputs[argument.key] for argument in call.args]


@pytest.mark.parametrize(
    ("name", "causal"), [("stu_tiny", False), ("stu_tiny_group", True), ("stu_dlrmv3", True)]
)
def test_rows_that_see_later_ones_are_said_to(name, causal):
    assert load_case(name).is_causal() is causal


def run(case, inputs, tensors):
    model = case.build_reference().eval()
    model.load_state_dict(tensors, strict=True)
    arguments = {name: torch.tensor(array) for name, array in inputs.arrays.items()}
    with torch.inference_mode(), tapped(model) as capture:
        targets = model(**arguments)
    return capture.tensors, targets


@pytest.mark.parametrize("name", CASES[:2])
def test_initial_weights_make_every_layer_and_parameter_count(name):
    case, inputs = requests(name)
    tensors, _ = case_weights(case)
    taps, targets = run(case, inputs, tensors)
    valid = torch.tensor(stu_inputs.valid_mask(inputs.arrays))
    stream = taps["_positional_encoder"]
    for layer in range(case.model.num_layers):
        out = taps[f"_stu_module._stu_layers.{layer}"]
        ratio = float((out[valid] - stream[valid]).norm() / stream[valid].norm())
        assert 0.3 < ratio < 3.0
        stream = out
    for key in tensors:
        _, moved = run(case, inputs, {**tensors, key: tensors[key] * 1.001})
        # A thousandth of one tensor, in float32, clear of round-off.
        assert float((moved - targets).norm() / targets.norm()) > 10 * torch.finfo(torch.float32).eps, key
