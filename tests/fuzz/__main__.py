"""Hostile input for every verb: `python -m tests.fuzz --seconds 3600`.

Each input either runs right, or ends with one message and exit code 2. Prints the counts by kind and each
finding with its shortest input. Exit code: 0 without a finding, else 1.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.fuzz.campaign import KINDS, Counts, End, fuzz, in_process, save_seed

_TURN = 60.0
"""Seconds of one process."""


def main() -> int:
    """Run a campaign, and print it."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="time for all kinds together")
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of input, comma separated")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first inputs")
    parser.add_argument("--folder", type=Path, help="folder for saved runs that are reused")
    parser.add_argument("--keep", action="store_true", help="add findings to the corpus")
    parser.add_argument("--worker", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--blocks", type=float, default=math.inf, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
        folder = (chosen.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        if chosen.worker:
            fuzz(chosen.worker, End(chosen.seconds, chosen.blocks), chosen.seed, folder)
            return 0
        total = _campaign(chosen.kinds.split(","), chosen.seconds, chosen.seed, folder)
    return _show(total, chosen.keep)


def _campaign(kinds: list[str], seconds: float, seed: int, folder: Path) -> dict[str, Counts]:
    """All kinds in turn, each in processes of at most `_TURN` seconds."""
    total = {kind: Counts() for kind in kinds}
    turns = max(1, round(seconds / len(kinds) / _TURN))
    for turn in range(turns):
        for kind in kinds:
            end = End(seconds / len(kinds) / turns)
            counts = in_process(kind, end, seed + turn * 1_000_000, folder)
            total[kind].outcomes += Counter(counts.outcomes)
            for problem, (text, message, number) in counts.findings.items():
                known = total[kind].findings.get(problem, (text, message, 0))
                shorter = min((known[:2], (text, message)), key=lambda pair: len(pair[0]))
                total[kind].findings[problem] = (*shorter, known[2] + number)
    return total


def _show(total: dict[str, Counts], keep: bool) -> int:
    print("| kind | tried | refused well | run right | findings |\n|---|---|---|---|---|")
    for kind, counts in total.items():
        tried, outcomes = sum(counts.outcomes.values()), counts.outcomes
        print(
            f"| {kind} | {tried} | {outcomes['refused']} | {outcomes['accepted']} | {outcomes['finding']} |"
        )
    for kind, counts in total.items():
        for problem, (text, message, number) in counts.findings.items():
            shown = str(save_seed(kind, text)) if keep else text[:400]
            print(f"\n{kind}: {problem} ({number} inputs)\n{message}\n{shown}")
    return int(any(counts.findings for counts in total.values()))


if __name__ == "__main__":
    sys.exit(main())
