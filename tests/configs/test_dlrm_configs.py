"""DLRM's cases: the published sizes, the cap on tables, and every mistake with the field, value and fix."""

from __future__ import annotations

import json

import pytest

import configs
from configs.loading import _FOLDER
from parity.base.strict_yaml import parse_yaml

DLRM_CASES = [name for name in configs.list_cases() if configs.load_case(name).family == "dlrm"]
#: name -> (bottom, top, columns, rows of all published tables), from bench/ and tools/visualize.py.
PUBLIC = {
    "dlrm_kaggle": ((13, 512, 256, 64, 16), (512, 256, 1), 16, 33_762_577),
    "dlrm_terabyte": ((13, 512, 256, 64), (512, 512, 256, 1), 64, 49_126_297),
    "dlrm_mlperf": ((13, 512, 256, 128), (1024, 1024, 512, 256, 1), 128, 187_767_399),
}


@pytest.fixture
def message(tmp_path):
    """The error for a variant of the tiny case: ``message(model__qr_flag=True)``; ... removes a key."""

    def write_variant(**changes):
        values = parse_yaml((_FOLDER / "dlrm_tiny.yaml").read_text())
        for key, value in changes.items():
            part, _, field = key.partition("__")
            if value is ...:
                del values[part][field]
            else:
                values[part][field] = value
        path = tmp_path / "case.yaml"
        path.write_text(json.dumps(values))
        with pytest.raises(configs.ConfigError) as caught:
            configs.load_case(path)
        return str(caught.value)

    return write_variant


@pytest.mark.parametrize("name", PUBLIC)
def test_published_architectures(name):
    model = configs.load_case(name).model
    bottom, top, columns, rows = PUBLIC[name]
    assert (model.bottom_widths, model.top_widths) == (bottom, top)
    assert (model.arch_sparse_feature_size, len(model.arch_embedding_size)) == (columns, 26)
    assert sum(model.arch_embedding_size) == rows
    assert (model.arch_interaction_op, model.arch_interaction_itself) == ("dot", False)
    assert model.top_sigmoid == len(top) - 1


@pytest.mark.parametrize("name", PUBLIC)
def test_the_cap_keeps_small_tables_and_cuts_tall_ones(name):
    model = configs.load_case(name).model
    for published, rows in zip(model.arch_embedding_size, model.table_rows, strict=True):
        assert rows == min(published, model.max_rows_per_table)
    uncapped = model.model_copy(update={"max_rows_per_table": None})
    assert uncapped.table_rows == model.arch_embedding_size


def test_cases_cover_every_kind_of_module_and_both_ways_to_sum_bags():
    models = [configs.load_case(name).model for name in DLRM_CASES]
    assert {model.arch_interaction_op for model in models} == {"dot", "cat", "sum"}
    assert {model.arch_interaction_itself for model in models} == {True, False}
    assert any(model.qr_flag for model in models)
    assert any(model.md_flag for model in models)
    assert any(model.weighted_pooling == "learned" for model in models)
    assert any(model.loss_threshold for model in models)
    assert any(model.sigmoid_bot >= 0 for model in models)
    assert {min(model.max_bag_size or 0, 2) for model in models} == {0, 1, 2}
    assert {model.weighted_pooling for model in models} == {None, "learned", "fixed"}
    assert {model.qr_operation for model in models if model.qr_flag} == {"mult", "add", "concat"}
    assert {model.md_round_dims for model in models if model.md_flag} == {True, False}
    tiny = [name for name in DLRM_CASES if name.startswith("dlrm_tiny")]
    assert [name for name in DLRM_CASES if configs.load_case(name).default] == tiny


def test_widths_that_look_like_a_date_are_widths(tmp_path):
    text = (_FOLDER / "dlrm_tiny.yaml").read_text().replace('"9-7-1"', "1024-12-11")
    path = tmp_path / "case.yaml"
    path.write_text(text)
    assert "arch_mlp_top: 1024-12-11" in text
    assert configs.load_case(path).model.top_widths == (1024, 12, 11)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"model__arch_mlp_bot": "13"}, "model.arch_mlp_bot: '13' (text) does not fit; give widths of the"),
        ({"model__arch_mlp_bot": "13-0-6"}, "model.arch_mlp_bot: '13-0-6' (text) does not fit; give widths"),
        ({"model__arch_mlp_top": "9,1"}, "model.arch_mlp_top: '9,1' (text) does not fit; give widths of"),
        ({"model__arch_mlp_top": 1}, "model.arch_mlp_top: 1 (a whole number) does not fit; give text"),
        ({"model__arch_mlp_top": ...}, "model.arch_mlp_top: missing; give widths of the top MLP in quotes"),
        (
            {"model__arch_mlp_bot": "13-11-5"},
            "model.arch_mlp_bot: '13-11-5' ends in 5, and arch_sparse_feature_size is 6; end it in 6",
        ),
        (
            {"model__qr_flag": True, "model__qr_operation": "concat", "model__qr_threshold": 2},
            "model.arch_mlp_bot: '13-11-6' ends in 6, and arch_sparse_feature_size is 6, doubled by "
            "qr_operation 'concat'; end it in 12",
        ),
        (
            {
                "model__qr_flag": True,
                "model__qr_operation": "concat",
                "model__arch_mlp_bot": "13-12",
                "model__qr_threshold": 3,
            },
            "model.qr_threshold: 3 keeps tables plain and so half as wide as 'concat' makes the others; "
            "give less than 3, the smallest table's rows",
        ),
        (
            {"model__arch_embedding_size": []},
            "model.arch_embedding_size: [] (a list) does not fit; give a list",
        ),
        (
            {"model__arch_embedding_size": [4, 0]},
            "model.arch_embedding_size[1]: 0 is below 1; give at least 1",
        ),
        (
            {"model__arch_embedding_size": 4},
            "model.arch_embedding_size: 4 (a whole number) does not fit; give a",
        ),
        (
            {"model__arch_interaction_op": "dots"},
            "'dots' is not a choice; did you mean 'dot'? use one of dot, cat",
        ),
        (
            {"model__sigmoid_top": 3},
            "model.sigmoid_top: 3 is not one of the MLP's 3 layers; give -1, or 0 to 2",
        ),
        ({"model__sigmoid_bot": -2}, "model.sigmoid_bot: -2 is below -1; give at least -1"),
        ({"model__loss_threshold": 0.5}, "model.loss_threshold: 0.5 is not below 0.5; give less than 0.5"),
        (
            {"model__qr_flag": True, "model__md_flag": True},
            "model.md_flag: True does not go with qr_flag; set only one of them",
        ),
        (
            {"model__weighted_pooling": "learned", "model__md_flag": True},
            "model.weighted_pooling: 'learned' needs plain tables; unset qr_flag and md_flag",
        ),
        (
            {"model__md_flag": True, "model__md_round_dims": True},
            "model.md_round_dims: True changes arch_sparse_feature_size 6; give a power of two",
        ),
        (
            {"model__md_flag": True, "model__md_temperature": 300.0},
            "model.md_temperature: 300.0 makes widths beyond float32; give at most ",
        ),
        (
            # 2^128, the end of float32's range, from tables of four rows and eight dimensions.
            {
                "model__md_flag": True,
                "model__md_temperature": 62.5,
                "model__arch_sparse_feature_size": 8,
                "model__arch_mlp_bot": "13-8",
                "model__arch_embedding_size": [4, 4, 4],
            },
            "model.md_temperature: 62.5 makes widths beyond float32; give at most 62",
        ),
        ({"model__max_bag_size": 0}, "model.max_bag_size: 0 is below 1; give at least 1"),
        (
            {"model__max_bag_size": 4},
            "input.longest_bag: 5 is above model.max_bag_size 4; give at most 4, or leave max_bag_size out",
        ),
        (
            {"model__max_rows": 4},
            "model.max_rows: 4 is under an unknown key; did you mean 'max_rows_per_table'?",
        ),
        (
            {"input__num_candidates": 4},
            "input.num_candidates: 4 is under an unknown key; the keys here are batch",
        ),
        ({"input__batch_size": 0}, "input.batch_size: 0 is below 1; give at least 1"),
    ],
)
def test_a_wrong_value_names_field_value_and_fix(message, changes, line):
    actual = message(**changes)
    assert line in actual
    assert actual.splitlines()[0].endswith(": 1 to correct")
    assert len(actual.splitlines()) == 2


def test_a_batch_can_be_changed():
    case = configs.load_case("dlrm_tiny")
    assert configs.with_input(case, batch_size=3).input.batch_size == 3
    assert configs.case_from_values(case.model_dump(mode="json")) == case


def schemes(quantised, **changes):
    model = configs.load_case("dlrm_tiny_int8").model
    model = model.model_copy(update={"quantised": quantised, **changes})
    return model.schemes


def test_patterns_choose_the_quantised_tables():
    tables = {f"emb_l.{table}" for table in range(4)}
    assert configs.load_case("dlrm_tiny_int8").model.schemes.keys() == tables - {"emb_l.3"}
    assert schemes({"emb_l.*": "int8_rows"}).keys() == tables
    assert schemes({"emb_l": "int8_rows"}).keys() == tables
    assert schemes({"*": "int4_rows"}).keys() == tables
    assert configs.load_case("dlrm_tiny").model.schemes == {}


def test_schemes_of_tables_and_of_products_do_not_meet():
    both = schemes({"*": "int8_channel", "emb_l": "int4_rows"})
    assert {path for path, scheme in both.items() if scheme.is_of_tables} == {
        f"emb_l.{table}" for table in range(4)
    }
    # The sigmoids and ReLUs between the layers have numbers, too.
    assert {path for path, scheme in both.items() if scheme.span == "channel"} == {
        *("bot_l.0", "bot_l.2"),
        *("top_l.0", "top_l.2", "top_l.4"),
    }


def test_the_innermost_pattern_decides_and_the_first_of_equals():
    chosen = schemes({"*": "int8_channel", "top_l": "fp8_channel", "top_l.2": "int4_weights_blocks"})
    assert (chosen["bot_l.0"].numbers, chosen["top_l.0"].numbers, chosen["top_l.2"].numbers) == (
        *("int8", "fp8"),
        "int4",
    )
    assert schemes({"top_l.*": "fp8_tensor", "top_l.2": "int8_tensor"})["top_l.2"].numbers == "fp8"
    assert schemes({"top_l": "int4_weights_blocks"}, block_size=5)["top_l.0"].block_size == 5


@pytest.mark.parametrize(
    ("quantised", "line"),
    [
        (
            {"emb_l.4": "int8_rows"},
            "quantised['emb_l.4']: int8_rows covers no table; give a pattern of 'emb_l.0' to 'emb_l.3'",
        ),
        (
            {"emb_l": "int8_channel"},
            "quantised['emb_l']: int8_channel covers no product; give a pattern of 'bot_l.0' to 'top_l.",
        ),
        ({"top_l": "int7"}, "quantised['top_l']: 'int7' is no scheme; use one of int8_tensor, int8_channel"),
    ],
)
def test_a_pattern_or_scheme_that_does_not_fit_is_refused(message, quantised, line):
    assert line in message(model__quantised=quantised)


def test_composed_tables_are_not_quantised(message):
    assert "quantised['emb_l.0']: int8_rows covers no table; leave the pattern out" in message(
        model__quantised={"emb_l.0": "int8_rows"}, model__qr_flag=True
    )
