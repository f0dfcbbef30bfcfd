"""Measure the ceilings of this machine's GPU.

    python -m perf_model.measure.ceilings --output parity/timing/ceilings/h200.json
    python -m perf_model.measure.ceilings --output parity/timing/ceilings/h200.json --add int8 fp8

The second form measures matmul rates alone, and leaves the file's other numbers as they are. Bandwidths
count bytes read plus bytes written. All data are random.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

from parity.timing.ceilings import MATMUL_PRECISIONS, QUANTISED, Ceilings, CeilingsError, read_ceilings
from parity.timing.gpu import this_gpu
from perf_model.measure.machine import environment
from perf_model.measure.timing import GraphTimer
from perf_model.workloads import DTYPES

COPY_BYTES = 2**31
L2_SHARES = (1 / 16, 1 / 8, 3 / 16, 1 / 4)
MATMUL_SIZES = (4096, 8192, 12288)
HOST_CALLS, HOST_ROUNDS = 400, 7


def _copy(timer: GraphTimer, nbytes: int) -> float:
    """Seconds of a copy of so many bytes by a kernel; copies by driver calls are slower in graphs."""
    source = torch.randn(nbytes // 4, device="cuda")
    target = torch.empty_like(source)
    return timer.time(lambda _: torch.neg(source, out=target)).median


def copy_bandwidth(timer: GraphTimer) -> float:
    """Bytes a second of copying 2 GiB."""
    return 2 * COPY_BYTES / _copy(timer, COPY_BYTES)


def l2_bandwidth(timer: GraphTimer, l2_bytes: int) -> float:
    """Bytes a second inside the L2: the slope of time over bytes of copies that fit.

    The slope does not contain launches. The largest copy reads and writes half of the L2's size.
    """
    copied = [int(l2_bytes * share) // 4096 * 4096 for share in L2_SHARES]
    seconds = [_copy(timer, nbytes) for nbytes in copied]
    return 2.0 / statistics.linear_regression(copied, seconds).slope


def matmul_rate(timer: GraphTimer, precision: str) -> float:
    """FLOPs a second: the best of several large square products."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    rates = []
    for n in MATMUL_SIZES:
        launch = _coded_product(precision, n) if precision in QUANTISED else _product(precision, n)
        rates.append(2 * n**3 / timer.time(launch, runs=5).median)
    return max(rates)


def _product(precision: str, n: int) -> Callable[[int], object]:
    a, b = (torch.randn(n, n, device="cuda", dtype=DTYPES[precision]) for _ in range(2))
    return lambda _: a @ b


def _coded_product(numbers: str, n: int) -> Callable[[int], object]:
    """A product of codes: int8 to int32, or fp8 to bf16 with one scale a factor."""
    if numbers == "int8":
        a, b = (torch.randint(-127, 128, (n, n), device="cuda", dtype=torch.int8) for _ in range(2))
        return lambda _: torch._int_mm(a, b.t())
    a, b = (torch.randn(n, n, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device="cuda")
    return lambda _: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16)


def kernel_seconds(timer: GraphTimer) -> float:
    """Seconds of a kernel on one element, with the gap to the next one in a graph."""
    x = torch.randn(1, device="cuda")
    return timer.time(lambda _: x.mul_(1.0)).median


def host_operations() -> dict[str, Callable[[], object]]:
    """An operation of each kind, on small tensors: the host takes all the time."""
    x, bias, weight = (torch.randn(*shape, device="cuda") for shape in ((8, 8), (8,), (8, 8)))
    batch, rows = torch.randn(2, 8, 8, device="cuda"), torch.arange(8, device="cuda")
    offsets = torch.arange(0, 8, 2, device="cuda")
    linear = torch.nn.Identity()
    return {
        "addmm": lambda: torch.addmm(bias, x, weight),
        "mm": lambda: torch.mm(x, weight),
        "bmm": lambda: torch.bmm(batch, batch),
        "unary": lambda: F.silu(x),
        "binary": lambda: x + weight,
        "scalar": lambda: x / 3.0,
        "compare": lambda: rows >= 3,
        "masked_fill": lambda: x.masked_fill(rows >= 3, 0.0),
        "cast": lambda: rows.to(torch.float32),
        "clone": lambda: batch.transpose(0, 1).contiguous(),
        "norm": lambda: F.layer_norm(x, (8,)),
        "reduce": lambda: torch.linalg.vector_norm(x, dim=-1, keepdim=True),
        "index_select": lambda: torch.index_select(bias, 0, rows),
        "index": lambda: x[rows],
        "embedding": lambda: F.embedding(rows, x),
        "embedding_bag": lambda: F.embedding_bag(rows, x, offsets, mode="sum"),
        "cat": lambda: torch.cat((x, weight), dim=1),
        "fill": lambda: torch.arange(8, device="cuda"),
        "view": lambda: x.transpose(0, 1),
        "module": lambda: linear(x),
    }


def host_seconds() -> dict[str, float]:
    """Host seconds of a call in a loop without synchronisation, by kind, and of a wait for the GPU.

    In a loop, the processor's caches hold the code of a call. In a model a call takes longer, by the factor
    of `perf_model.estimate.host_factor`.
    """
    seconds = {}
    with torch.inference_mode():
        for name, call in host_operations().items():
            call()
            rounds = []
            for _ in range(HOST_ROUNDS):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                for _ in range(HOST_CALLS):
                    call()
                rounds.append((time.perf_counter() - begin) / HOST_CALLS)
            seconds[name] = statistics.median(rounds)
    # These calls include a mask and a view.
    seconds["masked_fill"] -= seconds["compare"]
    seconds["clone"] -= seconds["view"]
    return seconds | {"wait": wait_seconds()}


def wait_seconds() -> float:
    """Seconds between an empty forward's last launch and the end of a synchronisation."""
    x, seconds = torch.randn(1, device="cuda"), []
    for _ in range(200):
        torch.cuda.synchronize()
        x.mul_(1.0)
        begin = time.perf_counter()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def graph_seconds() -> float:
    """Host seconds of one replay of a graph with one kernel, with synchronisation."""
    x = torch.randn(1, device="cuda")
    graph = torch.cuda.CUDAGraph()
    x.mul_(1.0)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        x.mul_(1.0)
    seconds = []
    for _ in range(200):
        begin = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def measure() -> Ceilings:
    """All ceilings of the current GPU. Raises `RuntimeError` without a GPU."""
    gpu, timer = this_gpu(), GraphTimer()
    with torch.inference_mode():
        return Ceilings(
            gpu=gpu,
            copy_bandwidth=copy_bandwidth(timer),
            l2_bandwidth=l2_bandwidth(timer, gpu.l2_bytes),
            matmul={name: matmul_rate(timer, name) for name in (*MATMUL_PRECISIONS, *QUANTISED)},
            kernel_seconds=kernel_seconds(timer),
            graph_seconds=graph_seconds(),
            host_seconds=host_seconds(),
            environment=environment(),
        )


def added(ceilings: Ceilings, names: Sequence[str]) -> Ceilings:
    """The same ceilings with other matmul rates, measured on the current GPU, which must be of their kind.

    Raises:
        CeilingsError: the ceilings belong to another GPU.
    """
    gpu = this_gpu()
    if gpu != ceilings.gpu:
        raise CeilingsError(f"--output: has ceilings of {ceilings.gpu}, and this is {gpu}; use a new file")
    timer = GraphTimer()
    with torch.inference_mode():
        rates = {name: matmul_rate(timer, name) for name in names}
    facts = {f"matmul of {name}": json.dumps(environment()) for name in names}
    changes = {"matmul": ceilings.matmul | rates, "environment": ceilings.environment | facts}
    return ceilings.model_copy(update=changes)


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    parser.add_argument(
        "--add",
        nargs="+",
        choices=(*MATMUL_PRECISIONS, *QUANTISED),
        help="rates alone, into a file that exists",
    )
    arguments = parser.parse_args()
    try:
        known = read_ceilings(arguments.output) if arguments.add else None
        ceilings = measure() if known is None else added(known, arguments.add)
    except CeilingsError as error:
        parser.error(str(error))
    arguments.output.write_text(ceilings.model_dump_json(indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
