"""DLRMv3's dense part and its lookups on one GPU, on the benchmark's requests.

    python benchmarks/gpu/dlrmv3.py --out dlrmv3.json --meta CHECKOUT

Eight requests of MLPerf's generator, 2,048 candidates each, bfloat16, forward only. Sides:

* ours: `reference.dlrm_hstu_fused` with kernels for whole layers, called eagerly; the same with torch.compile
  around the layers; and the port, replayed as the portable runtime's CUDA graph;
* Meta: the public `DlrmHSTU` on Triton, from the checkout of --meta, in its correct and its default form, see
  `dlrmv3_public.py`. It waits for the GPU inside, so that no graph can hold it.

Every side gets a verdict in the run that times it: the dense reference in float64 is the oracle, in bfloat16
the reference, on the longest request and the last one. The floor is `perf_model`'s: the FLOPs of valid rows
and visible pairs at the measured matmul rate, or the fewest bytes. Lookups are those of
`tables.local.DeviceTables` against a copy on the device. Times: `benchmarks/gpu/timing.py`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu import dlrmv3_public  # noqa: E402
from benchmarks.gpu.drawn import compile_one, limited_peer, tasks_of  # noqa: E402
from benchmarks.gpu.stu_layers_work import Case  # noqa: E402
from benchmarks.gpu.timing import (  # noqa: E402
    Spread,
    captured,
    measure,
    measured_ceilings,
    parsed,
    report,
)
from cases.dlrmv3.requests import BenchmarkRequests  # noqa: E402
from cases.shipped import load_case  # noqa: E402
from configs import DLRMv3Config  # noqa: E402
from parity.base.precision import PRECISIONS  # noqa: E402
from parity.case import Arrays  # noqa: E402
from parity.case import Case as ModelCase
from parity.inputs.weights import case_weights, rounded  # noqa: E402
from parity.verdict.rule import judge  # noqa: E402
from perf_model.work.dlrmv3 import mlp  # noqa: E402
from perf_model.work.parts import around, linear  # noqa: E402
from reference.preprocessors import ACTION_EMBEDDING_DIM  # noqa: E402
from tables.local import DeviceTables  # noqa: E402
from tables.store import Source, write  # noqa: E402

BATCH = 8
PRECISION = PRECISIONS["bf16"]
# Modules with arithmetic: five a layer, four an MLP, and those around.
MODULES = 5 * 5 + 4 * 4 + 8
TABLE_ROWS, LOOKED_UP, COLUMNS = 1_000_000, 262_144, 512
COMPILED = ("_input_preprocessor", "_positional_encoder", "_output_postprocessor")
"""Modules of the transducer that torch.compile gets, besides the item's MLP and the head."""

Side = Callable[[], torch.Tensor]


def requests(name: str) -> Arrays:
    """The batch: arrays of the case `name`, padded to the longest history."""
    drawn = BenchmarkRequests(load_case(name).config, seed=0).draw(BATCH, None).arrays
    longest = int(drawn["uih_lengths"].max())
    padded = [key for key, array in drawn.items() if key.startswith("uih_") and array.ndim > 1]
    return {key: array[:, :longest] if key in padded else array for key, array in drawn.items()}


def placed(arrays: Mapping[str, np.ndarray], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Arrays on the GPU; numbers are those of bfloat16 in every type."""

    def tensor(array: np.ndarray) -> torch.Tensor:
        x = torch.from_numpy(np.ascontiguousarray(array)).cuda()
        return x.to(PRECISION.dtype).to(dtype) if x.is_floating_point() else x

    return {name: tensor(array) for name, array in arrays.items()}


def model_of(case: ModelCase, weights: Mapping[str, torch.Tensor], dtype: torch.dtype) -> torch.nn.Module:
    """A reference on the GPU; weights are those of bfloat16 in every type."""
    model = case.build_reference()
    model.load_state_dict(rounded(weights, PRECISION.dtype))
    return model.to("cuda", dtype).eval().requires_grad_(False)


def ours(case: ModelCase, weights: Mapping[str, torch.Tensor], arrays: Arrays, is_compiled: bool) -> Side:
    form = case.form("whole_layers")
    model = model_of(form, weights, PRECISION.dtype)
    if is_compiled:
        transducer = model._hstu_transducer
        for owner, names in ((transducer, COMPILED), (model, ("_item_embedding_mlp", "_multitask_module"))):
            for name in names:
                setattr(owner, name, torch.compile(getattr(owner, name), dynamic=False))
    arguments = placed(form.entry_arguments(arrays), PRECISION.dtype)
    return lambda: model(**arguments)


def expected(case: ModelCase, weights: Mapping[str, torch.Tensor], arrays: Arrays) -> list[torch.Tensor]:
    """The oracle's and the reference's predictions of the judged requests, one request at a time."""
    results = []
    for dtype in (torch.float64, PRECISION.dtype):
        model = model_of(case, weights, dtype)
        parts = [placed({k: a[row : row + 1] for k, a in arrays.items()}, dtype) for row in judged(arrays)]
        results.append(torch.cat([model(**part) for part in parts]).cpu())
        del model
        torch.cuda.empty_cache()
    return results


def judged(arrays: Arrays) -> list[int]:
    """Rows of the longest request and of the last one."""
    return sorted({int(arrays["uih_lengths"].argmax()), BATCH - 1})


def verdict(arrays: Arrays, truth: list[torch.Tensor], result: torch.Tensor) -> str:
    """An empty text, or the reason of a failure."""
    own = result.reshape(BATCH, -1, truth[0].shape[-1])[judged(arrays)].cpu().to(PRECISION.dtype)
    width = arrays["uih_timestamps"].shape[1] + arrays["query_times"].shape[1]
    return judge(*truth, own, PRECISION, width, modules=MODULES).reason


def floor_us(model: DLRMv3Config, arrays: Arrays, ceilings: Mapping[str, float]) -> float:
    """Least microseconds of the dense part, by the ceilings of this run."""
    history = arrays["uih_lengths"] + model.contextual_seq_len
    targets = arrays["num_candidates"]
    rows, candidates, item = int((history + targets).sum()), int(targets.sum()), 2
    d, e, heads = model.embedding_dim, model.embedding_table_dim, model.num_heads
    hidden = model.preprocessor_hidden_dim
    actions = ACTION_EMBEDDING_DIM * len(model.action_weights or ())
    parts = [mlp([width, hidden, d], rows, item, "m")["m"] for width in (e, e, actions) if width]
    parts.append(mlp([2 * e, model.item_hidden_dim, d], candidates, item, "m")["m"])
    parts.append(
        mlp([d, model.prediction_hidden_dim, model.num_tasks], candidates, item, "m", norms=False)["m"]
    )
    pairs = int((history * (history + 1) // 2 + targets * (history + 1)).sum())
    queries, values = heads * model.attention_dim, heads * model.hidden_dim
    layer = [linear(rows, d, 2 * (queries + values), item), linear(rows, 3 * values, d, item)]
    parts += model.num_layers * layer
    flops = model.num_layers * 2 * pairs * (queries + values)
    moved = 2 * item * rows * e + 2 * item * candidates * e
    work = around(*parts, inputs=moved, outputs=item * candidates * model.num_tasks, flops=flops)
    return 1e6 * max(work.flops / ceilings["bf16_per_s"], work.bytes / ceilings["copy_bytes_per_s"])


def port_side(case: ModelCase, weights: Mapping[str, torch.Tensor], arrays: Arrays, rounds: int) -> dict:
    """The port's predictions, and times of replays of its graph."""
    from parity.runners import make_runner

    runner = make_runner("tripy_layers")
    runner.load(case, PRECISION, weights)
    (result,) = runner.run(arrays).values()
    replayed = runner.time_replays(arrays, rounds)
    return {"result": result, "seconds": replayed.seconds, "reason": replayed.reason, "label": runner.label()}


def lookups(rounds: int, bandwidth: float) -> dict:
    """Rows of 512 float16 from a table on the GPU, beside the bandwidth of a copy."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(TABLE_ROWS, COLUMNS, generator=generator).half()
    ids = torch.randint(TABLE_ROWS, (4, LOOKED_UP), generator=generator).cuda()
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        write(store, [Source.of("item", rows)])
        with DeviceTables(store, "cuda") as tables:
            is_right = torch.equal(tables.lookup("item", ids[0]).cpu(), rows[ids[0].cpu()])
            # Sets of ids take turns, so that the cache holds no row of the next call.
            taken = measure({"lookup": [lambda own=own: tables.lookup("item", own) for own in ids]}, rounds)
    spread = taken["lookup"]
    moved = 2 * LOOKED_UP * COLUMNS * rows.element_size()
    return {
        "verdict": "PASS" if is_right else "other rows",
        "us": asdict(spread),
        "bytes_per_s": moved / (spread.median * 1e-6),
        "share_of_copy": moved / (spread.median * 1e-6) / bandwidth,
    }


def drawn_beside_compiling(checkout: str, workers: int) -> Arrays:
    """The requests, drawn in a process while others compile all kernels."""
    tasks = list(tasks_of([Case(BATCH, 5600, 7600, 2048)], checkout))
    with get_context("spawn").Pool(workers) as pool:
        drawn = pool.apply_async(requests, ("dlrmv3",))
        failed = [text for text in pool.imap_unordered(compile_one, tasks) if text]
        print(f"compiled by {len(tasks)} calls, {len(failed)} of which did not run: {failed[:3]}", flush=True)
        return drawn.get()


def sides_of(
    case: ModelCase, weights: Mapping[str, torch.Tensor], arrays: Arrays, checkout: str | None
) -> dict[str, Side]:
    sides = {
        "ours": ours(case, weights, arrays, is_compiled=False),
        "ours, torch.compile around": ours(case, weights, arrays, is_compiled=True),
    }
    if checkout is not None:
        public = dlrmv3_public.build(checkout, case.model, weights)
        # Behind the last import of the public code, so that all of its autotuners are limited.
        limited_peer(checkout)
        arguments = placed(arrays, PRECISION.dtype)
        for form in dlrmv3_public.FORMS:
            sides[f"Meta, {form}"] = dlrmv3_public.side(public, arguments, form)
    return sides


def row_of(name: str, reason: str, floor: float, times: Mapping[str, Spread]) -> dict:
    row = {"side": name, "verdict": reason or "PASS", "floor_us": floor}
    row |= {f"{kind}_us": asdict(spread) for kind, spread in times.items()}
    shown = ", ".join(f"{kind} {s.median:9.0f} [{s.p10:.0f}, {s.p90:.0f}] us" for kind, s in times.items())
    print(f"{name:32} {row['verdict']:8} {shown}, floor {floor:.0f} us", flush=True)
    return row


def status_of(name: str, side: Side, arrays: Arrays, truth: list[torch.Tensor]) -> str:
    """The reason why a side is not timed, or an empty text. An error of ours ends the program."""
    try:
        return verdict(arrays, truth, side())
    except Exception as error:  # a peer that does not run here is a row of the table
        if not name.startswith("Meta"):
            raise
        return f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"


def run(case: ModelCase, arrays: Arrays, checkout: str | None, ceilings: dict, rounds: int) -> list[dict]:
    """A row of the table for each side; sides that fail have no times."""
    weights, _ = case_weights(case)
    truth = expected(case, weights, arrays)
    floor = floor_us(case.model, arrays, ceilings)
    sides = sides_of(case, weights, arrays, checkout)
    status = {name: status_of(name, side, arrays, truth) for name, side in sides.items()}
    print({name: reason or "PASS" for name, reason in status.items()}, flush=True)
    right = {name: [side] for name, side in sides.items() if not status[name]}
    times = {name: {"call": spread} for name, spread in measure(right, rounds).items()}
    print({name: round(own["call"].median) for name, own in times.items()}, "us a call", flush=True)
    graphs = {name: [captured(calls)] for name, calls in right.items() if name.startswith("ours")}
    for name, spread in measure(graphs, rounds).items():
        times[name]["graph"] = spread
    rows = [row_of(name, reason, floor, times.get(name, {})) for name, reason in status.items()]
    del sides, right, graphs
    torch.cuda.empty_cache()
    port = port_side(case, weights, arrays, rounds)
    reason = verdict(arrays, truth, port["result"]) or port["reason"]
    taken = {"graph": Spread.of([1e6 * seconds for seconds in port["seconds"]])} if port["seconds"] else {}
    return [*rows, row_of(port["label"], reason, floor, taken)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--meta", help="a checkout of meta-recsys/generative-recommenders")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--workers", type=int, default=15)
    arguments = parsed(parser)
    library = dlrmv3_public.stand_in()
    if arguments.meta is None:
        arrays = requests("dlrmv3")
    else:
        arrays = drawn_beside_compiling(arguments.meta, arguments.workers)
    ceilings, case = measured_ceilings(), load_case("dlrmv3")
    lengths = arrays["uih_lengths"].tolist()
    with torch.no_grad():
        rows = run(case, arrays, arguments.meta, ceilings, arguments.rounds)
        report(arguments.out, ceilings, uih_lengths=lengths, rows=rows)
        looked_up = lookups(arguments.rounds, ceilings["copy_bytes_per_s"])
    print(
        f"lookups: {looked_up['verdict']}, {looked_up['bytes_per_s'] / 1e12:.2f} TB/s, "
        f"{looked_up['share_of_copy']:.0%} of a copy",
        flush=True,
    )
    report(arguments.out, ceilings, uih_lengths=lengths, rows=rows, lookups=looked_up)
    del library
    if any(row["verdict"] != "PASS" for row in rows if not row["side"].startswith("Meta")):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
