"""Jagged operators with two backends of equal results: fbgemm's kernels and plain torch.

Each call names a backend. "auto" selects fbgemm where it is installed and has a kernel for the dtype, else
plain. `resolve_backend` returns the selection, `backend_reasons` the reason why a backend is missing.
"fbgemm" raises where it cannot run.

Legend: B batch, N sequence, D embedding, L total jagged length.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util

import torch
import torch.nn.functional as F

from reference.validation import require, require_choice

BACKENDS = ("auto", "fbgemm", "plain")
# fbgemm 1.8 raises '"jagged_to_padded_dense" not implemented for Double' on the CPU.
FBGEMM_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@functools.cache
def backend_reasons() -> dict[str, str]:
    """Why a backend cannot run on this machine, by backend; empty when all can."""
    if importlib.util.find_spec("fbgemm_gpu") is None:
        return {"fbgemm": "fbgemm_gpu is not installed"}
    try:
        importlib.import_module("fbgemm_gpu")
    except (ImportError, OSError, RuntimeError) as error:
        return {"fbgemm": f"fbgemm_gpu is installed and does not load: {error}"}
    return {}


def resolve_backend(backend: str, dtype: torch.dtype) -> str:
    """The backend that a call with ``backend`` and values of ``dtype`` uses: "fbgemm" or "plain".

    Raises:
        ValueError: an unknown backend, or "fbgemm" where it is missing or has no kernel for ``dtype``.
    """
    require_choice("backend", backend, BACKENDS)
    reason = backend_reasons().get("fbgemm")
    if reason is None and dtype not in FBGEMM_DTYPES:
        reason = f"fbgemm has no {dtype} kernel on the CPU"
    if backend == "auto":
        return "plain" if reason else "fbgemm"
    require(backend == "plain" or reason is None, "backend", backend, f"{reason}; use 'plain' or 'auto'")
    return backend


def complete_cumsum(lengths: torch.Tensor, backend: str = "auto") -> torch.Tensor:
    """(B,) int32 or int64 lengths -> (B + 1,) offsets of the same dtype, from 0 to the total."""
    if resolve_backend(backend, torch.float32) == "fbgemm":
        return torch.ops.fbgemm.asynchronous_complete_cumsum(lengths)
    return F.pad(torch.cumsum(lengths, dim=0, dtype=lengths.dtype), (1, 0))


def _valid_positions(offsets: torch.Tensor, width: int) -> torch.Tensor:
    """(B + 1,) offsets -> (B, width) bool, True where a row has an element."""
    position = torch.arange(width, dtype=offsets.dtype, device=offsets.device)
    return position < (offsets[1:] - offsets[:-1]).unsqueeze(1)


def jagged_to_padded_dense(
    values: torch.Tensor,
    offsets: torch.Tensor,
    max_length: int,
    padding_value: float = 0.0,
    backend: str = "auto",
) -> torch.Tensor:
    """(L, D) values and (B + 1,) offsets -> (B, max_length, D), filled up with padding_value.

    A row's elements beyond max_length are dropped.
    """
    if resolve_backend(backend, values.dtype) == "fbgemm":
        return torch.ops.fbgemm.jagged_to_padded_dense(values, [offsets], [max_length], padding_value)
    position = torch.arange(max_length, dtype=offsets.dtype, device=offsets.device)
    source_BN = offsets[:-1].unsqueeze(1) + position
    # One padding row behind the values serves every position that no value fills.
    source_BN = torch.where(_valid_positions(offsets, max_length), source_BN, values.size(0))
    return F.pad(values, (0, 0, 0, 1), value=padding_value)[source_BN]


def dense_to_jagged(dense: torch.Tensor, offsets: torch.Tensor, backend: str = "auto") -> torch.Tensor:
    """(B, N, D) and (B + 1,) offsets -> (L, D), the first ``length`` rows of each batch element.

    Every length must be at most N.
    """
    if resolve_backend(backend, dense.dtype) == "fbgemm":
        return torch.ops.fbgemm.dense_to_jagged(dense, [offsets])[0]
    return dense[_valid_positions(offsets, dense.size(1))]
