"""Cases load, are frozen, and every mistake in one is reported with the field, the value and the fix."""

import copy
import json

import pytest
from pydantic import ValidationError

import configs
from configs.loading import _FOLDER
from parity.base.strict_yaml import parse_yaml

#: name -> (items, history, width, blocks, heads, head width), from the public gin files and preprocessor.
PUBLIC = {
    "hstu_ml1m": (3952, 200, 50, 2, 1, 50),
    "hstu_ml1m_large": (3952, 200, 50, 8, 2, 25),
    "hstu_ml20m": (131262, 200, 256, 4, 4, 64),
    "hstu_ml20m_large": (131262, 200, 256, 16, 8, 32),
    "hstu_amzn_books": (695762, 50, 64, 4, 4, 16),
    "hstu_amzn_books_large": (695762, 50, 64, 16, 8, 8),
}


@pytest.fixture
def write(tmp_path):
    """Writes a variant of the tiny case: ``write(model__num_blocks=0)``; a value of ... removes the key."""

    def write_variant(**changes):
        values = parse_yaml((_FOLDER / "hstu_tiny.yaml").read_text())
        for key, value in changes.items():
            *parents, last = key.split("__")
            target = values
            for parent in parents:
                target = target[parent]
            if value is ...:
                del target[last]
            else:
                target[last] = copy.deepcopy(value)
        path = tmp_path / "case.yaml"
        # JSON is YAML, apart from the name of NaN.
        path.write_text(json.dumps(values).replace("NaN", ".nan"))
        return path

    return write_variant


def _message(source) -> str:
    with pytest.raises(configs.ConfigError) as caught:
        configs.load_case(source)
    return str(caught.value)


@pytest.mark.parametrize("name", configs.list_cases())
def test_every_case_loads_under_the_name_of_its_file(name):
    case = configs.load_case(name)
    assert case.name == name


@pytest.mark.parametrize("name", PUBLIC)
def test_public_cases_have_the_public_sizes(name):
    model = configs.load_case(name).model
    items, history, width, blocks, heads, head_width = PUBLIC[name]
    assert (model.num_items, model.max_sequence_len, model.max_output_len) == (items, history, 11)
    assert (model.embedding_dim, model.num_blocks, model.num_heads) == (width, blocks, heads)
    assert model.attention_dim == model.linear_dim == head_width


def test_cases_cover_every_kind_of_module():
    cases = [configs.load_case(name) for name in configs.list_cases()]
    models = [case.model for case in cases if case.family == "hstu"]
    assert {model.input_preprocessor for model in models} == {"positional", "rated", "combined"}
    assert {model.output_postprocessor for model in models} == {"l2_norm", "layer_norm"}
    assert {model.embedding for model in models} == {"local", "categorical"}
    assert {model.normalization for model in models} == {"rel_bias", "hstu_rel_bias", "softmax_rel_bias"}
    biases = {model.relative_attention_bias for model in models}
    assert biases == {"bucketed_time_and_position", "positional", "none"}
    assert {model.concat_ua for model in models} == {True, False}


def test_derived_sizes():
    rated = configs.load_case("hstu_tiny_rated").model
    assert rated.embedding_dim == rated.item_embedding_dim + rated.rating_embedding_dim
    combined = configs.load_case("hstu_tiny_combined").model
    assert (combined.positions_per_item, combined.sequence_width) == (2, 2 * combined.padded_length)


def test_a_case_is_frozen():
    case = configs.load_case("hstu_tiny")
    with pytest.raises(ValidationError, match="frozen"):
        case.model.num_blocks = 4


def test_head_widths_default_to_an_even_split(write):
    path = write(model__attention_dim=..., model__linear_dim=..., model__num_heads=4)
    model = configs.load_case(path).model
    assert (model.attention_dim, model.linear_dim) == (4, 4)


def test_numbers_in_exponent_form_are_numbers(tmp_path):
    text = (_FOLDER / "hstu_ml1m.yaml").read_text().replace("1.0e-6", "1e-6")
    path = tmp_path / "case.yaml"
    path.write_text(text)
    assert "epsilon: 1e-6" in text
    assert configs.load_case(path).model.epsilon == 1e-6


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"model__num_blocks": 0}, "model.num_blocks: 0 is below 1; give at least 1"),
        ({"model__num_blocks": "3"}, "model.num_blocks: '3' (text) does not fit; give a whole number"),
        ({"model__num_blocks": 2.5}, "model.num_blocks: 2.5 (a number) does not fit; give a whole number"),
        ({"model__num_blocks": True}, "model.num_blocks: True (true or false) does not fit; give a whole"),
        ({"model__num_blocks": ...}, "model.num_blocks: missing; give transduction units"),
        ({"model__nm_blocks": 3}, "model.nm_blocks: 3 is under an unknown key; did you mean 'num_blocks'?"),
        (
            {"model__attention_dim": ..., "model__num_heads": 3},
            "model.attention_dim: missing, and embedding_dim 16 is not divisible by num_heads 3; "
            "give attention_dim, or a num_heads among 1, 2, 4, 8, 16",
        ),
        ({"model__max_sequence_len": 20000}, "model.max_sequence_len: 20000 is above 16384; give at most"),
        ({"model__max_output_len": 0}, "model.max_output_len: 0 is below 1; give at least 1"),
        ({"model__normalization": "softmax"}, "did you mean 'softmax_rel_bias'? use one of rel_bias, hstu"),
        (
            {"model__relative_attention_bias": "none"},
            "model.relative_attention_bias: 'none' does not go with normalization 'rel_bias'",
        ),
        (
            {"model__num_categories": 4},
            "num_categories: 4 has no effect with embedding 'local'; remove it",
        ),
        (
            {"model__input_preprocessor": "rated"},
            "model.rating_embedding_dim: missing, and input_preprocessor is 'rated'",
        ),
        (
            {"model__embedding": "categorical", "model__num_categories": 61},
            "model.num_categories: 61 is more than num_items 60; give at most 60",
        ),
        (
            {"model__epsilon": float("nan")},
            "model.epsilon: nan (a number) does not fit; give a finite",
        ),
        ({"model__bucket_divisor": 1e-320}, "model.bucket_divisor: 1e-320 is below 0.01; give at least 0.01"),
        ({"model__epsilon": 0.0}, "model.epsilon: 0.0 is not above 0.0; give more than 0.0"),
        ({"model__linear_dropout_rate": 1.0}, "model.linear_dropout_rate: 1.0 is not below 1.0;"),
        ({"model__concat_ua": "yes"}, "model.concat_ua: 'yes' (text) does not fit; give true or false"),
        ({"model": 3}, "model: 3 (a whole number) does not fit; give a mapping"),
        ({"input": ...}, "input: missing; give the mapping of the input's sizes"),
        (
            {"input__num_candidates": 61},
            "input.num_candidates: 61 is more than model.num_items 60;",
        ),
        ({"input__batch_size": -1}, "input.batch_size: -1 is below 1; give at least 1"),
        ({"input__lengths": [1, 2, 3, 4, 25]}, "input.lengths[4]: 25 is above model.max_sequence_len 24"),
        ({"input__lengths": [1, 2]}, "input.lengths: 2 lengths for input.batch_size 5; give one for each"),
        ({"input__lengths": [1, 2, 3, 4, 0]}, "input.lengths[4]: 0 is below 1; give at least 1"),
        ({"name": "Foo bar"}, "name: 'Foo bar' (text) does not fit; give lower case letters"),
        (
            {"family": "hstuu"},
            "family: 'hstuu' is not a choice; did you mean 'hstu'? use one of dlrm, dlrmv3, hstu,",
        ),
        (
            {"family": ["hstu"]},
            "family: ['hstu'] is not a choice; use one of dlrm, dlrmv3, hstu, lecture_dlrm",
        ),
        ({"family": ...}, "family: missing; use one of dlrm, dlrmv3, hstu, lecture_dlrm"),
    ],
)
def test_a_wrong_value_names_field_value_and_fix(write, changes, line):
    path = write(**changes)
    message = _message(path)
    assert line in message
    assert message.startswith(f"{path}: 1 to correct\n")


def test_a_key_that_is_not_text(write):
    path = write()
    path.write_text(path.read_text().removesuffix("}") + ", 5: 3}")
    assert "[5]: 5 is a whole number, and keys are text; the keys here are name, " in _message(path)


def test_all_problems_come_in_one_message(write):
    message = _message(write(model__num_blocks=0, model__num_heads="two", input__seed=-1, more=1))
    assert message.splitlines()[0].endswith(": 4 to correct")
    for field in ("model.num_blocks: 0", "model.num_heads: 'two'", "input.seed: -1", "more: 1"):
        assert message.count(field) == 1


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("name: a\nname: b\n", "key 'name' is given twice, on lines 1 and 2; remove one"),
        ("model:\n  num_items: 1\n  num_items: 2\n", "key 'num_items' is given twice, on lines 2 and 3"),
        ("- 1\n", "holds a list, not a mapping; start it with name:, description:"),
        ("", "holds nothing, not a mapping"),
        ("name: a\nmodel: {}\nname: b\n", "is not valid YAML (line 3, column 1: key 'name' is given twice"),
        ("name: [1\n", "is not valid YAML"),
        ("name: !!python/object:os.system {}\n", "is not valid YAML"),
        ("? [1, 2]\n: 3\n", "is not valid YAML"),
    ],
)
def test_a_file_that_is_no_case(tmp_path, text, part):
    path = tmp_path / "case.yaml"
    path.write_text(text)
    assert part in _message(path)


def test_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    assert "not UTF-8 text" in _message(tmp_path / "latin.yaml")
    assert "No such file or directory" in _message(tmp_path / "absent.yaml")
    assert "Is a directory" in _message(tmp_path)


def test_an_unknown_name_suggests_the_closest_and_lists_all():
    message = _message("hstu_ml1")
    assert "did you mean 'hstu_ml1m'?" in message
    assert all(name in message for name in configs.list_cases())


def test_with_input_checks_again():
    case = configs.load_case("hstu_tiny")
    assert configs.with_input(case, batch_size=9).input.batch_size == 9
    pinned = configs.with_input(case, batch_size=2, lengths=(3, 24))
    assert pinned.input.lengths == (3, 24)
    assert configs.with_input(pinned, batch_size=3).input.lengths is None
    with pytest.raises(configs.ConfigError, match="hstu_tiny: 1 to correct\ninput.batch_size: 0"):
        configs.with_input(case, batch_size=0)
