"""A table larger than a GPU, served from several of them, with DLRMv3's dense part behind it.

    python benchmarks/gpu/large_table.py --gigabytes 145 --out large_table.json

The table of items is divided by rows. A function of the number gives each row, so that every rank fills its
part on its own GPU, and the truth needs no table. Each rank serves the benchmark's requests: rows are read in
the memory of all GPUs by the engine `peer`, and the port with fused layers predicts from them.

Each rank compares rows with the function's bit for bit: random ones, and those at the ends of each part. It
answers all requests, and then all ranks serve at the same time: the rate is that of all of them. At the end
the predictions of each rank are judged by the verdict rule beside the float64 oracle, which has the rows of
the function. No rank runs then, so that the oracle has a GPU.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.timing import parsed, report  # noqa: E402
from cases.dlrmv3.case import DLRMv3Case  # noqa: E402
from cases.dlrmv3.requests import ITEM, BenchmarkRequests  # noqa: E402
from cases.dlrmv3.serving import DLRMv3Serving  # noqa: E402
from cases.shipped import load_case  # noqa: E402
from configs import CaseConfig  # noqa: E402
from parity.base.precision import PRECISIONS  # noqa: E402
from parity.inputs.weights import case_weights  # noqa: E402
from parity.studies.serving.judging import Judge  # noqa: E402
from parity.studies.serving.loadgen import Logged  # noqa: E402
from parity.studies.serving.port import ServedPort  # noqa: E402
from parity.studies.serving.requests import Requests  # noqa: E402
from parity.studies.serving.server import header  # noqa: E402
from tables.interface import Table, Tables  # noqa: E402
from tables.peer import PeerTables  # noqa: E402
from tables.ranks import run  # noqa: E402
from tables.shards import check_probes  # noqa: E402
from tables.store import Manifest, Shard, Source, StoredTable, row_digest, write  # noqa: E402

Take = Callable[[str, torch.Tensor], torch.Tensor]

GIGABYTE = 10**9
COMPARED = 1 << 16
"""Random rows that each rank compares."""
_FILLED = 1 << 16
"""Rows that are computed at once."""
_MIXED = (-7046029254386353131, -4417276706812531889, -4658895280553007687)
"""Odd 64-bit factors: SplitMix64's, and those of its finalizer. Products wrap."""


def rows_of(ids: torch.Tensor, columns: int) -> torch.Tensor:
    """(..., E) float16: the rows of ids, multiples of 1/64 from -2 to 2, other ones for every id."""
    x = ids[..., None] * _MIXED[0] + torch.arange(1, columns + 1, device=ids.device) * _MIXED[1]
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _MIXED[2]
    return (((x >> 40) & 0xFF) - 128).half() / 64


class ItemRows:
    """The table of items as the reference reads it: rows by id, float32."""

    def __init__(self, rows: int, columns: int) -> None:
        self._rows, self._columns = rows, columns

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, ids: np.ndarray) -> np.ndarray:
        return rows_of(torch.from_numpy(ids), self._columns).float().numpy()


class LargeRequests(BenchmarkRequests):
    """The benchmark's requests over a table of items with so many rows."""

    def __init__(self, case: DLRMv3Case, seed: int, rows: int) -> None:
        super().__init__(case.config, seed)
        self.small = {name: torch.from_numpy(rows) for name, rows in self._tables.items() if name != ITEM}
        self._tables = {**self._tables, ITEM: ItemRows(rows, case.model.embedding_table_dim)}


class LargeCase(DLRMv3Case):
    """A case of DLRMv3 that is served with a table of items with so many rows."""

    def __init__(self, config: CaseConfig, item_rows: int) -> None:
        super().__init__(config)
        self.item_rows = item_rows

    def large_requests(self, seed: int) -> LargeRequests:
        """The requests and their tables."""
        return LargeRequests(self, seed, self.item_rows)

    def serving(self) -> DLRMv3Serving:
        return DLRMv3Serving(self.config, self.forbidden_widths(), self.large_requests)


def large_case(name: str, rows: int) -> LargeCase:
    return LargeCase(load_case(name).config, rows)


def manifest_of(rows: int, columns: int, ranks: int) -> Manifest:
    """The table of items in blocks of rows, with known rows of each; no file holds it."""
    size, shards = -(-rows // ranks), []
    for rank in range(ranks):
        first = rank * size
        count = min(size, rows - first)
        known = sorted({first, first + count // 3, first + count - 1})
        probes = tuple((row, row_digest(rows_of(torch.tensor(row), columns))) for row in known)
        shards.append(Shard(rank, first, count, "", probes))
    table = Table(ITEM, rows, columns, torch.float16)
    return Manifest(Path("none"), ranks, {ITEM: StoredTable(table, "a function", tuple(shards))})


def filled(manifest: Manifest, rank: int, device: torch.device) -> torch.Tensor:
    """The rows of a rank's shard, on its device."""
    stored = manifest.tables[ITEM]
    shard = stored.shards[rank]
    rows = torch.empty(shard.rows, stored.table.columns, dtype=torch.float16, device=device)
    for start in range(0, shard.rows, _FILLED):
        part = rows[start : start + _FILLED]
        ids = torch.arange(shard.first_row + start, shard.first_row + start + len(part), device=device)
        part.copy_(rows_of(ids, stored.table.columns))
    return rows


def compared(items: PeerTables, manifest: Manifest) -> dict[str, Any]:
    """Rows beside the function's."""
    stored = manifest.tables[ITEM]
    generator = torch.Generator().manual_seed(items.rank)
    ids = torch.randint(stored.table.rows, (COMPARED,), generator=generator)
    ends = [row for shard in stored.shards for row in (shard.first_row, shard.first_row + shard.rows - 1)]
    ids = torch.cat([ids, torch.tensor(ends)]).to(items.device)
    own = stored.shards[items.rank]
    is_own = (ids >= own.first_row) & (ids < own.first_row + own.rows)
    is_right = torch.equal(items.lookup(ITEM, ids), rows_of(ids, stored.table.columns))
    return {"compared": len(ids), "of_other_ranks": int((~is_own).sum()), "is_right": is_right}


def serve_rank(tables: Tables, settings: dict[str, Any]) -> dict[str, Any]:
    """One rank: its part of the table, its answers to the requests, and its rate.

    Args:
        tables: The small tables of this rank.
        settings: As of the command line.
    """
    rank, ranks, device = tables.rank, tables.ranks, tables.device  # type: ignore[attr-defined]
    case = large_case(settings["case"], settings["rows"])
    began = time.monotonic()
    manifest = manifest_of(settings["rows"], case.model.embedding_table_dim, ranks)
    shard = filled(manifest, rank, device)
    _wait(device)
    facts: dict[str, Any] = {"rank": rank, "bytes": shard.nbytes, "fill_seconds": time.monotonic() - began}
    items = PeerTables(manifest, rank, {ITEM: shard}, device)
    check_probes(items, manifest)
    facts |= compared(items, manifest)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["gpu_bytes"] = torch.cuda.get_device_properties(device).total_memory

    def take(name: str, ids: torch.Tensor) -> torch.Tensor:
        return (items if name == ITEM else tables).lookup(name, ids)

    requests = requests_of(case, settings, take)
    port = ServedPort(requests, PRECISIONS[settings["precision"]], case_weights(case)[0], settings["runner"])
    facts |= {"label": port.label(), "ready_seconds": time.monotonic() - began}
    facts["answers"] = [
        (entry.request, entry.values)
        for batch in batches(requests)
        for entry in answered(requests, port, batch)
    ]
    return facts | measured(requests, port, batches(requests)[0], settings["seconds"], device)


def requests_of(case: LargeCase, settings: dict[str, Any], take: Take) -> Requests:
    """The requests, whose rows a function gives by the name of a table and ids."""
    requests = Requests(case, settings["samples"], case.seed, settings["tokens"])
    requests.open_on_device(partial(case.large_requests(case.seed)._device_rows, take=take))
    return requests


def batches(requests: Requests) -> list[list[int]]:
    """Numbers of the requests of each batch."""
    return [
        requests.of_width(width)[start : start + shape.rows]
        for width, shape in requests.shapes.items()
        for start in range(0, len(requests.of_width(width)), shape.rows)
    ]


def judged(settings: dict[str, Any], ranks: list[dict[str, Any]]) -> None:
    """Add the verdicts on the answers of all ranks, in place of the answers."""
    case = large_case(settings["case"], settings["rows"])
    requests = Requests(case, settings["samples"], case.seed, settings["tokens"])
    large = case.large_requests(case.seed)
    requests.lookup = partial(large._rows_of, take=large._in_memory)
    precision, (weights, _) = PRECISIONS[settings["precision"]], case_weights(case)
    port: Any = _WhenAsked(lambda: ServedPort(requests, precision, weights, settings["runner"]))
    for rank in ranks:
        log = [Logged(number, values) for number, values in rank.pop("answers")]
        accuracy = Judge(requests, precision, weights, port).accuracy(log, batches(requests))
        rank |= {"verdict": accuracy.verdict, "line": accuracy.line(), "predictions": accuracy.predictions}


class _WhenAsked:
    """An object that is made when it is used: only wrong predictions need the port."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __getattr__(self, name: str) -> Any:
        self._made = vars(self).get("_made") or self._make()
        return getattr(self._made, name)


def answered(requests: Requests, port: ServedPort, batch: list[int]) -> list[Logged]:
    """The port's answers to the requests of a batch, as LoadGen logs them."""
    shape = requests.shapes[requests.width[batch[0]]]
    output = port.start(shape, requests.staged(requests.full(batch, shape))).result().float().numpy()
    counted = requests.counted(batch)
    return [
        Logged(number, np.concatenate([header(number), output[row][counted[row]]]))
        for row, number in enumerate(batch)
    ]


def measured(
    requests: Requests, port: ServedPort, batch: list[int], seconds: float, device: torch.device
) -> dict[str, Any]:
    """Queries a second of batches that follow one another, while all ranks serve; and their lookups alone."""
    shape = requests.shapes[requests.width[batch[0]]]
    staged = requests.staged(requests.full(batch, shape))
    ids = {name: own for name, own in staged.items() if name in requests.looked_up}
    dist.barrier()
    began, running, count = time.monotonic(), [port.start(shape, staged)], 1
    while time.monotonic() - began < seconds:
        if len(running) == port.most_running:
            running.pop(0).result()
        running.append(port.start(shape, staged))
        count += 1
    for work in running:
        work.result()
    taken = time.monotonic() - began
    dist.barrier()
    lookups = []
    assert requests.device_lookup is not None
    for _ in range(21):
        _wait(device)
        began = time.monotonic()
        rows = [requests.device_lookup(name, own) for name, own in ids.items()]
        _wait(device)
        lookups.append(time.monotonic() - began)
    return {
        "width": shape.width,
        "batch": shape.rows,
        "batches": count,
        "queries_per_s": count * shape.rows / taken,
        "batch_seconds": taken / count,
        "lookup_seconds": sorted(lookups)[len(lookups) // 2],
        "looked_up": sum(own.size for own in ids.values()),
        "row_bytes": rows[0].shape[-1] * rows[0].itemsize,
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def served(settings: dict[str, Any], ranks: int, device: str, seconds: float = 600.0) -> list[dict[str, Any]]:
    """The facts and verdict of each rank."""
    small = LargeRequests(large_case(settings["case"], settings["rows"]), 0, settings["rows"]).small
    with tempfile.TemporaryDirectory(prefix="large-table-") as folder:
        store = Path(folder) / "store"
        write(store, [Source.of(name, rows) for name, rows in small.items()], ranks=ranks)
        program = f"benchmarks.gpu.{Path(__file__).stem}:{serve_rank.__name__}"
        facts = run(store, program, (settings,), device, seconds=seconds, engine="peer")
    judged(settings, facts)
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", default="dlrmv3")
    parser.add_argument("--gigabytes", type=float, default=145.0, help="10^9 bytes of the table")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--runner", default="tripy_layers")
    parser.add_argument("--samples", type=int, default=4, help="requests")
    parser.add_argument("--tokens", type=int, default=4 * 10_241, help="of a batch, padding included")
    parser.add_argument("--seconds", type=float, default=5.0, help="of the measurement")
    arguments = parsed(parser)
    ranks = torch.cuda.device_count()
    columns = load_case(arguments.case).model.embedding_table_dim
    settings = {name: value for name, value in vars(arguments).items() if name not in ("out", "gigabytes")}
    settings["rows"] = int(arguments.gigabytes * GIGABYTE) // (columns * torch.float16.itemsize)
    facts = served(settings, ranks, "cuda")
    whole = sum(rank["bytes"] for rank in facts)
    largest = max(rank["gpu_bytes"] for rank in facts)
    for rank in facts:
        print(
            f"rank {rank['rank']} ({rank['gpu']}): {rank['bytes'] / GIGABYTE:.1f} GB filled in "
            f"{rank['fill_seconds']:.1f} s; {rank['compared']} rows, {rank['of_other_ranks']} of other "
            f"ranks: {'equal' if rank['is_right'] else 'OTHER ROWS'}\n  {rank['line']}\n  "
            f"{rank['queries_per_s']:.0f} queries/s, {1e3 * rank['batch_seconds']:.1f} ms a batch of "
            f"{rank['batch']}, of which lookups alone take {1e3 * rank['lookup_seconds']:.2f} ms",
            flush=True,
        )
    print(
        f"{whole / GIGABYTE:.1f} GB, {whole / largest:.2f} of a GPU's memory, on {ranks} GPUs: "
        f"{sum(rank['queries_per_s'] for rank in facts):.0f} queries/s",
        flush=True,
    )
    report(arguments.out, {}, table_bytes=whole, ranks=facts)
    if not all(rank["is_right"] and rank["verdict"] == "PASS" for rank in facts):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
