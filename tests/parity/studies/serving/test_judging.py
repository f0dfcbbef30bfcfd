"""Right answers pass, and each fault of the serving path is named."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from parity.base.precision import PRECISIONS
from parity.capture.captures import Capture
from parity.studies.serving import judging
from parity.studies.serving.auditing import audited
from parity.studies.serving.batching import Batch, Query
from parity.studies.serving.judging import Judge
from parity.studies.serving.loadgen import Logged
from parity.studies.serving.port import ServedPort
from parity.studies.serving.server import Server
from parity.verdict.sensitivity import INSENSITIVE_ABOVE
from tables.ranks import RankFailure
from tests.parity.served_case import CASE, COUNT, as_log

pytest.importorskip("mlperf_loadgen", reason="the load is LoadGen's: pip install mlcommons-loadgen")
# One process makes the case, its port and its truth.
pytestmark = pytest.mark.xdist_group("serving")


class TestARightServer:
    def test_every_prediction_passes(self, setup, right):
        assert right.passed
        assert 0 < right.margin < 1
        assert right.predictions == sum(setup.requests.counted([n]).sum() for n in range(COUNT))
        assert right.line().startswith(f"PASS: {right.predictions} predictions of {COUNT} requests")
        assert (right.verdict, right.by_nature) == ("PASS", "")

    def test_so_it_does_where_queries_come_one_by_one(self, setup, tmp_path):
        assert setup.judged(tmp_path, scenario="server").passed

    def test_answers_of_a_performance_run_pass_the_audit(self, setup, right, tmp_path):
        audit = setup.requests.serving.audit
        log, _ = setup.run(tmp_path, audit=audit)
        verdict = audited(setup.requests, right, log)
        assert verdict.passed
        assert verdict.logged == len(log) >= COUNT
        assert verdict.text().endswith("TEST PASS\n")

    def test_requests_have_garbage_in_their_padding(self, setup):
        clean, served = setup.requests.clean([0]), setup.requests.served([0])
        assert any(not np.array_equal(clean[name], served[name]) for name in clean)


class TestAnInsensitiveCheck:
    def test_it_is_no_pass(self, setup, right):
        # The same answers by the limits of bf16, which are far wider.
        judge = Judge(setup.requests, PRECISIONS["bf16"], setup.weights, setup.port)
        judged = judge.accuracy(as_log(right), [])
        assert judged.passed
        assert judged.verdict == "INSENSITIVE"
        assert judged.line().startswith(f"INSENSITIVE: {right.predictions} predictions of {COUNT} requests")
        assert judged.detectable > INSENSITIVE_ABOVE

    @pytest.mark.parametrize(
        ("detectable", "verdict"),
        [
            (INSENSITIVE_ABOVE, "PASS"),
            (np.nextafter(INSENSITIVE_ABOVE, 1), "INSENSITIVE"),
            (1, "INSENSITIVE"),
        ],
    )
    def test_one_percent_decides(self, detectable, verdict):
        assert judging.Accuracy(1, detectable=detectable).verdict == verdict

    def test_the_line_says_whether_more_requests_help(self):
        more = judging.Accuracy(1, detectable=0.02)
        advice = "an error of 0.02 is detected, and none below: give more requests (--samples), or a finer"
        assert more.line().endswith(f"{advice} precision")
        none = judging.Accuracy(1, detectable=0.02, by_nature="all rows share roundings")
        assert "no number of requests detects 1%, since all rows share roundings; give" in none.line()

    def test_a_failure_stays_one(self):
        assert judging.Accuracy(1, detectable=0.02, problems={0: "wrong"}).verdict == "FAIL"


class SwapsRows(Server):
    def _respond(self, batch, output):
        super()._respond(batch, output.roll(1, 0) if len(batch.queries) == len(output) else output)


class AnswersTheWrongQuery(Server):
    def _respond(self, batch, output):
        first, *others = batch.queries
        ids = [query.id for query in (*others, first)]
        moved = (Query(id, query.request, query.width) for id, query in zip(ids, batch.queries, strict=True))
        super()._respond(Batch(batch.shape, tuple(moved)), output)


class IsStale(Server):
    def _stage(self, numbers, shape):
        width = self._requests.width[numbers[0]]
        first = vars(self).setdefault("first", {}).setdefault(width, list(numbers))
        return super()._stage(first, shape)


class Drops(Server):
    def _respond(self, batch, output):
        super()._respond(Batch(batch.shape, batch.queries[:-1]), output)


class AnswersPadding(Server):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._counted = {width: np.ones_like(mask) for width, mask in self._counted.items()}


class LeavesOutCandidates(Server):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        for mask in self._counted.values():
            mask[:, 0] = False


class StagesAnotherLength(Server):
    def _stage(self, numbers, shape):
        arrays = super()._stage(numbers, shape)
        return arrays | {"uih_lengths": np.maximum(arrays["uih_lengths"] - 1, 0)}


class Leaks(ServedPort):
    def start(self, shape, arrays):
        valid = np.arange(arrays["uih_timestamps"].shape[1]) < arrays["uih_lengths"][:, None]
        padding = np.where(valid[..., None], 0, arrays["uih_embeddings"]).sum(1, keepdims=True)
        candidates = arrays["candidate_embeddings"] + padding
        return super().start(shape, {**arrays, "candidate_embeddings": candidates})


class IsWrong(ServedPort):
    def start(self, shape, arrays):
        return super().start(shape, {**arrays, "query_times": arrays["query_times"] + 3600})


FAULTS = {
    SwapsRows: "rows [0-3] and [0-3] of batch [0-9] are swapped",
    AnswersTheWrongQuery: "request [0-9]+ has the answer of request [0-9]+: the response went to the wrong",
    IsStale: "its answer has the predictions of request [0-9]+; they are stale, from batch [0-9]",
    Drops: "request [0-9]+ has no answer: the server dropped its query",
    AnswersPadding: "request [0-9]+ has 15 predictions, not [0-9]+: padding is answered, too",
    LeavesOutCandidates: "request [0-9]+ has [0-9]+ predictions, not [0-9]+: some are left out",
    StagesAnotherLength: "the port alone is right on it, so the server's batch is wrong",
}


class TestFaults:
    @pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
    def test_a_fault_of_the_server_is_named(self, setup, tmp_path, fault):
        judged = setup.judged(tmp_path, fault)
        assert not judged.passed
        assert re.search(FAULTS[fault], judged.line()), judged.line()

    @pytest.mark.parametrize(
        ("kind", "named"),
        [
            (
                Leaks,
                "padding leaks: the port alone is right with zeros in the padding, and wrong with garbage",
            ),
            (IsWrong, f"the port alone is wrong on it, too: `run --case {CASE}`"),
        ],
        ids=["leaks", "wrong"],
    )
    def test_a_fault_of_the_port_is_named(self, setup, tmp_path, kind, named):
        port = kind(setup.requests, PRECISIONS["fp32"], setup.weights)
        judge = Judge(setup.requests, PRECISIONS["fp32"], setup.weights, port)
        log, own = setup.run(tmp_path, port=port)
        judged = judge.accuracy(log, own.batches)
        assert named in judged.line()

    def test_rows_of_other_tables_are_named(self, setup, right, tmp_path, monkeypatch):
        with setup.case.serving().tables(tmp_path / "other", 1) as lookup:
            monkeypatch.setattr(setup.requests, "lookup", lookup)
            judged = setup.judged(tmp_path)
        assert re.search("the rows of [a-z_]*embeddings that the tables give are not the", judged.line())

    def test_rows_that_are_not_looked_up_are_no_numbers(self, setup, tmp_path, monkeypatch):
        monkeypatch.setattr(type(setup.requests), "have_tables", False)
        judged = setup.judged(tmp_path)
        assert "has predictions that are not finite" in judged.line()

    def test_an_error_of_the_tables_ends_the_test(self, setup, tmp_path, monkeypatch):
        def lost(name, ids):
            raise RankFailure(1, ["item_id"], "died")

        monkeypatch.setattr(setup.requests, "lookup", lost)
        _, own = setup.run(tmp_path)
        assert isinstance(own.error, RankFailure)

    def test_a_request_that_is_missing_is_named(self, setup, right):
        judged = setup.judge.accuracy([entry for entry in as_log(right) if entry.request != 5], [])
        assert judged.problems == {5: "request 5 is missing from LoadGen's log"}

    @pytest.mark.parametrize("value", [np.nan, np.inf, 1e6])
    def test_a_wrong_number_fails(self, setup, right, value):
        log = as_log(right)
        log[7].values[-1] = value
        assert list(setup.judge.accuracy(log, []).problems) == [log[7].request]

    @pytest.mark.parametrize(
        ("alone", "is_right"), [(1e-3, True), (0.0, False), (2e-3, False), (np.nan, False)]
    )
    def test_a_flip_at_a_discontinuity_is_no_mistake(self, setup, right, monkeypatch, alone, is_right):
        """The answer is 1e-3 from the truth. So is the port alone behind the same flip."""
        number = setup.requests.of_width(setup.requests.width[0])[0]
        log = as_log(right)
        log[[entry.request for entry in log].index(number)].values[2:] += 1e-3
        assert list(setup.judge.accuracy(log, []).problems) == [number]
        clean_run, flipped = judging.CleanRun, {}

        def with_boundary(*arguments, **options):
            evidence = clean_run(*arguments, **options).evidence
            tap = next(tap for tap, call in evidence.kinds.items() if call.kind == "HSTUPositionalEncoder")
            reference = evidence.reference.tensors[tap]
            flipped[tap] = reference.clone()
            flipped[tap][0, 0, 0] += 1
            boundary = np.zeros(reference.shape, dtype=bool)
            boundary[0, 0, 0] = True
            return SimpleNamespace(evidence=replace(evidence, boundary={tap: boundary}))

        monkeypatch.setattr(judging, "CleanRun", with_boundary)
        monkeypatch.setattr(setup.port, "run_tapped", lambda arrays: Capture(tensors=flipped))
        monkeypatch.setattr(setup.judge, "_run", lambda number, arrays: right.answers[number] + alone)
        problems = setup.judge.accuracy(log, []).problems
        assert list(problems) == ([] if is_right else [number])
        assert is_right or "depends on a discontinuity that the port takes otherwise" in problems[number]

    def test_an_error_ends_the_test(self, setup, tmp_path):
        class Breaks(Server):
            def _stage(self, numbers, shape):
                raise ValueError("broken")

        _, own = setup.run(tmp_path, Breaks)
        assert str(own.error) == "broken"

    def test_a_second_answer_ends_the_test(self, setup, tmp_path):
        class AnswersTwice(Server):
            def _respond(self, batch, output):
                super()._respond(batch, output)
                super()._respond(batch, output)

        _, own = setup.run(tmp_path, AnswersTwice)
        assert "answered a query twice" in str(own.error)


class TestTheAudit:
    def test_other_predictions_fail(self, setup, right):
        verdict = audited(setup.requests, right, as_log(right, 1e-2))
        assert "differs from its answer in the accuracy run" in verdict.line()
        assert verdict.text().endswith("TEST FAIL\n")

    def test_a_metric_that_may_change_fails(self, setup, right):
        for truth in right.truths.values():
            assert truth.bound < 1e-3
        loose = judging.Accuracy(COUNT, answers=right.answers)
        loose.truths = {number: judging.Truth(truth.values, 1.0) for number, truth in right.truths.items()}
        verdict = audited(setup.requests, loose, as_log(right, 1e-2))
        assert "the metric may change by" in verdict.line()

    def test_a_log_without_answers_fails(self, setup, right):
        assert audited(setup.requests, right, []).line() == "FAIL: LoadGen logged no answer"

    def test_an_answer_of_another_request_fails(self, setup, right):
        (first, second, *_) = as_log(right, 0)
        verdict = audited(setup.requests, right, [Logged(first.request, second.values)])
        assert "the response went to the wrong query" in verdict.line()
