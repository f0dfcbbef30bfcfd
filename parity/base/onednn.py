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
VARIABLES = (INSTRUCTIONS, "DNNL_MAX_CPU_ISA")
"""Its name of today and its earlier one, which holds where the other one is absent."""
PATTERN = (
    r"(?i)|default|all|sse41|avx|avx2(_vnni(_2)?)?|avx512_core(_vnni|_bf16|_fp16|_amx(_fp16)?)?"
    r"|avx10_[0-9]+(_512)?(_amx(_fp16|_[0-9]+)?)?|asimd|sve_[0-9]+"
)
"""The values that oneDNN knows. It drops any other one in silence, and takes all instructions of the CPU."""
_WITHOUT_TILES = "AVX512_CORE_FP16"
"""The newest ones without tiles. A CPU without them keeps its own."""


def without_tiles() -> dict[str, str]:
    """Variables of a process whose products leave the tiles out; none where the user has chosen."""
    return {} if any(os.environ.get(name) for name in VARIABLES) else {INSTRUCTIONS: _WITHOUT_TILES}


def instructions() -> str:
    """The newest instructions that runners may use; empty for a CPU that oneDNN has no such names for."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return ""
    return next(filter(None, map(os.environ.get, VARIABLES)), _WITHOUT_TILES)
