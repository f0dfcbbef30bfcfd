"""The memory that this process may still take, so that too large an input is refused by arithmetic."""

from __future__ import annotations

import math
import os
import resource
from pathlib import Path

from parity.base.errors import UserError

_PAGE = os.sysconf("SC_PAGE_SIZE")
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def address_space_left() -> float:
    """Bytes of address space below the limit of `ulimit -v`; infinite without one."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return (
        math.inf
        if limit == resource.RLIM_INFINITY
        else limit - _first_number(Path("/proc/self/statm")) * _PAGE
    )


def available() -> float:
    """Bytes that this process can allocate: free memory of the machine, within the limits of the process.

    Infinite where the system does not tell.
    """
    return min(_free_memory(), _left_in_cgroup(), address_space_left())


def require(field: str, value: object, needed: float, fix: str) -> None:
    """Raises `UserError` if an input needs more bytes than are available."""
    here = available()
    if needed > here:
        problem = f"needs {_gigabytes(needed)} of memory, and {_gigabytes(here)} are available"
        raise UserError(field, value, problem, fix)


def _gigabytes(size: float) -> str:
    return f"{max(size, 0) / 2**30:.3g} GiB"


def _free_memory() -> float:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return math.inf
    sizes = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return sizes.get("MemAvailable", math.inf) + sizes.get("SwapFree", 0)


def _left_in_cgroup() -> float:
    limit = _first_number(_CGROUP / "memory.max")
    # A system without such a limit has the word "max" in the file.
    return limit - _first_number(_CGROUP / "memory.current") if math.isfinite(limit) else math.inf


def _first_number(path: Path) -> float:
    """The number at a file's beginning; infinite without one."""
    try:
        return int(path.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return math.inf
