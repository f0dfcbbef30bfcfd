"""DLRMv3's port under LoadGen on one GPU: Offline, and Server at a share of Offline's rate.

    python benchmarks/gpu/dlrmv3_serving.py --out serving.json --logs LOGS

`run_parity.py serve` runs one scenario, and makes requests, tables and port for it. This program makes them
once. The requests are the benchmark's, the port has fused layers, and tables lie on the GPU. The answers of
each scenario's accuracy run are judged. LoadGen's summaries are left in the folder of --logs.

Batches of every size are timed first, one at a time and queued behind one another.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.timing import parsed, report  # noqa: E402
from cases.shipped import load_case  # noqa: E402
from parity.base.precision import PRECISIONS  # noqa: E402
from parity.inputs.weights import case_weights  # noqa: E402
from parity.studies.serving import loadgen  # noqa: E402
from parity.studies.serving.batching import in_time  # noqa: E402
from parity.studies.serving.judging import Judge  # noqa: E402
from parity.studies.serving.loadgen import Folders, Load  # noqa: E402
from parity.studies.serving.port import ServedPort  # noqa: E402
from parity.studies.serving.requests import Requests  # noqa: E402
from parity.studies.serving.server import Log, Server  # noqa: E402

RATE = ("Samples per second", "Completed samples per second")
QUEUED = 24
"""Batches of a size that are queued behind one another."""


class Bench:
    """Requests, port and logs of all tests.

    Args:
        arguments: The command line.
        folder: An existing folder for LoadGen's logs.
        requests: The requests, whose tables are open.
    """

    def __init__(self, arguments: argparse.Namespace, folder: Path, requests: Requests) -> None:
        self._folder, self._requests = folder, requests
        self._weights, _ = case_weights(requests.case)
        self._precision = PRECISIONS[arguments.precision]
        port = (requests, self._precision, self._weights, arguments.runner, arguments.fuse)
        self.port = ServedPort(*port)

    def test(self, load: Load, name: str, is_accuracy: bool) -> tuple[Folders, Log]:
        """One test of LoadGen."""
        folders = Folders(self._folder / name, self._requests.serving.audit.name)
        folder = folders.accuracy if is_accuracy else folders.performance
        benchmark = self._requests.serving.benchmark
        deadline = loadgen.deadline(load, benchmark)
        with Server(self._requests, self.port, loadgen.answer, deadline) as server:
            loadgen.run_test(load, benchmark, len(self._requests), server.ask, folders, folder, None)
        if server.log.error is not None:
            raise server.log.error
        return folders, server.log

    def judged(self, load: Load) -> dict:
        """The verdict on an accuracy run."""
        folders, log = self.test(load, f"{load.scenario}_accuracy", is_accuracy=True)
        logged, began = loadgen.logged(folders.accuracy), time.monotonic()
        judge = Judge(self._requests, self._precision, self._weights, self.port)
        accuracy = judge.accuracy(logged, log.batches)
        print(f"{load.scenario}, accuracy: {accuracy.line()}", flush=True)
        return {
            "scenario": load.scenario,
            "line": accuracy.line(),
            "verdict": accuracy.verdict,
            "predictions": accuracy.predictions,
            "judged_in_seconds": time.monotonic() - began,
        }

    def sizes(self) -> list[dict]:
        """Seconds of a batch of each shape: alone, as the server measures it, and in a queue."""
        rows = []
        for shape, alone in self.port.times.items():
            numbers = self._requests.of_width(shape.width)[: shape.rows]
            staged = self._requests.staged(self._requests.full(numbers, shape))
            began, running = time.perf_counter(), []
            for _ in range(QUEUED):
                running.append(self.port.start(shape, staged))
                if len(running) == self.port.most_running:
                    running.pop(0).result()
            for work in running:
                work.result()
            queued = (time.perf_counter() - began) / QUEUED
            rows.append({"width": shape.width, "rows": shape.rows, "alone": alone, "queued": queued})
            print(
                f"{shape.rows} rows of {shape.width}: {1e3 * alone:.2f} ms alone, {1e3 * queued:.2f} ms in a "
                f"queue, {shape.rows / queued:.0f} queries/s",
                flush=True,
            )
        return rows

    def used(self, load: Load) -> list[int]:
        """Rows of the shapes that a scenario's deadline leaves."""
        deadline = loadgen.deadline(load, self._requests.serving.benchmark)
        return [shape.rows for shape in in_time(self.port.times, deadline, self.port.most_running)]

    def measured(self, load: Load, name: str) -> dict:
        """LoadGen's summary of a performance run."""
        folders, log = self.test(load, name, is_accuracy=False)
        summary = dict(loadgen.summary(folders.performance))
        rate = next(float(summary[key]) for key in RATE if key in summary)
        sizes = [len(batch) for batch in log.batches]
        row = {"name": name, "target": load.rate, "result": summary[loadgen.RESULT], "rate": rate}
        row |= {"sizes": self.used(load), "mean_batch": sum(sizes) / len(sizes)}
        row |= {"dropped": len(log.dropped), "summary": summary}
        latency = summary.get("99.00 percentile latency (ns)")
        shown = f", 99 % within {float(latency) / 1e6:.1f} ms" if latency else ""
        print(
            f"{name}: {row['result']}, {rate:.1f} queries/s{shown}, {row['mean_batch']:.1f} a batch",
            flush=True,
        )
        return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", default="dlrmv3")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--runner", default="tripy_layers")
    parser.add_argument("--fuse", action="store_true", help="fuse the steps of the portable runtime")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=8 * 10_241, help="of a batch, padding included")
    parser.add_argument("--seconds", type=float, default=60.0, help="least time of a performance run")
    parser.add_argument("--shares", default="0.85,0.8", help="of Offline's rate, for Server")
    parser.add_argument("--logs", type=Path, help="folder for LoadGen's summaries")
    arguments = parsed(parser)
    case = load_case(arguments.case)
    requests = Requests(case, arguments.samples, case.seed, arguments.tokens)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        with requests.serving.device_tables(place / "tables", case.seed, "cuda") as lookup:
            requests.open_on_device(lookup)
            bench = Bench(arguments, place, requests)
            print(f"{bench.port.label()}, {requests.source}", flush=True)
            sizes = bench.sizes()
            best = max(size["rows"] / size["queued"] for size in sizes)
            # LoadGen's Offline asks for 1.1 times the target.
            offline = Load("offline", best, arguments.seconds, 1)
            rows = [bench.measured(offline, "offline")]
            judged = [bench.judged(offline)]
            for share in map(float, arguments.shares.split(",")):
                load = Load("server", share * rows[0]["rate"], arguments.seconds, 1)
                rows.append(bench.measured(load, f"server_{share:g}"))
            judged.append(bench.judged(Load("server", rows[0]["rate"] / 2, 1.0, 1)))
        if arguments.logs is not None:
            for path in place.rglob("mlperf_log_summary.txt"):
                if "performance" in path.parts:
                    arguments.logs.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, arguments.logs / f"{path.relative_to(place).parts[0]}.txt")
    facts = {"label": bench.port.label(), "requests": len(requests), "source": requests.source}
    report(arguments.out, {}, **facts, sizes=sizes, accuracy=judged, rows=rows)
    if any(row["verdict"] != "PASS" for row in judged):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
