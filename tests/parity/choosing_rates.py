"""Rates of right ports that fail and of wrong ones that pass, over models that choose.

    python -m tests.parity.choosing_rates [--seeds 5] [--models NAME,NAME] [--right | --wrong]

Prints a line for each failing right port and each wrong one that passes or fails elsewhere, and the rates.
"""

from __future__ import annotations

import argparse
import itertools
import logging
from collections import Counter

import torch

import parity
from tests.parity.choosing_ports import MODELS
from tests.parity.hidden_ports import HIDDEN

ALL = MODELS | HIDDEN
PRECISIONS = ("fp32", "fp16", "bf16")


def judged(name: str, precision: str, fault: str, seed: int):
    """The report of the port of one model."""
    model = ALL[name]
    torch.manual_seed(seed)
    result = parity.compare(
        model.reference(),
        lambda dtype: model.port(dtype, fault),
        inputs=model.inputs(seed),
        precisions=(precision,),
    )
    return next(runner for *_, runner in result.report.runner_reports() if runner.runner == "tripy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--models", default=",".join(ALL))
    parser.add_argument("--right", action="store_true")
    parser.add_argument("--wrong", action="store_true")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    both = options.right == options.wrong
    counts: Counter[str] = Counter()
    for name, seed, precision in itertools.product(
        options.models.split(","), range(options.seeds), PRECISIONS
    ):
        if both or options.right:
            runner = judged(name, precision, "", seed)
            counts["right ports"] += 1
            if runner.verdict != "PASS":
                counts["right ports that fail"] += 1
                place = f"{runner.verdict} at {runner.diagnosis.tap}"
                print(f"right {name}, {precision}, seed {seed}: {place}", flush=True)
        for fault, tap in ALL[name].faults.items() if both or options.wrong else ():
            runner = judged(name, precision, fault, seed)
            counts["wrong ports"] += 1
            if runner.verdict != "FAIL":
                counts["wrong ports that pass"] += 1
                print(f"wrong {name}, {fault}, {precision}, seed {seed}: {runner.verdict}", flush=True)
            elif runner.diagnosis.tap != tap:
                counts["wrong ports that fail elsewhere"] += 1
                place = f"at {runner.diagnosis.tap} and not at {tap}"
                print(f"wrong {name}, {fault}, {precision}, seed {seed}: {place}", flush=True)
    for what, count in sorted(counts.items()):
        print(f"{count} {what}")


if __name__ == "__main__":
    main()
