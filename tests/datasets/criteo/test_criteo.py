"""Criteo preprocessing: features by their definitions, files, caches; on small files and on real rows."""

from __future__ import annotations

import csv
import os
from collections import Counter

import numpy as np
import pytest

from datasets.criteo import logs as criteo
from datasets.criteo import vocabulary as criteo_vocabulary
from datasets.criteo.logs import Preprocessing, find_files, preprocess, preprocess_dense
from datasets.criteo.rows import MISSING
from datasets.errors import DataError
from tests.locations import DATA

SAMPLE = DATA / "criteo_sample.csv"
# C1 repeats, C2 is always missing, the others differ from row to row.
ROWS = 7


def line(row: int) -> str:
    dense = [str(row * 10 + column) for column in range(13)]
    sparse = [f"{(row % 3) + 10:08x}", "", *(f"{row * 100 + feature:x}" for feature in range(24))]
    return "\t".join([str(row % 2), *dense, *sparse])


@pytest.fixture
def train(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("".join(line(row) + "\n" for row in range(ROWS)))
    return path


def test_dense_features_are_logarithms_of_clamped_numbers():
    raw = np.array([[np.nan, -1.0, -100.0, 0.0, 1.0, 260.0, 507333.0]])
    processed = preprocess_dense(raw)
    assert processed.dtype == np.float32
    assert processed.tolist() == [
        [0.0, 0.0, 0.0, 0.0, *np.log([2.0, 261.0, 507334.0]).astype(np.float32).tolist()]
    ]


def test_vocabularies_give_gaps_unknowns_and_values_their_rows(train):
    data = preprocess([train], Preprocessing())
    assert data.labels_N.tolist() == [row % 2 for row in range(ROWS)]
    assert data.sparse_TN.dtype == np.int32
    assert data.sparse_TN[0].tolist() == [2 + row % 3 for row in range(ROWS)]
    assert data.sparse_TN[1].tolist() == [0] * ROWS
    assert data.sparse_TN[2].tolist() == [2 + row for row in range(ROWS)]
    assert data.table_sizes == (5, 2, *([ROWS + 2] * 24))
    assert data.vocabularies[0].tolist() == [10, 11, 12]
    assert data.vocabularies[1].size == 0


def test_rare_values_share_the_unknown_row(train):
    data = preprocess([train], Preprocessing(min_frequency=3))
    # Seven rows: the value 10 occurs three times, 11 and 12 twice.
    assert data.sparse_TN[0].tolist() == [2, 1, 1, 2, 1, 1, 2]
    assert data.table_sizes == (3, 2, *([2] * 24))


def test_hashing_is_the_modulus(train):
    data = preprocess([train], Preprocessing(hash_size=4))
    assert data.vocabularies is None
    assert data.table_sizes == (4,) * 26
    assert data.sparse_TN[0].tolist() == [(10 + row % 3) % 4 for row in range(ROWS)]
    assert data.sparse_TN[1].tolist() == [0] * ROWS


def test_counting_merges_blocks_of_any_size():
    rng = np.random.default_rng(0)
    values = np.concatenate(
        (rng.zipf(1.3, 5000) % 2**32, rng.integers(0, 2**32, 5000), np.full(100, MISSING))
    )
    values = rng.permutation(values.astype(np.int64))
    expected = Counter(values[values != MISSING].tolist())
    for size in (1, 37, 1000, 20_000):
        blocks = (
            values[start : start + size] for start in range(0, 1500 if size == 1 else values.size, size)
        )
        actual, counts = criteo_vocabulary.count_values(blocks)
        if size == 1:
            assert dict(zip(actual.tolist(), counts.tolist(), strict=True)) == Counter(
                value for value in values[:1500].tolist() if value != MISSING
            )
        else:
            assert dict(zip(actual.tolist(), counts.tolist(), strict=True)) == expected
        assert np.all(np.diff(actual) > 0)


def test_counting_nothing_finds_nothing():
    for blocks in ([], [np.array([MISSING, MISSING])]):
        actual, counts = criteo_vocabulary.count_values(blocks)
        assert actual.size == counts.size == 0


def test_values_outside_the_vocabulary_are_unknown():
    rows = criteo_vocabulary.encode(np.array([MISSING, 4, 5, 6, 9, 10]), np.array([5, 9]))
    assert rows.tolist() == [0, 1, 2, 1, 3, 1]


def test_batches_are_inputs_of_dlrm(train):
    data = preprocess([train], Preprocessing())
    batches = list(data.batches(3))
    assert [batch.labels.shape for batch in batches] == [(3, 1), (3, 1), (1, 1)]
    first = batches[0]
    assert (first.dense_x.dtype, first.dense_x.shape) == (np.float32, (3, 13))
    assert (first.lS_o.dtype, first.lS_i.dtype) == (np.int64, np.int64)
    assert first.lS_o.tolist() == [[0, 1, 2]] * 26
    assert np.array_equal(first.lS_i, data.sparse_TN[:, :3])
    assert np.array_equal(data.batch(np.array([6, 0])).dense_x, data.dense_ND[[6, 0]])
    with pytest.raises(DataError, match="batch_size: 0 is below 1"):
        next(data.batches(0))


def test_batches_run_through_the_reference(train):
    torch = pytest.importorskip("torch")
    from reference.dlrm import DLRM_Net
    from reference.dlrm_layers import interaction_width

    data = preprocess([train], Preprocessing())
    model = DLRM_Net(4, data.table_sizes, (13, 8, 4), (interaction_width("dot", 27, 4), 1), sigmoid_top=0)
    batch = data.batch(slice(0, 5))
    click = model(*map(torch.from_numpy, (batch.dense_x, batch.lS_o, batch.lS_i)))
    assert click.shape == batch.labels.shape


def test_a_cache_gives_the_same_and_is_mapped(train, tmp_path):
    cache = tmp_path / "deep" / "criteo"
    without = preprocess([train], Preprocessing())
    for _ in range(2):
        data = preprocess([train], Preprocessing(), cache)
        assert isinstance(data.dense_ND, np.memmap)
        assert not data.dense_ND.flags.writeable
        for name in ("labels_N", "dense_ND", "sparse_TN"):
            assert np.array_equal(getattr(data, name), getattr(without, name))
        assert data.table_sizes == without.table_sizes
        assert [v.tolist() for v in data.vocabularies] == [v.tolist() for v in without.vocabularies]
    assert [file.name for file in cache.parent.iterdir()] == ["criteo"]
    assert np.array_equal(np.load(cache / "sparse.npy"), without.sparse_TN)


def count_builds(monkeypatch):
    builds = []
    build = criteo._build
    monkeypatch.setattr(criteo, "_build", lambda *arguments: (builds.append(1), build(*arguments)))
    return builds


def test_a_cache_is_used_only_for_what_it_was_made_from(train, tmp_path, monkeypatch):
    cache = tmp_path / "criteo"
    builds = count_builds(monkeypatch)
    preprocess([train], Preprocessing(), cache)
    preprocess([train], Preprocessing(), cache)
    assert len(builds) == 1
    assert preprocess([train], Preprocessing(hash_size=4), cache).table_sizes == (4,) * 26
    assert len(builds) == 2
    os.utime(train, ns=(1, 1))
    preprocess([train], Preprocessing(hash_size=4), cache)
    assert len(builds) == 3
    with train.open("a") as stream:
        stream.write(line(8) + "\n")
    assert len(preprocess([train], Preprocessing(hash_size=4), cache)) == ROWS + 1


def test_a_failed_build_leaves_the_old_cache_and_nothing_else(train, tmp_path, monkeypatch):
    cache = tmp_path / "criteo"
    preprocess([train], Preprocessing(), cache)
    before = {file.name: file.read_bytes() for file in cache.iterdir()}

    def fail(*arguments):
        raise RuntimeError("power cut")

    monkeypatch.setattr(criteo, "_encode", fail)
    with pytest.raises(RuntimeError, match="power cut"):
        preprocess([train], Preprocessing(hash_size=4), cache)
    assert {file.name: file.read_bytes() for file in cache.iterdir()} == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["criteo", "train.txt"]


def test_data_that_is_in_use_survives_a_new_cache(train, tmp_path):
    cache = tmp_path / "criteo"
    data = preprocess([train], Preprocessing(), cache)
    before = np.array(data.sparse_TN)
    inode = cache.stat().st_ino
    assert preprocess([train], Preprocessing(hash_size=4), cache).table_sizes == (4,) * 26
    assert cache.stat().st_ino != inode
    assert np.array_equal(data.sparse_TN, before)


@pytest.mark.parametrize("name", ["labels", "dense", "sparse", "vocabulary_25"])
@pytest.mark.parametrize("content", [None, b"", b"no array"])
def test_a_damaged_cache_is_refused(train, tmp_path, name, content):
    cache = tmp_path / "criteo"
    preprocess([train], Preprocessing(), cache)
    array = cache / f"{name}.npy"
    array.unlink()
    if content is not None:
        array.write_bytes(content)
    with pytest.raises(DataError, match=r"cache: .*criteo cannot be read .* remove it"):
        preprocess([train], Preprocessing(), cache)


@pytest.mark.parametrize("content", ["no cache", "{}", "[]", '{"schema": "another"}'])
def test_what_is_no_cache_is_never_replaced(train, tmp_path, content):
    (tmp_path / "file").write_text(content)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "about.json").write_text(content)
    for path in (tmp_path / "file", folder, tmp_path):
        with pytest.raises(DataError, match=r"cache: .* is no cache; remove it, or give a new path"):
            preprocess([train], Preprocessing(), path)
    assert (folder / "about.json").read_text() == (tmp_path / "file").read_text() == content


def test_a_cache_that_cannot_be_written_is_said(train, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cache: .* cannot be written"):
        preprocess([train], Preprocessing(), tmp_path / "file" / "criteo")


def test_broken_lines_are_kept_with_the_cache(train, tmp_path):
    with train.open("a") as stream:
        stream.write("1\t2\n" + line(8) + "\n")
    cache = tmp_path / "criteo"
    for _ in range(2):
        data = preprocess([train], Preprocessing(), cache, max_broken=1)
        assert data.report.describe() == "8 rows, 1 broken line: train.txt line 8: 2 fields, not 40"
    with pytest.raises(DataError, match=r"has 1 broken line \(train.txt line 8: 2 fields, not 40\); correct"):
        preprocess([train], Preprocessing(), cache)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_frequency": 0}, "min_frequency: 0 is below 1"),
        ({"hash_size": 0}, r"hash_size: 0 is not 1..2\*\*31"),
        ({"hash_size": 5, "min_frequency": 2}, "min_frequency: 2 has no effect with hash_size"),
    ],
)
def test_impossible_preprocessing_is_refused(options, message):
    with pytest.raises(DataError, match=message):
        Preprocessing(**options)


def test_a_gap_between_days_is_refused(tmp_path):
    for day in (3, 4, 6):
        (tmp_path / f"day_{day}").write_text(line(day) + "\n")
    with pytest.raises(DataError, match=r"has no day_5, and has an earlier and a later day; add the day"):
        find_files(tmp_path)
    (tmp_path / "day_6").unlink()
    assert [path.name for path in find_files(tmp_path)] == ["day_3", "day_4"]


def test_days_are_read_in_order_of_their_numbers(tmp_path):
    for day in (10, 9, 8):
        (tmp_path / f"day_{day}").write_text(line(day) + "\n")
    (tmp_path / "day_count.npz").write_text("not a day")
    paths = find_files(tmp_path)
    assert [path.name for path in paths] == ["day_8", "day_9", "day_10"]
    data = preprocess(paths, Preprocessing())
    assert np.array_equal(data.dense_ND[:, 0], np.log1p([80, 90, 100]).astype(np.float32))
    assert find_files(paths[0]) == [paths[0]]
    (tmp_path / "day_8.gz").write_bytes(b"")
    with pytest.raises(DataError, match="a day both packed and unpacked"):
        find_files(tmp_path)


def test_nothing_to_read_is_said(tmp_path):
    with pytest.raises(DataError, match="has no day_N"):
        find_files(tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        find_files(tmp_path / "nowhere")
    with pytest.raises(DataError, match="cannot be read"):
        preprocess([tmp_path / "nowhere"], Preprocessing())


@pytest.mark.parametrize("min_frequency", [1, 3])
def test_real_rows_against_a_loop_over_the_definition(min_frequency):
    if not SAMPLE.is_file():
        pytest.skip(f"the real sample is not there: {SAMPLE.name}")
    with SAMPLE.open(newline="") as stream:
        expected = list(csv.DictReader(stream))
    data = preprocess([SAMPLE], Preprocessing(min_frequency))
    assert len(data) == len(expected) == 200
    assert data.report.describe() == "200 rows, no broken lines"
    assert data.labels_N.tolist() == [int(row["label"]) for row in expected]
    for column in range(13):
        raw = [max(float(row[f"I{column + 1}"] or 0), 0.0) for row in expected]
        assert data.dense_ND[:, column].tolist() == [float(np.float32(np.log1p(value))) for value in raw]
    for feature in range(26):
        texts = [row[f"C{feature + 1}"] for row in expected]
        frequent = sorted(
            (text for text, count in Counter(texts).items() if text and count >= min_frequency),
            key=lambda text: int(text, 16),
        )
        rows = {text: 2 + place for place, text in enumerate(frequent)}
        assert data.sparse_TN[feature].tolist() == [rows.get(text, 1) if text else 0 for text in texts]
        assert data.table_sizes[feature] == len(frequent) + 2
