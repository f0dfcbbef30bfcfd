"""MovieLens files in their three formats: every user once, the counts add up, broken lines are named."""

from pathlib import Path

import numpy as np
import pytest

from datasets.errors import DataError
from datasets.movielens import check_fits, histories, read_ratings, without_last
from tests.locations import DATA

ML_100K = DATA / "ml-100k" / "u.data"
#: user, item, rating, timestamp; out of order, with two ratings in one second, and a user with only one.
ROWS = [
    (2, 10, 5, 300),
    (1, 7, 3, 100),
    (2, 11, 4, 100),
    (2, 12, 1, 200),
    (9, 3, 2, 50),
    (1, 5, 4, 100),
    (1, 7, 5, 90),
    (2, 13, 3, 200),
]
FORMATS = {
    "ml-100k": ("u.data", "", "{}\t{}\t{}\t{}\n"),
    "ml-1m": ("ratings.dat", "", "{}::{}::{}::{}\n"),
    "ml-20m": ("ratings.csv", "userId,movieId,rating,timestamp\n", "{},{},{},{}\n"),
}


def _write(folder: Path, layout: str, rows=ROWS) -> Path:
    name, header, line = FORMATS[layout]
    path = folder / name
    path.write_text(header + "".join(line.format(*row) for row in rows))
    return path


def _all_histories(data, max_length=12, width=24):
    return histories(data, data.with_history, max_length, width)


@pytest.fixture
def small_chunks(monkeypatch):
    """Reads a few lines at a time, so that small files have several chunks."""
    monkeypatch.setattr("datasets.lines.BLOCK_BYTES", 20)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.usefixtures("small_chunks")
def test_every_format_gives_the_same_histories(tmp_path, layout):
    data = read_ratings(_write(tmp_path, layout))
    assert data.format == layout
    assert data.user_ids.tolist() == [1, 2, 9]
    assert data.offsets.tolist() == [0, 3, 7, 8]
    assert data.item_ids.tolist() == [7, 7, 5, 11, 12, 13, 10, 3]
    assert data.ratings.tolist() == [5, 3, 4, 4, 1, 3, 5, 2]
    assert data.timestamps.tolist() == [90, 100, 100, 100, 200, 200, 300, 50]
    assert data.with_history.tolist() == [0, 1]


def test_line_endings_and_a_missing_last_one(tmp_path):
    path = _write(tmp_path, "ml-100k")
    expected = read_ratings(path)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n").rstrip())
    assert np.array_equal(read_ratings(path).item_ids, expected.item_ids)


def test_half_stars_are_cut_to_whole_ones(tmp_path):
    rows = [(1, 1, stars / 2, second) for second, stars in enumerate(range(1, 11))]
    assert read_ratings(_write(tmp_path, "ml-20m", rows)).ratings.tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]


def test_the_last_rating_is_the_target_and_its_time_the_query(tmp_path):
    users = _all_histories(read_ratings(_write(tmp_path, "ml-1m")))
    assert users.user_ids.tolist() == [1, 2]
    assert users.targets.tolist() == [5, 10]
    assert users.past_lengths.tolist() == [2, 3]
    assert users.past_ids[:, :4].tolist() == [[7, 7, 0, 0], [11, 12, 13, 0]]
    assert users.ratings[:, :4].tolist() == [[5, 3, 0, 0], [4, 1, 3, 0]]
    assert users.timestamps[:, :5].tolist() == [[90, 100, 100, 0, 0], [100, 200, 200, 300, 0]]
    assert {getattr(users, name).dtype for name in users.__dataclass_fields__} == {np.dtype(np.int64)}


def test_without_each_users_last_rating_the_one_before_is_the_target(tmp_path):
    rows = [*ROWS, (3, 8, 1, 7), (9, 4, 2, 1), (9, 5, 2, 3)]
    data = read_ratings(_write(tmp_path, "ml-1m", rows))
    stored = without_last(data)
    assert stored.user_ids.tolist() == data.user_ids.tolist() == [1, 2, 3, 9]
    users = [slice(*stored.offsets[user : user + 2]) for user in range(4)]
    assert [stored.item_ids[user].tolist() for user in users] == [[7, 7], [11, 12, 13], [], [4, 5]]
    assert [stored.timestamps[user].tolist() for user in users] == [[90, 100], [100, 200, 200], [], [1, 3]]
    assert (stored.ratings.size, stored.with_history.tolist()) == (stored.num_ratings, [0, 1, 3])
    next_items = _all_histories(stored)
    assert (next_items.user_ids.tolist(), next_items.targets.tolist()) == ([1, 2, 9], [7, 13, 5])


def test_a_long_history_keeps_its_latest_items(tmp_path):
    rows = [(1, 1 + second % 60, 4, second) for second in range(30)]
    users = _all_histories(read_ratings(_write(tmp_path, "ml-100k", rows)), max_length=11, width=13)
    assert users.truncated.tolist() == [30 - 1 - 11]
    assert users.past_ids.tolist() == [[*range(19, 30), 0, 0]]
    assert users.timestamps.tolist() == [[*range(18, 30), 0]]


@pytest.mark.skipif(not ML_100K.exists(), reason="the MovieLens 100K file is not beside the project")
def test_movielens_100k_adds_up():
    data = read_ratings(ML_100K)
    assert (data.format, data.num_users, data.num_ratings) == ("ml-100k", 943, 100_000)
    users = _all_histories(data, max_length=200, width=211)
    assert users.user_ids.tolist() == list(range(1, 944))
    assert (users.past_lengths + 1 + users.truncated).sum() == 100_000


@pytest.mark.skipif(not ML_100K.exists(), reason="the MovieLens 100K file is not beside the project")
def test_movielens_100k_against_a_plain_reading():
    history: dict[int, list[tuple[int, int]]] = {}
    for line in ML_100K.read_text().splitlines():
        user, item, _, second = map(int, line.split("\t"))
        history.setdefault(user, []).append((second, item))
    data = read_ratings(ML_100K)
    for index, user in enumerate(data.user_ids.tolist()):
        own = slice(data.offsets[index], data.offsets[index + 1])
        plain = sorted(history[user], key=lambda event: event[0])
        assert data.item_ids[own].tolist() == [item for _, item in plain]


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("1{s}2{s}3", "not four fields"),
        ("1{s}2{s}3{s}4{s}5", "not four fields"),
        ("", "not four fields"),
        ("1{s}2{s}nan{s}4", "a field is not a number, or negative"),
        ("1{s}{s}3{s}4", "a field is not a number, or negative"),
        ("1{s}-2{s}3{s}4", "a field is not a number, or negative"),
        ("1{s}2.0{s}3{s}4", "a field is not a number, or negative"),
        ("1{s}2{s}3{s}1234567890123456", "a field is not a number, or negative"),
        ("1{s}2{s}6{s}4", "the rating is not one of"),
        ("1{s}2{s}0{s}4", "the rating is not one of"),
        ("1{s}0{s}3{s}4", "user or item is 0"),
    ],
)
@pytest.mark.usefixtures("small_chunks")
def test_a_broken_line_is_named_with_its_number(tmp_path, layout, row, reason):
    path = _write(tmp_path, layout)
    lines = path.read_text().splitlines()
    separator = {"ml-100k": "\t", "ml-1m": "::", "ml-20m": ","}[layout]
    lines.insert(5, row.format(s=separator))
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"has 1 broken line \(line 6: ") as caught:
        read_ratings(path)
    assert reason in str(caught.value)
    assert str(path) in str(caught.value)
    assert caught.value.fix.startswith("correct or remove them")


@pytest.mark.parametrize(
    ("layout", "rating"), [("ml-100k", "3.5"), ("ml-1m", "3.5"), ("ml-20m", "3.7"), ("ml-20m", "3.5.1")]
)
def test_ratings_of_the_wrong_kind(tmp_path, layout, rating):
    with pytest.raises(DataError, match="has 1 broken line .line"):
        read_ratings(_write(tmp_path, layout, [*ROWS, (1, 2, rating, 4)]))


@pytest.mark.usefixtures("small_chunks")
def test_many_broken_lines_show_the_first_five(tmp_path):
    path = _write(tmp_path, "ml-1m")
    path.write_text(path.read_text() + "x::1::1::1\n" * 7)
    with pytest.raises(DataError, match="has 7 broken lines .*line 9: .*line 13: .*and more") as caught:
        read_ratings(path)
    assert "line 14" not in str(caught.value)


def test_a_tab_in_a_file_of_another_format_is_no_separator(tmp_path):
    path = _write(tmp_path, "ml-1m")
    path.write_text(path.read_text() + "1\t2\t3\t4\n")
    with pytest.raises(DataError, match="line 9: not four fields"):
        read_ratings(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; give MovieLens u.data"),
        (b"PK\x03\x04rest of a zip", "is packed with zip; .* unpacked"),
        (b"1,2,3,4\n", "starts with b'1,2,3,4.*with the header userId,movieId,rating,timestamp"),
        (b"userId,movieId,rating,timestamp\n", "has no ratings"),
    ],
)
def test_files_that_hold_no_ratings(tmp_path, content, message):
    path = tmp_path / "ratings.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_ratings(path)


def test_paths_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match="cannot be read .No such file or directory.; give the path of"):
        read_ratings(tmp_path / "absent")
    with pytest.raises(DataError, match="cannot be read .Is a directory."):
        read_ratings(tmp_path)


def test_data_that_the_model_has_no_embedding_for(tmp_path):
    data = read_ratings(_write(tmp_path, "ml-1m", [*ROWS, (1, 99, 3, 500)]))
    check_fits(data, num_items=99, num_ratings=6)
    with pytest.raises(
        DataError,
        match="item 99, and 1 rating above num_items 98; use a case whose num_items is at least 99",
    ):
        check_fits(data, num_items=98, num_ratings=6)
    with pytest.raises(
        DataError,
        match="has ratings up to 5, and num_ratings is 5; use a case whose num_ratings is at least 6",
    ):
        check_fits(data, num_items=99, num_ratings=5)


def test_data_with_nothing_to_predict_from(tmp_path):
    data = read_ratings(_write(tmp_path, "ml-1m", [(1, 2, 3, 4), (2, 2, 3, 4)]))
    with pytest.raises(DataError, match="has no user with two ratings"):
        check_fits(data, num_items=60, num_ratings=6)
