"""The longest sum inside every module, observed while the reference runs.

The verdict rule needs, for each module, the number of terms in its longest sum, and whether it does
arithmetic at all. Both are read off the operations that PyTorch dispatches while the module runs, so
that no model has to declare them.
"""

from __future__ import annotations

from typing import Any

import torch

from perf_model.dispatch import EachOperation

# Operations whose floating-point results are copies of their operands' elements or constants.
_MOVES_DATA = frozenset(
    """
    _reshape_alias _to_copy _unsafe_view alias arange as_strided cat clone constant_pad_nd copy_ detach
    embedding empty expand eye fill_ flip full gather index index_copy index_copy_ index_put index_put_
    index_select lift_fresh masked_fill new_empty new_full new_ones new_zeros ones ones_like pad permute
    repeat repeat_interleave scalar_tensor scatter select slice split split_with_sizes squeeze stack t
    transpose tril triu unbind unsqueeze view where zeros zeros_like _local_scalar_dense contiguous
    dense_to_jagged jagged_to_padded_dense jagged_dense_elementwise_add asynchronous_complete_cumsum
    """.split()
)


class LongestSums(EachOperation):
    """Records, for each open module path, the longest sum and the largest result of what runs inside it.

    Use as a context manager around a forward pass; the tap hooks call `enter` and `leave`. Afterwards
    `lengths[path]` is 0 for a module without floating-point arithmetic and at least 1 otherwise, and
    `longest_so_far` is the same for everything that ran since the start; `largest[path]` is in bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lengths: dict[str, int] = {}
        self.largest: dict[str, int] = {}
        self.longest_so_far = 0
        self._open: list[str] = []

    def enter(self, path: str) -> None:
        self._open.append(path)
        self.lengths.setdefault(path, 0)
        self.largest.setdefault(path, 0)

    def leave(self) -> None:
        self._open.pop()

    def operation(self, func: Any, args: tuple, kwargs: dict) -> Any:
        result = func(*args, **kwargs)
        length, size = terms(func.overloadpacket.__name__, args, result), _bytes(result)
        self.longest_so_far = max(self.longest_so_far, length)
        for path in self._open:
            self.lengths[path] = max(self.lengths[path], length)
            self.largest[path] = max(self.largest[path], size)
        return result


def terms(name: str, args: tuple, result: Any) -> int:
    """Terms that one result element of the operation sums; 0 if it only moves data, 1 if elementwise."""
    outputs = result if isinstance(result, (tuple, list)) else (result,)
    floating = [out for out in outputs if isinstance(out, torch.Tensor) and out.dtype.is_floating_point]
    if not floating or name in _MOVES_DATA:
        return 0
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if name in ("mm", "bmm", "mv", "dot"):
        return tensors[0].shape[-1]
    if name in ("addmm", "baddbmm", "addmv"):
        return tensors[1].shape[-1] + 1
    largest_input = max((tensor.numel() for tensor in tensors), default=0)
    smallest_output = max(1, floating[0].numel())
    if name in ("_embedding_bag", "_embedding_bag_forward_only"):
        return _longest_bag(*args)
    if name == "native_layer_norm":
        rows = max(1, floating[1].numel())
        return max(1, largest_input // rows)
    if name in ("_softmax", "_log_softmax"):
        return tensors[0].shape[args[1]]
    # Reductions (sum, mean, var, norms): input elements a result element.
    return max(1, -(-largest_input // smallest_output))


def _bytes(result: Any) -> int:
    outputs = result if isinstance(result, (tuple, list)) else (result,)
    return max((out.nbytes for out in outputs if isinstance(out, torch.Tensor)), default=0)


def _longest_bag(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    *others: Any,
) -> int:
    """Terms of the longest bag's sum; 0 where bags of at most one index, without weights, are looked up."""
    lengths = torch.diff(offsets, append=offsets.new_tensor([indices.numel()]))
    longest = int(lengths.max())
    return 0 if longest <= 1 and per_sample_weights is None else longest
