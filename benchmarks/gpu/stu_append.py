"""New rows behind cached ones in production STU layers, against PyTorch and against recomputing, on one GPU.

    python benchmarks/gpu/stu_append.py --out stu_append.json

Five layers, D 512, 4 heads of 128, bfloat16, forward only. B sequences of `cached` rows each lie in the cache
and get `new` rows more: history, or candidates (targets) that do not see each other. Sides:

* ours: `extend_stu_layers`;
* recompute: `stu_layers` over all rows;
* eager, torch.compile: `reference.stu`'s cached step on dense tensors. It replaces its cache; torch.compile
  may write it at once.

Prints a row a case: verdicts, microseconds of a call and on the device (the side's CUDA graph), the floor.
The verdict rule judges every side's new rows in the run that times it, with the eager layers over all rows in
float64 as the oracle and in bfloat16 as the reference. The floor is the larger of two times: FLOPs of the new
rows' products and visible pairs at the measured matmul rate, and the fewest bytes (the cache and the weights
once) at the measured copy rate. A case of ours that fails its verdict ends with exit code 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.timing import (  # noqa: E402
    measure,
    measure_device,
    measured_ceilings,
    parsed,
    report,
)
from kernels.hstu_attention import ProductionMask  # noqa: E402
from kernels.stu_layer import (  # noqa: E402
    LayerCache,
    Parameters,
    Sizes,
    empty_cache,
    extend_stu_layers,
    stu_layers,
)
from kernels.stu_layer.parameters import shapes_of, split_cached  # noqa: E402
from parity.base.precision import PRECISIONS  # noqa: E402
from parity.verdict.rule import judge  # noqa: E402
from reference.stu import STULayer, STUStack  # noqa: E402

LAYERS, WIDTH, HEADS, DIM = 5, 512, 4, 128
SIZES = Sizes(HEADS, DIM, DIM)
PRECISION = "bf16"
# Norm, projection, attention, norm and gate, output.
MODULES_OF_A_LAYER = 5
# Rows of a result that the rule gets: it widens and sorts elements on the host.
MOST_JUDGED = 256

Side = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """B sequences with `cached` rows in the cache and `new` rows more, candidates or history."""

    batch: int
    cached: int
    new: int
    are_targets: bool = False

    @property
    def name(self) -> str:
        kind = "targets" if self.are_targets else "rows"
        return f"B {self.batch}, {self.cached} cached, {self.new} {kind}"

    @property
    def rows(self) -> int:
        return self.cached + self.new


CASES = (
    Case(1, 4095, 1),
    Case(8, 4095, 1),
    Case(32, 2047, 1),
    Case(8, 4032, 64),
    Case(1, 7000, 2048, are_targets=True),
    Case(8, 4000, 512, are_targets=True),
    Case(8, 2048, 2048),
)


@dataclass(frozen=True)
class Inputs:
    """All rows x, (B N, D); the cache of the old ones; tensors of a call on the new ones."""

    x: torch.Tensor
    new: torch.Tensor
    layers: list[Parameters]
    cache: LayerCache
    firsts: torch.Tensor
    targets: torch.Tensor
    offsets: torch.Tensor
    new_offsets: torch.Tensor
    mask: ProductionMask


def inputs_of(case: Case) -> Inputs:
    """Rows of order one, weights that let each layer move them by about their size."""
    dtype = PRECISIONS[PRECISION].dtype
    generator = torch.Generator("cuda").manual_seed(0)
    layers = []
    for _ in range(LAYERS):
        tensors = {
            name: torch.randn(shape, generator=generator, device="cuda")
            / (shape[0] ** 0.5 if len(shape) == 2 else 1)
            for name, shape in shapes_of(SIZES, WIDTH).items()
        }
        layers.append(Parameters(**{name: x.to(dtype) for name, x in tensors.items()}))
    x = torch.randn(case.batch, case.rows, WIDTH, generator=generator, device="cuda").to(dtype)
    firsts = torch.full((case.batch,), case.cached, device="cuda")
    targets = torch.full_like(firsts, case.new if case.are_targets else 0)
    cache = empty_cache(x, LAYERS, case.batch, case.rows, SIZES)
    old = x[:, : case.cached].flatten(0, 1)
    numbers = torch.arange(case.batch + 1, device="cuda")
    mask = ProductionMask(DIM**-0.5, float(case.rows), None, targets)
    history = ProductionMask(DIM**-0.5, float(case.rows), None, torch.zeros_like(targets))
    extend_stu_layers(
        old, numbers * case.cached, torch.zeros_like(firsts), case.cached, case.cached, history, layers,
        SIZES, cache,
    )  # fmt: skip
    return Inputs(
        x.flatten(0, 1), x[:, case.cached :].flatten(0, 1), layers, cache, firsts, targets,
        numbers * case.rows, numbers * case.new, mask,
    )  # fmt: skip


def sides_of(case: Case, i: Inputs) -> dict[str, Side]:
    """Results are the new rows, (B new, D)."""

    def ours() -> torch.Tensor:
        return extend_stu_layers(
            i.new, i.new_offsets, i.firsts, case.rows, case.new, i.mask, i.layers, SIZES, i.cache
        )

    def recompute() -> torch.Tensor:
        states = stu_layers(i.x, i.offsets, case.rows, i.mask, i.layers, SIZES)
        return states.unflatten(0, (case.batch, case.rows))[:, case.cached :].flatten(0, 1)

    eager = _dense(case, i)
    # Without a reset, torch.compile would run further shapes eagerly, with a mere warning.
    torch.compiler.reset()
    compiled = torch.compile(_dense(case, i), dynamic=False)
    return {"ours": ours, "recompute": recompute, "eager": eager, "torch.compile": compiled}


def _dense(case: Case, i: Inputs) -> Side:
    """The reference's cached step."""
    modules = []
    for parameters in i.layers:
        layer = STULayer(WIDTH, HEADS, DIM, DIM).to("cuda", i.x.dtype).eval()
        layer.load_state_dict({f"_{name}": x for name, x in parameters._asdict().items()})
        modules.append(layer)
    stack = STUStack(modules)
    # The reference keeps keys first.
    state = [
        tuple(x.flatten(2).contiguous() for x in reversed(split_cached(kept, SIZES))) for kept in i.cache.kept
    ]
    lengths = torch.full_like(i.firsts, case.rows)
    new = i.new.unflatten(0, (case.batch, case.new))

    def run() -> torch.Tensor:
        return stack.cached_forward(new, lengths, i.firsts, i.targets, state)[0].flatten(0, 1)

    return run


def judged(case: Case, i: Inputs, sides: dict[str, Side]) -> dict[str, str]:
    """Reasons of failures by side, empty for a pass; of the first and the last sequence."""
    chosen = sorted({0, case.batch - 1})
    count = min(case.new, MOST_JUDGED // len(chosen))
    within = torch.linspace(0, case.new - 1, count, dtype=torch.float64).round().long()
    offsets = torch.arange(len(chosen) + 1, device="cuda") * case.rows
    mask = ProductionMask(i.mask.alpha, i.mask.divisor, None, i.targets[: len(chosen)])

    def seen(x: torch.Tensor) -> torch.Tensor:
        return x[:, -case.new :][:, within.to(x.device)].flatten(0, 1).cpu()

    expected = []
    for dtype in (torch.float64, i.x.dtype):
        x = i.x.unflatten(0, (case.batch, case.rows))[chosen].flatten(0, 1).to(dtype)
        layers = [Parameters(*(tensor.to(dtype) for tensor in layer)) for layer in i.layers]
        states = stu_layers(x, offsets, case.rows, mask, layers, SIZES, backend="eager")
        expected.append(seen(states.unflatten(0, (len(chosen), case.rows))))
    longest_sum = max(case.rows, WIDTH, 3 * SIZES.gates)
    reasons = {}
    for name, side in sides.items():
        result = seen(side().unflatten(0, (case.batch, case.new))[chosen])
        verdict = judge(
            *expected, result, PRECISIONS[PRECISION], longest_sum, modules=MODULES_OF_A_LAYER * LAYERS
        )
        reasons[name] = verdict.reason
    return reasons


def floor_us(case: Case, ceilings: dict[str, float]) -> float:
    """Least microseconds of five layers on the new rows."""
    rows = case.batch * case.new
    # A target sees the history and itself, a new row of history the new ones in front of it, too.
    own = 1.0 if case.are_targets else (case.new + 1) / 2
    weights = WIDTH * SIZES.projected + 3 * SIZES.gates * WIDTH
    flops = LAYERS * (2 * rows * weights + 4 * HEADS * DIM * rows * (case.cached + own))
    kept = case.batch * case.rows * (SIZES.gates + SIZES.factors)
    moved = 2 * (LAYERS * (kept + weights) + 2 * rows * WIDTH)
    return 1e6 * max(flops / ceilings["bf16_per_s"], moved / ceilings["copy_bytes_per_s"])


def run(case: Case, ceilings: dict[str, float], rounds: int) -> dict:
    """A row of the table."""
    i = inputs_of(case)
    sides = sides_of(case, i)
    status = judged(case, i, sides)
    torch.cuda.empty_cache()
    calls = {name: [side] for name, side in sides.items() if not status[name]}
    called, device = measure(calls, rounds), measure_device(calls, rounds)
    return {
        "case": case.name,
        "verdicts": {name: reason or "PASS" for name, reason in status.items()},
        "called_us": {name: asdict(spread) for name, spread in called.items()},
        "device_us": {name: asdict(spread) for name, spread in device.items()},
        "floor_us": floor_us(case, ceilings),
    }


def show(row: dict) -> None:
    times = [
        f"{name} {spread['median']:.0f} [{spread['p10']:.0f}, {spread['p90']:.0f}], "
        f"called {row['called_us'][name]['median']:.0f}"
        for name, spread in row["device_us"].items()
    ]
    failed = {name: reason for name, reason in row["verdicts"].items() if reason != "PASS"}
    print(f"{row['case']:36} floor {row['floor_us']:.0f} us; {'; '.join(times)} {failed or ''}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parsed(parser)
    ceilings = measured_ceilings()
    rows: list[dict] = []
    with torch.no_grad():
        for case in CASES:
            rows.append(run(case, ceilings, arguments.rounds))
            show(rows[-1])
            report(arguments.out, ceilings, rows=rows)
    if any(row["verdicts"]["ours"] != "PASS" for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
