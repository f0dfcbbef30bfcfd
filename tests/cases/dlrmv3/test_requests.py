"""The benchmark's requests for a served case: numbers of rows, the rows in memory, and those of a store."""

import numpy as np
import pytest
import torch

from cases.dlrmv3 import requests as dlrmv3_requests
from cases.dlrmv3.requests import NO_ROW, BenchmarkRequests, settings_of
from cases.shipped import load_case
from datasets.dlrmv3 import in_order, streaming
from datasets.dlrmv3.generator import Settings
from parity.base.errors import UserError
from tables.store import Source, write

TINY = load_case("dlrmv3_tiny")
ROWS = ("uih_embeddings", "candidate_embeddings")


@pytest.mark.parametrize(
    ("case", "settings"),
    [
        ("dlrmv3", Settings()),
        ("dlrmv3_streaming", streaming.SMALL),
        ("dlrmv3_streaming_400m", streaming.STREAMING_400M),
        ("dlrmv3_tiny", streaming.TINY),
        ("dlrmv3_tiny_plain", streaming.TINY),
    ],
)
def test_sizes_follow_the_model(case, settings):
    assert settings_of(load_case(case).config) == settings


@pytest.mark.parametrize("name", ["dlrmv3_streaming", "dlrmv3_tiny", "dlrmv3_tiny_plain"])
def test_requests_fit_the_case(name):
    case = load_case(name)
    drawn = case.serving().draw(13, 0)
    case.validate(drawn.arrays)
    assert set(drawn.ids) == {key for key in drawn.arrays if key.endswith("embeddings")}


class TestTheRows:
    DRAWN = BenchmarkRequests(TINY.config, 0).draw(60, None)
    REQUESTS = in_order.generated(streaming.TINY, 60, TINY.model.max_uih_len, TINY.model.max_num_candidates)

    def test_equal_items_have_equal_rows_and_others_do_not(self):
        rows = {}
        for name in ROWS:
            ids, values = self.DRAWN.ids[name], self.DRAWN.arrays[name]
            for item, row in zip(ids[ids != NO_ROW], values[ids != NO_ROW], strict=True):
                assert rows.setdefault(int(item), row.tobytes()) == row.tobytes()
        assert len(set(rows.values())) == len(rows) > 100

    def test_ids_are_the_items_their_categories_and_the_user(self):
        ids, requests = self.DRAWN.ids, self.REQUESTS
        is_event = np.arange(TINY.model.max_uih_len) < requests.uih_lengths[:, None]
        for name, items, valid in zip(
            ROWS, (requests.items, requests.candidates), (is_event, requests.is_candidate()), strict=True
        ):
            assert np.array_equal(ids[name], np.where(valid, items, NO_ROW))
            own = ids[name.replace("_emb", "_category_emb")]
            assert np.array_equal(own, np.where(valid, items // 40, NO_ROW))
        users = requests.users
        assert np.array_equal(ids["contextual_embeddings"], np.stack([users, 2 * users, 2 * users + 1], 1))

    def test_padding_has_zeros(self):
        for name in ROWS:
            assert not self.DRAWN.arrays[name][self.DRAWN.ids[name] == NO_ROW].any()

    def test_tables_differ(self):
        user, first, second = np.moveaxis(self.DRAWN.arrays["contextual_embeddings"][:, :3], 1, 0)
        assert not any(np.array_equal(*pair) for pair in ((user, first), (first, second), (user, second)))

    def test_every_precision_holds_them(self):
        for name in ROWS:
            values = torch.from_numpy(self.DRAWN.arrays[name])
            assert all(torch.equal(values.to(t).float(), values) for t in (torch.bfloat16, torch.float16))

    def test_the_seed_draws_the_tables_alone(self):
        other = BenchmarkRequests(TINY.config, 1).draw(60, None)
        assert all(np.array_equal(other.ids[name], ids) for name, ids in self.DRAWN.ids.items())
        assert not np.array_equal(other.arrays["uih_embeddings"], self.DRAWN.arrays["uih_embeddings"])

    def test_great_numbers_are_folded_in_memory_and_in_the_store(self, monkeypatch, tmp_path):
        monkeypatch.setattr(dlrmv3_requests, "MOST_ROWS", 32)
        requests = BenchmarkRequests(TINY.config, 0)
        drawn = requests.draw(12, None)
        assert max(ids.max() for ids in drawn.ids.values()) > 32
        with requests.tables(tmp_path / "store") as lookup:
            assert np.array_equal(lookup(ROWS[0], drawn.ids[ROWS[0]]), drawn.arrays[ROWS[0]])


class TestTheStore:
    def test_it_has_the_reference_s_rows_now_and_later(self, tmp_path):
        requests = BenchmarkRequests(TINY.config, 0)
        drawn = requests.draw(12, None)
        for _ in range(2):
            with requests.tables(tmp_path / "store") as lookup:
                for name, ids in drawn.ids.items():
                    assert np.array_equal(lookup(name, ids), drawn.arrays[name])

    def test_another_case_s_tables_are_refused(self, tmp_path):
        write(tmp_path / "store", [Source.of("item_id", torch.zeros(320, 8))])
        with (
            pytest.raises(UserError, match=r"has no table item_id of float32 \(320, 9\); give the tables"),
            BenchmarkRequests(TINY.config, 0).tables(tmp_path / "store"),
        ):
            pass
