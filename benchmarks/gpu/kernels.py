"""Every kernel of `kernels.dlrm` against eager PyTorch, torch.compile and its floor, on one GPU.

    python benchmarks/gpu/kernels.py --out kernels.json
    python benchmarks/gpu/kernels.py --only interaction --rounds 100

All sides of a row run the same inputs in interleaved rounds, with several sets of inputs where one would fit
the cache. "calls" is the time of calls from Python with their launches; "device" is the time of the same
calls in one CUDA graph. The floor is the larger of two times: the fewest bytes at the copy bandwidth, and
operations at the matrix rate. Each input, output and row of a table counts once. The run measures both
ceilings.

Prints a line a kernel and size. Before the timing, the project's verdict rule compares results with float64:
evenly spread rows by the whole rule, all elements by its L2 error.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.kernels_work import GROUPS, Row  # noqa: E402
from benchmarks.gpu.timing import Calls, measure, measure_device, measured_ceilings, parsed, report  # noqa: E402
from parity.base.precision import PRECISIONS  # noqa: E402
from parity.verdict.distances import Distance  # noqa: E402
from parity.verdict.rule import judge  # noqa: E402

# Largest number of elements of a result for the whole rule, in evenly spread rows.
MOST_JUDGED = 1 << 18


def judged(
    row: Row, oracle: torch.Tensor, reference: torch.Tensor, result: torch.Tensor
) -> dict[str, object]:
    """The verdict on spread rows, and on the L2 error of all elements.

    The rule's other measures widen and sort elements on the CPU, a second a million.
    """
    count = min(len(oracle), max(2, MOST_JUDGED // oracle[0].numel()))
    spread = torch.linspace(0, len(oracle) - 1, count, dtype=torch.float64, device="cuda").round().long()
    parts = (x[spread].cpu() for x in (oracle, reference, result))
    precision = PRECISIONS[row.precision]
    verdict = judge(*parts, precision, row.longest_sum, modules=row.modules)
    error, error_of_reference = (
        float((x.double() - oracle).norm() / oracle.norm()) for x in (result, reference)
    )
    limit = verdict.bound.limit(Distance(error_of_reference, 0.0, 0.0), rows=1).l2
    reason = verdict.reason if error <= limit else f"L2 error of all elements {error:.3g} exceeds {limit:.3g}"
    return {"verdict": "FAIL" if reason else "PASS", "reason": reason, "l2": error}


def run(row: Row, rounds: int, ceilings: dict[str, float]) -> dict:
    """Check and time one row."""
    torch.compiler.reset()
    compiled = torch.compile(row.eager, dynamic=not row.same_shapes)
    functions = {"eager": row.eager, "compile": compiled, **row.ours}
    exact = [v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in row.sets[0]]
    oracle, reference = row.eager(*exact), row.eager(*row.sets[0])
    verdicts = {
        name: judged(row, oracle, reference, function(*row.sets[0])) for name, function in functions.items()
    }
    sides: dict[str, Calls] = {
        name: [lambda a=arguments, f=function: f(*a) for arguments in row.sets]
        for name, function in functions.items()
    }
    calls, device = measure(sides, rounds), measure_device(sides, rounds)
    bytes_us = row.bytes / ceilings["copy_bytes_per_s"] * 1e6
    operations_us = row.operations / ceilings["bf16_per_s"] * 1e6
    return {
        "name": row.name,
        "precision": row.precision,
        "sets": len(row.sets),
        "floor_us": max(bytes_us, operations_us),
        "bytes": row.bytes,
        "operations": row.operations,
        "calls_us": {name: asdict(spread) for name, spread in calls.items()},
        "device_us": {name: asdict(spread) for name, spread in device.items()},
        "errors": verdicts,
    }


def table(row: dict) -> str:
    """A row as text: device time, over the floor, over torch.compile's, and time with launches."""
    lines = [f"{row['name']}, {row['precision']}: floor {row['floor_us']:.1f} us"]
    peer = row["device_us"]["compile"]["median"]
    for name, device in row["device_us"].items():
        call = row["calls_us"][name]
        lines.append(
            f"  {name:20} {device['median']:8.1f} us [{device['p10']:.1f}, {device['p90']:.1f}]  "
            f"{device['median'] / row['floor_us']:6.2f} x floor  {peer / device['median']:5.2f} x compile  "
            f"called {call['median']:8.1f} us  {row['errors'][name]['verdict']}"
        )
    return "\n".join(lines)


def failures(rows: list[dict], sides: str = "errors") -> int:
    """Print the sides that fail, of rows with verdicts under ``sides`` -> the program's exit code."""
    failed = [
        f"{row['name']}, {name}: {side['reason']}"
        for row in rows
        for name, side in row[sides].items()
        if side["verdict"] != "PASS"
    ]
    print("\n".join(failed))
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parsed(parser)
    with torch.no_grad():
        ceilings = measured_ceilings()
        rows = []
        for group in arguments.only:
            torch.manual_seed(0)
            for row in GROUPS[group]():
                rows.append(run(row, arguments.rounds, ceilings))
                print(table(rows[-1]), flush=True)
                report(arguments.out, ceilings, rows=rows)
    return failures(rows)


if __name__ == "__main__":
    raise SystemExit(main())
