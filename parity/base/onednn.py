"""oneDNN's instructions: PyTorch multiplies half numbers with it on a CPU.

With the tile instructions of recent CPUs (AMX), a row of an odd number of bfloat16 numbers is read together
with the number behind it, the first one of the next row, which is multiplied by 0. A NaN or an infinity there
makes this row NaN. Rows then depend on the padding beside them, and none of the model's code is wrong.
"""

from __future__ import annotations

import os
import platform

INSTRUCTIONS = "ONEDNN_MAX_CPU_ISA"
"""Variable with the newest instructions that oneDNN may use; it is read at the first product of a process."""
_NAMES = (INSTRUCTIONS, "DNNL_MAX_CPU_ISA")
_WITHOUT_TILES = "AVX512_CORE_FP16"
"""The newest ones without tiles. A CPU without them keeps its own."""


def without_tiles() -> dict[str, str]:
    """Variables of a process whose products leave the tiles out; none where the user has chosen."""
    return {} if any(name in os.environ for name in _NAMES) else {INSTRUCTIONS: _WITHOUT_TILES}


def instructions() -> str:
    """The newest instructions that runners may use; empty for a CPU that oneDNN has no such names for."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return ""
    return next((os.environ[name] for name in _NAMES if name in os.environ), _WITHOUT_TILES)
