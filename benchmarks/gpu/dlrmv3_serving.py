"""DLRMv3's port under LoadGen on one GPU: Offline, and Server at a share of Offline's rate.

    python benchmarks/gpu/dlrmv3_serving.py --out serving.json --logs LOGS

`run_parity.py serve` runs one scenario, and makes requests, tables and port for it. This program makes them
once. The requests are the benchmark's, the port has fused layers, and tables lie on the GPU. The answers of
each scenario's accuracy run are judged. LoadGen's summaries are left in the folder of --logs.

Batches of every size are timed first, one at a time and queued behind one another. With --kv-cache the
program serves the requests again, each with two sets of candidates, and keeps keys and values.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.timing import parsed, report  # noqa: E402
from cases.shipped import load_case  # noqa: E402
from parity.base.precision import PRECISIONS  # noqa: E402
from parity.inputs.weights import case_weights  # noqa: E402
from parity.studies.serving import loadgen  # noqa: E402
from parity.studies.serving.batching import in_time  # noqa: E402
from parity.studies.serving.cache_verdict import cache_verdict  # noqa: E402
from parity.studies.serving.judging import Judge  # noqa: E402
from parity.studies.serving.loadgen import Folders, Load  # noqa: E402
from parity.studies.serving.port import GIB, ServedPort  # noqa: E402
from parity.studies.serving.requests import Requests  # noqa: E402
from parity.studies.serving.server import Log, Server  # noqa: E402

RATE = ("Samples per second", "Completed samples per second")


class Bench:
    """Requests, port and logs of all tests.

    Args:
        arguments: The command line.
        folder: An existing folder for LoadGen's logs.
        requests: The requests, whose tables are open.
        kv_cache: Most bytes of the k/v cache; 0 for none.
    """

    def __init__(
        self, arguments: argparse.Namespace, folder: Path, requests: Requests, kv_cache: int = 0
    ) -> None:
        self._folder, self._requests = folder, requests
        self._weights, _ = case_weights(requests.case)
        self._precision = PRECISIONS[arguments.precision]
        port = (requests, self._precision, self._weights, arguments.runner, arguments.fuse)
        self.port = ServedPort(*port, kv_cache)

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
        accuracy = judge.accuracy(logged, log.batches, log.hits)
        print(f"{load.scenario}, accuracy: {accuracy.line()}", flush=True)
        cache = {}
        if self.port.kv_cache:
            verdict = cache_verdict(self._requests, self.port, accuracy, {"accuracy run": log})
            print(f"k/v cache: {verdict.line()}", flush=True)
            cache = {"cache": verdict.content(), "cache_passed": verdict.passed}
        return cache | {
            "scenario": load.scenario,
            "line": accuracy.line(),
            "verdict": accuracy.verdict,
            "predictions": accuracy.predictions,
            "judged_in_seconds": time.monotonic() - began,
        }

    def sizes(self) -> list[dict]:
        """Seconds of a batch of each shape, alone and among others that follow one another, as measured."""
        port = self.port
        rows = []
        for shape in port.times:
            kinds = {"whole": (port.times[shape], port.queued[shape])}
            if port.resumed_times:
                kinds["from the cache"] = (port.resumed_times[shape], port.resumed_queued[shape])
            for kind, (alone, queued) in kinds.items():
                rows.append({"width": shape.width, "rows": shape.rows, "kind": kind})
                rows[-1] |= {"alone": alone, "queued": queued}
                print(
                    f"{shape.rows} rows of {shape.width}, {kind}: {1e3 * alone:.2f} ms alone, "
                    f"{1e3 * queued:.2f} ms in a queue, {shape.rows / queued:.0f} queries/s",
                    flush=True,
                )
        return rows

    def offline(self, seconds: float) -> Load:
        """A load of so many seconds. LoadGen's Offline asks for 1.1 times its target."""
        times = self.port.resumed_queued or self.port.queued
        return Load("offline", max(shape.rows / own for shape, own in times.items()), seconds, 1)

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
        row |= {"dropped": len(log.dropped), "cache": asdict(log.cache), "summary": summary}
        latency = summary.get("99.00 percentile latency (ns)")
        shown = f", 99 % within {float(latency) / 1e6:.1f} ms" if latency else ""
        print(
            f"{name}: {row['result']}, {rate:.1f} queries/s{shown}, {row['mean_batch']:.1f} a batch, "
            f"{log.cache.hits} hits",
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
    parser.add_argument("--kv-cache", type=float, default=0.0, help="GiB; adds runs with returning requests")
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
            offline = bench.offline(arguments.seconds)
            rows = [bench.measured(offline, "offline")]
            judged = [bench.judged(offline)]
            for share in map(float, arguments.shares.split(",")):
                load = Load("server", share * rows[0]["rate"], arguments.seconds, 1)
                rows.append(bench.measured(load, f"server_{share:g}"))
            judged.append(bench.judged(Load("server", rows[0]["rate"] / 2, 1.0, 1)))
            label = bench.port.label()
            if arguments.kv_cache:
                del bench
                torch.cuda.empty_cache()
                returning = Requests(case, arguments.samples, case.seed, arguments.tokens, returning=True)
                returning.open_on_device(lookup)
                limit = int(arguments.kv_cache * GIB)
                cached = Bench(arguments, place / "cached", returning, limit)
                sizes += cached.sizes()
                offline = cached.offline(arguments.seconds)
                rows.append(cached.measured(offline, "offline_cached"))
                judged.append(cached.judged(offline))
                share = float(arguments.shares.split(",")[-1])
                load = Load("server", share * rows[-1]["rate"], arguments.seconds, 1)
                rows.append(cached.measured(load, f"server_cached_{share:g}"))
        if arguments.logs is not None:
            for path in place.rglob("mlperf_log_summary.txt"):
                if "performance" in path.parts:
                    arguments.logs.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, arguments.logs / f"{path.parts[-4]}.txt")
    facts = {"label": label, "requests": len(requests), "source": requests.source}
    report(arguments.out, {}, **facts, sizes=sizes, accuracy=judged, rows=rows)
    if any(row["verdict"] != "PASS" or not row.get("cache_passed", True) for row in judged):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
