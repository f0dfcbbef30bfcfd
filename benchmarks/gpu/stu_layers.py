"""Production STU layers on one GPU, against Meta's Triton stack and the layers with fused attention alone.

    python benchmarks/gpu/stu_layers.py --out stu_layers.json --meta CHECKOUT

Five layers, bfloat16, forward only. Each case is B sequences whose histories have uniform random lengths, and
a number of targets behind each history. `drawn.py` draws further cases by a seed.

Peers: `hstu_preprocess_and_attention` and `hstu_compute_output` of meta-recsys/generative-recommenders, from
the checkout of --meta, as its `STULayer` calls them. The default on Hopper gives descriptors of contiguous
tensors to slices of one projection, and is wrong (the repository's issue 583). Two correct forms run: without
descriptors, and with contiguous copies of q, k and v. Further: the reference's layers with the attention
fused alone (`reference.stu_fused`), eager and with their other parts compiled by torch.compile.

Prints a row a case and side: verdict, microseconds of a call and on the device (the side's CUDA graph). The
verdict rule judges every side in the run that times it, with float64 as the oracle and eager PyTorch as the
reference; a failing side is named and not timed. The floor is `perf_model`'s: the products' FLOPs at the
measured matmul rate, or the fewest bytes. Times: `benchmarks/gpu/timing.py`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.stu_layers_work import (  # noqa: E402
    CASES,
    LAYERS,
    Case,
    Inputs,
    floor_us,
    inputs_of,
)
from benchmarks.gpu.timing import (  # noqa: E402
    measure,
    measure_device,
    measured_ceilings,
    parsed,
    report,
)
from kernels.hstu_attention import ProductionMask  # noqa: E402
from kernels.stu_layer import Parameters, stu_layers  # noqa: E402
from kernels.stu_layer.parameters import NORM_EPS  # noqa: E402
from parity.base.precision import PRECISIONS  # noqa: E402
from parity.verdict.rule import judge  # noqa: E402
from reference.stu_attention import STUAttentionMask  # noqa: E402
from reference.stu_fused import STULayerFused  # noqa: E402

# Modules with arithmetic in a layer: norm, projection, attention, norm, output.
MODULES_OF_A_LAYER = 5
# Largest number of elements of a result that the rule gets.
MOST_JUDGED = 1 << 17

Side = Callable[[Inputs], torch.Tensor]


def ours(case: Case, backend: str = "triton") -> Side:
    return lambda i: stu_layers(
        i.x, i.offsets, case.max_seq_len, i.mask, i.layers, case.sizes, backend=backend
    )


def eager(case: Case) -> Side:
    return lambda i: stu_layers(
        i.x, i.offsets, case.max_seq_len, i.mask, i.layers, case.sizes, backend="eager"
    )


def attention_fused(case: Case, inputs: Inputs, is_compiled: bool) -> Side:
    """The reference's layers with the attention's kernel; their other parts eager, or compiled."""
    modules = []
    for parameters in inputs.layers:
        layer = STULayerFused(
            case.embedding_dim, case.heads, case.dim, case.dim, use_group_norm=case.use_group_norm
        )
        layer = layer.to("cuda", inputs.x.dtype).eval()
        layer.load_state_dict({f"_{name}": x for name, x in parameters._asdict().items()})
        if is_compiled:
            layer._project = torch.compile(layer._project, dynamic=False)
            layer._transform = torch.compile(layer._transform, dynamic=False)
        modules.append(layer)
    padded, mask = torch.zeros(case.max_seq_len, device="cuda"), STUAttentionMask(0, 0)

    def run(i: Inputs) -> torch.Tensor:
        x = i.x
        for layer in modules:
            x, _ = layer(x, i.offsets, i.targets, padded, mask)
        return x

    return run


def meta_side(case: Case, ops: ModuleType, form: str) -> Side:
    """Meta's layers: "no descriptors", "contiguous copies", or "default"."""
    kernel = ops.HammerKernel.TRITON
    inner = importlib.import_module("generative_recommenders.ops.triton.triton_hstu_preprocess_and_attention")
    attention = inner.triton_hstu_attention_fwd
    attention = getattr(attention, "as_published", attention)

    def copying(**arguments: object) -> torch.Tensor:
        for name in ("q", "k", "v"):
            arguments[name] = arguments[name].contiguous()
        return attention(**arguments)

    copying.as_published = attention
    chosen = copying if form == "contiguous copies" else attention
    use_tma = form != "no descriptors"
    # The autotuners' keys leave out the descriptors: each form keeps its own choices.
    choices = [(tuner, {}) for tuner in autotuners()]

    def run(i: Inputs) -> torch.Tensor:
        inner.triton_hstu_attention_fwd = chosen
        for tuner, choice in choices:
            tuner.cache = choice
        x = i.x
        for p in i.layers:
            u, a, _, _ = ops.hstu_preprocess_and_attention(
                x=x, norm_weight=p.input_norm_weight, norm_bias=p.input_norm_bias, norm_eps=NORM_EPS,
                num_heads=case.heads, attn_dim=case.dim, hidden_dim=case.dim, uvqk_weight=p.uvqk_weight,
                uvqk_bias=p.uvqk_beta, max_seq_len=case.max_seq_len, seq_offsets=i.offsets,
                attn_alpha=case.dim**-0.5, causal=True, num_targets=i.targets, max_attn_len=0,
                contextual_seq_len=0, recompute_uvqk_in_backward=True, recompute_normed_x_in_backward=True,
                sort_by_length=True, kernel=kernel, enable_tma=use_tma,
            )  # fmt: skip
            x = ops.hstu_compute_output(
                attn=a, u=u, x=x, norm_weight=p.output_norm_weight, norm_bias=p.output_norm_bias,
                norm_eps=NORM_EPS, output_weight=p.output_weight, num_heads=case.heads,
                linear_dim=case.dim, dropout_ratio=0.0, training=False, concat_u=True, concat_x=True,
                mul_u_activation_type="none", group_norm=case.use_group_norm, recompute_y_in_backward=True,
                kernel=kernel,
            )  # fmt: skip
        return x

    return run


def autotuners() -> list:
    """Meta's autotuners."""
    from triton.runtime.autotuner import Autotuner

    modules = [m for name, m in sys.modules.items() if name.startswith("generative_recommenders")]
    return list({id(x): x for m in modules for x in vars(m).values() if isinstance(x, Autotuner)}.values())


def judged_sequences(inputs: Inputs) -> list[tuple[int, int]]:
    """Rows of the longest and of the last sequence; the oracle of all would take long."""
    chosen = sorted({int(inputs.lengths.argmax()), inputs.lengths.numel() - 1})
    return [tuple(inputs.offsets[number : number + 2].tolist()) for number in chosen]


def rows_of_judged(x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    return torch.cat([x[start:end] for start, end in judged_sequences(inputs)])


def spread(x: torch.Tensor) -> torch.Tensor:
    """Evenly spread rows on the host: the rule widens and sorts elements there, a second a million."""
    count = min(len(x), max(2, MOST_JUDGED // x[0].numel()))
    return x[torch.linspace(0, len(x) - 1, count, dtype=torch.float64).round().long().to(x.device)].cpu()


def verdict_of(case: Case, inputs: Inputs, side: Side, expected: tuple[torch.Tensor, torch.Tensor]) -> str:
    """An empty text, or the reason of a failure."""
    result = spread(rows_of_judged(side(inputs), inputs))
    longest_sum = max(case.max_seq_len, case.embedding_dim, 3 * case.sizes.gates)
    modules = MODULES_OF_A_LAYER * LAYERS
    return judge(*expected, result, PRECISIONS[case.precision], longest_sum, modules=modules).reason


def expected_of(case: Case, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """The oracle and the reference of the judged sequences."""
    lengths = torch.tensor([end - start for start, end in judged_sequences(inputs)], device="cuda")
    targets = torch.full_like(lengths, case.targets)
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    part = Inputs(
        rows_of_judged(inputs.x, inputs), offsets, lengths, targets,
        inputs.layers, ProductionMask(inputs.mask.alpha, inputs.mask.divisor, None, targets),
    )  # fmt: skip
    layers = [Parameters(*(x.double() for x in layer)) for layer in inputs.layers]
    wide = replace(part, x=part.x.double(), layers=layers)
    return tuple(spread(eager(case)(i)) for i in (wide, part))


def sides_of(case: Case, inputs: Inputs, ops: ModuleType | None) -> dict[str, Side]:
    sides = {"ours": ours(case)}
    if ops is not None:
        for form in ("no descriptors", "contiguous copies", "default"):
            sides[f"Meta, {form}"] = meta_side(case, ops, form)
    sides["attention fused alone"] = attention_fused(case, inputs, is_compiled=False)
    # Without a reset, torch.compile would run further shapes eagerly, with a mere warning.
    torch.compiler.reset()
    sides["attention fused, torch.compile"] = attention_fused(case, inputs, is_compiled=True)
    return sides


def run(case: Case, ops: ModuleType | None, ceilings: dict[str, float], rounds: int) -> list[dict]:
    """A row of the table for each passing side; failures are rows without times."""
    inputs = inputs_of(case)
    expected = expected_of(case, inputs)
    torch.cuda.empty_cache()
    calls, status = {}, {}
    for name, side in sides_of(case, inputs, ops).items():
        status[name] = verdict_of(case, inputs, side, expected)
        if not status[name]:
            calls[name] = [lambda side=side: side(inputs)]
    called, device = measure(calls, rounds), measure_device(calls, rounds)
    floor = floor_us(case, inputs, ceilings)
    rows = []
    for name, reason in status.items():
        row = {"case": case.name, "rows": inputs.x.size(0), "side": name, "verdict": reason or "PASS"}
        if name in called:
            row |= {"call_us": asdict(called[name]), "device_us": asdict(device[name]), "floor_us": floor}
        rows.append(row)
    return rows


def show(rows: list[dict]) -> None:
    for row in rows:
        times = row["verdict"]
        if "call_us" in row:
            called, device = (
                f"{row[key]['median']:9.0f} [{row[key]['p10']:.0f}, {row[key]['p90']:.0f}]"
                for key in ("call_us", "device_us")
            )
            times = f"{called} us, device {device} us, floor {row['floor_us']:.0f} us"
        print(f"{row['case']:52} {row['side']:34} {times}", flush=True)


def ops_from(checkout: str | None) -> ModuleType | None:
    if checkout is None:
        return None
    sys.path.insert(0, checkout)
    return importlib.import_module("generative_recommenders.ops.hstu_compute")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--meta", help="a checkout of meta-recsys/generative-recommenders")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parsed(parser)
    ceilings, ops = measured_ceilings(), ops_from(arguments.meta)
    rows: list[dict] = []
    with torch.no_grad():
        for case in CASES:
            rows += (sides := run(case, ops, ceilings, arguments.rounds))
            show(sides)
            report(arguments.out, ceilings, rows=rows)
    if any(row["verdict"] != "PASS" for row in rows if row["side"] == "ours"):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
