"""DLRM's inputs are like logged ones, reproducible and checked; Criteo files become batches that add up."""

from __future__ import annotations

import numpy as np
import pytest

import configs
from cases.dlrm.inputs import has_weights, index_name, make_inputs, synthetic, validate
from cases.dlrm.plan import plan
from cases.registry import SHIPPED
from cases.shipped import load_case
from datasets.criteo import logs as criteo
from datasets.errors import DataError
from parity.base.errors import UserError
from parity.cli.arguments import Arguments
from parity.inputs.arrays import CaseInputs, load, save
from tests.array_changes import put, swap
from tests.locations import DATA

CRITEO = DATA / "criteo_sample.csv"
CASES = [name for name in configs.list_cases() if configs.load_case(name).family == "dlrm"]


def _case(name="dlrm_tiny", **changes):
    return load_case(name).with_input(**changes)


def _lengths(inputs: CaseInputs, table: int) -> np.ndarray:
    return np.diff(inputs["lS_o"][table], append=inputs[index_name(table)].size)


@pytest.mark.parametrize("name", CASES)
def test_synthetic_input_of_every_case(name):
    case = _case(name)
    model, batch = case.model, case.input.batch_size
    (inputs,) = case.make_inputs().inputs
    case.validate(inputs)
    counts = inputs["counts"]
    assert counts.shape == (batch, model.bottom_widths[0])
    assert counts.dtype == inputs["lS_o"].dtype == np.int64
    assert counts.min() == -1
    assert (counts == 0).any()
    assert counts.max() > np.finfo(np.float16).max, "no count shows that float16 does not hold them"
    assert has_weights(inputs.arrays) == case.input.per_sample_weights
    lengths = [_lengths(inputs, table) for table in range(len(model.table_rows))]
    several = len(lengths) > 1
    assert {int(entry.max()) for entry in lengths} - {1} <= {case.input.longest_bag}
    assert min(int(entry.min()) for entry in lengths) == 0
    assert any(entry[0] == 0 for entry in lengths), "no table's first bag is empty"
    assert not several or any(entry[-1] == 0 for entry in lengths), "no table's last bag is empty"
    for table, rows in enumerate(model.table_rows):
        indices = inputs[index_name(table)]
        assert (indices.min(), indices.max()) == (0, rows - 1)


def test_the_report_counts_what_was_drawn():
    case = _case()
    batches = case.make_inputs()
    (inputs,) = batches.inputs
    tables = range(len(case.model.table_rows))
    assert batches.source == "synthetic, seed 0"
    assert batches.counts == {
        "rows": case.input.batch_size,
        "indices": sum(inputs[index_name(table)].size for table in tables),
        "empty_bags": sum(int((_lengths(inputs, table) == 0).sum()) for table in tables),
    }


def test_a_seed_gives_one_input_and_another_seed_another():
    assert len({synthetic(_case(seed=seed).config).digest for seed in (0, 1, 1, 0)}) == 2


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_small_batches(batch_size):
    case = _case(batch_size=batch_size)
    inputs = synthetic(case.config)
    case.validate(inputs)
    assert max(_lengths(inputs, 0)) == case.input.longest_bag


def test_saved_inputs_come_back(tmp_path):
    inputs = synthetic(_case("dlrm_tiny_weighted").config)
    save(inputs, tmp_path / "inputs.safetensors")
    assert load(tmp_path / "inputs.safetensors").digest == inputs.digest


def test_jagged_inputs_have_no_padding_to_poison_and_every_length_is_dynamic():
    case = _case()
    inputs = synthetic(case.config)
    assert case.poison(inputs, 0) is None
    assert case.valid_rows(inputs.arrays) == {}
    totals = {inputs[index_name(table)].size for table in range(4)}
    assert case.dynamic_sizes(inputs.arrays) == dict.fromkeys(totals, 0) | {8: 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            put("lS_i_1", 0, 3),
            r"lS_i_1\[0\]: 3 is outside table 1, which has 3 rows; give rows of 0..2, or",
        ),
        (put("lS_i_0", 2, -1), r"lS_i_0\[2\]: -1 is outside table 0, which has 40 rows"),
        (put("lS_o", (2, 0), 1), r"lS_o\[2, 0\]: 1 is not 0; begin the first bag at 0"),
        (
            put("lS_o", (0, 4), 99),
            r"lS_o\[0\]\[5\]: \d+ comes before the offset to its left; give offsets",
        ),
        (
            put("lS_o", (0, 7), 99),
            r"lS_o\[0\]\[7\]: 99 is beyond the \d+ indices of lS_i_0; begin every",
        ),
        (swap("lS_o", lambda a: a[:3]), r"lS_o: \(3, 8\) is not the shape \(4, 8\)"),
        (swap("counts", lambda a: a[:, :12]), r"counts: \(8, 12\) is not the shape \(8, 13\)"),
        (swap("counts", lambda a: a[:0]), r"counts: \(0, 13\) is not the shape .* at least one row"),
        (swap("counts", lambda a: a * 0.5), "counts: float64 is not int64; give whole numbers"),
        (
            swap("counts", lambda a: a * np.nan),
            r"counts: float64, with nan at \[0, 0\] is not int64",
        ),
        (swap("lS_i_3", lambda a: a.astype(np.int32)), "lS_i_3: int32 is not int64"),
        (swap("lS_i_3", lambda a: a[None]), r"lS_i_3: \(1, \d+\) is not a vector"),
        (lambda arrays: arrays.pop("lS_i_2"), r"inputs: missing \['lS_i_2'\], unknown \[\]"),
        (
            lambda arrays: arrays.update(labels=arrays["counts"]),
            r"inputs: missing \[\], unknown \['labels'\]",
        ),
        (
            lambda arrays: arrays.update(lS_w_0=np.ones(1, np.float32)),
            r"inputs: missing \['lS_w_1', 'lS_w_2', 'lS_w_3'\]",
        ),
    ],
)
def test_bad_inputs_are_named(change, message):
    case = _case()
    arrays = dict(synthetic(case).arrays)
    change(arrays)
    with pytest.raises(UserError, match=message) as caught:
        validate(CaseInputs(arrays), case.model)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("lS_w_1", 2, np.inf), r"lS_w_1\[2\]: inf is not finite; give finite weights"),
        (
            swap("lS_w_0", lambda a: a[1:]),
            r"lS_w_0: float32 of shape \(\d+,\) is not float32 of shape",
        ),
        (swap("lS_w_0", lambda a: a.astype(np.float64)), "lS_w_0: float64 of shape"),
    ],
)
def test_bad_weights_are_named(change, message):
    case = _case("dlrm_tiny_weighted")
    arrays = dict(synthetic(case).arrays)
    change(arrays)
    with pytest.raises(UserError, match=message):
        validate(CaseInputs(arrays), case.model)


def test_a_bag_longer_than_the_port_takes_is_named():
    case = _case("dlrm_tiny_qr")
    arrays = dict(synthetic(case).arrays)
    arrays["lS_o"] = np.zeros_like(arrays["lS_o"])
    last = case.input.batch_size - 1
    words = rf"lS_o\[0\]\[{last}\]: \d+ is the length of a bag, and max_bag_size is 4"
    with pytest.raises(UserError, match=words):
        validate(CaseInputs(arrays), case.model)


def test_counts_come_back_from_their_logarithms():
    counts = np.concatenate([np.arange(100_000), 10 ** np.arange(5, 9)])[:, None]
    dense = criteo.preprocess_dense(counts.astype(np.float64))
    actual = criteo.counts_of(dense)
    assert np.array_equal(actual[:100_000], counts[:100_000])
    # Where float32 tells neighbours no longer apart, one with the same logarithm comes back.
    assert np.array_equal(criteo.preprocess_dense(actual.astype(np.float64)), dense)
    with pytest.raises(DataError, match=r"data: I2 of row 3 in its batch: 0\.49\d+ is no whole number"):
        criteo.counts_of(np.log1p(np.array([[1, 2], [3, 4], [5, 0.5]])).astype(np.float32))


@pytest.fixture(scope="module")
def sample():
    if not CRITEO.exists():
        pytest.skip(f"{CRITEO} is not there: no real rows of Criteo to read")
    return _case().read(CRITEO)


def test_real_rows_become_batches_that_add_up(sample):
    case = _case("dlrm_kaggle", batch_size=64)
    batches = case.recorded(sample)
    assert [inputs["counts"].shape[0] for inputs in batches.inputs] == [64, 64, 64, 8]
    assert batches.source == "criteo_sample.csv"
    _, data = sample
    rows = np.array(case.model.table_rows)
    assert batches.counts == {
        "rows": len(data) == 200 and 200,
        "broken_lines": 0,
        "indices": 200 * 26,
        "indices_folded_into_smaller_tables": int((data.sparse_TN >= rows[:, None]).sum()),
    }
    for inputs in batches.inputs:
        case.validate(inputs)
    logarithms = np.concatenate(
        [np.log(np.maximum(inputs["counts"], 0) + 1.0).astype(np.float32) for inputs in batches.inputs]
    )
    assert np.array_equal(logarithms, data.dense_ND)
    for table in range(26):
        actual = np.concatenate([inputs[index_name(table)] for inputs in batches.inputs])
        assert np.array_equal(actual, data.sparse_TN[table] % rows[table])


def test_a_case_of_another_architecture_is_refused(sample):
    with pytest.raises(UserError, match="has 13 dense and 26 sparse features, and dlrm_tiny takes 13 and 4"):
        _case().recorded(sample)


def test_files_are_told_apart_by_their_beginning(tmp_path):
    ratings, logs, other = tmp_path / "u.data", tmp_path / "train.txt", tmp_path / "other"
    ratings.write_text("1\t2\t3\t4\n")
    logs.write_text("\t".join(["0", *["1"] * 13, *["05db9164"] * 26]) + "\n")
    other.write_text("nothing of the kind\n")
    known = {
        name: [load_case(name).recognises(path) for path in (ratings, logs, other)]
        for name in ("hstu_tiny", "dlrm_tiny")
    }
    assert known["hstu_tiny"] == [True, False, False]
    assert known["dlrm_tiny"] == [False, True, False]
    for name in ("hstu_tiny", "dlrm_tiny"):
        assert not load_case(name).recognises(tmp_path / "absent")


def test_a_file_without_a_case_is_for_the_cases_that_read_it(tmp_path):
    logs = tmp_path / "train.txt"
    logs.write_text("\t".join(["0", *["1"] * 13, *["05db9164"] * 26]) + "\n")
    request = Arguments(time_limit=600.0, command="command", registry=SHIPPED, data=logs).request()
    default = [name for name in CASES if configs.load_case(name).default]
    assert [case.name for case in request.cases] == default


def test_inputs_without_weights_have_none():
    inputs = make_inputs(np.zeros((1, 2), np.int64), np.zeros((1, 1), np.int64), [np.zeros(1, np.int64)])
    assert set(inputs.arrays) == {"counts", "lS_o", "lS_i_0"}
    assert list(_case().entry_arguments(inputs.arrays)) == ["counts", "lS_o", "lS_i"]


def test_edges_of_quotients_take_the_memory_of_a_batch():
    """A bag has the first edges of its table, whatever the table's length."""
    batches = []
    for rows in (4096, 2**50):
        config = load_case("dlrm_tiny_qr").config
        model = config.model.model_copy(
            update={"arch_embedding_size": (rows,) * len(config.model.table_rows)}
        )
        planned = {batch.name: batch.inputs for batch in plan(config.model_copy(update={"model": model}))}
        batches.append(planned["longest bags"])
    assert batches[0].digest == batches[1].digest
    edges = np.concatenate([batches[1][index_name(table)] for table in range(len(model.table_rows))])
    collisions = model.qr_collisions
    assert set(edges % collisions) <= {0, 1, collisions - 1}
