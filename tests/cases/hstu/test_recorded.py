"""MovieLens ratings become inputs of HSTU: every user once, reproducible candidates, refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import configs
from cases.hstu.recorded import read, recorded, user_batches
from parity.base.errors import UserError
from tests.locations import DATA

ML_100K = DATA / "ml-100k" / "u.data"
#: User, item, rating, timestamp: two users with a history and one without.
ROWS = [(1, 7, 3, 100), (1, 5, 4, 200), (2, 11, 4, 100), (2, 12, 1, 200), (2, 10, 5, 300), (9, 3, 2, 50)]


def _write(folder: Path, rows=ROWS) -> Path:
    path = folder / "u.data"
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    return path


def _case(name="hstu_tiny", **changes):
    return configs.with_input(configs.load_case(name), **changes)


def test_the_target_is_the_first_candidate(tmp_path):
    model = _case().model
    ((users, inputs),) = user_batches(read(_write(tmp_path)), model, 4, num_candidates=5, seed=0)
    assert users.user_ids.tolist() == [1, 2]
    assert inputs["item_ids"].shape == (2, 5)
    assert inputs["item_ids"][:, 0].tolist() == users.targets.tolist() == [5, 10]
    assert set(inputs["item_ids"].ravel().tolist()) <= {row[1] for row in ROWS}
    assert inputs["past_lengths"].tolist() == [1, 2]
    assert inputs["past_ids"].shape == (2, model.padded_length)
    assert inputs["timestamps"][:, :4].tolist() == [[100, 200, 0, 0], [100, 200, 300, 0]]


def test_a_rating_with_a_position_of_its_own_has_the_time_of_its_item(tmp_path):
    model = _case("hstu_tiny_combined").model
    rows = [(1, 1 + second % 60, 4, second) for second in range(30)]
    ((users, inputs),) = user_batches(read(_write(tmp_path, rows)), model, 4, num_candidates=2, seed=0)
    assert users.truncated.tolist() == [30 - 1 - model.max_sequence_len]
    assert inputs["past_ids"][0, : model.max_sequence_len].tolist() == list(range(18, 30))
    assert inputs["timestamps"].shape == (1, model.sequence_width)
    assert inputs["timestamps"][0, 22:28].tolist() == [28, 28, 29, 29, 0, 0]


def test_batches_are_reproducible(tmp_path):
    data = read(_write(tmp_path))
    digests = [
        [inputs.digest for _, inputs in user_batches(data, _case().model, 1, 5, seed)] for seed in (0, 0, 1)
    ]
    assert digests[0] == digests[1] != digests[2]


def test_the_report_counts_users_and_ratings(tmp_path):
    batches = recorded(_case(batch_size=1), read(_write(tmp_path)))
    assert batches.source == "u.data (ml-100k)"
    assert len(batches.inputs) == 2
    assert batches.counts == {
        "users": 2,
        "users_in_file": 3,
        "users_without_history": 1,
        "history": 3,
        "targets": 2,
        "truncated": 0,
        "ratings_in_file": 6,
    }
    assert [labels["targets"].tolist() for labels in batches.labels] == [[5], [10]]


@pytest.mark.skipif(not ML_100K.exists(), reason="the MovieLens 100K file is not beside the project")
@pytest.mark.parametrize("batch_size", [64, 943, 1000])
def test_movielens_100k_adds_up(batch_size):
    model = _case("hstu_ml1m").model
    batches = list(user_batches(read(ML_100K), model, batch_size, num_candidates=20, seed=0))
    assert np.concatenate([users.user_ids for users, _ in batches]).tolist() == list(range(1, 944))
    assert all(inputs.batch_size == batch_size for _, inputs in batches[:-1])
    assert sum((inputs["past_lengths"] + 1 + users.truncated).sum() for users, inputs in batches) == 100_000


def test_errors_of_the_reader_are_errors_of_the_harness(tmp_path):
    with pytest.raises(
        UserError, match="^data: .*absent cannot be read .No such file or directory.; give"
    ) as caught:
        read(tmp_path / "absent")
    assert (caught.value.field, caught.value.value) == ("data", str(tmp_path / "absent"))
    assert caught.value.fix == "give the path of a rating file"
    data = read(_write(tmp_path, [*ROWS, (1, 99, 3, 500)]))
    with pytest.raises(UserError, match="item 99, and 1 rating above num_items 60; use a case"):
        recorded(_case(), data)


def test_no_candidate_is_refused(tmp_path):
    with pytest.raises(UserError, match="num_candidates: 0 is below 1; give at least 1"):
        user_batches(read(_write(tmp_path)), _case().model, 4, 0, 0)
