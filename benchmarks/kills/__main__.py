"""Kills of every verb that writes, at random moments.

    python -m benchmarks.kills OUTPUT --kills 100 --seed 0

A verb starts on a small model and gets a signal: SIGKILL, or SIGTERM and SIGINT to the process or to its
group. Then the program checks the exit code, the seconds to the end of all processes, temporary and damaged
files, locks and the message. The call that the message names goes on, or the same call begins anew. Its
result has to be that of an undisturbed call. OUTPUT gets a line of JSON for each kill. The table by verb and
signal goes to stdout. Exit code 1: a kill was not survived.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from tabulate import tabulate

from benchmarks.kills.trial import KILLS, Bench, Finding
from benchmarks.kills.verbs import VERBS


def main() -> int:
    """Kill, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbs", default=",".join(VERBS), help="names, comma separated; all by default")
    arguments = parser.parse_args()
    verbs = arguments.verbs.split(",")
    findings = []
    with tempfile.TemporaryDirectory(prefix="k") as name, arguments.output.open("a") as output:
        for finding in kills(Path(name), verbs, arguments.kills, arguments.seed):
            findings.append(finding)
            output.write(json.dumps(dataclasses.asdict(finding)) + "\n")
            output.flush()
            print(finding.verb, finding.kill, finding.moment, finding.seconds, *finding.problems, flush=True)
    print(table(findings))
    return int(any(finding.problems for finding in findings))


def kills(folder: Path, verbs: Sequence[str], count: int, seed: int) -> Iterator[Finding]:
    """Kills in turn of all verbs by all signals, at moments that follow from the seed."""
    bench = Bench(folder)
    draw = random.Random(seed)
    pairs = [(verb, kill) for verb in verbs for kill in KILLS]
    draw.shuffle(pairs)
    for number in range(count):
        verb, kill = pairs[number % len(pairs)]
        yield bench.kill(verb, kill, draw.uniform(0.0, bench.seconds(verb)))


def table(findings: list[Finding]) -> str:
    """Kills by verb and signal."""
    groups = defaultdict(list)
    for finding in findings:
        groups[finding.verb, finding.kill].append(finding)
        groups["all", "all"].append(finding)
    rows = []
    for (verb, kill), group in sorted(groups.items()):
        seconds = [finding.seconds for finding in group if finding.seconds is not None] or [0.0]
        survived = sum(not finding.problems for finding in group)
        rows.append([verb, kill, len(group), survived, statistics.median(seconds), max(seconds)])
    return tabulate(rows, ["verb", "signal", "tried", "survived", "s, median", "s, worst"], tablefmt="github")


if __name__ == "__main__":
    sys.exit(main())
