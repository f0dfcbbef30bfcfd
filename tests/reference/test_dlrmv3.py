"""Modules of DLRMv3 against values by hand."""

import pytest
import torch

from reference.action_encoder import ActionEncoder
from reference.layer_norm import SwishLayerNorm
from reference.multitask_module import MultitaskModule, TaskActivation
from reference.preprocessors import ContextualFeatures
from reference.sequence_utils import MergeSequences


def test_the_right_part_follows_the_left_one_of_each_row():
    left = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]]).unsqueeze(2)
    right = torch.tensor([[10, 11], [20, 21], [30, 31]]).unsqueeze(2)
    merged = MergeSequences()(left, right, torch.tensor([2, 0, 3])).squeeze(2)
    assert merged.shape == (3, 5)
    assert merged[0, :4].tolist() == [1, 2, 10, 11]
    assert merged[1, :2].tolist() == [20, 21]
    assert merged[2].tolist() == [7, 8, 9, 30, 31]


def test_an_event_has_the_actions_that_share_a_bit_with_it():
    encoder = ActionEncoder(2, (1, 2, 6))
    with torch.no_grad():
        encoder._action_embedding_table.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
        encoder._target_action_embedding_table.copy_(torch.arange(6.0)[None])
    actions = torch.tensor([[0, 1, 2, 4, 7]])
    result = encoder(actions, torch.tensor([5]), torch.zeros(1, 1, 9))
    assert result[0].tolist() == [
        [0, 0, 0, 0, 0, 0],
        [1, 2, 0, 0, 0, 0],
        [0, 0, 3, 4, 5, 6],
        [0, 0, 0, 0, 5, 6],
        [1, 2, 3, 4, 5, 6],
        [0, 1, 2, 3, 4, 5],
    ]


def test_a_contextual_feature_needs_its_fewest_rows():
    features = ContextualFeatures((1, 2), (3, 0))
    rows = features(torch.ones(3, 3, 4), torch.tensor([2, 3, 0]))
    assert rows[..., 0].tolist() == [[0, 1, 1], [1, 1, 1], [0, 1, 1]]


def test_classes_have_a_sigmoid_and_numbers_have_none():
    result = TaskActivation(2, 1)(torch.tensor([[[0.0, 100.0, -7.0]]]))
    assert result.tolist() == [[[0.5, 1.0, -7.0]]]


def test_the_gate_is_the_sigmoid_of_the_norm():
    x = torch.tensor([[1.0, 3.0]], dtype=torch.float64)
    norm = SwishLayerNorm(2, eps=1e-5).double()
    side = 1 / (1 + 1e-5) ** 0.5
    expected = torch.tensor([[1.0, 3.0]]) * torch.sigmoid(torch.tensor([[-side, side]]))
    assert torch.allclose(norm(x), expected.double(), rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: ActionEncoder(8, ()), "action_weights"),
        (lambda: ActionEncoder(8, (1, 0)), "action_weight=0"),
        (lambda: ContextualFeatures((1,), ()), "min_seq_lengths"),
        (lambda: MultitaskModule(0, 1, 4, 4), "num_classification_tasks"),
        (lambda: MultitaskModule(1, -1, 4, 4), "num_regression_tasks"),
        (lambda: SwishLayerNorm(4, eps=0.0), "eps"),
    ],
)
def test_a_bad_size_is_named(make, field):
    with pytest.raises(ValueError, match=field):
        make()
