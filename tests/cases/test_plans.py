"""The batches of the shipped cases' plans: sizes, widths and values that one batch would not have."""

import inspect

import numpy as np
import pytest
import torch

from cases.registry import SHIPPED
from cases.shipped import load_case
from parity.base.trees import map_tree
from parity.inputs.arrays import make_inputs
from parity.inputs.weights import case_weights

DEFAULT = tuple(case.name for case in SHIPPED.cases() if case.default)


def planned(name):
    """The case and its batches by name."""
    case = load_case(name)
    return case, {batch.name: batch.inputs for batch in make_inputs(case).batches}


def of_family(family):
    return [name for name in DEFAULT if load_case(name).config.family == family]


@pytest.mark.parametrize("name", DEFAULT)
def test_batches_have_several_sizes_names_and_purposes(name):
    case = load_case(name)
    batches = make_inputs(case).batches
    assert batches[0].name == "typical"
    assert len({batch.name for batch in batches}) == len(batches) >= 5
    assert all(batch.purpose for batch in batches)
    sizes = {case.batch_size_of(batch.inputs) for batch in batches}
    assert {1, 2, 3, case.batch_size} <= sizes
    # The typical batch is the largest: its executable serves the others.
    assert max(sizes) == case.batch_size


@pytest.mark.parametrize("name", of_family("hstu"))
def test_histories_of_every_length_in_narrow_and_full_rows(name):
    case, batches = planned(name)
    model = case.model
    lengths = {name: batch["past_lengths"].tolist() for name, batch in batches.items()}
    assert {1, 2, model.max_sequence_len, model.padded_length} <= {
        length for batch in lengths.values() for length in batch
    }
    assert all(batch[0] < max(batch) for batch in lengths.values() if len(batch) > 1)
    narrow = batches["narrow"]
    assert narrow["past_ids"].shape[1] < model.padded_length
    assert narrow["item_ids"].shape[0] == len(lengths["narrow"]) > 1
    assert narrow["item_ids"].min() == 0
    ids = np.concatenate([batch["past_ids"].ravel() for batch in batches.values()])
    ratings = np.concatenate([batch["ratings"].ravel() for batch in batches.values()])
    assert {0, 1, model.num_items} <= set(ids.tolist())
    assert {0, model.num_ratings - 1} <= set(ratings.tolist())


@pytest.mark.parametrize("family", sorted({load_case(name).config.family for name in DEFAULT}))
def test_every_optional_argument_of_an_entry_is_passed_by_one_batch_and_left_out_by_another(family):
    optional, passed, left_out = set(), set(), set()
    for name in of_family(family):
        case, batches = planned(name)
        parameters = inspect.signature(getattr(case.build_reference(), case.entry)).parameters
        own = {p.name for p in parameters.values() if p.default is not p.empty}
        optional |= own
        for arrays in batches.values():
            arguments = case.entry_arguments(arrays).keys()
            passed |= own & arguments
            left_out |= own - arguments
    assert passed == left_out == optional


@pytest.mark.parametrize("normalization", ["rel_bias", "softmax_rel_bias"])
def test_a_model_with_a_bias_of_positions_runs_with_and_without_timestamps(normalization):
    payloads = set()
    for name in of_family("hstu"):
        case, batches = planned(name)
        options = case.model.relative_attention_bias, case.model.normalization
        if options == ("positional", normalization):
            for arrays in batches.values():
                payloads.add("timestamps" in case.entry_arguments(arrays)["past_payloads"])
    assert payloads == {True, False}


@pytest.mark.parametrize("name", of_family("hstu"))
def test_pauses_of_nothing_seconds_and_decades(name):
    case, batches = planned(name)
    seconds = {name: batch["timestamps"] for name, batch in batches.items() if "timestamps" in batch}
    assert len(set(seconds["one full row"].ravel().tolist()) - {0}) == 1
    decades = seconds["decades"]
    assert decades.min() < 0
    assert decades.max() > 2**31
    beyond = np.exp(case.model.bucket_divisor * case.model.num_buckets)
    assert np.diff(decades, axis=1).max() > beyond


@pytest.mark.parametrize("name", of_family("hstu"))
def test_one_row_replaces_items_while_the_others_append_them(name):
    case, batches = planned(name)
    arrays = batches["bucket edges"].arrays
    steps = case.incremental_arguments(arrays)
    if steps is None:
        assert case.model.positions_per_item > 1 or case.model.num_blocks > 1
        return
    first, *_, last = (step["past_lengths"].tolist() for step in steps)
    shorter, longest = arrays["past_lengths"].tolist()
    assert (first, last) == ([max(1, shorter - 2), longest], [shorter, longest])
    assert [step["delta_x_offsets"][1] for step in steps[1:]] == [longest - 2, longest - 1]


@pytest.mark.parametrize("name", of_family("hstu"))
def test_an_append_takes_the_place_of_another_item_at_the_first_place_too(name):
    case, batches = planned(name)
    at = {}
    for batch in batches.values():
        steps = case.incremental_arguments(batch.arrays)
        for step in steps[1:] if steps else ():
            for row, place in enumerate(step["delta_x_offsets"]):
                at.setdefault(int(place), []).append(
                    steps[0]["past_ids"][row, place] != step["past_ids"][row, place]
                )
    if at:
        assert 0 in at
        assert all(all(differs) for differs in at.values())


def test_states_on_both_sides_of_a_floor_logits_at_both_ends_and_squares_beyond_half_precision():
    seen = {}

    def record(name):
        def recorded(module, args, result):
            seen[name, type(module).__name__] = args[0], result

        return recorded

    for name in of_family("hstu"):
        case = load_case(name)
        model = case.build_reference()
        model.load_state_dict(case_weights(case)[0])
        for path, module in model.named_modules():
            if path == "_output_postproc" or path.endswith("0._rel_attn_bias"):
                module.register_forward_hook(record(name))
        arguments = map_tree(case.entry_arguments(make_inputs(case).typical.arrays), torch.tensor)
        with torch.inference_mode():
            model.score(**arguments)
    norms = {
        name: states[..., : load_case(name).model.item_embedding_dim].norm(dim=-1)
        for (name, kind), (states, _) in seen.items()
        if kind == "L2NormEmbeddingPostprocessor"
    }
    floors = {name: load_case(name).model.output_epsilon for name in norms}
    assert any((0 < norms[name]).logical_and(norms[name] < floors[name]).any() for name in norms)
    assert any((norms[name] > floors[name]).any() for name in norms if floors[name] > 0.1)
    assert max(norm.max() for norm in norms.values()) ** 2 > torch.finfo(torch.float16).max
    biases = [result for (_, kind), (_, result) in seen.items() if kind.startswith("RelativeBucketedTime")]
    assert min(bias.min() for bias in biases) < -10
    assert max(bias.max() for bias in biases) > 10


@pytest.mark.parametrize("name", of_family("hstu") + of_family("dlrmv3"))
def test_an_output_that_is_zero_in_the_padding_counts_there(name):
    case = load_case(name)
    model = case.build_reference()
    model.load_state_dict(case_weights(case)[0])
    arrays = make_inputs(case).typical.arrays
    with torch.inference_mode():
        results = getattr(model, case.entry)(**map_tree(case.entry_arguments(arrays), torch.tensor))
    zero = []
    for output, result in zip(
        case.outputs, results if isinstance(results, tuple) else (results,), strict=True
    ):
        is_valid = case.valid_rows(arrays).get(result.shape[1]) if result.dim() > 2 else None
        if is_valid is not None and not result[~torch.from_numpy(is_valid)].any():
            zero.append(output)
    assert zero
    assert tuple(zero) == case.whole_outputs


@pytest.mark.parametrize("name", of_family("stu"))
def test_a_query_at_the_end_of_an_hour_is_in_the_next_one_in_float32(name):
    _, batches = planned(name)
    seconds = np.concatenate([batch["seq_timestamps"].ravel() for batch in batches.values()])
    assert (seconds // 3600 != seconds.astype(np.float32).astype(np.int64) // 3600).any()


@pytest.mark.parametrize("name", of_family("stu"))
def test_requests_without_history_targets_or_full_rows(name):
    case, batches = planned(name)
    model = case.model
    targets = np.concatenate([batch["num_targets"] for batch in batches.values()])
    lengths = np.concatenate([batch["seq_lengths"] for batch in batches.values()])
    history = lengths - targets - model.contextual_seq_len
    assert {0, model.max_num_targets} <= set(targets.tolist())
    assert {0, 1, model.max_uih_len} <= set(history.tolist())
    narrow = batches["narrow"]
    width = narrow["seq_ids"].shape[1]
    assert width < model.padded_length
    # An append has room for all targets. Only behind a row near the width does it reach past the end.
    first_new = narrow["seq_lengths"] - narrow["num_targets"]
    assert (first_new + model.max_num_targets > width).any()


@pytest.mark.parametrize("name", of_family("dlrm"))
def test_bags_of_nothing_and_of_the_longest_and_both_ends_of_tables(name):
    case, batches = planned(name)
    for table, rows in enumerate(case.model.table_rows):
        indices = [batch[f"lS_i_{table}"] for batch in batches.values()]
        assert {0, rows - 1} <= set(np.concatenate(indices).tolist())
        assert min(array.size for array in indices) == 0
    counts = np.concatenate([batch["counts"].ravel() for batch in batches.values()])
    assert counts.min() < -(2**31)
    assert counts.max() > 2**31


def test_learned_weights_of_several_tables_stand_alone_and_beside_those_of_a_request():
    weighted = set()
    for name in of_family("dlrm"):
        case, batches = planned(name)
        if case.model.weighted_pooling == "learned" and len(case.model.table_rows) > 1:
            weighted |= {"lS_w" in case.entry_arguments(batch.arrays) for batch in batches.values()}
    assert weighted == {True, False}


@pytest.mark.parametrize("name", of_family("lecture_dlrm"))
def test_the_first_and_the_last_token_are_asked_and_one_stands_twice(name):
    case, batches = planned(name)
    raw = np.concatenate([batch["sparse_features"] for batch in batches.values()])
    for feature, entry in enumerate(case.model.metadata.values()):
        tokens = entry["tokenizer_values"]
        assert len(tokens) == entry["cardinality"]
        assert len(tokens) == 1 or tokens.count(tokens[-1]) == 1
        assert tokens.count(tokens[0]) == (2 if len(tokens) > 2 else 1)
        assert {tokens[0], tokens[-1]} <= set(raw[:, feature].tolist())


@pytest.mark.parametrize("name", of_family("lecture_dlrm"))
def test_raw_values_beside_multiples_negative_and_of_many_bits(name):
    case, batches = planned(name)
    raw = np.concatenate([batch["sparse_features"] for batch in batches.values()])
    assert raw.min() < -(2**31)
    assert raw.max() > 2**32
    for feature, size in enumerate(case.model.cardinalities):
        assert {-2, -1, 0, size - 1, size} <= set(raw[:, feature].tolist())
