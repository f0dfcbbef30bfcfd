"""The verb `serve`: the port under LoadGen, an accuracy run, a performance run and the audit."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from parity.base.errors import UserError
from parity.base.files import write_new
from parity.base.precision import Precision
from parity.case import Case
from parity.inputs.weights import case_weights
from parity.studies.serving import loadgen
from parity.studies.serving.auditing import Audited, audited
from parity.studies.serving.cache_verdict import CacheVerdict, cache_verdict
from parity.studies.serving.judging import Accuracy, Judge
from parity.studies.serving.loadgen import Folders, Load
from parity.studies.serving.port import GIB, ServedPort
from parity.studies.serving.requests import Requests, Shape
from parity.studies.serving.server import Log, Server

SCHEMA = "parity.serving/1"
PLACES = ("files", "cpu", "cuda")
"""Places of the tables: files mapped into the host's memory, or whole tables on a device."""
RESULT = "serving.json"
"""Name of the file with every number."""
_RATES = ("Samples per second", "Completed samples per second")
_VALID = "VALID"
_SATISFIED, _DURATION = " satisfied", "Min duration"
"""The end of a condition's key in LoadGen's summary, and the condition that follows from the target."""
_LATENCY, _LIMIT = "99.00 percentile latency (ns)", "target_latency (ns)"


@dataclass(frozen=True)
class Order:
    """The wanted tests.

    Attributes:
        case: The case.
        precision: The precision.
        checkpoint: File of weights; initial weights by default.
        samples: Number of different requests.
        seed: Seed of the requests.
        tokens: Most tokens of a batch; None for the case's batch.
        data: Recorded requests; None for the case's own.
        tables: Folder of the tables; None for one that is removed at the end.
        tables_on: One of `PLACES`.
        runner: One of `parity.studies.serving.port.SERVED`.
        fuse: Whether the portable runtime fuses steps.
        load: The load.
        measures: Whether a performance run and the audit follow the accuracy run.
        kv_cache: GiB of keys and values of requests' shared rows; None for no cache.
    """

    case: Case
    precision: Precision
    checkpoint: Path | None
    samples: int
    seed: int
    tokens: int | None
    data: Path | None
    tables: Path | None
    tables_on: str
    runner: str
    fuse: bool
    load: Load
    measures: bool
    kv_cache: float | None = None

    def __post_init__(self) -> None:
        if self.kv_cache is not None and not 0 < self.kv_cache <= 1e12:
            problem = "is no positive number of GiB up to 10^12"
            raise UserError("--kv-cache", self.kv_cache, problem, "give a positive number, or leave it out")

    @property
    def cache_bytes(self) -> int:
        """Most bytes of the cache; 0 for none."""
        return 0 if self.kv_cache is None else math.ceil(self.kv_cache * GIB)


@dataclass(frozen=True)
class Served:
    """The results.

    Attributes:
        runner: Full name of the runner.
        source: Origin of the requests in words.
        accuracy: The verdict on the accuracy run.
        summary: LoadGen's summary of the performance run; empty without one.
        audit: The verdict on the audit; None without one.
        times: Median seconds of a batch by shape, measured before the tests.
        queued: Seconds of a batch by shape while batches follow one another, measured before the tests.
        dropped: Number of queries of the performance run that the server lost.
        cache: The verdict on the k/v cache; None without one.
        resumed_times: As `times`, of batches whose shared rows are in the cache; empty without one.
    """

    runner: str
    source: str
    accuracy: Accuracy
    summary: Mapping[str, str]
    audit: Audited | None
    times: Mapping[Shape, float]
    dropped: int = 0
    cache: CacheVerdict | None = None
    queued: Mapping[Shape, float] = field(default_factory=dict)
    resumed_times: Mapping[Shape, float] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """0 if predictions and audit pass, an error of 1 % is detected, and LoadGen calls its run valid."""
        is_valid = self.summary.get(loadgen.RESULT, _VALID) == _VALID and not self.dropped
        is_proved = self.accuracy.verdict == "PASS"
        others = (verdict for verdict in (self.audit, self.cache) if verdict is not None)
        return int(not (is_proved and is_valid and all(verdict.passed for verdict in others)))

    def lines(self) -> list[str]:
        """The results in words."""
        lines = [self.runner, f"requests     {self.source}", f"accuracy     {self.accuracy.line()}"]
        if self.summary:
            lines.append(f"performance  {self._performance()}")
        elif not self.accuracy.passed:
            lines.append("performance  not measured: predictions are wrong")
        if self.audit is not None:
            lines.append(f"{self.audit.name:<12} {self.audit.line()}")
        if self.cache is not None:
            lines.append(f"k/v cache    {self.cache.line()}")
        return lines

    def _performance(self) -> str:
        if self.dropped:
            return f"FAIL: the server dropped {self.dropped} queries"
        rate = next(self.summary[key] for key in _RATES if key in self.summary)
        text = f"{self.summary[loadgen.RESULT]} by LoadGen: {float(rate):.1f} queries/s"
        if self.summary["Scenario"] == loadgen.SCENARIOS["server"]:
            latency, limit = (float(self.summary[key]) / 1e6 for key in (_LATENCY, _LIMIT))
            text += f", 99 % within {latency:.2f} ms, limit {limit:.0f} ms"
        unmet = [
            key.removesuffix(_SATISFIED)
            for key, value in self.summary.items()
            if key.endswith(_SATISFIED) and value.upper() == "NO"
        ]
        if unmet:
            text += f"; not satisfied: {', '.join(unmet)}"
        if _DURATION in unmet:
            text += f": too few queries were asked; give --rate {math.ceil(1.1 * float(rate))}"
        return text


def serve(order: Order, folder: Path, advance: Callable[[str], None]) -> Served:
    """Run the tests, and leave LoadGen's logs and the result in a folder, a submitter's of the checker.

    Args:
        order: The wanted tests.
        folder: An existing folder.
        advance: Receives each step.

    Raises:
        UserError: LoadGen is missing, or an option does not fit.
        Unavailable: The port cannot run here.
    """
    loadgen.loadgen()
    order.load.require(order.samples)
    weights, source = case_weights(order.case, order.checkpoint)
    returning = order.kv_cache is not None
    requests = Requests(order.case, order.samples, order.seed, order.tokens, order.data, returning)
    order.load.require(len(requests))
    with _tables(order, requests, folder):
        advance(f"{order.case.name}: compiling {len(requests.sizes)} shapes")
        port = ServedPort(requests, order.precision, weights, order.runner, order.fuse, order.cache_bytes)
        tests = _Tests(order, requests, port, folder, advance)
        served = tests.run(Judge(requests, order.precision, weights, port))
    content = _content(order, requests, source, served)
    write_new(folder / RESULT, (json.dumps(content, indent=1) + "\n").encode())
    return served


@contextmanager
def _tables(order: Order, requests: Requests, folder: Path) -> Iterator[None]:
    """The tables of the requests; inside, they are open."""
    if not requests.have_tables and order.tables is None:
        yield
        return
    own = folder / "tables"
    try:
        with ExitStack() as opened:
            _open(order, requests, order.tables or own, opened)
            yield
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _open(order: Order, requests: Requests, place: Path, opened: ExitStack) -> None:
    """Open the tables in a folder. Raises `UserError`."""
    serving = requests.serving
    try:
        if order.tables_on == PLACES[0]:
            requests.lookup = opened.enter_context(serving.tables(place, order.seed))
        else:
            tables = serving.device_tables(place, order.seed, order.tables_on)
            requests.open_on_device(opened.enter_context(tables))
    except UserError as error:
        # The tables know a store and a device, and not the options that name them.
        if error.field == "device":
            raise UserError("--tables-on", error.value, error.problem, error.fix) from error
        if error.field == "store" and order.tables is not None:
            raise UserError("--tables", error.value, error.problem, error.fix) from error
        raise


class _Tests:
    """LoadGen's tests, one after the other."""

    def __init__(
        self, order: Order, requests: Requests, port: ServedPort, folder: Path, advance: Callable[[str], None]
    ) -> None:
        self._order, self._requests, self._port, self._advance = order, requests, port, advance
        serving = requests.serving
        system = re.sub(r"\W+", "_", port.label()).strip("_")
        scenario = loadgen.SCENARIOS[order.load.scenario]
        path = folder / "results" / system / serving.benchmark / scenario
        self._folders = Folders(path, serving.audit.name)
        self._logs: dict[str, Log] = {}

    def run(self, judge: Judge) -> Served:
        served = replace(self._run(judge), queued=self._port.queued)
        if not self._port.kv_cache:
            return served
        verdict = cache_verdict(self._requests, self._port, served.accuracy, self._logs)
        return replace(served, cache=verdict, resumed_times=self._port.resumed_times)

    def _run(self, judge: Judge) -> Served:
        folders, audit = self._folders, self._requests.serving.audit
        log = self._test("accuracy run", folders.accuracy)
        self._advance("judging every prediction")
        accuracy = judge.accuracy(loadgen.logged(folders.accuracy), log.batches, log.hits)
        if not (accuracy.passed and self._order.measures):
            return Served(self._port.label(), self._requests.source, accuracy, {}, None, self._port.times)
        dropped = len(self._test("performance run", folders.performance).dropped)
        summary = loadgen.summary(folders.performance)
        self._test(audit.name, folders.audit, is_audit=True)
        verdict = audited(self._requests, accuracy, loadgen.logged(folders.audit))
        write_new(folders.audit / "verify_accuracy.txt", verdict.text().encode())
        source, times = self._requests.source, self._port.times
        return Served(self._port.label(), source, accuracy, summary, verdict, times, dropped)

    def _test(self, name: str, folder: Path, is_audit: bool = False) -> Log:
        """One test. Raises the error of the server's work."""
        self._advance(f"LoadGen, {self._order.load.scenario}: {name}")
        serving = self._requests.serving
        deadline = loadgen.deadline(self._order.load, serving.benchmark)
        with Server(self._requests, self._port, loadgen.answer, deadline) as server:
            loadgen.run_test(
                self._order.load,
                serving.benchmark,
                len(self._requests),
                server.ask,
                self._folders,
                folder,
                serving.audit if is_audit else None,
            )
        if server.log.error is not None:
            raise server.log.error
        self._logs[name] = server.log
        return server.log


def _content(order: Order, requests: Requests, weights: str, served: Served) -> dict[str, object]:
    """Every number, for `RESULT`."""
    accuracy, audit = served.accuracy, served.audit
    return {
        "schema": SCHEMA,
        "case": order.case.name,
        "precision": order.precision.name,
        "runner": served.runner,
        "weights": weights,
        "scenario": order.load.scenario,
        "tables_on": order.tables_on,
        "source": served.source,
        "requests": len(requests),
        "seed": order.seed,
        "shapes": [
            {"tokens": shape.width, "rows": shape.rows, "seconds": seconds}
            | ({"queued_seconds": served.queued[shape]} if served.queued else {})
            | ({"resumed_seconds": served.resumed_times[shape]} if served.resumed_times else {})
            for shape, seconds in served.times.items()
        ],
        "cache": None if served.cache is None else served.cache.content(),
        "accuracy": {
            "verdict": accuracy.verdict,
            "predictions": accuracy.predictions,
            "margin": accuracy.margin,
            "min_detectable_error": accuracy.detectable,
            "problems": {str(number): text for number, text in accuracy.problems.items()},
        },
        "performance": dict(served.summary),
        "dropped": served.dropped,
        "audit": None if audit is None else {"name": audit.name, "verdict": audit.line()},
        "torch": torch.__version__,
    }
