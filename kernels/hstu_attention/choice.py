"""The faster form of the attention for a call: Triton's or CUDA C++ for Hopper, by sizes and a measurement.

Which of the two is faster for many long sequences depends on the card: benchmarks/results/hopper_attention.md
has an H100 and an H200 that differ. There both are timed, once for each kind of call in a process.
"""

from __future__ import annotations

import threading

import torch

from kernels.cuda_build import missing_compiler
from kernels.hstu_attention import hopper_launch
from kernels.hstu_attention.call_kind import key_of
from kernels.hstu_attention.device_times import fastest, times_of
from kernels.hstu_attention.hopper_launch import refusal
from kernels.hstu_attention.layout import Call, layout_of
from kernels.hstu_attention.masks import ProductionMask
from kernels.hstu_attention.schedules import programs_in_fills

# The widest heads that CUDA C++ takes. Triton's form is the faster one for narrower heads.
_WIDE_HEAD = 128
# Average rows of a sequence from which a tile's loop over columns is long enough for its start and end; and
# programs in fills of a large GPU from which one block a multiprocessor has work to share.
_LEAST_ROWS = 8192
_LEAST_FILLS = 12.0
# The measured form by kind of call.
_measured: dict[str, str] = {}
# One measurement at a time, so that threads do not time each other's.
_measuring = threading.Lock()
# Seconds of work in front of a measurement. The forms differ in power, so that the faster one of a cool GPU
# may be the slower one under load.
_SETTLED_S = 0.3


def faster_backend(call: Call, out: torch.Tensor | None = None) -> str:
    """ "hopper", the CUDA C++ form, where it may be faster and is by a measurement; else "triton".

    The form may be faster for many long sequences with wide heads and no window. The first such call of a
    kind, as `call_kind.key_of` names it, times both forms on its tensors. A captured call cannot: it takes
    "triton" if its kind was not timed before. All other calls read sizes on the host alone.
    """
    if not _may_be_hopper(call) or refusal(call, out) or missing_compiler():
        return "triton"
    key = key_of(call, "ieee")
    if key not in _measured:
        if torch.cuda.is_current_stream_capturing():
            return "triton"
        with _measuring:
            if key not in _measured:
                _measured[key] = _timed(call)
    return _measured[key]


def _may_be_hopper(call: Call) -> bool:
    q, _, _, offsets, _, mask = call
    sequences = offsets.numel() - 1
    is_whole = isinstance(mask, ProductionMask) and not (mask.max_attn_len or mask.contextual_seq_len)
    is_long = sequences > 0 and q.size(0) >= _LEAST_ROWS * sequences
    return is_whole and is_long and q.size(2) == _WIDE_HEAD and programs_in_fills(q) >= _LEAST_FILLS


def _timed(call: Call) -> str:
    """The form of least time; "triton" if the quartiles of both overlap."""
    from kernels.hstu_attention import triton_launch

    # The caller's result may be its queries.
    out = torch.empty_like(call.v, memory_format=torch.contiguous_format)
    layout = layout_of(call)
    runs = {
        "triton": lambda: triton_launch.launch_call(call, layout, "ieee", out),
        "hopper": lambda: hopper_launch.launch_call(call, out),
    }
    # Calls of this size take longer on the device than on the host.
    times = times_of(list(runs.values()), call.q.device, captured=False, settled_s=_SETTLED_S)
    return fastest(dict(zip(runs, times, strict=True)), "triton")
