"""HSTU's inputs are realistic, reproducible and checked; poison touches the padding alone."""

import numpy as np
import pytest
import torch

import configs
from cases.hstu.inputs import HSTUInputs, poison, validate
from cases.hstu.synthetic import reachable_buckets, synthetic
from cases.shipped import load_case
from parity.base.errors import UserError
from parity.base.trees import map_tree
from parity.inputs.weights import case_weights
from reference.build import build_hstu
from tests.array_changes import put, swap

CASES = [name for name in configs.list_cases() if configs.load_case(name).family == "hstu"]
#: Cases with a time bias in the attention.
BUCKETED = [
    name
    for name in CASES
    if configs.load_case(name).model.relative_attention_bias == "bucketed_time_and_position"
]


def _case(name="hstu_tiny", **changes):
    return configs.with_input(configs.load_case(name), **changes)


def _valid_deltas(inputs: HSTUInputs) -> np.ndarray:
    """Every ts[i+1] - ts[j] with j <= i inside a history: the arguments of a valid row's time bias."""
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            put("past_ids", (1, 0), 61),
            r"past_ids\[1, 0\]: 61 is outside the item table 1..60 .*; map the ids",
        ),
        (put("past_ids", (2, 26), -1), r"past_ids\[2, 26\]: -1 is outside the item table"),
        (
            put("past_ids", (0, 1), 0),
            r"past_ids\[0, 1\]: 0 inside the history is the id of padding; give ids",
        ),
        (put("past_lengths", 3, 0), r"past_lengths\[3\]: 0 is not a length of 1..27 .*; drop users"),
        (put("past_lengths", 2, -5), r"past_lengths\[2\]: -5 is not a length of 1..27"),
        (
            put("past_lengths", 1, 28),
            r"past_lengths\[1\]: 28 is not a length of 1..27 .*keep the latest 24",
        ),
        (
            put("ratings", (0, 0), 6),
            r"ratings\[0, 0\]: 6 is not a rating of 0..5 .*; map the ratings",
        ),
        (
            put("timestamps", (0, 1), 0),
            r"timestamps\[0, 1\]: 0 comes before the timestamp to its left; sort",
        ),
        (
            put("timestamps", (0, 24), 5),
            r"timestamps\[0, 24\]: 5 comes before .*; the query comes last",
        ),
        (put("item_ids", (0, 6), -1), r"item_ids\[0, 6\]: -1 is outside the item table 1..60"),
        (
            put("item_ids", (0, slice(3)), 99),
            r"item_ids\[0, 0\]: 99 is outside .* \(3 such elements\)",
        ),
        (swap("ratings", lambda a: a[:, :-1]), r"ratings: \(5, 26\) is not the shape \(5, 27\)"),
        (
            swap("timestamps", lambda a: a.repeat(2, 1)),
            r"timestamps: \(5, 54\) is not the shape \(5, 27\)",
        ),
        (
            swap("past_lengths", lambda a: a[:, None]),
            r"past_lengths: \(5, 1\) is not the shape \(5,\)",
        ),
        (
            swap("past_ids", lambda a: np.pad(a, ((0, 0), (0, 1)))),
            r"past_ids: \(5, 28\) is wider than 27",
        ),
        (swap("past_ids", lambda a: a[:, :0]), r"past_ids: \(5, 0\) is wider than 27, .*, or empty"),
        (swap("item_ids", lambda a: a[0]), r"item_ids: \(7,\) is not \(1, X\) or \(5, X\)"),
        (
            swap("item_ids", lambda a: a.repeat(3, 0)),
            r"item_ids: \(3, 7\) is not \(1, X\) or \(5, X\)",
        ),
        (
            swap("item_ids", lambda a: a[:, :0]),
            r"item_ids: \(1, 0\) is not .* at least one candidate",
        ),
        (
            swap("past_ids", lambda a: a.astype(np.int32)),
            r"past_ids: int32 is not int64; give whole numbers",
        ),
        (
            swap("past_ids", lambda a: np.where(a == 0, np.nan, a)),
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


@pytest.mark.parametrize("name", ["hstu_tiny_positional", "hstu_tiny_no_bias"])
def test_a_history_may_fill_its_row_where_no_bias_needs_time(name):
    case = load_case(name)
    inputs = synthetic(
        configs.with_input(case.config, lengths=(4, 3, 1, 2, 4)[: case.config.input.batch_size])
    )
    trimmed = {
        name: array[:, :4] if array.ndim > 1 and name != "item_ids" else array
        for name, array in inputs.items()
    }
    validate(HSTUInputs(trimmed), case.model)
    longer = {**trimmed, "past_lengths": trimmed["past_lengths"] + 1}
    with pytest.raises(UserError, match=r"past_lengths\[0\]: 5 is longer than its row of 4"):
        validate(HSTUInputs(longer), case.model)
    plan = {batch.name: batch.inputs for batch in case.plan()}
    assert plan["narrow"]["past_lengths"].max() == plan["narrow"]["past_ids"].shape[1]


@pytest.mark.parametrize("name", ["hstu_tiny", "hstu_tiny_softmax"])
def test_layouts_agree_on_a_history_that_fills_its_row_at_the_model_s_width_alone(name):
    """Why a full row of fewer positions is refused where the bias needs time."""
    case = load_case(name)
    plan = {batch.name: batch.inputs for batch in case.plan()}
    wide, narrow = plan["bucket edges"].arrays, plan["narrow"].arrays
    assert wide["past_lengths"].max() == wide["past_ids"].shape[1] == case.model.padded_length
    weights, _ = case_weights(case)
    models = [build_hstu(case.model, layout).eval() for layout in ("dense", "jagged")]
    for model in models:
        model.load_state_dict(weights)

    def difference(arrays, missing=0):
        length = arrays["past_ids"].shape[1] - missing
        full = {**arrays, "past_lengths": np.full_like(arrays["past_lengths"], length)}
        arguments = map_tree(case.entry_arguments(full), torch.tensor)
        with torch.no_grad():
            dense, jagged = (case.call(model, arguments)[0] for model in models)
        return float((dense - jagged).abs().max())

    assert max(difference(wide), difference(narrow, missing=1)) < 1e-5
    # Softmax attention has the full width in both layouts.
    assert case.model.normalization == "softmax_rel_bias" or difference(narrow) > 1e-3


def test_the_two_timestamps_of_an_item_are_equal():
    case = _case("hstu_tiny_combined", lengths=(12, 1, 5, 3))
    arrays = dict(synthetic(case).arrays)
    put("timestamps", (2, 6), arrays["timestamps"][2, 5])(arrays)
    with pytest.raises(UserError, match=r"timestamps\[2, 7\]: \d+ differs from the timestamp of its item"):
        validate(HSTUInputs(arrays), case.model)


def test_timestamps_are_left_out_where_no_bias_needs_them():
    for name, is_needed in (("hstu_tiny", True), ("hstu_tiny_combined", False), ("hstu_tiny_no_bias", False)):
        case = load_case(name)
        inputs = synthetic(case.config)
        arrays = {key: array for key, array in inputs.items() if key != "timestamps"}
        if is_needed:
            with pytest.raises(UserError, match=r"inputs: missing \['timestamps'\]"):
                case.validate(HSTUInputs(arrays))
            continue
        case.validate(HSTUInputs(arrays))
        poisoned = case.poison(HSTUInputs(arrays), 1)
        assert poisoned.keys() == arrays.keys()
        assert np.array_equal(poisoned["past_ids"], case.poison(inputs, 1)["past_ids"])
        masks, timed = case.valid_rows(arrays), case.valid_rows(inputs.arrays)
        assert masks.keys() == timed.keys()
        assert all(np.array_equal(masks[size], timed[size]) for size in masks)
