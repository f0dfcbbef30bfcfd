"""Time and peak memory of preprocessing a large Criteo file.

    python benchmarks/bench_criteo.py [--gigabytes 1.0] [--folder FOLDER]

Generates a file in the layout of Kaggle's train.txt, and preprocesses it with vocabularies in a process of
its own. Prints the wall time and peak resident memory of that process, as a table and as one line of JSON.
Values follow Zipf's law; four features have a new value in almost every row, like the features of the real
data with millions of values. The folder needs about three times the file's size; the program removes all its
files.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from datasets.criteo.logs import Preprocessing, preprocess  # noqa: E402, the project runs from its checkout

_TEMPLATE_ROWS = 20_000
#: C3, C12, C16, C21: the features of the Kaggle data with the most values.
_TALL_FIELDS = (16, 25, 29, 34)
_HEX_DIGITS = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)


def generate(path: Path, size: int, seed: int = 0) -> int:
    """Write at least ``size`` bytes of rows; return the number of rows."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(_TEMPLATE_ROWS):
        dense = [
            "" if gap else str(value)
            for value, gap in zip(rng.zipf(1.5, 13) % 100_000 - 1, rng.random(13) < 0.2, strict=True)
        ]
        sparse = [
            ""
            if gap and 14 + feature not in _TALL_FIELDS
            else f"{(int(value) * 2654435761 + feature) % 2**32:08x}"
            for feature, (value, gap) in enumerate(zip(rng.zipf(1.3, 26), rng.random(26) < 0.1, strict=True))
        ]
        lines.append("\t".join([str(int(rng.random() < 0.25)), *dense, *sparse]))
    text = np.frombuffer(("\n".join(lines) + "\n").encode(), dtype=np.uint8).copy()
    starts = np.append(0, np.flatnonzero((text == ord("\t")) | (text == ord("\n")))[:-1] + 1).reshape(-1, 40)
    digits = starts[:, _TALL_FIELDS][..., None] + np.arange(8)
    written = 0
    with path.open("wb") as stream:
        while stream.tell() < size:
            text[digits] = _HEX_DIGITS[rng.integers(0, 16, digits.shape)]
            stream.write(text.tobytes())
            written += _TEMPLATE_ROWS
    return written


def measure(path: Path, cache: Path) -> dict[str, float]:
    """Preprocess in this process; its peak memory includes the interpreter and numpy."""
    before = _peak_megabytes()
    start = time.perf_counter()
    data = preprocess([path], Preprocessing(min_frequency=1), cache)
    seconds = time.perf_counter() - start
    return {
        "rows": len(data),
        "seconds": round(seconds, 2),
        "megabytes_per_second": round(path.stat().st_size / 1e6 / seconds, 1),
        "peak_megabytes": round(_peak_megabytes(), 1),
        "peak_megabytes_before": round(before, 1),
        "cache_megabytes": round(sum(file.stat().st_size for file in cache.iterdir()) / 1e6, 1),
        "largest_table": max(data.table_sizes),
    }


def _peak_megabytes() -> float:
    # Linux reports kibibytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def main() -> None:
    """Parse the command line, generate, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the generated file")
    parser.add_argument("--folder", type=Path, help="where to work; the system's folder for temporary files")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.measure.with_suffix(".cache"))))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "train.txt"
        rows = generate(path, int(options.gigabytes * 1e9))
        input_megabytes = round(path.stat().st_size / 1e6, 1)
        command = [sys.executable, __file__, "--measure", str(path)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    result = {"input_megabytes": input_megabytes, **json.loads(done.stdout)}
    if result["rows"] != rows:
        raise SystemExit(f"{result['rows']} rows read, {rows} generated")
    result |= {"python": platform.python_version(), "numpy": np.__version__, "machine": platform.machine()}
    for name, value in result.items():
        print(f"{name.replace('_', ' '):>24}  {value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
