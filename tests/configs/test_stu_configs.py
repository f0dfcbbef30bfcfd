"""The production STU's cases: the published sizes, and mistakes with the field, value and fix."""

from __future__ import annotations

import json

import pytest

import configs
from configs.loading import _FOLDER
from parity.base.strict_yaml import parse_yaml


def message(tmp_path, **changes):
    """The error for a variant of the tiny case."""
    values = parse_yaml((_FOLDER / "stu_tiny.yaml").read_text())
    values["model"].update(changes)
    path = tmp_path / "case.yaml"
    path.write_text(json.dumps(values))
    with pytest.raises(configs.ConfigError) as caught:
        configs.load_case(path)
    return str(caught.value)


def test_the_public_sizes():
    """get_hstu_configs("movielens-1m") of dlrm_v3/configs.py, and modules/dlrm_hstu.py."""
    model = configs.load_case("stu_dlrmv3").model
    assert (model.num_heads, model.hidden_dim, model.attention_dim, model.num_layers) == (4, 128, 128, 5)
    assert (model.embedding_dim, model.max_num_targets, model.contextual_seq_len) == (512, 10, 5)
    assert (model.num_position_buckets, model.num_time_buckets) == (8192, 2048)
    assert (model.use_group_norm, model.max_attn_len, model.attn_alpha) == (False, 0, None)
    assert model.mask_contextual_seq_len == 0


def test_small_cases_of_it_are_in_a_plain_run_with_every_choice():
    cases = [configs.load_case(name) for name in configs.list_cases() if name.startswith("stu_")]
    assert [case.name for case in cases if not case.default] == ["stu_dlrmv3"]
    models = [case.model for case in cases if case.default]
    assert {model.output_postprocessor for model in models} == {
        "l2_norm",
        "layer_norm",
        "timestamp_layer_norm",
    }
    assert {0, 1} < {model.contextual_seq_len for model in models}
    for choices in (
        {model.use_group_norm for model in models},
        {model.contextual_attention for model in models},
        {model.max_attn_len > 0 for model in models},
        {model.attn_alpha is None for model in models},
    ):
        assert choices == {True, False}


def test_the_width_counts_all_rows():
    model = configs.load_case("stu_tiny").model
    assert model.padded_length == 3 + 24 + 4
    assert model.mask_contextual_seq_len == 3


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"num_position_buckets": 3},
            "model.contextual_seq_len: 3 leaves the history no row of the position table; "
            "give less than num_position_buckets 3",
        ),
        ({"max_attn_len": -1}, "model.max_attn_len: -1 is below 0; give at least 0"),
        ({"attn_alpha": 0.0}, "model.attn_alpha: 0.0 is not above 0.0; give more than 0.0"),
        ({"max_num_targets": 0}, "model.max_num_targets: 0 is below 1; give at least 1"),
        ({"contextual_attention": "yes"}, "model.contextual_attention: 'yes' (text) does not fit"),
        ({"num_blocks": 2}, "model.num_blocks: 2 is under an unknown key"),
    ],
)
def test_a_mistake_is_named_with_its_fix(tmp_path, changes, expected):
    assert expected in message(tmp_path, **changes)
