"""Every kernel of `kernels.lecture` beside eager PyTorch, torch.compile and its floor, on one GPU.

    python benchmarks/gpu/kernels.py --out kernels.json
    python benchmarks/gpu/kernels.py --only interaction --rounds 100

Each row's sides run the same inputs, several sets of them where one would fit the cache, in turns. "calls"
is the time of calls queued from Python, launches included; "device" that of the same calls in one CUDA graph.
The floor is the larger of two times: the fewest bytes (each input read once, each output written once, a
table's row once however often it is looked up) at the copy bandwidth, and operations at the matrix rate, both
measured in the run. Results are compared with float64 by the project's verdict rule before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.timing import (  # noqa: E402
    Calls,
    copy_bandwidth,
    environment,
    matmul_rate,
    measure,
    measure_device,
)
from configs import load_case  # noqa: E402
from kernels.lecture import (  # noqa: E402
    Bags,
    TableGroup,
    add_bias_relu,
    bags_interaction,
    dot_interaction,
    embedding_bags,
    linear_activation,
    lora_activation,
    two_layer_mlp,
)
from parity.precision import PRECISIONS  # noqa: E402
from parity.verdict import judge  # noqa: E402
from reference.dlrm_layers import FeatureInteraction  # noqa: E402

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Inputs of all sets together are this much, so that none is in the L2 cache (60 MB here) from its last use.
SET_BYTES = 256e6
MOST_SETS = 16
MOST_ROWS = 1_000_000
BATCHES = (2048, 16384)

Function = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        name: kernel and sizes.
        precision: of the result.
        eager: PyTorch's form, also of float64 inputs; torch.compile gets the same function.
        ours: our forms by backend, of the same arguments.
        sets: the arguments of each call.
        bytes: the fewest that a call must move.
        operations: of a call's matrix products.
        longest_sum: for the verdict, with ``modules``.
    """

    name: str
    precision: str
    eager: Function
    ours: dict[str, Function]
    sets: list[tuple]
    bytes: float
    operations: float
    longest_sum: int
    modules: int = 1
    same_shapes: bool = field(default=True)


def drawn(shape: Sequence[int], dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(tuple(shape), device="cuda") * scale).to(dtype)


def size(*tensors: torch.Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def sets_of(make: Callable[[], tuple]) -> list[tuple]:
    """As many sets of arguments as exceed the cache; weights, the last arguments, are made once each."""
    first = make()
    own = sum(size(value) for value in first if isinstance(value, torch.Tensor))
    return [first, *(make() for _ in range(min(MOST_SETS, max(2, int(SET_BYTES / own) + 1)) - 1))]


def pointwise_rows() -> Iterator[Row]:
    for shape, name in (((128, 512), "fp32"), ((16384, 4096), "bf16"), ((16384, 4096), "fp32")):
        dtype = DTYPES[name]
        bias = drawn(shape[-1:], dtype)
        moved = 2 * shape[0] * shape[1] * dtype.itemsize + size(bias)
        title = f"{shape[0]} x {shape[1]}"
        yield Row(
            f"add + bias + relu, {title}",
            name,
            lambda x, b: torch.relu(x + b),
            {
                backend: lambda x, b, k=backend: add_bias_relu(x, b, backend=k)
                for backend in ("triton", "cuda")
            },
            sets_of(lambda s=shape, d=dtype, b=bias: (drawn(s, d), b)),
            moved,
            0,
            longest_sum=2,
        )
        for activation, function in (("relu", torch.relu), ("sigmoid", torch.sigmoid)):
            yield Row(
                f"lora + {activation}, {title}",
                name,
                lambda x, y, b, f=function: f(x + 0.5 * y + b),
                {
                    backend: lambda x, y, b, k=backend, a=activation: lora_activation(
                        x, y, b, 0.5, a, backend=k
                    )
                    for backend in ("triton", "cuda")
                },
                sets_of(lambda s=shape, d=dtype, b=bias: (drawn(s, d), drawn(s, d), b)),
                moved * 1.5,
                0,
                longest_sum=3,
            )


def interaction_rows() -> Iterator[Row]:
    interaction = FeatureInteraction("dot", 27).cuda()
    for name in ("bf16", "fp32"):
        for batch in BATCHES:
            make = lambda b=batch, d=DTYPES[name]: (drawn((b, 27, 128), d),)  # noqa: E731
            yield Row(
                f"interaction, B {batch}, 27 x 128",
                name,
                interaction,
                {"triton": lambda features: dot_interaction(features)},
                sets_of(make),
                batch * (27 * 128 + 479) * DTYPES[name].itemsize,
                2 * batch * 351 * 128 if name == "bf16" else 0,
                longest_sum=128,
            )


def make_bags(rows: Sequence[int], batch: int, longest: int) -> Bags:
    """Bags of 1 to ``longest`` indices, uniform in each table."""
    lengths = torch.randint(1, longest + 1, (len(rows) * batch,), device="cuda")
    offsets = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
    limits = torch.tensor(rows, device="cuda").repeat_interleave(batch).repeat_interleave(lengths)
    indices = (torch.rand(limits.shape, device="cuda", dtype=torch.float64) * limits).long()
    return Bags(indices.minimum(limits - 1), offsets)


def split(bags: Bags, tables: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each table's indices and offsets, as `embedding_bag` takes them."""
    batch = bags.batch(tables)
    edges = bags.offsets[:: batch or 1].tolist()
    return [
        (bags.indices_L[edges[t] : edges[t + 1]], bags.offsets[t * batch : (t + 1) * batch] - edges[t])
        for t in range(tables)
    ]


def bags_rows() -> Iterator[Row]:
    case = load_case("dlrm_mlperf")
    rows = case.model.model_copy(update={"max_rows_per_table": MOST_ROWS}).table_rows
    group = TableGroup([drawn((count, 128), torch.float32, 0.3) for count in rows])
    interaction = FeatureInteraction("dot", len(rows) + 1).cuda()

    def pooled(parts: list, dtype: torch.dtype | None = None) -> torch.Tensor:
        wide = dtype == torch.float64
        vectors = [
            functional.embedding_bag(i, table.double() if wide else table, o, mode="sum")
            for (i, o), table in zip(parts, group.tables, strict=True)
        ]
        return torch.stack(vectors, dim=1)

    def eager_bags(dense: torch.Tensor, bags: Bags, parts: list) -> torch.Tensor:
        return pooled(parts, dense.dtype).to(dense.dtype)

    def eager_both(dense: torch.Tensor, bags: Bags, parts: list) -> torch.Tensor:
        vectors = pooled(parts, dense.dtype).to(dense.dtype)
        return interaction(torch.cat((dense[:, None], vectors), dim=1))

    def ours_bags(dense: torch.Tensor, bags: Bags, parts: list) -> torch.Tensor:
        return embedding_bags(group, bags, dtype=dense.dtype, validate=False)

    def ours_two(dense: torch.Tensor, bags: Bags, parts: list) -> torch.Tensor:
        features = dense.new_empty(dense.shape[0], len(rows) + 1, 128)
        features[:, 0] = dense
        embedding_bags(group, bags, dtype=dense.dtype, validate=False, out=features[:, 1:])
        return dot_interaction(features)

    def ours_both(backend: str) -> Function:
        return lambda dense, bags, parts: bags_interaction(
            dense, group, bags, backend=backend, validate=False
        )

    for longest in (1, 5):
        for batch in BATCHES:
            sets = []
            for _ in range(4):
                bags = make_bags(rows, batch, longest)
                sets.append((drawn((batch, 128), torch.bfloat16), bags, split(bags, len(rows))))
            moved = sum(indices.unique().numel() for indices, _ in sets[0][2]) * 128 * 4
            moved += size(sets[0][1].indices_L, sets[0][1].offsets)
            title = f"B {batch}, 26 tables, bags up to {longest}"
            common = {"longest_sum": 128, "modules": 2, "same_shapes": longest == 1}
            written = batch * 26 * 128 * 2
            yield Row(
                f"bags, {title}",
                "bf16",
                eager_bags,
                {"triton": ours_bags},
                sets,
                moved + written,
                0,
                **common,
            )
            yield Row(
                f"bags + interaction, {title}",
                "bf16",
                eager_both,
                {
                    "triton, two kernels": ours_two,
                    "triton": ours_both("triton"),
                    "cuda": ours_both("cuda"),
                },
                sets,
                moved + batch * (128 + 479) * 2,
                2 * batch * 351 * 128,
                **common,
            )


def mlp_rows() -> Iterator[Row]:
    dtype = torch.bfloat16
    for columns, outputs in ((13, 512), (480, 1024), (1024, 1024), (1024, 512), (512, 256)):
        weight, bias = drawn((outputs, columns), dtype, columns**-0.5), drawn((outputs,), dtype)
        for batch in BATCHES:
            yield Row(
                f"linear + relu, B {batch}, {columns}-{outputs}",
                "bf16",
                lambda x, w, b: torch.relu(functional.linear(x, w, b)),
                {"triton": lambda x, w, b: linear_activation(x, w, b)},
                sets_of(lambda b=batch, c=columns, w=weight, v=bias: (drawn((b, c), dtype), w, v)),
                2 * batch * (columns + outputs) + size(weight, bias),
                2 * batch * columns * outputs,
                longest_sum=columns,
            )
    for sizes in ((512, 256, 1), (13, 512, 256), (512, 256, 128)):
        columns, hidden, outputs = sizes
        weights = (
            drawn((hidden, columns), dtype, columns**-0.5),
            drawn((hidden,), dtype),
            drawn((outputs, hidden), dtype, hidden**-0.5),
            drawn((outputs,), dtype),
        )
        for batch in BATCHES:
            yield Row(
                f"two layers, B {batch}, {columns}-{hidden}-{outputs}",
                "bf16",
                lambda x, w1, b1, w2, b2: torch.sigmoid(
                    functional.linear(torch.relu(functional.linear(x, w1, b1)), w2, b2)
                ),
                {"triton": lambda *arguments: two_layer_mlp(*arguments)},
                sets_of(lambda b=batch, c=columns, w=weights: (drawn((b, c), dtype), *w)),
                2 * batch * (columns + outputs) + size(*weights),
                2 * batch * hidden * (columns + outputs),
                longest_sum=max(columns, hidden),
                modules=2,
            )


GROUPS: dict[str, Callable[[], Iterator[Row]]] = {
    "pointwise": pointwise_rows,
    "interaction": interaction_rows,
    "bags": bags_rows,
    "mlp": mlp_rows,
}


def run(row: Row, rounds: int, ceilings: dict[str, float]) -> dict:
    """Check and time one row."""
    torch.compiler.reset()
    compiled = torch.compile(row.eager, dynamic=not row.same_shapes)
    functions = {"eager": row.eager, "compile": compiled, **row.ours}
    exact = [v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in row.sets[0]]
    oracle = row.eager(*exact).cpu()
    reference = row.eager(*row.sets[0]).cpu()
    verdicts = {}
    for name, function in functions.items():
        result = function(*row.sets[0]).cpu()
        verdict = judge(
            oracle, reference, result, PRECISIONS[row.precision], row.longest_sum, modules=row.modules
        )
        verdicts[name] = {"verdict": verdict.status, "reason": verdict.reason, "l2": verdict.port.l2}
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no CUDA device: this benchmark needs one")
    with torch.no_grad():
        ceilings = {"copy_bytes_per_s": copy_bandwidth(), "bf16_per_s": matmul_rate(torch.bfloat16)}
        bandwidth, rate = (value / 1e12 for value in ceilings.values())
        print(f"copy {bandwidth:.2f} TB/s, bf16 {rate:.0f} TFLOP/s")
        rows = []
        for group in arguments.only:
            torch.manual_seed(0)
            for row in GROUPS[group]():
                rows.append(run(row, arguments.rounds, ceilings))
                print(table(rows[-1]), flush=True)
    result = {"command": sys.argv, "environment": environment(), "ceilings": ceilings, "rows": rows}
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1))
    failed = [
        f"{row['name']}, {name}: {e['reason']}"
        for row in rows
        for name, e in row["errors"].items()
        if e["verdict"] != "PASS"
    ]
    print("\n".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
