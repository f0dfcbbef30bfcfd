"""Quantised tables and linear layers against numbers, PyTorch and their floors, on one GPU.

    python benchmarks/gpu/quantised.py --out quantised.json
    python benchmarks/gpu/quantised.py --only tables_128 tables_port --rounds 51

Tables are the 26 of MLPerf's DLRM, cut to 100,000 rows, with results in bfloat16. Linear layers have public
widths and bfloat16 inputs. Sides of a function are the portable runtime's plan of the port, step by step or
fused, PyTorch's own operations under torch.compile, and the Triton kernels of `kernels.dlrm`. Tables of
float32 and float16 and products without codes are timed in the same rounds.

A time is that of a call in a CUDA graph of calls on several sets of inputs, in interleaved rounds. The floor
is that of the side's function: its fewest bytes (`perf_model.work.quantised`) at the measured bandwidth, or
its FLOPs at the measured rate of its operands, whichever is longer. Ceilings are those of
`parity.timing.ceilings` for this GPU, or a file's.

Every side is judged by the project's verdict rule before it is timed: against float64 with the same codes,
beside the reference in bfloat16. A side that fails is named, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.kernels import failures, judged  # noqa: E402
from benchmarks.gpu.quantised_products import DLRM, FEW_ROWS, HSTU, STU, TENSOR_SCHEMES, product_rows  # noqa: E402
from benchmarks.gpu.quantised_sides import Row, Side  # noqa: E402
from benchmarks.gpu.quantised_tables import table_rows  # noqa: E402
from benchmarks.gpu.timing import measure_device, parsed, report  # noqa: E402
from parity.timing.ceilings import Ceilings, find_ceilings, read_ceilings  # noqa: E402
from parity.timing.gpu import this_gpu  # noqa: E402

GROUPS: dict[str, Callable[..., Iterator[Row]]] = {
    "tables_128": functools.partial(table_rows, widths=(128,)),
    "products_dlrm": functools.partial(product_rows, DLRM),
    "tables_port": functools.partial(table_rows, widths=(128,), has_port=True),
    "products_stu": functools.partial(product_rows, STU),
    "tables_64": functools.partial(table_rows, widths=(64,)),
    "products_hstu": functools.partial(product_rows, HSTU),
    "products_tensor": functools.partial(product_rows, DLRM, TENSOR_SCHEMES),
    "products_few_rows": functools.partial(product_rows, FEW_ROWS, has_fused=False),
}
# Division rounds as PyTorch's own kernels do: codes then have the pre-images of the rule.
OPTIONS = {"eager_numerics.division_rounding": True}


def floor_us(side: Side, ceilings: Ceilings) -> dict[str, float]:
    """The least microseconds of a side's function, by bytes and by operations."""
    return {
        "bytes": side.work.bytes / ceilings.copy_bandwidth * 1e6,
        "operations": side.work.flops / ceilings.matmul_rate(side.operands) * 1e6,
    }


def run(row: Row, rounds: int, ceilings: Ceilings) -> dict:
    """Check and time one row; without rounds, check alone. Sides that fail are timed, too."""
    verdicts = {
        name: judged(side.truth, side.truth.oracle, side.truth.reference, side.calls[0]())
        for name, side in row.sides.items()
    }
    calls = {name: side.calls for name, side in row.sides.items()}
    times = measure_device(calls, rounds) if rounds else {}
    return {
        "name": row.name,
        "sides": {
            name: {
                "device_us": asdict(times[name]) if rounds else None,
                "floor_us": floor_us(side, ceilings),
                "work": asdict(side.work),
                "operands": side.operands,
                **verdicts[name],
            }
            for name, side in row.sides.items()
        },
    }


def table(row: dict) -> str:
    """A row as text: times, times over the floor, verdicts."""
    lines = [row["name"]]
    for name, side in row["sides"].items():
        time, floor = side["device_us"], side["floor_us"]
        least = max(floor, key=floor.get)
        taken = "not timed"
        if time:
            taken = f"{time['median']:8.1f} us [{time['p10']:.1f}, {time['p90']:.1f}]"
            taken += f"  {time['median'] / floor[least]:6.2f} x floor"
        lines.append(f"  {name:42} {taken}  floor {floor[least]:6.1f} ({least})  {side['verdict']}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--rounds", type=int, default=21, help="0 for verdicts alone")
    parser.add_argument("--ceilings", type=Path, help="a file of this GPU's ceilings with int8 and fp8")
    arguments = parsed(parser)
    ceilings = read_ceilings(arguments.ceilings) if arguments.ceilings else find_ceilings(this_gpu())
    if ceilings is None or not {"int8", "fp8"} <= set(ceilings.matmul):
        parser.error("no ceilings of this GPU with int8 and fp8: python -m perf_model.measure.ceilings")
    rates = {"copy_bytes_per_s": ceilings.copy_bandwidth, **ceilings.matmul}
    compiled = functools.partial(torch.compile, dynamic=False, options=OPTIONS)
    rows = []
    with torch.no_grad():
        for group in arguments.only:
            torch.manual_seed(0)
            for row in GROUPS[group](compiled=compiled):
                rows.append(run(row, arguments.rounds, ceilings))
                print(table(rows[-1]), flush=True)
                report(arguments.out, rates, rows=rows)
                torch.compiler.reset()
    return failures(rows, "sides")


if __name__ == "__main__":
    raise SystemExit(main())
