"""Synthetic requests of DLRMv3 reach every part of it; bad ones are refused; weights count."""

import numpy as np
import pytest
import torch

from cases.dlrmv3 import inputs as dlrmv3_inputs
from cases.shipped import load_case
from parity.base.errors import UserError
from parity.inputs.arrays import CaseInputs, make_inputs
from parity.inputs.weights import case_weights

CASES = ("dlrmv3_tiny", "dlrmv3_tiny_plain")


def requests(name):
    case = load_case(name)
    (inputs,) = case.make_inputs().inputs
    return case, inputs


@pytest.mark.parametrize("name", CASES)
def test_requests_of_all_batches_reach_both_ends(name):
    case = load_case(name)
    model, batches = case.model, {batch.name: batch.inputs for batch in make_inputs(case).batches}
    history = {int(length) for batch in batches.values() for length in batch["uih_lengths"]}
    candidates = {int(number) for batch in batches.values() for number in batch["num_candidates"]}
    assert {0, 1, model.max_uih_len} <= history
    assert {0, 1, model.max_num_candidates} <= candidates
    assert {len(batch["uih_lengths"]) for batch in batches.values()} >= {1, 2, 3, case.batch_size}
    assert batches["narrow"]["uih_timestamps"].shape[1] < model.max_uih_len
    typical = batches["typical"]
    assert typical["uih_lengths"][0] < typical["uih_lengths"].max()


@pytest.mark.parametrize("name", CASES)
def test_rows_of_the_tables_repeat_and_every_precision_holds_them(name):
    _, inputs = requests(name)
    valid = np.arange(inputs["uih_timestamps"].shape[1]) < inputs["uih_lengths"][:, None]
    rows = inputs["uih_embeddings"][valid]
    assert len(np.unique(rows, axis=0)) < len(rows)
    embeddings = torch.tensor(rows)
    for dtype in (torch.float16, torch.bfloat16):
        assert torch.equal(embeddings.to(dtype).to(torch.float32), embeddings)


def test_every_user_s_context_passes_and_fails_its_threshold():
    case = load_case("dlrmv3_tiny")
    least = case.model.contextual_min_seq_lengths[0]
    lengths = [
        batch.inputs["uih_lengths"] + batch.inputs["num_candidates"] for batch in make_inputs(case).batches
    ]
    rows = np.concatenate(lengths)
    assert (rows < least).any()
    assert (rows == least).any()
    assert (rows > least).any()


@pytest.mark.parametrize("name", CASES)
def test_poison_changes_all_padding_and_nothing_else(name):
    case, inputs = requests(name)
    poisoned, masks = case.poison(inputs.arrays, 0), case.valid_rows(inputs.arrays)
    assert set(poisoned.arrays) == set(inputs.arrays)
    for entry in inputs.arrays:
        array, clean = poisoned[entry], inputs[entry]
        if array.ndim == 1 or entry == dlrmv3_inputs.CONTEXT:
            assert np.array_equal(array, clean)
            continue
        valid = masks[array.shape[1]]
        assert np.array_equal(array[valid], clean[valid])
        assert (array[~valid] != clean[~valid]).all()


def changed(inputs, name, index, value):
    array = inputs[name].copy()
    array[index] = value
    return CaseInputs({**inputs.arrays, name: array})


@pytest.mark.parametrize(
    ("name", "index", "value", "message"),
    [
        ("uih_lengths", 1, 22, r"uih_lengths\[1\]: 22 is not a number of 0..21"),
        ("num_candidates", 2, 6, r"num_candidates\[2\]: 6 is not a number of 0..5"),
        ("num_candidates", 2, -1, r"num_candidates\[2\]: -1"),
        ("uih_embeddings", (0, 1, 2), np.nan, r"uih_embeddings\[0, 1, 2\]: nan is not finite"),
        ("uih_actions", (0, 1), -4, r"uih_actions\[0, 1\]: -4 is negative"),
    ],
)
def test_a_bad_element_is_named(name, index, value, message):
    case, inputs = requests("dlrmv3_tiny")
    with pytest.raises(UserError, match=message):
        case.validate(changed(inputs, name, index, value).arrays)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: {"query_times": arrays["query_times"][:, 1:]}, "query_times"),
        (lambda arrays: {"uih_embeddings": arrays["uih_embeddings"][..., 1:]}, "uih_embeddings"),
        (lambda arrays: {"uih_timestamps": arrays["uih_timestamps"].astype(np.int32)}, "int64"),
        (lambda arrays: {"candidate_embeddings": arrays["candidate_embeddings"].astype(float)}, "float32"),
        (lambda arrays: {"another": arrays["query_times"]}, "another"),
    ],
)
def test_a_bad_layout_is_named(change, message):
    case, inputs = requests("dlrmv3_tiny")
    with pytest.raises(UserError, match=message):
        case.validate({**inputs.arrays, **change(inputs.arrays)})


def test_every_parameter_counts():
    case, inputs = requests("dlrmv3_tiny")
    model = case.build_reference()
    model.load_state_dict(case_weights(case)[0])
    predictions = model(**{name: torch.tensor(array) for name, array in inputs.arrays.items()})
    predictions.square().sum().backward()
    assert [name for name, weight in model.named_parameters() if not weight.grad.abs().sum() > 0] == []


def test_the_benchmark_s_own_sizes_are_accepted():
    case = load_case("dlrmv3")
    model, prepared = case.model, make_inputs(case)
    assert [batch.name for batch in prepared.batches] == ["typical", "narrow"]
    assert prepared.typical["uih_lengths"].tolist() == [model.max_uih_len, 0]
    assert prepared.typical["num_candidates"].tolist() == [model.max_num_candidates, 2047]
    assert prepared.batches[1].inputs["uih_timestamps"].shape[1] <= 1024


def test_a_size_of_another_axis_is_refused():
    case = load_case("dlrmv3_tiny").with_sizes({"model.max_num_candidates": 16})
    with pytest.raises(UserError, match="padded length: 16 is also the size of the batch or of another axis"):
        case.validate(case.make_inputs().inputs[0].arrays)
