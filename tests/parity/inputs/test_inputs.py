"""HSTU's inputs are realistic, reproducible, read-only and checked; poison touches the padding alone."""

import pickle

import numpy as np
import pytest

import configs
from cases.hstu.inputs import HSTUInputs, poison, validate
from cases.hstu.synthetic import reachable_buckets, synthetic
from parity.base.errors import UserError
from parity.inputs.arrays import load, save

CASES = [name for name in configs.list_cases() if configs.load_case(name).family == "hstu"]
#: The cases whose attention bias depends on time.
BUCKETED = [
    name
    for name in CASES
    if configs.load_case(name).model.relative_attention_bias == "bucketed_time_and_position"
]


def _case(name="hstu_tiny", **changes):
    return configs.with_input(configs.load_case(name), **changes)


def _valid_deltas(inputs: HSTUInputs) -> np.ndarray:
    """Every ts[i+1] - ts[j] with j <= i inside a history: what the time bias of a valid row depends on."""
    seconds = inputs["timestamps"][:, :: inputs.positions_per_item]
    deltas = []
    for row, length in zip(seconds, inputs["past_lengths"], strict=True):
        later, earlier = np.tril_indices(length)
        deltas.append(row[later + 1] - row[earlier])
    return np.concatenate(deltas)


@pytest.mark.parametrize("name", CASES)
def test_synthetic_input_of_every_case(name):
    case = configs.load_case(name)
    model, inputs = case.model, synthetic(case)
    batch, width = case.input.batch_size, model.padded_length
    shapes = {key: array.shape for key, array in inputs.arrays.items()}
    assert shapes == {
        "past_lengths": (batch,),
        "past_ids": (batch, width),
        "ratings": (batch, width),
        "timestamps": (batch, width * model.positions_per_item),
        "item_ids": (1, case.input.num_candidates),
    }
    assert {array.dtype for array in inputs.arrays.values()} == {np.dtype(np.int64)}
    assert {inputs["past_lengths"].min(), inputs["past_lengths"].max()} == {1, model.max_sequence_len}
    valid = inputs.valid_mask()
    assert np.array_equal(valid, inputs["past_ids"] != 0)
    assert inputs["ratings"][valid].min() == 1
    assert inputs["ratings"][valid].max() == model.num_ratings - 1
    longest = inputs["past_ids"][inputs["past_lengths"].argmax(), : model.max_sequence_len]
    assert np.unique(longest).size < longest.size, "no item is repeated"
    assert {1, model.num_items} <= set(inputs["item_ids"].ravel().tolist())
    assert np.unique(inputs["item_ids"]).size == case.input.num_candidates


@pytest.mark.parametrize("name", BUCKETED)
def test_every_reachable_time_bucket_is_hit(name):
    case = configs.load_case(name)
    deltas = _valid_deltas(synthetic(case))
    assert deltas.min() >= 0
    buckets = np.floor(np.log(np.maximum(deltas, 1)) / case.model.bucket_divisor)
    assert set(reachable_buckets(case.model).tolist()) <= set(buckets.astype(int).tolist())


def test_reachable_buckets_are_those_of_whole_seconds():
    model = configs.load_case("hstu_ml1m").model
    few = np.floor(np.log(np.maximum(np.arange(100_000), 1)) / model.bucket_divisor)
    reachable = reachable_buckets(model)
    assert reachable[reachable < few.max()].tolist() == sorted(set(few[few < few.max()].astype(int)))
    assert reachable.max() == int(np.log(2 * 365 * 24 * 3600) / model.bucket_divisor)


@pytest.mark.parametrize(("batch_size", "lengths"), [(1, {24}), (2, {1, 24})])
def test_small_batches_keep_the_ends(batch_size, lengths):
    assert set(synthetic(_case(batch_size=batch_size))["past_lengths"].tolist()) == lengths


def test_lengths_are_long_tailed_and_spread():
    lengths = synthetic(_case("hstu_ml1m", batch_size=256))["past_lengths"]
    assert np.median(lengths) < lengths.mean() < 100
    assert np.unique(lengths).size > 50


def test_lengths_can_be_given():
    inputs = synthetic(_case(batch_size=3, lengths=(2, 24, 5)))
    assert inputs["past_lengths"].tolist() == [2, 24, 5]


def test_a_seed_gives_one_input_and_another_seed_another():
    digests = {synthetic(_case(seed=seed)).digest for seed in (0, 1, 1, 0)}
    assert len(digests) == 2
    assert synthetic(_case(seed=0), per_user_candidates=True)["item_ids"].shape == (5, 7)


def test_more_candidates_leave_the_histories_alone():
    few, many = synthetic(_case(num_candidates=2)), synthetic(_case(num_candidates=20))
    assert all(np.array_equal(few[name], many[name]) for name in few.arrays if name != "item_ids")


def test_arrays_are_read_only_and_independent_of_the_caller():
    given = {name: array.copy() for name, array in synthetic(_case()).arrays.items()}
    inputs = HSTUInputs(given)
    digest = inputs.digest
    given["past_ids"][:] = 3
    with pytest.raises(ValueError, match="read-only"):
        inputs["past_ids"][0, 0] = 3
    with pytest.raises(TypeError):
        inputs.arrays["past_ids"] = given["past_ids"]
    assert HSTUInputs(inputs.arrays).digest == digest
    assert pickle.loads(pickle.dumps(inputs)).digest == digest


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: arrays.update(ratings=arrays["ratings"] + 1),
        lambda arrays: arrays.update(ratings=arrays["ratings"].astype(np.int32)),
        lambda arrays: arrays.update(item_ids=arrays["item_ids"].T),
        lambda arrays: arrays.update(ratings=arrays["past_ids"], past_ids=arrays["ratings"]),
    ],
)
def test_the_digest_covers_names_types_shapes_and_values(change):
    inputs = synthetic(_case())
    arrays = dict(inputs.arrays)
    change(arrays)
    assert HSTUInputs(arrays).digest != inputs.digest


@pytest.mark.parametrize("name", ["hstu_tiny", "hstu_tiny_rated", "hstu_tiny_combined"])
def test_poison_changes_all_of_the_padding_and_nothing_else(name):
    case = configs.load_case(name)
    inputs = synthetic(case)
    poisoned = poison(inputs, seed=0)
    validate(poisoned, case.model)
    valid = inputs.valid_mask()
    assert np.array_equal(poisoned.valid_mask(), valid)
    for array in ("past_ids", "ratings"):
        assert np.array_equal(poisoned[array][valid], inputs[array][valid])
    assert (poisoned["past_ids"][~valid] != 0).all()
    per_item = inputs.positions_per_item
    through_query = (
        np.arange(inputs["timestamps"].shape[1]) < (inputs["past_lengths"][:, None] + 1) * per_item
    )
    assert np.array_equal(poisoned["timestamps"][through_query], inputs["timestamps"][through_query])
    assert (poisoned["timestamps"][~through_query] != 0).all()
    assert poisoned["timestamps"].min() < 0
    for array in ("past_lengths", "item_ids"):
        assert np.array_equal(poisoned[array], inputs[array])
    assert poison(inputs, seed=1).digest != poisoned.digest == poison(inputs, seed=0).digest


def test_position_mask_counts_ratings_as_positions():
    inputs = synthetic(_case("hstu_tiny_combined"))
    assert inputs.position_mask().sum(axis=1).tolist() == (2 * inputs["past_lengths"]).tolist()
    assert inputs.position_mask().shape == inputs["timestamps"].shape


def _set(name, index, value):
    def change(arrays):
        arrays[name] = arrays[name].copy()
        arrays[name][index] = value

    return change


def _swap_in(name, make):
    def change(arrays):
        arrays[name] = make(arrays[name])

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            _set("past_ids", (1, 0), 61),
            r"past_ids\[1, 0\]: 61 is outside the item table 1..60 .*; map the ids",
        ),
        (_set("past_ids", (2, 26), -1), r"past_ids\[2, 26\]: -1 is outside the item table"),
        (
            _set("past_ids", (0, 1), 0),
            r"past_ids\[0, 1\]: 0 inside the history is the id of padding; give ids",
        ),
        (_set("past_lengths", 3, 0), r"past_lengths\[3\]: 0 is not a length of 1..24 .*; drop users"),
        (_set("past_lengths", 2, -5), r"past_lengths\[2\]: -5 is not a length of 1..24"),
        (_set("past_lengths", 1, 25), r"past_lengths\[1\]: 25 is not a length of 1..24 .*keep the latest 24"),
        (_set("ratings", (0, 0), 6), r"ratings\[0, 0\]: 6 is not a rating of 0..5 .*; map the ratings"),
        (
            _set("timestamps", (0, 1), 0),
            r"timestamps\[0, 1\]: 0 comes before the timestamp to its left; sort",
        ),
        (_set("timestamps", (0, 24), 5), r"timestamps\[0, 24\]: 5 comes before .*; the query comes last"),
        (_set("item_ids", (0, 6), 0), r"item_ids\[0, 6\]: 0 is outside the item table 1..60"),
        (_set("item_ids", (0, slice(3)), 99), r"item_ids\[0, 0\]: 99 is outside .* \(3 such elements\)"),
        (_swap_in("ratings", lambda a: a[:, :-1]), r"ratings: \(5, 26\) is not the shape \(5, 27\)"),
        (
            _swap_in("timestamps", lambda a: a.repeat(2, 1)),
            r"timestamps: \(5, 54\) is not the shape \(5, 27\)",
        ),
        (_swap_in("past_lengths", lambda a: a[:, None]), r"past_lengths: \(5, 1\) is not the shape \(5,\)"),
        (
            _swap_in("past_ids", lambda a: np.pad(a, ((0, 0), (0, 1)))),
            r"past_ids: \(5, 28\) is wider than 27",
        ),
        (_swap_in("past_ids", lambda a: a[:, :0]), r"past_ids: \(5, 0\) is wider than 27, .*, or empty"),
        (_swap_in("item_ids", lambda a: a[0]), r"item_ids: \(7,\) is not \(1, X\) or \(5, X\)"),
        (_swap_in("item_ids", lambda a: a.repeat(3, 0)), r"item_ids: \(3, 7\) is not \(1, X\) or \(5, X\)"),
        (_swap_in("item_ids", lambda a: a[:, :0]), r"item_ids: \(1, 0\) is not .* at least one candidate"),
        (
            _swap_in("past_ids", lambda a: a.astype(np.int32)),
            r"past_ids: int32 is not int64; give whole numbers",
        ),
        (
            _swap_in("past_ids", lambda a: np.where(a == 0, np.nan, a)),
            r"past_ids: float64, with nan at \[\d+, \d+\] is not int64",
        ),
        (
            lambda arrays: arrays.pop("ratings"),
            r"inputs: missing \['ratings'\], unknown \[\] .*; give exactly",
        ),
        (lambda arrays: arrays.update(user=arrays["ratings"]), r"inputs: missing \[\], unknown \['user'\]"),
    ],
)
def test_bad_inputs_are_named(change, message):
    case = _case(lengths=(24, 3, 1, 2, 9))
    arrays = dict(synthetic(case).arrays)
    change(arrays)
    with pytest.raises(UserError, match=message) as caught:
        validate(HSTUInputs(arrays), case.model)
    assert caught.value.field
    assert caught.value.fix


def test_rows_can_be_trimmed_to_the_query_and_no_further():
    case = _case(lengths=(4, 3, 1, 2, 4))
    arrays = dict(synthetic(case).arrays)
    trimmed = {
        name: array[:, :5] if name != "item_ids" else array
        for name, array in arrays.items()
        if array.ndim > 1
    }
    validate(HSTUInputs({**arrays, **trimmed}), case.model)
    shorter = {name: array[:, :4] if name != "item_ids" else array for name, array in trimmed.items()}
    with pytest.raises(
        UserError, match=r"past_lengths\[0\]: 4 leaves no position for the query in rows of 4"
    ):
        validate(HSTUInputs({**arrays, **shorter}), case.model)


def test_the_two_timestamps_of_an_item_are_equal():
    case = _case("hstu_tiny_combined", lengths=(12, 1, 5, 3))
    arrays = dict(synthetic(case).arrays)
    _set("timestamps", (2, 6), arrays["timestamps"][2, 5])(arrays)
    with pytest.raises(UserError, match=r"timestamps\[2, 7\]: \d+ differs from the timestamp of its item"):
        validate(HSTUInputs(arrays), case.model)


def test_saved_inputs_come_back(tmp_path):
    inputs = synthetic(_case())
    path = tmp_path / "new" / "inputs.safetensors"
    save(inputs, path)
    save(inputs, path)
    assert load(path).digest == inputs.digest
    other = tmp_path / "again.safetensors"
    save(inputs, other)
    assert other.read_bytes() == path.read_bytes()
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["inputs.safetensors"]


def test_saving_never_replaces_other_inputs(tmp_path):
    path = tmp_path / "inputs.safetensors"
    save(synthetic(_case(seed=0)), path)
    before = path.read_bytes()
    with pytest.raises(UserError, match="exists with other content; remove it, or choose another folder"):
        save(synthetic(_case(seed=1)), path)
    assert path.read_bytes() == before


def test_saving_into_what_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written .*; choose a folder that you can write to"):
        save(synthetic(_case()), tmp_path / "file" / "inputs.safetensors")


def test_files_that_are_no_inputs(tmp_path):
    path = tmp_path / "inputs.safetensors"
    with pytest.raises(UserError, match="cannot be read"):
        load(path)
    inputs = synthetic(_case())
    save(inputs, path)
    content = path.read_bytes()
    path.write_bytes(content[:-8])
    with pytest.raises(UserError, match="is truncated or not safetensors"):
        load(path)
    path.write_bytes(content[:-8] + (7).to_bytes(8, "little"))
    with pytest.raises(UserError, match="does not have the digest that was saved with it"):
        load(path)
    path.write_bytes(content.replace(b"parity.inputs/1", b"parity.inputs/9"))
    with pytest.raises(UserError, match="has schema parity.inputs/9, not parity.inputs/1"):
        load(path)


def test_user_errors_survive_a_process_boundary():
    error = pickle.loads(pickle.dumps(UserError("--batch", 0, "is below 1", "give at least 1")))
    assert (error.field, error.value, error.fix) == ("--batch", 0, "give at least 1")
    assert str(error) == "--batch: 0 is below 1; give at least 1"
