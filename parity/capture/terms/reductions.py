"""Terms of reductions, of norms, and of sums by index, which depend on the indices."""

from __future__ import annotations

import math

import torch

from parity.capture.terms.call import Call, by_name


def _reduction(call: Call) -> int:
    """Elements of the operand for each element of the first result."""
    return max(1, -(-call.tensor(0).numel() // max(1, call.outputs[0].numel())))


def _vector_norm(call: Call) -> int:
    order = call.get("ord", call.get("p"))
    infinite = isinstance(order, (int, float)) and math.isinf(order)
    return 1 if infinite else _reduction(call)


def _along_axis(call: Call) -> int:
    operand, axis = call.tensor(0), call.get("dim")
    if axis is None:
        axis = -1
    return operand.shape[axis] if operand.ndim else 1


def _layer_norm(call: Call) -> int:
    return max(1, math.prod(call["normalized_shape"]))


def _group_norm(call: Call) -> int:
    return call["C"] // call["group"] * call["HxW"]


def _batch_norm(call: Call) -> int:
    """All elements of a channel in training; elementwise in inference, with running statistics."""
    operand = call.tensor(0)
    training = call.get("training", call.get("train", False))
    return max(1, operand.numel() // max(1, operand.shape[1])) if training else 1


def _weight_norm(call: Call) -> int:
    weight = call["v"]
    return max(1, weight.numel() // weight.shape[call["dim"]])


def _renorm(call: Call) -> int:
    operand = call.tensor(0)
    return max(1, operand.numel() // operand.shape[call["dim"]])


def _loss(call: Call) -> int:
    """One term an element, and the sum over all of them unless the loss has no reduction."""
    return call.tensor(0).numel() if call.outputs[0].ndim == 0 else 1


def _class_loss(call: Call) -> int:
    return call["target"].numel() if call.outputs[0].ndim == 0 else 1


def _longest_bag(call: Call) -> int:
    """The longest bag's sum; 0 for bags of at most one index, without weights, which are looked up."""
    indices, offsets, mode = call["indices"], call["offsets"], call["mode"]
    if mode == 2:
        return 0  # the maximum
    starts = (
        offsets
        if call["include_last_offset"]
        else torch.cat([offsets, offsets.new_tensor([indices.numel()])])
    )
    counts = (indices != call["padding_idx"]).cumsum(0)
    before = torch.cat([counts.new_zeros(1), counts])
    longest = int(torch.diff(before[starts.long()]).max()) if starts.numel() > 1 else 0
    return 0 if longest <= 1 and call["per_sample_weights"] is None else longest


def _scattered(call: Call) -> int:
    """Elements that fall on the fullest place, and the place's own; copies without a reduction."""
    operand, index = call.tensor(0), call["index"]
    copies = call.func.overloadpacket.__name__.rstrip("_") == "scatter" and call.get("reduce") is None
    if copies or call.get("reduce") in ("amax", "amin"):
        return 0
    counts = torch.zeros(operand.shape, dtype=torch.int64, device=index.device)
    counts.scatter_add_(call["dim"], index, torch.ones_like(index))
    return int(counts.max()) + bool(call.get("include_self", True)) if counts.numel() else 1


def _added_rows(call: Call) -> int:
    """Rows that fall on the fullest place, and the place's own."""
    if call.get("reduce") in ("amax", "amin"):
        return 0
    index = call["index"].reshape(-1)
    return int(index.bincount().max()) + bool(call.get("include_self", True)) if index.numel() else 1


def _indexed(call: Call) -> int:
    """Values that fall on the fullest place, and the place's own; copies without accumulation."""
    if not call.get("accumulate", False):
        return 0
    operand = call.tensor(0)
    indices = call["indices"] if call.get("indices") is not None else [call["index"]]
    if call.func.overloadpacket.__name__.startswith("put"):
        return int(indices[0].remainder(max(1, operand.numel())).bincount(minlength=1).max()) + 1
    counts = torch.zeros(operand.shape, dtype=torch.int64, device=operand.device)
    counts.index_put_(
        tuple(indices), torch.ones((), dtype=torch.int64, device=operand.device), accumulate=True
    )
    return int(counts.max()) + 1 if counts.numel() else 1


REDUCTIONS = by_name(
    {
        "sum nansum mean var std var_mean std_mean prod logsumexp linalg__powsum": _reduction,
        "norm linalg_vector_norm": _vector_norm,
        "dist": lambda call: max(tensor.numel() for tensor in call.args[:2]),
        """
        _softmax _log_softmax _safe_softmax _masked_softmax cumsum cumprod logcumsumexp _logcumsumexp
        """: _along_axis,
        "native_layer_norm _fused_rms_norm": _layer_norm,
        "native_group_norm": _group_norm,
        """
        native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm
        miopen_batch_norm _batch_norm_no_update _batch_norm_with_update
        """: _batch_norm,
        "_weight_norm_interface": _weight_norm,
        "renorm": _renorm,
        """
        mse_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits
        soft_margin_loss
        """: _loss,
        "nll_loss_forward nll_loss2d_forward": _class_loss,
        "_embedding_bag _embedding_bag_forward_only": _longest_bag,
        "scatter scatter_add scatter_reduce": _scattered,
        "index_add index_reduce": _added_rows,
        "index_put _index_put_impl _unsafe_index_put put": _indexed,
    }
)
"""Formulas by the names of operations."""
