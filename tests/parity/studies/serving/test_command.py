"""The verb `serve`: its output, LoadGen's logs, refusals and exit codes."""

import json
import re
import sys

import pytest

from parity.base.errors import UserError
from parity.studies.serving import loadgen
from parity.studies.serving.auditing import Audited
from parity.studies.serving.command import Served
from parity.studies.serving.judging import Accuracy
from tests.parity.served_case import CASE, COUNT, ROWS

pytest.importorskip("mlperf_loadgen", reason="the load is LoadGen's: pip install mlcommons-loadgen")
# One process makes the case, its port and its truth.
pytestmark = pytest.mark.xdist_group("serving")


ARGUMENTS = ("serve", "--case", CASE, "--samples", str(COUNT), "--duration", "0.05", "--rate", "200")


@pytest.fixture(scope="package")
def served(command, setup, tmp_path_factory):
    """The end of the verb, and its folder."""
    folder = tmp_path_factory.mktemp("served") / "out"
    # The requests of `setup`, whose truth is known.
    tokens = ROWS * setup.requests.serving.widths[-1]
    arguments = (*ARGUMENTS, "--tokens", tokens, "--scenario", "server", "--queries", "20", "--save", folder)
    return command(*arguments), folder


class TestTheVerb:
    def test_it_prints_loadgen_s_own_result(self, served):
        ended, folder = served
        (accuracy, performance, audit, logs) = ended.out.splitlines()[1:]
        assert accuracy.startswith("accuracy     PASS")
        # So few queries are no valid run: LoadGen asks for more.
        assert re.match(
            r"performance  INVALID by LoadGen: [0-9.]+ queries/s, 99 % within .* limit 80 ms", performance
        )
        assert audit.startswith("TEST08       PASS")
        assert (logs, ended.code) == (f"logs: {folder}", 1)

    def test_logs_lie_where_the_checker_looks(self, served):
        _, folder = served
        (place,) = folder.glob("results/*/dlrm-v3/Server")
        files = ("mlperf_log_summary.txt", "mlperf_log_detail.txt", "mlperf_log_accuracy.json")
        for run in ("accuracy", "performance/run_1", "TEST08"):
            assert all((place / run / file).stat().st_size for file in files)
        assert "error_invalid_config" not in (place / "performance/run_1/mlperf_log_detail.txt").read_text()
        assert "TEST PASS" in (place / "TEST08/verify_accuracy.txt").read_text().splitlines()
        content = json.loads((folder / "serving.json").read_text())
        assert content["accuracy"]["verdict"] == "PASS"
        assert content["performance"]["Result is"] == "INVALID"

    def test_a_run_that_loadgen_calls_valid_ends_with_0(self, command, setup, tmp_path):
        # More queries than are answered in the duration.
        load = ("--rate", "5000", "--duration", "0.05", "--tokens", ROWS * setup.requests.serving.widths[-1])
        ended = command(*ARGUMENTS, *load, "--save", tmp_path / "out")
        assert "performance  VALID by LoadGen" in ended.out, ended
        assert ended.code == 0

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--scenario", "servr"), "--scenario: servr is not known; did you mean 'server'?"),
            (("--case", "hstu_tiny"), "serve: hstu_tiny has no requests; name a case that can be served"),
            (("--case", f"{CASE},hstu_tiny"), "is for one case in one precision"),
            (("--rate", "0"), "--rate: 0.0 is no positive number"),
            (("--duration", "nan"), "--duration: nan is no positive number"),
            (("--save", "."), "--save: . exists; give a folder that does not exist"),
        ],
    )
    def test_bad_input_is_refused(self, refused, arguments, message):
        assert message in refused(*ARGUMENTS, *arguments)

    def test_without_loadgen_it_says_how_to_install_it(self, refused, monkeypatch):
        monkeypatch.setitem(sys.modules, "mlperf_loadgen", None)
        assert "mlcommons-loadgen is not installed" in refused(*ARGUMENTS)


class TestTheResult:
    SUMMARY = {"Result is": "VALID", "Scenario": "Offline", "Samples per second": "12.34"}

    def served(self, right, **changes):
        audit = Audited("audit", logged=1, equal=1, change=0.0, tolerance=1.0, problem="")
        whole = {"runner": "a runner", "accuracy": right, "summary": self.SUMMARY, "audit": audit}
        return Served(**{**whole, **changes})

    def test_it_passes_where_everything_does(self, right):
        served = self.served(right)
        assert served.exit_code == 0
        assert "performance  VALID by LoadGen: 12.3 queries/s" in served.lines()

    @pytest.mark.parametrize(
        ("changes", "line"),
        [
            ({"dropped": 3}, "performance  FAIL: the server dropped 3 queries"),
            (
                {"summary": {**SUMMARY, "Result is": "INVALID"}},
                "performance  INVALID by LoadGen: 12.3 queries/s",
            ),
            ({"audit": Audited("audit", 1, 0, 0.0, 1.0, "it differs")}, "audit        FAIL: it differs"),
            (
                {"accuracy": Accuracy(1, problems={0: "request 0 is wrong"}), "summary": {}, "audit": None},
                "performance  not measured: predictions are wrong",
            ),
            (
                {"accuracy": Accuracy(1, predictions=5, detectable=0.02)},
                "accuracy     INSENSITIVE: 5 predictions of 1 requests, err/limit 0.00; an error of 0.02 is "
                "detected, and none below: give more requests (--samples), or a finer precision",
            ),
        ],
        ids=["dropped", "invalid", "audit", "accuracy", "insensitive"],
    )
    def test_one_failure_ends_with_1(self, right, changes, line):
        served = self.served(right, **changes)
        assert served.exit_code == 1
        assert line in served.lines()

    @pytest.mark.parametrize(
        ("read", "name", "text"),
        [
            (loadgen.logged, "mlperf_log_accuracy.json", '[{"qsl_idx": 1, "da'),
            (loadgen.logged, "mlperf_log_accuracy.json", '[{"qsl_idx": 1}]'),
            (loadgen.summary, "mlperf_log_summary.txt", "MLPerf Results Summary\n"),
            (loadgen.summary, "mlperf_log_other.txt", ""),
        ],
        ids=["cut", "no answer", "no result", "missing"],
    )
    def test_a_damaged_log_is_refused(self, tmp_path, read, name, text):
        (tmp_path / name).write_text(text)
        with pytest.raises(UserError, match="is no whole log of LoadGen"):
            read(tmp_path)
