"""LoadGen, MLPerf's load generator: its settings, one test after another, and its logs.

Public source of the settings, of the logs' names and of the folders: mlcommons/inference, `loadgen/` and
`tools/submission/submission_checker/constants.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

from parity.base.errors import UserError, check_names
from parity.base.files import read_file, write_new
from parity.base.memory import require
from parity.case.serving import Audit

PACKAGE = "mlcommons-loadgen"
SCENARIOS = {"server": "Server", "offline": "Offline"}
"""LoadGen's scenarios by the names of the command line."""
_SUMMARY, _ACCURACY = "mlperf_log_summary.txt", "mlperf_log_accuracy.json"
RESULT = "Result is"
"""Key of LoadGen's own verdict, VALID or INVALID."""
_PERFORMANCE_MODE = 2
_OWN, _USERS = 0, 2
"""Kinds of settings: those inside LoadGen, and a file beside them."""

LONGEST = 7 * 24 * 3600.0
"""Longest time of a test, s."""
_QUERY_BYTES = 64
"""Least bytes of a query in LoadGen's memory."""

Ask = Callable[[Sequence[tuple[int, int]]], None]
"""Takes queries: LoadGen's id and the number of the request of each."""


@dataclass(frozen=True)
class Load:
    """The load of a test.

    Attributes:
        scenario: One of `SCENARIOS`.
        rate: Target, in queries a second.
        duration: Least time of a performance run, in seconds.
        queries: Least number of queries of a performance run.
    """

    scenario: str
    rate: float
    duration: float
    queries: int

    def __post_init__(self) -> None:
        check_names("--scenario", [self.scenario], SCENARIOS)
        numbers = {"--rate": self.rate, "--duration": self.duration, "--queries": self.queries}
        for option, value in numbers.items():
            if not 0 < value < 1e9:
                raise UserError(option, value, "is no positive number below 10^9", "give a positive number")

    def require(self, samples: int) -> None:
        """Refuse a load that no test ends, or whose queries no memory holds, by arithmetic.

        Args:
            samples: Number of requests, each of which the accuracy run asks once.

        Raises:
            UserError: The time or the memory is too large.
        """
        seconds = max(self.duration, max(samples, self.queries) / self.rate)
        if seconds > LONGEST:
            problem = f"takes {seconds:.3g} s, and a test {LONGEST:.0f} s at most"
            raise UserError("--rate", self.rate, problem, "give more, or fewer --samples and --queries")
        queries = max(self.queries, self.rate * self.duration)
        fix = "give a smaller --rate, --duration or --queries"
        require("--queries", f"{queries:.3g}", queries * _QUERY_BYTES, fix)

    def settings(self) -> str:
        """A file of LoadGen's user settings."""
        name = SCENARIOS[self.scenario]
        values = {
            "target_qps": f"{self.rate:.6g}",
            "min_duration": f"{max(1, round(1000 * self.duration))}",
            "min_query_count": f"{self.queries}",
        }
        return "".join(f"*.{name}.{key} = {value}\n" for key, value in values.items())


@dataclass(frozen=True)
class Folders:
    """Folders of the tests, where the submission checker looks for them.

    Attributes:
        path: `results/<system>/<benchmark>/<scenario>` of a submitter's folder.
        audit_name: Name of the audit.
    """

    path: Path
    audit_name: str

    @property
    def settings(self) -> Path:
        """LoadGen's user settings."""
        return self.path / "user.conf"

    @property
    def accuracy(self) -> Path:
        """The accuracy run."""
        return self.path / "accuracy"

    @property
    def performance(self) -> Path:
        """The performance run."""
        return self.path / "performance" / "run_1"

    @property
    def audit(self) -> Path:
        """The audit."""
        return self.path / self.audit_name


def loadgen() -> ModuleType:
    """The library. Raises `UserError` where it is not installed."""
    try:
        import mlperf_loadgen
    except ImportError as error:
        raise UserError(
            "serve", PACKAGE, f"is not installed ({error})", f"install it: pip install {PACKAGE}"
        ) from error
    return mlperf_loadgen


def answer(id: int, values: np.ndarray) -> None:
    """Give LoadGen the answer, float32, to the query of an id. LoadGen copies an answer that it logs."""
    library = loadgen()
    library.QuerySamplesComplete([library.QuerySampleResponse(id, values.ctypes.data, values.nbytes)])


def deadline(load: Load, benchmark: str) -> float | None:
    """Seconds that LoadGen's own settings give an answer in a scenario; None where they give any time."""
    if load.scenario != "server":
        return None
    settings = loadgen().TestSettings()
    if settings.FromConfig("", benchmark, SCENARIOS[load.scenario], _OWN):
        raise RuntimeError(f"LoadGen has no settings of {benchmark}")
    return float(settings.server_target_latency_ns) / 1e9


def run_test(
    load: Load, benchmark: str, requests: int, ask: Ask, folders: Folders, folder: Path, audit: Audit | None
) -> None:
    """Run one test and leave LoadGen's logs in its folder.

    Args:
        load: The load.
        benchmark: Name of the benchmark in LoadGen's settings.
        requests: Number of requests.
        ask: Takes queries.
        folders: All folders; the settings are written.
        folder: The folder of this test: `folders.accuracy` for an accuracy run.
        audit: The audit; None for the runs of a submission.
    """
    library = loadgen()
    folder.mkdir(parents=True, exist_ok=True)
    if not folders.settings.exists():
        write_new(folders.settings, load.settings().encode())
    settings = library.TestSettings()
    # LoadGen's own settings, then ours. LoadGen adds its own to the first test of a process alone.
    for path, kind in (("", _OWN), (str(folders.settings), _USERS)):
        if settings.FromConfig(path, benchmark, SCENARIOS[load.scenario], kind):
            raise RuntimeError(f"LoadGen refuses {folders.settings}")
    is_accuracy = folder == folders.accuracy
    modes = library.TestMode
    settings.scenario = getattr(library.TestScenario, SCENARIOS[load.scenario])
    settings.mode = modes.AccuracyOnly if is_accuracy else modes.PerformanceOnly
    settings.performance_sample_count_override = requests
    logs = library.LogSettings()
    logs.log_output.outdir = str(folder)
    logs.log_output.copy_summary_to_stdout = False
    logs.enable_trace = False
    audited = folder / "audit.config"
    if audit is not None:
        write_new(audited, _audit_settings(audit).encode())
    tested = library.ConstructSUT(
        lambda queries: ask([(query.id, query.index) for query in queries]), lambda: None
    )
    stored = library.ConstructQSL(requests, requests, lambda _: None, lambda _: None)
    try:
        library.StartTestWithLogSettings(tested, stored, settings, logs, str(audited))
    finally:
        library.DestroyQSL(stored)
        library.DestroySUT(tested)


def _audit_settings(audit: Audit) -> str:
    values = {
        "mode": _PERFORMANCE_MODE,
        "accuracy_log_rng_seed": audit.log_seed,
        "accuracy_log_sampling_target": audit.log_target,
    }
    return "".join(f"*.*.{key} = {value}\n" for key, value in values.items())


@dataclass(frozen=True)
class Logged:
    """An answer in LoadGen's log.

    Attributes:
        request: Number of the request of the query.
        values: The answer, float32.
    """

    request: int
    values: np.ndarray


def logged(folder: Path) -> list[Logged]:
    """The answers that LoadGen logged in a test, in its order. Raises `UserError` for a damaged log."""
    with _whole(folder / _ACCURACY) as text:
        return [
            Logged(entry["qsl_idx"], np.frombuffer(bytes.fromhex(entry["data"]), "<f4"))
            for entry in json.loads(text)
        ]


def summary(folder: Path) -> Mapping[str, str]:
    """LoadGen's summary of a performance run: values by key. Raises `UserError` for a damaged one."""
    with _whole(folder / _SUMMARY) as text:
        pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
        values = {key.strip(): value.strip() for key, _, value in pairs}
        return {**values, RESULT: values[RESULT]}


@contextmanager
def _whole(path: Path) -> Iterator[str]:
    """A log's text; an error in the body is the log's."""
    try:
        yield read_file(path).decode()
    except (OSError, ValueError, KeyError, TypeError) as error:
        fix = "choose a folder on a disk with free space"
        raise UserError("serve", str(path), f"is no whole log of LoadGen ({error})", fix) from error
