"""The verb `serve`: its output, LoadGen's logs, refusals and exit codes."""

import itertools
import json
import re
import shutil
import sys

import pytest
import torch

from datasets.dlrmv3.generator import users
from datasets.dlrmv3.streaming import TINY
from parity.base.errors import UserError
from parity.studies.serving import loadgen
from parity.studies.serving.auditing import Audited
from parity.studies.serving.cache_verdict import CacheVerdict
from parity.studies.serving.command import Served
from parity.studies.serving.judging import Accuracy
from parity.studies.serving.requests import Requests
from tests.datasets.dlrmv3.small import write_folder
from tests.parity.served_case import CASE, COUNT, ROWS

pytest.importorskip("mlperf_loadgen", reason="the load is LoadGen's: pip install mlcommons-loadgen")
# One process makes the case, its port and its truth.
pytestmark = pytest.mark.xdist_group("serving")


ARGUMENTS = ("serve", "--case", CASE, "--samples", str(COUNT), "--duration", "0.05", "--rate", "200")


TOO_MANY = "is more than half of the " if torch.cuda.is_available() else "needs "
"""What is wrong with a cache that no machine has room for: it lies on the GPU, where there is one."""


def changed(options):
    """The arguments with other values of these options."""
    values = dict(zip(ARGUMENTS[1::2], ARGUMENTS[2::2], strict=True))
    values |= dict(zip(options[::2], options[1::2], strict=True))
    return (ARGUMENTS[0], *itertools.chain.from_iterable(values.items()))


def _copied(source, target):
    for suffix in ("bin", "json"):
        shutil.copy(
            source.with_name(f"{source.name}.0.{suffix}"), target.with_name(f"{target.name}.0.{suffix}")
        )


TABLE_FAULTS = {
    "item_id.0.bin is missing": lambda tables, _: (tables / "item_id.0.bin").unlink(),
    "is swapped: it is a shard of table user_id": lambda tables, _: _copied(
        tables / "user_id", tables / "item_id"
    ),
    "is stale: of version": lambda tables, other: _copied(other / "item_id", tables / "item_id"),
}


@pytest.fixture
def folder(tmp_path):
    """The benchmark's files of all users of the case's requests."""
    path = tmp_path / "files"
    path.mkdir()
    write_folder(path, TINY, {user.number: user for user in users(TINY, range(TINY.num_users))})
    return path


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
        (requests, accuracy, performance, audit, logs) = ended.out.splitlines()[1:]
        assert requests == "requests     the benchmark's, generated: 48 users, 320 items"
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
        # No machine answers its 100 queries within this duration.
        tokens = ROWS * setup.requests.serving.widths[-1]
        load = ("--rate", "50000", "--duration", "0.001", "--tokens", tokens)
        ended = command(*changed(load), "--save", tmp_path / "out")
        assert "performance  VALID by LoadGen" in ended.out, ended
        assert ended.code == 0

    def test_another_form_with_tables_on_a_device_is_served(self, command, tmp_path):
        options = ("--runner", "tripy_layers", "--tables-on", "cpu", "--accuracy-only")
        ended = command(*ARGUMENTS, *options, "--save", tmp_path / "out")
        assert (ended.code, "accuracy     PASS" in ended.out) == (0, True), ended
        assert ended.out.splitlines()[0].endswith(" whole layers")
        assert json.loads((tmp_path / "out" / "serving.json").read_text())["tables_on"] == "cpu"

    @pytest.mark.full
    def test_returning_users_hit_the_cache(self, command, tmp_path):
        ended = command(*ARGUMENTS, "--kv-cache", "0.01", "--save", tmp_path / "out")
        assert "k/v cache    PASS: 12 requests of the accuracy run from it" in ended.out, ended
        content = json.loads((tmp_path / "out" / "serving.json").read_text())
        cache = content["cache"]
        assert (cache["requests"], cache["limit"]) == (COUNT, 10737419)
        assert cache["tests"]["accuracy run"]["hits"] == COUNT
        assert cache["tests"]["accuracy run"]["largest"] > 0
        # LoadGen asks for the same requests again.
        assert all(cache["tests"][name]["hits"] > COUNT for name in ("performance run", "TEST08"))
        assert all(shape["resumed_seconds"] > 0 for shape in content["shapes"])

    @pytest.mark.full
    def test_a_wrong_key_ends_with_1(self, command, tmp_path, monkeypatch):
        monkeypatch.setattr(Requests, "key", lambda self, number: b"%d" % self.width[number])
        ended = command(*ARGUMENTS, "--kv-cache", "0.01", "--save", tmp_path / "out")
        assert ended.code == 1
        assert "k/v cache    FAIL: request" in ended.out

    def test_requests_come_from_files(self, command, tmp_path, folder):
        ended = command(*ARGUMENTS, "--accuracy-only", "--data", folder, "--save", tmp_path / "out")
        assert f"requests     the benchmark's, read from {folder}: 48 users, 320 items" in ended.out
        assert (ended.code, "accuracy     PASS" in ended.out) == (0, True)

    def test_a_damaged_line_of_the_files_is_refused(self, refused, folder):
        path = folder / "1.csv"
        path.write_bytes(re.sub(rb'"[0-9]', b'"x', path.read_bytes()))
        message = refused(*ARGUMENTS, "--data", folder)
        place = r"1\.csv, user [0-9]+, field [0-9]+ \([a-z_]+\)"
        assert re.search(f"{place}: x.* is no list of whole numbers", message), message

    def test_files_of_other_sizes_are_refused(self, refused, folder):
        (folder / "offset.csv").write_bytes(b'"0,1"\r\n"0,1"\r\n')
        assert "2 places for 24 lines; give the settings of this data" in refused(
            *ARGUMENTS, "--data", folder
        )

    @pytest.mark.parametrize("fault", TABLE_FAULTS)
    def test_a_fault_of_the_tables_is_refused(self, refused, setup, tmp_path, fault):
        tables, other = (tmp_path / name for name in ("tables", "other"))
        for seed, folder in enumerate((tables, other)):
            with setup.case.serving().tables(folder, seed):
                pass
        TABLE_FAULTS[fault](tables, other)
        assert fault in refused(*ARGUMENTS, "--tables", tables)

    @pytest.mark.full
    def test_tables_are_written_once_and_stay(self, command, setup, tmp_path):
        tables = tmp_path / "tables"
        for run in ("first", "second"):
            ended = command(*ARGUMENTS, "--accuracy-only", "--tables", tables, "--save", tmp_path / run)
            assert (ended.code, (tables / "manifest.json").is_file()) == (0, True)
            assert not (tmp_path / run / "tables").exists()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--samples", "1000"), "--samples: 1000 is more than the 269 requests of the data"),
            (("--scenario", "servr"), "--scenario: servr is not known; did you mean 'server'?"),
            (("--case", "hstu_tiny"), "serve: hstu_tiny has no requests; name a case that can be served"),
            (("--case", f"{CASE},hstu_tiny"), "where one of each is taken"),
            (("--runner", "tripy_layer"), "--runner: tripy_layer is not known; did you mean 'tripy_layers'?"),
            (("--tables-on", "disk"), "--tables-on: disk is not known"),
            (("--data", "none"), "--data: none/requests_per_ts_offset.csv cannot be read"),
            (("--tables", __file__), f"--tables: {__file__}/manifest.json cannot be read"),
            (
                ("--kv-cache", "0"),
                "--kv-cache: 0.0 is no positive number of GiB up to 10^12; give a positive",
            ),
            (("--kv-cache", "1e300"), "--kv-cache: 1e+300 is no positive number of GiB up to 10^12"),
            (("--kv-cache", "-1"), "--kv-cache: -1.0 is no positive number of GiB"),
            (("--kv-cache", "nan"), "--kv-cache: nan is no positive number of GiB"),
            (("--kv-cache", "inf"), "--kv-cache: inf is no positive number of GiB"),
            (("--kv-cache", "1e-7"), "--kv-cache: 1.01e-07 GiB hold no request of "),
            (("--kv-cache", "1e9"), f"--kv-cache: 1e+09 GiB {TOO_MANY}"),
            (("--rate", "0"), "--rate: 0.0 is no positive number"),
            (("--duration", "nan"), "--duration: nan is no positive number"),
            (("--save", "."), "--save: . exists; give a folder that does not exist"),
            (("--save", "new", "--tables", "new/t"), "--tables: new/t is or lies in the folder of --save"),
            (("--save", "new/s", "--tables", "new"), "--save: new/s is or lies in the folder of --tables"),
            (("--save", "new", "--tables", "new"), "is or lies in the folder of"),
            (("--seed", "-1"), "seed: -1 is below 0"),
            (("--tokens", str(2**63)), f"--tokens: {2**63} needs "),
            (("--tokens", "1" + "0" * 400), " of memory, and "),
            (("--rate", "1e-320"), "--rate: 1e-320 takes inf s, and a test 604800 s at most"),
            (("--duration", "604801"), "takes 6.05e+05 s, and a test 604800 s at most"),
            (("--rate", "999999999", "--duration", "604800"), "--queries: 6.05e+14 needs "),
        ],
    )
    def test_bad_input_is_refused(self, refused, arguments, message):
        assert message in refused(*changed(arguments))

    @pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
    def test_tables_on_an_absent_gpu_are_refused(self, refused):
        message = "--tables-on: cuda is absent: PyTorch finds no GPU here"
        assert message in refused(*changed(("--tables-on", "cuda")))

    def test_without_loadgen_it_says_how_to_install_it(self, refused, monkeypatch):
        monkeypatch.setitem(sys.modules, "mlperf_loadgen", None)
        assert "mlcommons-loadgen is not installed" in refused(*ARGUMENTS)


class TestTheResult:
    SUMMARY = {"Result is": "VALID", "Scenario": "Offline", "Samples per second": "12.34"}

    def served(self, right, **changes):
        audit = Audited("audit", logged=1, equal=1, change=0.0, tolerance=1.0, problem="")
        whole = {
            "runner": "a runner",
            "source": "drawn",
            "accuracy": right,
            "summary": self.SUMMARY,
            "audit": audit,
            "times": {},
        }
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
            (
                {
                    "summary": {
                        **SUMMARY,
                        "Result is": "INVALID",
                        "Min duration satisfied": "NO",
                        "Min queries satisfied": "Yes",
                    }
                },
                "performance  INVALID by LoadGen: 12.3 queries/s; not satisfied: Min duration: too few "
                "queries were asked; give --rate 14",
            ),
            ({"audit": Audited("audit", 1, 0, 0.0, 1.0, "it differs")}, "audit        FAIL: it differs"),
            ({"cache": CacheVerdict(1, {}, 0, 0, "no hit")}, "k/v cache    FAIL: no hit"),
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
        ids=["dropped", "invalid", "too short", "audit", "cache", "accuracy", "insensitive"],
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
