"""Fused HSTU attention and the fused research forward on one GPU, against their peers.

    python benchmarks/gpu/hstu.py --out hstu.json --meta CHECKOUT
    python benchmarks/gpu/hstu.py --only forward --precisions fp32 --batches 1 4 --rounds 20

Attention: bfloat16, causal. The peer is `triton_hstu_mha` of meta-recsys/generative-recommenders, from the
checkout of --meta, with tensor descriptors off (its default) and on; without --meta there is no peer. Rows
are full, or have uniform random lengths up to N. The number of operations of a call is that of the
repository's own benchmark: 2 H (K + V) length^2 / 2.

Forward: the model of `configs/hstu_ml1m_large.yaml` and a larger one. All rows are full, so that the dense
peers do no useless work. Peers: the dense reference, eager and with torch.compile, in the same precision.
Ours: queued from Python, and as a CUDA graph with copies of the inputs. Device time of a side is the time of
its CUDA graph.

Prints a row a case, precision and side: verdict, microseconds of a call and on the device, and TFLOP/s. The
verdict rule judges every side in the run that times it, with float64 as the oracle and eager PyTorch as the
reference. A failure of the attention ends the program. A failing side of the forward is not timed, and the
exit code is 1. Times: `benchmarks/gpu/timing.py`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.timing import (  # noqa: E402
    Spread,
    measure,
    measure_device,
    measured_ceilings,
    parsed,
    report,
)
from configs import load_case  # noqa: E402
from kernels.hstu_attention import ProductionMask, hstu_attention  # noqa: E402
from kernels.hstu_forward import GraphedHSTUForward, HSTUForward, Settings  # noqa: E402
from parity.base.precision import PRECISIONS  # noqa: E402
from parity.verdict.rule import judge  # noqa: E402
from reference.build import build_hstu  # noqa: E402

# Number of inputs in rotation, so that the cache does not hold those of the previous call.
SETS = 3
MODULES_OF_A_BLOCK = 6
FORWARD_SIDES = 4
# Seconds. From a difference of 37,609 on, time buckets may depend on the logarithm's last bit. PyTorch's
# logarithm on a GPU differs from the CPU's, which the kernels use.
LATEST = 37_000


@dataclass(frozen=True)
class AttentionCase:
    """B sequences of N rows (`is_full`), or of uniform random lengths up to N."""

    batch: int
    longest: int
    heads: int
    dim: int
    is_full: bool

    @property
    def name(self) -> str:
        fill = "full" if self.is_full else "half-filled"
        return f"B {self.batch}, N {self.longest}, {self.heads} x {self.dim}, {fill}"


ATTENTION = tuple(
    AttentionCase(batch, longest, heads, dim, is_full)
    for batch, longest, heads, dim in ((32, 4096, 4, 128), (16, 8192, 4, 128), (128, 256, 2, 32))
    for is_full in (True, False)
)


@dataclass(frozen=True)
class ForwardCase:
    """A model of 8 blocks and its batch."""

    dim: int
    heads: int
    longest: int
    batch: int

    @property
    def name(self) -> str:
        return f"D {self.dim}, {self.heads} x {self.dim // self.heads}, N {self.longest}, B {self.batch}"


FORWARD = tuple(ForwardCase(50, 2, 211, batch) for batch in (1, 4, 128)) + (ForwardCase(256, 4, 1011, 16),)


def dot_precision(case: ForwardCase, precision: str) -> str:
    """The dot precision of the fused forward, a key of `kernels.hstu_forward.parameters.DOT_PRECISIONS`.

    In tf32, a factor has 11 bits. For some shapes, cuBLAS picks more exact kernels: at D 50 in the
    projections, at B 4 also in the attention. The fused forward needs the same exactness to pass
    (benchmarks/results/hstu_kernels.md).
    """
    if PRECISIONS[precision].dtype != torch.float32:
        return "ieee"
    if precision == "fp32" or (case.dim, case.batch) == (50, 4):
        return "fp16x3"
    return "fp16x3, attention fp16" if case.dim == 50 else "fp16"


def drawn(seed: int) -> torch.Generator:
    return torch.Generator("cuda").manual_seed(seed)


def attention_inputs(case: AttentionCase, seed: int) -> tuple[torch.Tensor, ...]:
    """q, k, v, offsets."""
    generator = drawn(seed)
    lengths = torch.full((case.batch,), case.longest, device="cuda")
    if not case.is_full:
        lengths = torch.randint(0, case.longest, (case.batch,), generator=drawn(0), device="cuda")
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    shape = (int(offsets[-1]), case.heads, case.dim)
    qkv = [torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    return (*qkv, offsets)


def attention_sides(case: AttentionCase, peer: Callable[..., torch.Tensor] | None) -> dict[str, Callable]:
    """Functions of q, k, v and offsets."""
    alpha = case.dim**-0.5
    mask = ProductionMask(alpha, float(case.longest))
    sides = {"ours": lambda q, k, v, offsets: hstu_attention(q, k, v, offsets, case.longest, mask)}
    if peer is not None:
        for name, is_on in (("triton_hstu_mha", False), ("triton_hstu_mha, descriptors", True)):
            sides[name] = lambda q, k, v, offsets, is_on=is_on: peer(
                case.longest, alpha, q, k, v, offsets, enable_tma=is_on
            )
    return sides


def check_attention(case: AttentionCase, side: Callable, name: str, inputs: tuple[torch.Tensor, ...]) -> str:
    """The verdict on the longest and the last sequence; the oracle of all would not fit the memory."""
    offsets = inputs[-1]
    result = side(*inputs)
    mask = ProductionMask(case.dim**-0.5, float(case.longest))
    for row in {int(offsets.diff().argmax()), case.batch - 1}:
        start, end = offsets[row : row + 2].tolist()
        alone = [x[start:end] for x in inputs[:3]]
        bounds = torch.tensor([0, end - start], device="cuda")
        # One head at a time: the oracle holds all pairs in float64.
        for head in range(case.heads):
            q, k, v = (x[:, head : head + 1] for x in alone)
            wide = [x.double() for x in (q, k, v)]
            oracle = hstu_attention(*wide, bounds, end - start, mask, backend="eager")
            reference = hstu_attention(q, k, v, bounds, end - start, mask, backend="eager")
            own = result[start:end, head : head + 1]
            compared = (x.cpu() for x in (oracle, reference, own))
            verdict = judge(*compared, PRECISIONS["bf16"], max(case.dim, end - start))
            if not verdict.passed:
                raise SystemExit(f"{case.name}, {name}: {verdict.reason}")
    return "PASS"


def run_attention(case: AttentionCase, peer: Callable | None, rounds: int) -> list[dict]:
    """A row of the table for each side."""
    inputs = [attention_inputs(case, seed) for seed in range(SETS)]
    sides = attention_sides(case, peer)
    status = {name: check_attention(case, side, name, inputs[0]) for name, side in sides.items()}
    calls = {
        name: [lambda side=side, tensors=tensors: side(*tensors) for tensors in inputs]
        for name, side in sides.items()
    }
    lengths = inputs[0][-1].diff().double()
    operations = float(2 * case.heads * 2 * case.dim * (lengths**2).sum() / 2)
    return rows_of(
        case.name, "bf16", measure(calls, rounds), measure_device(calls, rounds), status, operations
    )


def rows_of(
    case: str,
    precision: str,
    called: dict[str, Spread],
    device: dict[str, Spread],
    status: dict[str, str],
    operations: float | None = None,
) -> list[dict]:
    return [
        {
            "case": case,
            "precision": precision,
            "side": name,
            "verdict": status[name],
            "call_us": asdict(called[name]),
            "device_us": asdict(device[name]) if name in device else None,
            "tflops": operations / device[name].median / 1e6 if operations and name in device else None,
        }
        for name in called
    ]


def forward_model(case: ForwardCase) -> tuple[object, torch.nn.Module]:
    """The configuration and the dense reference, float32 on the CPU; every block matters."""
    config = load_case("hstu_ml1m_large").model
    size = case.dim // case.heads
    config = config.model_copy(
        update={
            "item_embedding_dim": case.dim,
            "num_heads": case.heads,
            "attention_dim": size,
            "linear_dim": size,
            "max_sequence_len": case.longest - config.max_output_len,
        }
    )
    torch.manual_seed(0)
    model = build_hstu(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("_uvqk"):
                parameter.normal_(std=case.dim**-0.5)
            elif "_rel_attn_bias" in name:
                parameter.normal_(std=0.5)
    return config, model


def forward_sides(
    case: ForwardCase, config: object, model: torch.nn.Module, dot: str
) -> tuple[dict[str, Callable], Callable]:
    """Functions (lengths, ids, timestamps) -> (B, N, D), eager PyTorch first, and that first one."""
    rows, longest = case.batch * case.longest, case.longest
    offsets = torch.arange(case.batch + 1, device="cuda") * longest
    state = dict(model.state_dict())
    settings = Settings(
        config.num_heads, config.attention_dim, config.linear_dim, model.sequence_width, config.bucket_divisor
    )

    def eager(lengths: torch.Tensor, ids: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        return model(lengths, ids, model.get_item_embeddings(ids), {"timestamps": times})

    # Without a reset, torch.compile would run the ninth case eagerly, with a mere warning.
    torch.compiler.reset()
    sides = {"eager": eager, "torch.compile": torch.compile(eager, fullgraph=True, dynamic=False)}
    forward = HSTUForward(state, settings, dot)
    graph = GraphedHSTUForward(forward, case.batch, rows, longest, longest)
    sides[f"ours, {dot}"] = lambda lengths, ids, times: forward(
        ids.reshape(-1), offsets, times, longest
    ).view(*ids.shape, -1)
    sides[f"ours, {dot}, graph with inputs copied in"] = lambda lengths, ids, times: graph(
        ids.reshape(-1), offsets, times
    ).view(*ids.shape, -1)
    return sides, eager


def run_forward(case: ForwardCase, precision: str, rounds: int) -> list[dict]:
    """A row of the table for each passing side; failures go to the error stream."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    config, model = forward_model(case)
    model = model.to("cuda", PRECISIONS[precision].dtype)
    wide = build_hstu(config).double().to("cuda")
    wide.load_state_dict(model.state_dict())
    shape = (case.batch, case.longest)
    inputs = []
    for seed in range(SETS):
        ids = torch.randint(1, config.num_items, shape, generator=drawn(seed), device="cuda")
        times = torch.randint(LATEST, shape, generator=drawn(seed + SETS), device="cuda").sort(1).values
        inputs.append((torch.full((case.batch,), case.longest, device="cuda"), ids, times))
    sides, eager = forward_sides(case, config, model, dot_precision(case, precision))
    lengths, ids, times = inputs[0]
    oracle = wide(lengths, ids, wide.get_item_embeddings(ids), {"timestamps": times}).cpu()
    reference = eager(*inputs[0]).cpu()
    longest_sum, modules = max(case.longest, case.dim), MODULES_OF_A_BLOCK * config.num_blocks + 2
    status = {}
    for name, side in sides.items():
        verdict = judge(
            oracle, reference, side(*inputs[0]).cpu(), PRECISIONS[precision], longest_sum, modules=modules
        )
        if verdict.passed:
            status[name] = "PASS"
        else:
            sys.stderr.write(f"{case.name}, {precision}, {name}: {verdict.reason}\n")
    calls = {
        name: [lambda side=side, tensors=tensors: side(*tensors) for tensors in inputs]
        for name, side in sides.items()
        if name in status
    }
    called = measure(calls, rounds)
    device = measure_device({name: c for name, c in calls.items() if "copied in" not in name}, rounds)
    return rows_of(case.name, precision, called, device, status)


def show(rows: list[dict]) -> None:
    for row in rows:
        call, device = row["call_us"], row["device_us"]
        rate = f"{row['tflops']:7.0f} TFLOP/s" if row["tflops"] else ""
        on_device = f"{device['median']:10.1f} [{device['p10']:.1f}, {device['p90']:.1f}]" if device else ""
        print(
            f"{row['case']:32} {row['precision']:5} {row['side']:42} "
            f"{call['median']:10.1f} [{call['p10']:.1f}, {call['p90']:.1f}] us {on_device} {rate}",
            flush=True,
        )


def peer_from(checkout: str | None) -> Callable | None:
    if checkout is None:
        return None
    sys.path.insert(0, checkout)
    return importlib.import_module("generative_recommenders.ops.triton.triton_hstu_attention").triton_hstu_mha


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--meta", help="a checkout of meta-recsys/generative-recommenders")
    parser.add_argument("--only", choices=("attention", "forward"), help="one part alone")
    parser.add_argument(
        "--precisions", nargs="+", choices=tuple(PRECISIONS), default=["fp32", "tf32", "bf16"]
    )
    parser.add_argument("--batches", nargs="+", type=int, help="of the forward, these batches alone")
    parser.add_argument("--rounds", type=int, default=21)
    arguments = parsed(parser)
    ceilings = measured_ceilings()
    rows: list[dict] = []
    missing = 0
    with torch.no_grad():
        if arguments.only != "forward":
            peer = peer_from(arguments.meta)
            for case in ATTENTION:
                rows += (sides := run_attention(case, peer, arguments.rounds))
                show(sides)
                report(arguments.out, ceilings, rows=rows)
        if arguments.only != "attention":
            for case in FORWARD:
                for precision in (
                    arguments.precisions if case.batch in (arguments.batches or [case.batch]) else ()
                ):
                    rows += (sides := run_forward(case, precision, arguments.rounds))
                    show(sides)
                    report(arguments.out, ceilings, rows=rows)
                    missing += FORWARD_SIDES - len(sides)
    if missing:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
