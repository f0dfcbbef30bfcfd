"""Sizes in memory by arithmetic: lower bounds of the real ones, and a refusal before anything is made."""

import pytest

from cases.shipped import list_cases, load_case
from cases.sizes import input_bytes, weight_bytes
from parity.base.errors import UserError
from parity.inputs.arrays import make_inputs
from parity.inputs.weights import case_weights

SMALL = [name for name in list_cases() if "tiny" in name]


@pytest.mark.parametrize("name", SMALL)
def test_they_are_lower_bounds(name):
    case = load_case(name)
    weights = case.build_reference().state_dict().values()
    # A block's modules are no parameters.
    blocks = 10_000 * getattr(case.model, "num_blocks", getattr(case.model, "num_layers", 0))
    tokens = 40 * sum(getattr(case.model, "cardinalities", ()))
    assert weight_bytes(case.config) - blocks - tokens <= sum(tensor.nbytes for tensor in weights)
    inputs = make_inputs(case).typical
    assert input_bytes(case.config) <= sum(array.nbytes for array in inputs.values())


def test_tables_of_quotients_count_in_their_whole_width():
    case = load_case("dlrm_tiny_qr")
    tables = {name: x for name, x in case.build_reference().state_dict().items() if name.startswith("emb_l")}
    assert weight_bytes(case.config) >= sum(tensor.nbytes for tensor in tables.values())


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("hstu_tiny", {"model.num_items": 2**40}),
        ("hstu_tiny", {"model.num_blocks": 2**40}),
        ("hstu_tiny", {"model.num_heads": 2**40}),
        ("hstu_tiny", {"model.max_output_len": 2**40}),
        ("hstu_tiny", {"model.num_buckets": 2**40}),
        ("hstu_tiny_rated", {"model.num_ratings": 2**40}),
        ("hstu_tiny_combined", {"model.num_ratings": 2**40}),
        ("hstu_tiny", {"input.batch_size": 2**40}),
        ("stu_tiny", {"model.num_layers": 2**40}),
        ("stu_tiny", {"model.num_time_buckets": 2**40}),
        ("stu_tiny", {"input.batch_size": 2**40}),
        ("dlrm_tiny", {"model.arch_embedding_size": [2**40, 3, 3, 3]}),
        ("dlrm_tiny_md", {"model.arch_embedding_size": [2**40, 5, 24]}),
        ("dlrm_tiny_qr", {"model.arch_embedding_size": [2**40, 5, 24]}),
        ("dlrm_tiny_qr", {"model.qr_collisions": 2**40}),
        ("dlrm_tiny", {"model.arch_mlp_top": "9999999999-9999999999-1"}),
        ("dlrm_tiny", {"input.longest_bag": 2**40}),
        ("dlrm_lecture_tiny", {"model.cardinalities": [2**40]}),
        ("dlrm_lecture_tiny", {"input.batch_size": 2**40}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value,
)
def test_sizes_that_no_machine_has_are_refused_at_once(name, sizes):
    case = load_case(name).with_sizes(sizes)
    with pytest.raises(
        UserError, match=rf"case: {name} needs .* GiB of memory, and .* GiB are available; give"
    ):
        make_inputs(case)
    if not any(size.startswith("input") for size in sizes):
        with pytest.raises(UserError, match=r"GiB are available; give smaller sizes$"):
            case_weights(case)


def test_items_that_no_table_has_are_refused_before_they_are_ranked():
    case = load_case("hstu_tiny_interleaved").with_sizes({"model.num_items": 2**50})
    with pytest.raises(UserError, match="hstu_tiny_interleaved needs .* GiB of memory"):
        make_inputs(case)
