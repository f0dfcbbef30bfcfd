"""Lookups and pooled sums a second of the tables' engines on this machine's CPU, and beside torchrec's.

    python -m benchmarks.tables [OUTPUT.json] --rows 200000 --columns 512 --ids 16384

Engines take turns in each round, with new random ids, and rows are compared with the table. `in 2 ranks` is
the time of calls inside two ranks, which look up half of the ids each. The peer is torchrec's sharded
collection of bags in the same ranks; bags of one id are its lookups. It needs torchrec beside fbgemm's build
for CPUs:

    pip install --no-deps --target PEER torchrec==1.8.0 tensordict torchmetrics iopath pyre-extensions \\
        pyvers lightning-utilities portalocker cloudpickle orjson importlib_metadata typing_inspect \\
        mypy_extensions
    PYTHONPATH=PEER python -m benchmarks.tables --peer
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from parity.base.environment import environment
from tables.interface import DTYPES, Tables
from tables.local import DeviceTables, MappedTables
from tables.ranks import run
from tables.sharded import ShardedTables
from tables.store import Source, write

BAG = 32
"""Ids of a bag."""
TABLE = "item"


def main() -> None:
    """Measure, print the table, and write the raw numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("output", type=Path, nargs="?")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=512)
    parser.add_argument("--ids", type=int, default=16_384, help="ids of a call")
    parser.add_argument("--dtype", choices=list(DTYPES), default="float16")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--peer", action="store_true", help="torchrec beside the ranks, in float32")
    arguments = parser.parse_args()
    dtype = DTYPES["float32" if arguments.peer else arguments.dtype]
    rows = torch.randn(arguments.rows, arguments.columns, generator=torch.Generator().manual_seed(0)).to(
        dtype
    )
    with tempfile.TemporaryDirectory(prefix="tables-") as name:
        stores = {kind: Path(name) / kind for kind in ("whole", "rows", "tables")}
        write(stores["whole"], [Source.of(TABLE, rows)])
        write(stores["rows"], [Source.of(TABLE, rows)], ranks=2)
        write(stores["tables"], [Source.of(TABLE, rows)], ranks=2, by="tables")
        seconds: dict[str, list[float]] = {}
        if not arguments.peer:
            seconds |= _engines(stores, rows, arguments.ids, arguments.rounds)
        for kind in ("rows", "tables"):
            seconds |= _in_ranks(stores[kind], kind, arguments)
    print(tabulate(_table(seconds, arguments.ids), headers="firstrow"))
    if arguments.output:
        asked = {**vars(arguments), "output": str(arguments.output), "dtype": str(dtype)}
        facts = {"environment": environment(), "arguments": asked, "seconds": seconds}
        arguments.output.write_text(json.dumps(facts, indent=1) + "\n")


def _engines(
    stores: Mapping[str, Path], rows: torch.Tensor, count: int, rounds: int
) -> dict[str, list[float]]:
    """Seconds of each call of the engines that a program in one process has."""
    engines: dict[str, Tables] = {
        "mapped": MappedTables(stores["whole"]),
        "mapped, 2 shards": MappedTables(stores["rows"]),
        "in memory": DeviceTables(stores["whole"], "cpu"),
        "2 processes by rows": ShardedTables(stores["rows"]),
        "2 processes by tables": ShardedTables(stores["tables"]),
    }
    offsets = torch.arange(0, count, BAG)
    seconds: dict[str, list[float]] = {}
    try:
        for turn in range(rounds + 1):
            ids = torch.randint(0, len(rows), (count,))
            for name, engine in engines.items():
                begin = time.perf_counter()
                looked_up = engine.lookup(TABLE, ids)
                middle = time.perf_counter()
                engine.pooled(TABLE, ids, offsets)
                end = time.perf_counter()
                if not torch.equal(looked_up, rows[ids]):
                    raise AssertionError(f"{name}: the rows are not the table's")
                if turn:
                    seconds.setdefault(f"{name}: lookup", []).append(middle - begin)
                    seconds.setdefault(f"{name}: pooled", []).append(end - middle)
    finally:
        for engine in engines.values():
            engine.close()
    return seconds


def _in_ranks(folder: Path, kind: str, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of calls inside the ranks: of each round, those of the slower rank."""
    program = "benchmarks.tables.in_ranks:measure"
    results = run(folder, program, (kind, arguments.ids // 2, BAG, arguments.rounds, arguments.peer))
    return {
        f"{name} in 2 ranks by {kind}": [
            max(pair) for pair in zip(*(one[name] for one in results), strict=True)
        ]
        for name in results[0]
    }


def _table(seconds: Mapping[str, list[float]], count: int) -> list[list[Any]]:
    lines: list[list[Any]] = [["call", "million ids/s, median", "slowest", "fastest"]]
    for name, times in seconds.items():
        rates = (count / time / 1e6 for time in (statistics.median(times), max(times), min(times)))
        lines.append([name, *(f"{rate:.3g}" for rate in rates)])
    return lines


if __name__ == "__main__":
    main()
