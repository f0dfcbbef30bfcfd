"""Modules of the port of DLRMv3 against the reference's, on numbers that every type holds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import reference.action_encoder
import reference.multitask_module
import reference.preprocessors
import reference.sequence_utils
import tripy_port.action_encoder
import tripy_port.multitask_module
import tripy_port.preprocessors
import tripy_port.sequence_utils
from tests.tripy_port.port_setup import array, tensor

RNG = np.random.default_rng(0)


def test_sequences_are_merged_alike():
    left, right = (RNG.integers(0, 99, (4, rows, 2)) for rows in (6, 3))
    lengths = np.array([0, 3, 6, 1])
    expected = reference.sequence_utils.MergeSequences()(*map(torch.tensor, (left, right, lengths)))
    merged = array(tripy_port.sequence_utils.MergeSequences()(*map(tensor, (left, right, lengths))))
    valid = np.arange(9) < (lengths + 3)[:, None]
    assert np.array_equal(merged[valid], expected.numpy()[valid])


@pytest.mark.parametrize("weights", [(1, 2, 4, 8, 16), (6, 3), (1,), (2**30 + 1, 2**30)])
def test_shared_bits_are_alike(weights):
    largest = 2 ** (max(weights).bit_length() + 1)
    actions = np.concatenate([[0, 1, 2, 3, *weights], RNG.integers(0, largest, 20)])[None]
    lengths, targets = np.array([actions.size]), np.zeros((1, 2, 3), np.float32)
    own = reference.action_encoder.ActionEncoder(3, weights)
    port = tripy_port.action_encoder.ActionEncoder(3, weights)
    for name in ("_action_embedding_table", "_target_action_embedding_table"):
        setattr(port, name, tensor(getattr(own, name).detach().numpy()))
    expected = own(*map(torch.tensor, (actions, lengths, targets))).detach().numpy()
    assert np.array_equal(array(port(*map(tensor, (actions, lengths, targets)))), expected)
    assert port.output_embedding_dim == own.output_embedding_dim == 3 * len(weights)


def test_contextual_features_need_their_rows_alike():
    context, lengths = RNG.standard_normal((4, 3, 2)).astype(np.float32), np.array([0, 4, 5, 6])
    expected = reference.preprocessors.ContextualFeatures((2, 1), (5, 1))(
        *map(torch.tensor, (context, lengths))
    )
    port = tripy_port.preprocessors.ContextualFeatures((2, 1), (5, 1))
    assert np.array_equal(array(port(*map(tensor, (context, lengths)))), expected.numpy())


@pytest.mark.parametrize("tasks", [(1, 0), (2, 0), (1, 2)])
def test_tasks_are_alike(tasks):
    logits = RNG.standard_normal((2, 3, sum(tasks))).astype(np.float32)
    expected = reference.multitask_module.TaskActivation(*tasks)(torch.tensor(logits))
    result = array(tripy_port.multitask_module.TaskActivation(*tasks)(tensor(logits)))
    assert np.allclose(result, expected.numpy(), rtol=4 * 2.0**-24, atol=0)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: tripy_port.action_encoder.ActionEncoder(8, ()), "action_weights"),
        (lambda: tripy_port.action_encoder.ActionEncoder(8, (1, 2**31)), "action_weight"),
        (lambda: tripy_port.preprocessors.ContextualFeatures((1,), ()), "min_seq_lengths"),
        (lambda: tripy_port.multitask_module.MultitaskModule(0, 1, 4, 4), "num_classification_tasks"),
    ],
)
def test_a_bad_size_is_named(make, field):
    with pytest.raises(ValueError, match=field):
        make()
