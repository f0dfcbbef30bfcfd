"""The memory that this process may still take, so that too large an input is refused by arithmetic."""

from __future__ import annotations

import errno
import math
import os
import resource
from pathlib import Path

from parity.base.errors import UserError
from parity.base.streams import refuse
from parity.base.threads import require_threads
from parity.base.variables import require_variables

_LEAST = 320 * 2**20
"""Bytes that PyTorch and the engine take before they read any input."""
_LEAST_FILES = 64
"""Least limit of open files. Below it, libraries print lines of their own, or end the process."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")
_ALL, _DATA = 0, 5
"""Positions of the pages of this process in that file: all of its addresses, and its own data."""
OF_MEMORY = ("DefaultCPUAllocator", "failed to map segment", "annot allocate memory")
"""Words of PyTorch, and of the loader of libraries, on memory that they do not get."""
LACKS = {
    errno.ENOSPC: "free space on that disk, or choose a folder on another one",
    errno.EDQUOT: "free space within the quota, or choose a folder on another disk",
    errno.ENAMETOOLONG: "give a shorter path",
    errno.EROFS: "choose a folder that you can write to",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close files of other programs",
    errno.EAGAIN: "raise the limit of processes (ulimit -u) or of memory (ulimit -v)",
    errno.ENOMEM: "free memory, or raise its limit (ulimit -v)",
}
"""Remedies where the system lacks something, by the number of its error."""
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def address_space_left() -> float:
    """Bytes of address space below the limit of `ulimit -v`; infinite without one."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return math.inf if limit == resource.RLIM_INFINITY else limit - _pages(_ALL) * _PAGE


def data_left() -> float:
    """Bytes of data below the limit of `ulimit -d`; infinite without one."""
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    return math.inf if limit == resource.RLIM_INFINITY else limit - _pages(_DATA) * _PAGE


def of_machine() -> float:
    """Bytes of memory that this machine has for this process, used or not; infinite if it does not tell."""
    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    own = [limit for limit in limits if limit != resource.RLIM_INFINITY]
    return min(_meminfo().get("MemTotal", math.inf), _number(_CGROUP / "memory.max"), *own)


def available() -> float:
    """Bytes that this process can allocate: free memory of the machine, within the limits of the process.

    Infinite where the system does not tell.
    """
    return min(_free_memory(), _left_in_cgroup(), address_space_left(), data_left())


def require(field: str, value: object, needed: float, fix: str) -> None:
    """Raises `UserError` if an input needs more bytes than are available."""
    here = available()
    if needed > here:
        problem = f"needs {_gigabytes(needed)} of memory, and {_gigabytes(here)} are available"
        raise UserError(field, value, problem, fix)


def is_lack(error: BaseException) -> bool:
    """Whether an error is the machine's lack of memory, of disk or of another resource, and no mistake.

    PyTorch and the loader of libraries have no type of their own for memory that they do not get.
    """
    if isinstance(error, OSError):
        return error.errno in LACKS
    words = str(error).split("\n")[0]
    return isinstance(error, MemoryError) or any(lack in words for lack in OF_MEMORY)


def require_least() -> None:
    """End the program with exit code 2 and one message if its libraries lack memory, open files or threads.

    So does a present folder that is gone, or an environment variable that they would not understand.

    It comes before their imports: some of them end the process themselves, with another code and text.
    """
    try:
        require("machine", "the program", _LEAST, "free memory, or raise its limit (ulimit -v, ulimit -d)")
        _require_files()
        # A relative path in a variable begins there.
        _require_folder()
        require_variables()
        require_threads()
    except UserError as error:
        refuse(error)


def _require_files() -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and limit < _LEAST_FILES:
        fix = f"raise that limit to {_LEAST_FILES} or more (ulimit -n)"
        raise UserError("machine", "the program", f"may have {limit} open files", fix)


def _require_folder() -> None:
    try:
        Path.cwd()
    except OSError as error:
        problem = f"is gone ({error.strerror})"
        raise UserError("machine", "the present folder", problem, "change to one that exists") from error


def _gigabytes(size: float) -> str:
    # An integer of any length is no number in floating point.
    return f"{min(max(size, 0), 2**200) / 2**30:.3g} GiB"


def _meminfo() -> dict[str, float]:
    """The system's sizes of memory in bytes; empty if it does not tell."""
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return {}
    return {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines}


def _free_memory() -> float:
    sizes = _meminfo()
    return sizes.get("MemAvailable", math.inf) + sizes.get("SwapFree", 0)


def _left_in_cgroup() -> float:
    limit = _number(_CGROUP / "memory.max")
    # A system without such a limit has the word "max" in the file.
    return limit - _number(_CGROUP / "memory.current") if math.isfinite(limit) else math.inf


def _pages(position: int) -> float:
    return _number(_STATM, position)


def _number(path: Path, position: int = 0) -> float:
    """A number of a file; infinite without one."""
    try:
        return int(path.read_text().split()[position])
    except (OSError, ValueError, IndexError):
        return math.inf


def is_allocation_failure(error: BaseException) -> bool:
    """Whether an error says that memory could not be allocated."""
    # PyTorch's class by its name: this module imports without PyTorch.
    is_pytorchs = type(error).__name__ == "OutOfMemoryError"
    return is_pytorchs or "DefaultCPUAllocator" in str(error) or "out of memory" in str(error)
