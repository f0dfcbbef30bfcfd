"""nvtripy's compiler: the time that call stacks take, and the file that replaces `sys.stderr`."""

import sys
import time
from collections.abc import Callable

import nvtripy as tp

from parity.runners.tripy.lean_traces import leanly

STEPS = 600


def chain(x: tp.Tensor) -> tp.Tensor:
    """A function of 1,200 operations."""
    for _ in range(STEPS):
        x = tp.tanh(x) + x
    return x


def seconds(compile_chain: Callable[[], tp.Executable]) -> float:
    """CPU time of one compilation."""
    start = time.process_time()
    compile_chain()
    return time.process_time() - start


def compiled() -> tp.Executable:
    """The chain for inputs (4, 4)."""
    return tp.compile(chain, args=[tp.InputInfo((4, 4), dtype=tp.float32)])


if __name__ == "__main__":
    before = sys.stderr
    tp.compile(tp.relu, args=[tp.InputInfo((4, 4), dtype=tp.float32)])
    print(f"sys.stderr behind a compilation is the same file: {sys.stderr is before}")
    with_stacks, without = seconds(compiled), seconds(lambda: leanly(compiled))
    print(f"{2 * STEPS} operations compile in {with_stacks:.2f} s with call stacks, {without:.2f} s without")
