"""The benchmark's configuration of DLRMv3, and configurations that are refused."""

import pytest

from configs import ConfigError, load_case, with_fields


def test_the_benchmark_s_sizes():
    model = load_case("dlrmv3").model
    assert (model.embedding_dim, model.num_layers, model.num_heads) == (512, 5, 4)
    assert (model.attention_dim, model.hidden_dim, model.action_weights) == (128, 128, (1, 2, 4, 8, 16))
    assert (model.merged_length, model.padded_length) == (16_384 + 2048, 16_384 + 2048 + 1)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"model.contextual_min_seq_lengths": [1]}, "contextual_min_seq_lengths: 1 for 2 features; give one"),
        ({"model.contextual_min_seq_lengths": [1, -1]}, "contextual_min_seq_lengths[1]: -1 is below 0"),
        ({"model.num_position_buckets": 3}, "contextual_max_lengths: 3 rows leave the history no row"),
        ({"model.num_classification_tasks": 0}, "num_classification_tasks: 0 is below 1; give at least 1"),
        ({"model.action_weights": []}, "model.action_weights"),
    ],
)
def test_a_wrong_value_names_field_value_and_fix(changes, line):
    with pytest.raises(ConfigError) as caught:
        with_fields(load_case("dlrmv3_tiny"), changes)
    assert line in str(caught.value)
