#!/usr/bin/env python3
"""Peak memory and disk of a command and of all processes that it starts: `peak_memory.py COMMAND ARGUMENT...`

The program samples the whole process tree several times a second and reports the largest sum. Memory that
processes hold at different times is not added up. Two sums, both of resident memory (Linux,
/proc/PID/smaps_rollup):

    pss     proportional: a page that several processes share counts once in all
    rss     plain: such a page counts in each of them: at least the memory in use

Both contain pages of mapped files, which the system reclaims on demand. The disk's peak is the largest sum of
the lengths of all temporary files: the command gets an empty folder for them, below TMPDIR. The last line on
stderr is JSON: peaks in bytes, CPU seconds of all processes to their last sample, seconds, samples, exit
code. Ends with the command's exit code.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

INTERVAL_SECONDS = 0.2


def tree(root: int) -> list[int]:
    """A process and all of its descendants."""
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # The name in parentheses may hold anything; the parent is the second field behind it.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # the process has ended meanwhile
            children[parent].append(int(entry.name))
    members, waiting = [], [root]
    while waiting:
        members.append(waiting.pop())
        waiting += children[members[-1]]
    return members


def resident(pid: int) -> tuple[int, int]:
    """Pss and Rss of a process in bytes; 0 for one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0, 0
    values = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith(" kB")}
    return values.get("Pss", 0), values.get("Rss", 0)


def cpu_seconds(pid: int) -> float:
    """Seconds of CPU that a process has used so far; 0 for one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def lengths(folder: Path) -> int:
    """Sum of the lengths of all files below a folder; a file with several names counts once."""
    sizes = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.lstat(os.path.join(parent, name))
            except OSError:
                continue  # removed meanwhile
            sizes[status.st_ino] = status.st_size
    return sum(sizes.values())


def watch(command: list[str]) -> dict[str, float]:
    """Run a command to its end; its peaks."""
    began = time.monotonic()
    peak_pss = peak_rss = peak_disk = samples = 0
    cpu: dict[int, float] = {}
    with tempfile.TemporaryDirectory(prefix="peak") as folder:
        process = subprocess.Popen(command, env={**os.environ, "TMPDIR": folder})
        while process.poll() is None:
            members = tree(process.pid)
            sizes = [resident(pid) for pid in members]
            cpu.update({pid: seconds for pid in members if (seconds := cpu_seconds(pid))})
            peak_pss = max(peak_pss, sum(pss for pss, _ in sizes))
            peak_rss = max(peak_rss, sum(rss for _, rss in sizes))
            peak_disk = max(peak_disk, lengths(Path(folder)))
            samples += 1
            time.sleep(INTERVAL_SECONDS)
    return {
        "peak_pss": peak_pss,
        "peak_rss": peak_rss,
        "peak_disk": peak_disk,
        "cpu_seconds": round(sum(cpu.values()), 1),
        "seconds": round(time.monotonic() - began, 1),
        "samples": samples,
        "exit_code": process.returncode,
    }


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    peaks = watch(sys.argv[1:])
    print(json.dumps(peaks), file=sys.stderr)
    sys.exit(int(peaks["exit_code"]))
