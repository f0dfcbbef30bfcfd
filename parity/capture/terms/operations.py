"""Terms of the longest sum of an operation.

The count is the number of terms that the longest sum of one result element adds. It is 0 for an operation
that only moves data, and 1 for an elementwise one. It comes from the first of these that fits:

1. 0 for an operation that only moves data: a view by its schema, a copy, a selection such as a maximum.
2. A formula (`products`, `windows`, `reductions`) of shapes, options, and indices where they decide.
3. 1 for an operation that PyTorch tags as elementwise, and for a result without operands such as `linspace`.
4. A measurement (`dependence`) on operands of the same shapes.
5. `LEAST_SUM` where a measurement is impossible.

In the last two cases the operation is not known, and `Terms.unknown` says so. A wrong count does harm in both
directions. Too many terms widen the limit, and faults pass unseen. Too few terms fail a correct port, which
everybody sees. Therefore an operation without a measurement has the fewest terms that a sum has.

The count includes an added operand: a bias, the destination of `scatter_add`. A product of n factors counts
like a sum of n terms. An operation of several stages, such as attention, has the count of its longest one.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from parity.capture.terms.call import Call, Formula
from parity.capture.terms.dependence import NotMeasurable, measured_terms, written
from parity.capture.terms.products import PRODUCTS
from parity.capture.terms.reductions import REDUCTIONS
from parity.capture.terms.windows import WINDOWS

LEAST_SUM = 2
"""Terms of an operation that is not known and cannot be measured."""

# Operations whose floating-point results are copies of their operands' elements or constants. Views and
# PyTorch's copies of views are not listed, since their schemas and tags say so.
_MOVES_DATA = frozenset(
    """
    adaptive_max_pool2d adaptive_max_pool3d amax amin aminmax arange as_strided_scatter block_diag cat
    channel_shuffle clone complex constant_pad_nd copy cummax _cummax_helper cummin _cummin_helper
    diag_embed diagonal_scatter embedding empty empty_like empty_permuted empty_strided expand eye fill
    flip fractional_max_pool2d fractional_max_pool3d full full_like gather im2col index index_copy
    index_fill index_select kthvalue lift lift_fresh _local_scalar_dense masked_fill masked_scatter
    masked_select max max_pool2d_with_indices max_pool3d_with_indices max_unpool2d max_unpool3d median min
    mode nanmedian new_empty new_empty_strided new_full new_ones new_zeros ones ones_like
    _pack_padded_sequence pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d reflection_pad3d
    repeat repeat_interleave replication_pad1d replication_pad2d replication_pad3d resize roll rot90
    scalar_tensor select_scatter set slice_scatter sort split split_with_sizes squeeze _stack stack t take
    _to_copy to_padded_tensor topk transpose tril triu _unique _unique2 unique_consecutive unique_dim
    unique_dim_consecutive _unsafe_index _unsafe_masked_index unsafe_split unsafe_split_with_sizes
    _unsafe_view unsqueeze upsample_nearest1d upsample_nearest2d upsample_nearest3d
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d where zero zeros
    zeros_like
    """.split()
)

# Elementwise operations without PyTorch's tag.
_ELEMENTWISE = frozenset(
    """
    _add_relu _prelu_kernel fake_quantize_per_channel_affine_cachemask
    fake_quantize_per_tensor_affine_cachemask floor_divide glu hardswish log_sigmoid_forward native_dropout
    polar rrelu_with_noise
    """.split()
)


_FORMULAS = PRODUCTS | WINDOWS | REDUCTIONS


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of an operation's longest sum.

    Attributes:
        count: Number of terms; 0 if the operation only moves data, 1 if it is elementwise.
        unknown: Origin of the count in words if the operation is not known, else empty.
    """

    count: int
    unknown: str = ""


def terms(func: Any, args: tuple, kwargs: dict, result: Any) -> Terms:
    """The terms of the longest sum in one result element of an operation.

    Args:
        func: The `OpOverload`.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        result: Its result.
    """
    outputs = written(func, args, kwargs, result)
    if not outputs:
        return Terms(0)
    rule = _rule(func)
    if rule is not None:
        return Terms(rule(Call(func, args, kwargs, outputs)))
    try:
        count = measured_terms(func, args, kwargs)
    except NotMeasurable as reason:
        return Terms(LEAST_SUM, f"{LEAST_SUM} terms are assumed: {reason}")
    return Terms(count, f"{count} {'term is' if count == 1 else 'terms are'} measured")


@functools.cache
def _rule(func: Any) -> Formula | None:
    """The count of an operation from its call; None for an operation that is not known."""
    name = _functional_name(func)
    # An in-place form of a view, such as `detach_`, is no view by its own schema.
    is_view = torch.Tag.view_copy in func.tags or any(overload.is_view for overload in _overloads(name, func))
    if is_view or name in _MOVES_DATA:
        return lambda call: 0
    if name in _FORMULAS:
        return _FORMULAS[name]
    has_operands = any("Tensor" in str(argument.type) for argument in func._schema.arguments)
    if _is_tagged(func) or name in _ELEMENTWISE or (func.namespace == "aten" and not has_operands):
        return lambda call: 1
    return None


def _functional_name(func: Any) -> str:
    """The name of an operation of PyTorch without overload, and without the mark of an in-place one."""
    if func.namespace != "aten":
        return str(func)
    name = func.overloadpacket.__name__
    return name if name.startswith("__") else name.removesuffix("_")


def _is_tagged(func: Any) -> bool:
    """Whether PyTorch tags the operation, or its functional or single-tensor form, as elementwise."""
    single = _functional_name(func).removeprefix("_foreach_")
    return any(torch.Tag.pointwise in overload.tags for overload in _overloads(single, func))


def _overloads(name: str, func: Any) -> list[Any]:
    """An operation, and the overloads of PyTorch's operation with its functional name."""
    packet = getattr(torch.ops.aten, name, None)
    return [func, *([] if packet is None else [getattr(packet, overload) for overload in packet.overloads()])]
