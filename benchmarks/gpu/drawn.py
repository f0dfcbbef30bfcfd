"""Attention and production STU layers at shapes drawn by a seed, against Meta's kernels, on one GPU.

    python benchmarks/gpu/drawn.py --out drawn.json --meta CHECKOUT --seed 1
    python benchmarks/gpu/drawn.py --out drawn.json --meta CHECKOUT --seed 1 --attention 40 --layers 40
    python benchmarks/gpu/drawn.py --out drawn.json --meta CHECKOUT --fixed

With --fixed, the shapes are those with goals of their own: `drawn_attention.FIXED` and the layers at DLRMv3's
shapes, `stu_layers_work.CASES`. Otherwise a seed draws them from the ranges of
`drawn_attention.drawn_attention` and `stu_layers_work.drawn_cases`: batch, lengths and their spread, heads,
widths, targets, windows, contextual rows, norms and types. Nobody picks such a shape.

Every case has a verdict by the project's rule, with float64 as the oracle and eager PyTorch as the reference,
in the run that times it. The peer is the faster correct form of Meta's Triton kernels: with or without tensor
descriptors, for layers also with contiguous copies of q, k and v. With --hopper, the attention's Hopper form
is a side of its own, with its ratio to the same peer, and so are attention and layers with backend="auto".
With --searched, so is the attention with the schedule that `search_schedule` chooses on the case's tensors
before the timing. Meta's autotuner chooses for each case anew, among the configurations of `COMPILED`.
Processes compile all kernels before the first timing.

Prints a row a case, and the distribution of peer's over our device time: least, median, largest, and the
share above 1. The floor is the larger of two times: FLOPs of visible pairs and products at the measured
matmul rate, and the fewest bytes at the measured copy rate. A case of ours that fails its verdict ends with
exit code 1.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu import drawn_attention, stu_layers, stu_layers_work  # noqa: E402
from benchmarks.gpu.drawn_attention import AttentionCase  # noqa: E402
from benchmarks.gpu.drawn_attention import drawn_attention as draw_attention
from benchmarks.gpu.stu_layers_work import Case, drawn_cases  # noqa: E402
from benchmarks.gpu.timing import (  # noqa: E402
    measure,
    measure_device,
    measured_ceilings,
    parsed,
    report,
)
from kernels.hstu_attention import Schedule  # noqa: E402
from kernels.hstu_attention.search import MOST_CANDIDATES  # noqa: E402

# Block sizes, stages and warps of Meta's attention that compile: those that its autotuner chose among all 29
# at six shapes, and neighbours for short rows and small heads. Of its norms every third one compiles.
COMPILED = {(64, 32, 2, 4), (64, 64, 2, 4), (128, 32, 4, 8), (64, 64, 4, 4), (32, 32, 2, 4)}
NORM_STEP = 3
# Configurations of the autotuner that has the most.
MOST_CONFIGURATIONS = 8
ATTENTION_FORMS = {"Meta, no descriptors": False, "Meta, descriptors": True}
LAYERS_FORMS = ("no descriptors", "contiguous copies")
# The attention's other forms of ours, by their key in a row, and the tasks that compile candidates.
OTHER_FORMS = {"ours, searched": "searched_ratio", "ours, hopper": "hopper_ratio", "ours, auto": "auto_ratio"}
CANDIDATE = "ours, candidate"
# Milliseconds of an autotuner's warm-up and measurement of one configuration.
TUNING = (2, 8)

AnyCase = AttentionCase | Case


@functools.cache
def limited_peer(checkout: str) -> tuple[object, list]:
    """Meta's layers, and the autotuners, limited once."""
    return stu_layers.ops_from(checkout), limit_autotuners()


def limit_autotuners() -> list:
    """Meta's autotuners, with fewer configurations of the attention and shorter measurements."""
    import triton.testing

    def bench(call: Callable[[], object], quantiles: tuple[float, ...]) -> object:
        return triton.testing.do_bench(call, warmup=TUNING[0], rep=TUNING[1], quantiles=quantiles)

    tuners = stu_layers.autotuners()
    for tuner in tuners:
        tuner._do_bench = bench
        names = {value for config in tuner.configs for value in config.kwargs}
        if tuner.base_fn.__name__ == "_hstu_attn_fwd":
            tuner.configs = [x for x in tuner.configs if _facts(x) in COMPILED]
        elif names == {"BLOCK_N"}:
            tuner.configs = tuner.configs[::NORM_STEP]
    return tuners


def _facts(config: object) -> tuple[int, ...]:
    return (config.kwargs["BLOCK_M"], config.kwargs["BLOCK_N"], config.num_stages, config.num_warps)


def sides_of(
    case: AnyCase, ops: object, with_hopper: bool = False, schedule: Schedule | None = None
) -> dict[str, Callable[[], torch.Tensor]]:
    """Our side first; each of Meta's forms keeps the choices of its autotuners."""
    if isinstance(case, AttentionCase):
        i = drawn_attention.inputs_of(case)
        sides = drawn_attention.ours(case, i, with_hopper, schedule)
        if with_hopper:
            sides["ours, auto"] = drawn_attention.ours_by_choice(case, i)
        for name, use_tma in ATTENTION_FORMS.items():
            sides[name] = _own_choices(drawn_attention.meta(case, i, use_tma))
        return sides
    i = stu_layers_work.inputs_of(case)
    sides = {"ours": lambda: stu_layers.ours(case)(i)}
    if with_hopper:
        sides["ours, auto"] = lambda: stu_layers.ours(case, "auto")(i)
    for form in LAYERS_FORMS:
        side = stu_layers.meta_side(case, ops, form)
        sides[f"Meta, {form}"] = lambda side=side: side(i)
    return sides


def _own_choices(side: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    # The autotuners' keys leave out descriptors and masks.
    choices = [(tuner, {}) for tuner in stu_layers.autotuners()]

    def run() -> torch.Tensor:
        for tuner, choice in choices:
            tuner.cache = choice
        return side()

    return run


def compile_one(task: tuple[AnyCase, str, int, str]) -> str:
    """Run one side once, its autotuners with their configuration of this number alone; errors as text."""
    case, name, number, checkout = task
    ops, tuners = limited_peer(checkout)
    every = [(tuner, tuner.configs) for tuner in tuners]
    try:
        for tuner, configs in every:
            tuner.configs = [configs[number % len(configs)]]
        with torch.no_grad():
            if isinstance(case, Case):
                # One layer has all kernels.
                _sides_of_one_layer(case, ops)[name]()
            elif name == CANDIDATE:
                drawn_attention.run_candidate(case, number)
            else:
                sides_of(case, ops)[name]()
        torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001, an autotuner skips a configuration that does not fit
        return f"{case.name}, {name}, {number}: {type(error).__name__}"
    finally:
        for tuner, configs in every:
            tuner.configs = configs
    return ""


def _sides_of_one_layer(case: Case, ops: object) -> dict[str, Callable[[], torch.Tensor]]:
    i = stu_layers_work.inputs_of(case)
    i = replace(i, layers=i.layers[:1])
    sides = {"ours": lambda: stu_layers.ours(case)(i)}
    for form in LAYERS_FORMS:
        side = stu_layers.meta_side(case, ops, form)
        sides[f"Meta, {form}"] = lambda side=side: side(i)
    return sides


def tasks_of(
    cases: list[AnyCase], checkout: str, with_candidates: bool
) -> Iterator[tuple[AnyCase, str, int, str]]:
    """Our kernels for every case; Meta's once for all cases that share them, slow ones first."""
    distinct = {(type(case), case.compiled_as): case for case in cases}
    for number in range(MOST_CONFIGURATIONS):
        for case in distinct.values():
            if isinstance(case, Case):
                yield from ((case, f"Meta, {form}", number, checkout) for form in LAYERS_FORMS)
            elif number < len(COMPILED):
                yield from ((case, form, number, checkout) for form in ATTENTION_FORMS)
    yield from ((case, "ours", 0, checkout) for case in cases)
    if with_candidates:
        of_attention = [case for case in cases if isinstance(case, AttentionCase)]
        yield from ((case, CANDIDATE, n, checkout) for n in range(MOST_CANDIDATES) for case in of_attention)


def verdicts_of(case: AnyCase, sides: dict[str, Callable[[], torch.Tensor]]) -> dict[str, str]:
    """Reasons of failures by side; empty for a pass."""
    if isinstance(case, AttentionCase):
        return drawn_attention.judged(case, drawn_attention.inputs_of(case), sides)
    i = stu_layers_work.inputs_of(case)
    expected = stu_layers.expected_of(case, i)
    return {
        name: stu_layers.verdict_of(case, i, lambda _, side=side: side(), expected)
        for name, side in sides.items()
    }


def floor_of(case: AnyCase, ceilings: dict[str, float]) -> float:
    home = drawn_attention if isinstance(case, AttentionCase) else stu_layers_work
    return home.floor_us(case, home.inputs_of(case), ceilings)


def run(
    case: AnyCase, ops: object, ceilings: dict[str, float], rounds: int, with_hopper: bool, with_search: bool
) -> dict:
    """A row of the table: verdicts, times of all correct sides, floor, and the ratio to the peer."""
    schedule = None
    if with_search and isinstance(case, AttentionCase):
        schedule = drawn_attention.searched(case)
    sides = sides_of(case, ops, with_hopper, schedule)
    status = verdicts_of(case, sides)
    torch.cuda.empty_cache()
    calls = {name: [side] for name, side in sides.items() if not status[name]}
    called, device = measure(calls, rounds), measure_device(calls, rounds)
    peers = {name: spread.median for name, spread in device.items() if not name.startswith("ours")}
    best = min(peers, key=peers.get) if peers else ""
    row = {
        "kind": "attention" if isinstance(case, AttentionCase) else "layers",
        "case": case.name,
        "verdicts": {name: reason or "PASS" for name, reason in status.items()},
        "called_us": {name: asdict(spread) for name, spread in called.items()},
        "device_us": {name: asdict(spread) for name, spread in device.items()},
        "floor_us": floor_of(case, ceilings),
        "peer": best,
    }
    if best and "ours" in device:
        row["ratio"] = peers[best] / device["ours"].median
        row["called_ratio"] = called[best].median / called["ours"].median
    for name, key in OTHER_FORMS.items():
        if best and name in device:
            row[key] = peers[best] / device[name].median
    if schedule is not None:
        row["searched"] = asdict(schedule)
    return row


def distribution(rows: list[dict]) -> dict[str, dict[str, float]]:
    """Of each kind: least, median and largest ratio, share above 1, and our median over the floor.

    Other forms have the ratios alone.
    """
    found = {}
    for kind in dict.fromkeys(row["kind"] for row in rows):
        of_kind = [row for row in rows if row["kind"] == kind]
        timed = [row for row in of_kind if "ratio" in row]
        ratios = [row["ratio"] for row in timed]
        if not ratios:
            continue
        found[kind] = {
            "cases": len(of_kind),
            "passed": sum(row["verdicts"]["ours"] == "PASS" for row in of_kind),
            "without a correct peer": sum(not row["peer"] for row in of_kind),
            **_shares(ratios),
            "called, median": statistics.median(row["called_ratio"] for row in timed),
            "over the floor, median": statistics.median(
                row["device_us"]["ours"]["median"] / row["floor_us"] for row in timed
            ),
        }
    for name, key in OTHER_FORMS.items():
        for kind in dict.fromkeys(row["kind"] for row in rows):
            if ratios := [row[key] for row in rows if row["kind"] == kind and key in row]:
                found[f"{kind}, {name}"] = {"cases": len(ratios), **_shares(ratios)}
    return found


def _shares(ratios: list[float]) -> dict[str, float]:
    return {
        "least": min(ratios),
        "median": statistics.median(ratios),
        "largest": max(ratios),
        "share above 1": sum(ratio > 1 for ratio in ratios) / len(ratios),
    }


def show(row: dict) -> None:
    ours = row["device_us"].get("ours", {}).get("median", float("nan"))
    peer = row["device_us"].get(row["peer"], {}).get("median", float("nan"))
    failed = {name: reason for name, reason in row["verdicts"].items() if reason != "PASS"}
    print(
        f"{row['kind']:9} {row['case']:62} ours {ours:8.1f} us, {row['peer'] or 'no correct peer':24} "
        f"{peer:8.1f} us, ratio {row.get('ratio', float('nan')):5.2f}, "
        f"searched {row.get('searched_ratio', float('nan')):5.2f}, "
        f"hopper's {row.get('hopper_ratio', float('nan')):5.2f}, "
        f"auto {row.get('auto_ratio', float('nan')):5.2f}, "
        f"over floor {ours / row['floor_us']:5.2f}"
        f"{f'  FAILS: {failed}' if failed else ''}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--meta", required=True, help="a checkout of meta-recsys/generative-recommenders")
    parser.add_argument("--seed", type=int, help="of the drawn shapes")
    parser.add_argument(
        "--fixed", action="store_true", help="the shapes that have goals in place of drawn ones"
    )
    parser.add_argument("--attention", type=int, default=40, help="number of attention cases")
    parser.add_argument("--layers", type=int, default=40, help="number of cases of five layers")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--hopper", action="store_true", help="time the Hopper form and the choice of a form")
    parser.add_argument(
        "--searched", action="store_true", help="time the attention's searched schedule as well"
    )
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    arguments = parsed(parser)
    if arguments.fixed:
        cases: list[AnyCase] = [*drawn_attention.FIXED, *stu_layers_work.CASES]
    elif arguments.seed is None:
        parser.error("--seed: needs a whole number; or give --fixed")
    else:
        cases = [
            *draw_attention(arguments.attention, arguments.seed),
            *drawn_cases(arguments.layers, arguments.seed),
        ]
    tasks = list(tasks_of(cases, arguments.meta, arguments.searched))
    with get_context("spawn").Pool(arguments.workers) as pool:
        failed = [text for text in pool.imap_unordered(compile_one, tasks) if text]
    print(f"compiled by {len(tasks)} calls, {len(failed)} of which did not run: {failed[:3]}", flush=True)
    ceilings = measured_ceilings()
    ops, _ = limited_peer(arguments.meta)
    rows: list[dict] = []
    with torch.no_grad():
        for case in cases:
            rows.append(run(case, ops, ceilings, arguments.rounds, arguments.hopper, arguments.searched))
            show(rows[-1])
            shares = distribution(rows)
            report(arguments.out, ceilings, seed=arguments.seed, distribution=shares, rows=rows)
    for kind, numbers in distribution(rows).items():
        print(kind, ", ".join(f"{name} {value:.4g}" for name, value in numbers.items()))
    own = [reason for row in rows for name, reason in row["verdicts"].items() if name.startswith("ours")]
    if any(reason != "PASS" for reason in own):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
