"""Lookups of rows of 512 float16 from the tables of several GPUs, beside the copy bandwidth of their link.

    python benchmarks/gpu/sharded_lookups.py --out lookups.json

Every rank has a GPU, a part of the table by rows, and ids of its own. A part of them is on the other ranks.
The share is that of the bytes of rows that arrive over the link, by the time of the whole lookup. The engine
`peer` reads rows in the other GPUs' memory. With `exchange`, ids are sorted by rank, counts and ids travel
first, and rows are put into the order of the ids. The bandwidth of the link is that of copies of as many
bytes from each GPU to the next one, all at once.

Rows are compared with the table's bit for bit. A time is that of the slowest rank, by the host's clock,
between two points at which all GPUs have ended.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.timing import parsed, report  # noqa: E402
from tables.exchange import RankTables  # noqa: E402
from tables.interface import Table  # noqa: E402
from tables.peer import PeerTables  # noqa: E402
from tables.rank_process import ENGINES  # noqa: E402
from tables.ranks import run  # noqa: E402
from tables.store import Source, write  # noqa: E402

TABLE, COLUMNS = "item", 512
SETS = 4
"""Sets of ids that take turns, so that no cache holds the rows of the next call."""
WARM_UPS = 3


def rows_of(ids: torch.Tensor) -> torch.Tensor:
    """The rows of ids, whole numbers that float16 holds: a function, so that every rank can compare."""
    columns = torch.arange(COLUMNS, device=ids.device)
    return ((ids[..., None] * 31 + columns * 7) % 2039).half()


def measure_rank(tables: RankTables | PeerTables, counts: list[int], rounds: int) -> dict[str, Any]:
    """Times in one rank: lookups and copies by number of ids.

    Args:
        tables: The tables of this rank.
        counts: Numbers of ids of a call.
        rounds: Timed calls.
    """
    results: dict[str, Any] = {"gpu": torch.cuda.get_device_name(tables.device), "rows": []}
    generator = torch.Generator().manual_seed(tables.rank)
    table = tables.tables[TABLE]
    for count in counts:
        sets = [
            torch.randint(table.rows, (count,), generator=generator).to(tables.device) for _ in range(SETS)
        ]
        is_right = all(torch.equal(tables.lookup(TABLE, ids), rows_of(ids)) for ids in sets)
        looked_up = _times([lambda ids=ids: tables.lookup(TABLE, ids) for ids in sets], rounds)
        # As many bytes as arrive from the others, to the next GPU.
        own = (sets[0] * tables.ranks // table.rows == tables.rank).sum().item()
        remote = count - own
        other = torch.device("cuda", (tables.rank + 1) % tables.ranks)
        source = rows_of(sets[0][:remote])
        target = torch.empty_like(source, device=other)
        copied = _times([lambda source=source, target=target: target.copy_(source)], rounds)
        facts = {"ids": count, "remote_bytes": remote * COLUMNS * 2, "is_right": is_right}
        results["rows"].append(facts | {"lookup_seconds": looked_up, "copy_seconds": copied})
    return results


def _times(calls: list[Callable[[], object]], rounds: int) -> list[float]:
    """Seconds of calls that all ranks begin together, until all of them have ended."""
    seconds = []
    for number in range(WARM_UPS + rounds):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        calls[number % len(calls)]()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    return seconds[WARM_UPS:]


def summary(ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each number of ids: the slowest rank of each round, bytes by direction."""
    table = []
    for parts in zip(*(rank["rows"] for rank in ranks), strict=True):
        slowest = {
            name: [max(times) for times in zip(*(part[name] for part in parts), strict=True)]
            for name in ("lookup_seconds", "copy_seconds")
        }
        moved = min(part["remote_bytes"] for part in parts)
        rates = {name: sorted(moved / seconds for seconds in times) for name, times in slowest.items()}
        medians = {name: statistics.median(values) for name, values in rates.items()}
        table.append(
            {
                "ids": parts[0]["ids"],
                "remote_bytes": moved,
                "verdict": "PASS" if all(part["is_right"] for part in parts) else "other rows",
                "lookup_us": 1e6 * statistics.median(slowest["lookup_seconds"]),
                "copy_us": 1e6 * statistics.median(slowest["copy_seconds"]),
                "lookup_bytes_per_s": medians["lookup_seconds"],
                "copy_bytes_per_s": medians["copy_seconds"],
                "lookup_range": [rates["lookup_seconds"][0], rates["lookup_seconds"][-1]],
                "copy_range": [rates["copy_seconds"][0], rates["copy_seconds"][-1]],
                "share": medians["lookup_seconds"] / medians["copy_seconds"],
            }
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the table")
    parser.add_argument("--ids", default="16384,65536,262144,1048576", help="of a rank's call")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--engines", default=",".join(ENGINES), help="one after the other")
    arguments = parsed(parser)
    ranks = torch.cuda.device_count()
    if ranks < 2:
        parser.error(f"lookups from several GPUs need two; PyTorch finds {ranks} here")
    rows = arguments.rows
    with tempfile.TemporaryDirectory(prefix="lookups-") as folder:
        store = Path(folder) / "store"
        table = Table(TABLE, rows, COLUMNS, torch.float16)
        source = Source(table, lambda first, count: rows_of(torch.arange(first, first + count)))
        write(store, [source], ranks=ranks)
        counts = [int(count) for count in arguments.ids.split(",")]
        program = f"benchmarks.gpu.{Path(__file__).stem}:{measure_rank.__name__}"
        results, shown = {}, []
        for engine in arguments.engines.split(","):
            measured = (counts, arguments.rounds)
            results[engine] = run(store, program, measured, "cuda", thorough=False, engine=engine)
            shown += [{"engine": engine, **row} for row in summary(results[engine])]
    for row in shown:
        print(
            f"{row['engine']}, {row['ids']:8} ids a rank: {row['verdict']}, "
            f"lookup {row['lookup_us']:.0f} us, {row['lookup_bytes_per_s'] / 1e9:.0f} GB/s over the link, "
            f"copy {row['copy_bytes_per_s'] / 1e9:.0f} GB/s, share {row['share']:.0%}",
            flush=True,
        )
    gpus = [rank["gpu"] for rank in next(iter(results.values()))]
    report(arguments.out, {}, gpus=gpus, table=shown, ranks=results)
    if any(row["verdict"] != "PASS" for row in shown):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
