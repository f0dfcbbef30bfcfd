"""Research HSTU's whole forward from jagged inputs in fused kernels; `HSTUForward` is the entry point."""

from kernels.hstu_forward.model import Cache, GraphedHSTUForward, HSTUForward
from kernels.hstu_forward.parameters import Settings

__all__ = ["Cache", "GraphedHSTUForward", "HSTUForward", "Settings"]
