"""The k/v cache of a server: hits, misses, evictions, and faults of it that a run detects."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from parity.base.errors import UserError
from parity.base.precision import PRECISIONS
from parity.studies.serving import cache as cache_module
from parity.studies.serving import loadgen
from parity.studies.serving import port as port_module
from parity.studies.serving.cache import Entry, KVCache, Statistics, batched, taken
from parity.studies.serving.cache_verdict import cache_verdict
from parity.studies.serving.judging import Judge, wrong_hits
from parity.studies.serving.loadgen import Folders, Load
from parity.studies.serving.port import SERVED, ServedPort
from parity.studies.serving.requests import Requests
from parity.studies.serving.server import Server
from tests.parity.served_case import COUNT, ROWS
from tests.selection import first_in_test

pytest.importorskip("mlperf_loadgen", reason="the load is LoadGen's: pip install mlcommons-loadgen")
# One process makes the case, its port and its truth.
pytestmark = pytest.mark.xdist_group("serving")

LIMIT = 1 << 24


def entry(request, rows=2):
    return Entry(request, (torch.full((rows, 3), float(request)), torch.full((rows, 1), -float(request))))


class TestEntries:
    def test_the_least_recently_used_one_leaves(self):
        cache = KVCache(2 * entry(0).size)
        for request in (0, 1):
            cache.put(b"%d" % request, entry(request))
        assert cache.get(b"0").request == 0
        cache.put(b"2", entry(2))
        assert [cache.get(b"%d" % request) is None for request in range(3)] == [False, True, False]
        assert cache.statistics == Statistics(hits=3, misses=1, evictions=1, largest=2 * entry(0).size)

    def test_a_large_one_takes_the_place_of_several(self):
        cache = KVCache(3 * entry(0).size)
        for request in range(3):
            cache.put(b"%d" % request, entry(request))
        cache.put(b"3", entry(3, rows=6))
        assert [cache.get(b"%d" % request) is None for request in range(4)] == [True, True, True, False]

    def test_one_that_is_too_large_is_not_kept(self):
        cache = KVCache(entry(0).size)
        cache.put(b"0", entry(0))
        cache.put(b"1", entry(1, rows=3))
        assert (cache.get(b"0").request, cache.get(b"1")) == (0, None)

    def test_a_second_one_of_a_key_takes_the_place_of_the_first(self):
        cache = KVCache(2 * entry(0).size)
        for request in range(3):
            cache.put(b"same", entry(request))
        assert cache.get(b"same").request == 2
        assert (cache.statistics.evictions, cache.statistics.largest) == (0, entry(0).size)

    def test_rows_come_back_at_the_beginning_of_a_batch(self):
        tensors = [torch.arange(24.0).view(2, 4, 3), torch.arange(8.0).view(2, 4, 1)]
        entries = [Entry(0, taken(tensors, 0, 2)), Entry(1, taken(tensors, 5, 3))]
        assert entries[1].size == 4 * (9 + 3)
        wide, narrow = batched(entries, rows=3, width=4)
        assert torch.equal(wide[0, :2], tensors[0][0, :2])
        assert torch.equal(wide[1, :3], tensors[0][1, 1:])
        assert torch.equal(narrow[1, :3], tensors[1][1, 1:])
        assert torch.equal(wide[2], wide[0])
        assert not wide[0, 2:].any()
        assert not narrow[1, 3:].any()

    def test_copies_do_not_change_with_their_source(self):
        source = torch.zeros(4, 2)
        (copy,) = taken([source], 1, 2)
        source += 1
        assert not copy.any()


class Returning:
    """Requests that return, and tests of a port with a cache."""

    def __init__(self, setup, limit=LIMIT, runner=SERVED[0]):
        case = setup.case
        self.requests = Requests(case, COUNT, 0, ROWS * case.serving().widths[-1], returning=True)
        self.requests.lookup = setup.requests.lookup
        self.weights = setup.weights
        self.port = ServedPort(self.requests, PRECISIONS["fp32"], setup.weights, runner, kv_cache=limit)
        self.port.queued = dict.fromkeys(self.port.times, 1.0)
        self.judge = Judge(self.requests, PRECISIONS["fp32"], setup.weights, self.port)

    def run(self, folder):
        """The verdict on an accuracy run, its logs, and the verdict on the cache."""
        folders, load = Folders(folder, "audit"), Load("offline", rate=400, duration=0.05, queries=40)
        with Server(self.requests, self.port, loadgen.answer) as server:
            benchmark = self.requests.serving.benchmark
            count = len(self.requests)
            loadgen.run_test(load, benchmark, count, server.ask, folders, folders.accuracy, None)
        if server.log.error is not None:
            raise server.log.error
        accuracy = self.judge.accuracy(loadgen.logged(folders.accuracy), server.log.batches, server.log.hits)
        verdict = cache_verdict(self.requests, self.port, accuracy, {"accuracy run": server.log})
        return accuracy, server.log, verdict


@pytest.fixture(scope="module")
def returning(setup):
    return Returning(setup)


@pytest.fixture(scope="module")
def right(returning, tmp_path_factory):
    """A right run."""
    return returning.run(tmp_path_factory.mktemp("right"))


class TestHits:
    @pytest.mark.parametrize("runner", first_in_test(SERVED))
    def test_returning_requests_hit_and_pass_and_changed_ones_miss(self, setup, tmp_path, runner):
        accuracy, log, verdict = Returning(setup, runner=runner).run(tmp_path)
        assert accuracy.passed, accuracy.line()
        assert accuracy.verdict == "PASS"
        assert sorted(max(pair) - min(pair) for pair in log.hits) == [COUNT] * COUNT
        assert verdict.passed, verdict.line()
        statistics = log.cache
        assert (statistics.hits, statistics.evictions) == (COUNT, 0)
        assert statistics.hits + statistics.misses == accuracy.requests
        assert verdict.line().startswith(f"PASS: {COUNT} requests of the accuracy run from it, ")

    def test_two_hits_of_one_entry_have_equal_bits(self, returning):
        requests, port = returning.requests, returning.port
        number = requests.of_width(requests.width[0])[0]
        shape, numbers = requests.shapes[requests.width[0]], requests.full([number])
        kept = port.start(shape, requests.served(numbers), 1).kept[0]
        fresh = requests.staged(numbers, port.case.resumed)
        one, two = (port.resume(shape, fresh, [Entry(number, kept)]).result() for _ in range(2))
        assert torch.equal(one, two)

    def test_a_hit_reads_no_input_of_the_history(self, returning):
        fresh = returning.requests.staged([0], returning.port.case.resumed)
        assert fresh.keys() == {*returning.requests.serving.fresh, "uih_lengths"}

    def test_small_caches_evict_and_predictions_pass(self, returning, right, tmp_path, monkeypatch):
        largest = right[1].cache.largest
        monkeypatch.setattr(returning.port, "kv_cache", largest // 2)
        accuracy, log, verdict = returning.run(tmp_path)
        assert accuracy.passed, accuracy.line()
        assert log.cache.evictions > 0
        assert log.cache.largest <= largest // 2
        assert verdict.passed

    def test_a_cache_that_nothing_hits_proves_nothing(self, returning, tmp_path, monkeypatch):
        monkeypatch.setattr(KVCache, "get", lambda self, key: None)
        monkeypatch.setattr(Requests, "key", lambda self, number: b"%d" % number)
        accuracy, _, verdict = returning.run(tmp_path)
        assert accuracy.passed
        assert not verdict.passed
        assert "nothing is proved of it; give more GiB (--kv-cache)" in verdict.line()

    def test_each_test_begins_with_an_empty_cache(self, returning, right, tmp_path):
        assert returning.run(tmp_path)[1].cache == right[1].cache

    def test_tables_on_a_device_take_the_candidates_numbers_alone(self, setup, tmp_path):
        case = setup.case
        requests = Requests(case, COUNT, 0, ROWS * case.serving().widths[-1], returning=True)
        with requests.serving.device_tables(tmp_path / "tables", 0, "cpu") as lookup:
            asked = []
            requests.open_on_device(lambda name, ids: (asked.append(name), lookup(name, ids))[1])
            port = ServedPort(requests, PRECISIONS["fp32"], setup.weights, kv_cache=LIMIT)
            asked.clear()
            number = requests.of_width(requests.width[0])[0]
            shape, numbers = requests.shapes[requests.width[0]], requests.full([number])
            kept = port.start(shape, requests.staged(numbers), 1).kept[0]
            asked.clear()
            output = port.resume(shape, requests.staged(numbers, port.case.resumed), [Entry(number, kept)])
            assert sorted(asked) == ["candidate_category_embeddings", "candidate_embeddings"]
            counted = requests.counted([number])[0]
            whole = port.start(shape, requests.staged(numbers)).result()[0]
            assert torch.allclose(output.result()[0][counted], whole[counted], rtol=1e-5, atol=1e-5)


FIELDS = (
    "uih_embeddings",
    "uih_category_embeddings",
    "uih_timestamps",
    "uih_actions",
    "contextual_embeddings",
    "query_time",
)


def without(shared, field):
    """The key's function, whose result has nothing of a field."""

    def forgetful(self, inputs):
        key = shared(self, inputs)
        return {**key, field: np.zeros_like(key[field])}

    return forgetful


class TestFaults:
    @pytest.mark.parametrize("field", first_in_test(FIELDS))
    def test_a_key_that_leaves_out_a_field(self, returning, tmp_path, monkeypatch, field):
        kind = type(returning.requests.serving)
        monkeypatch.setattr(kind, "shared", without(kind.shared, field))
        accuracy, log, verdict = returning.run(tmp_path)
        assert len(log.hits) > COUNT
        # Wrong predictions show it, with or without the check of the hits.
        assert any("largest error" in text for text in accuracy.wrong_predictions.values())
        assert not accuracy.passed
        if field != "query_time":
            assert f"which has other {field}" in verdict.line()
            assert not verdict.passed

    @pytest.mark.full
    def test_a_key_that_leaves_out_the_whole_history(self, returning, tmp_path, monkeypatch):
        monkeypatch.setattr(Requests, "key", lambda self, number: b"%d" % self.width[number])
        accuracy, _, verdict = returning.run(tmp_path)
        assert len(accuracy.problems) > 5
        assert not verdict.passed

    def test_keys_and_values_of_another_user(self, returning, tmp_path, monkeypatch):
        get = KVCache.get

        def other(self, key):
            own = get(self, key)
            if own is None:
                return None
            rows = len(own.tensors[0])
            others = (
                entry for entry in self._entries.values() if entry.request % COUNT != own.request % COUNT
            )
            donor = next((entry for entry in others if len(entry.tensors[0]) >= rows), own)
            return replace(own, tensors=tuple(tensor[:rows] for tensor in donor.tensors))

        monkeypatch.setattr(KVCache, "get", other)
        accuracy, *_ = returning.run(tmp_path)
        assert not accuracy.passed
        assert "its keys and values came from the cache, kept from request" in accuracy.line()

    def test_a_stale_entry(self, returning, tmp_path, monkeypatch):
        """Memory that the next request's keys and values have overwritten."""
        put, last = KVCache.put, []

        def overwritten(self, key, entry):
            for tensors in last:
                for old, new in zip(tensors, entry.tensors, strict=True):
                    rows = min(len(old), len(new))
                    old[:rows] = new[:rows]
            last[:] = [entry.tensors]
            put(self, key, entry)

        monkeypatch.setattr(KVCache, "put", overwritten)
        accuracy, *_ = returning.run(tmp_path)
        assert not accuracy.passed

    @pytest.mark.full
    @pytest.mark.parametrize("order", [[2, 1, 0, 3], [0, 3, 2, 1]], ids=["keys", "values"])
    def test_two_layers_are_swapped(self, returning, tmp_path, monkeypatch, order):
        tensors = cache_module.batched

        def swapped(*arguments):
            batch = tensors(*arguments)
            return [batch[place] for place in order]

        monkeypatch.setattr(port_module, "batched", swapped)
        accuracy, *_ = returning.run(tmp_path)
        assert not accuracy.passed

    @pytest.mark.full
    def test_values_in_place_of_keys(self, returning, tmp_path, monkeypatch):
        tensors = cache_module.batched

        def swapped(*arguments):
            keys, values, *others = tensors(*arguments)
            return [values[..., : keys.shape[-1]].contiguous(), values, *others]

        monkeypatch.setattr(port_module, "batched", swapped)
        assert not returning.run(tmp_path)[0].passed

    @pytest.mark.full
    def test_a_row_too_few(self, returning, tmp_path, monkeypatch):
        kind = type(returning.port.case)
        shared_rows = kind.shared_rows

        def fewer(self, arrays):
            firsts, counts = shared_rows(self, arrays)
            return firsts, counts - 1

        monkeypatch.setattr(kind, "shared_rows", fewer)
        assert not returning.run(tmp_path)[0].passed

    def test_a_key_of_too_few_inputs_is_refused(self, returning, monkeypatch):
        kind = type(returning.requests.serving)
        shared = kind.shared
        monkeypatch.setattr(kind, "shared", lambda self, inputs: {**shared(self, {**inputs})} | {})
        assert returning.requests.key(0)

        def fewer(self, inputs):
            key = shared(self, inputs)
            del key["uih_actions"]
            return key

        monkeypatch.setattr(kind, "shared", fewer)
        with pytest.raises(RuntimeError, match="leaves out uih_actions"):
            returning.requests.key(0)

    def test_hits_of_other_widths_are_wrong(self, returning):
        requests = returning.requests
        one, two = (requests.of_width(width)[0] for width in requests.shapes)
        (problem,) = wrong_hits(requests, [(one, two)]).values()
        assert problem.endswith("which has other width")


class TestSizes:
    def test_a_cache_that_holds_no_request_is_refused(self, setup):
        with pytest.raises(UserError, match="--kv-cache: .* hold no request of .* tokens, .*; give at least"):
            Returning(setup, limit=100)

    def test_more_memory_than_there_is_is_refused(self, setup):
        with pytest.raises(UserError, match="--kv-cache: 1.05e[+]06 GiB"):
            Returning(setup, limit=1 << 50)
