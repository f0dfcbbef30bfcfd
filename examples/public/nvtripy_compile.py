"""nvtripy's compiler: the time that call stacks take, and the file that replaces `sys.stderr`."""

import os
import subprocess
import sys
import time

import nvtripy as tp

SWITCH = "TRIPY_PORTABLE_NO_CALL_STACKS"
STEPS = 600


def chain(x: tp.Tensor) -> tp.Tensor:
    """A function of 1,200 operations."""
    for _ in range(STEPS):
        x = tp.tanh(x) + x
    return x


def seconds() -> float:
    """CPU time of one compilation of the chain, for inputs (4, 4)."""
    start = time.process_time()
    tp.compile(chain, args=[tp.InputInfo((4, 4), dtype=tp.float32)])
    return time.process_time() - start


if __name__ == "__main__":
    before = sys.stderr
    tp.compile(tp.relu, args=[tp.InputInfo((4, 4), dtype=tp.float32)])
    stacks = "without" if os.environ.get(SWITCH) == "1" else "with"
    print(f"{2 * STEPS} operations compile in {seconds():.2f} s {stacks} call stacks", flush=True)
    if stacks == "with":
        print(f"sys.stderr behind a compilation is the same file: {sys.stderr is before}", flush=True)
        subprocess.run([sys.executable, __file__], env={**os.environ, SWITCH: "1"}, check=True)
