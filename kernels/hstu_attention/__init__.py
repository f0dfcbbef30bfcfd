"""Fused HSTU attention on jagged sequences; `interface.hstu_attention` is the way in.

* `masks`: visible columns and weights of a row, research and production.
* `buckets`: time buckets as integer comparisons.
* `eager`: the definition in plain PyTorch.
* `cache`, `new_rows`: new rows against cached keys and values, production masks.
* `layout`: properties of a call that are checked once for many calls.
* `schedules`: block sizes from the sizes of a call; `schedule_checks`: whether another schedule can run it.
* `search`: a schedule by timing a few; `store`: such schedules in a file.
* `triton_kernel`, its parts `triton_kernel_bias`, `triton_kernel_masks`, `triton_kernel_numbers` and
  `triton_kernel_splits`, `triton_launch`: the kernel and its launch. These import triton.
* `hopper/`, `hopper_launch`: the form in CUDA C++ for compute capability 9.0, and its launch; `choice`: the
  faster one of the two forms for a call.
"""

from kernels.hstu_attention.cache import hstu_attention_cached
from kernels.hstu_attention.interface import dot_precision_of_torch, hstu_attention
from kernels.hstu_attention.masks import ProductionMask, ResearchMask
from kernels.hstu_attention.schedules import Schedule
from kernels.hstu_attention.search import search_schedule
from kernels.hstu_attention.store import ScheduleStore

__all__ = [
    "ProductionMask",
    "ResearchMask",
    "Schedule",
    "ScheduleStore",
    "dot_precision_of_torch",
    "hstu_attention",
    "hstu_attention_cached",
    "search_schedule",
]
