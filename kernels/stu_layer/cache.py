"""Production STU layers on new rows behind cached ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.hstu_attention.argument_checks import bad, check_mask_numbers, check_whole
from kernels.hstu_attention.masks import ProductionMask
from kernels.hstu_attention.new_rows import Appended
from kernels.stu_layer.eager import stu_layer_eager_cached
from kernels.stu_layer.interface import check, launcher, require_inference
from kernels.stu_layer.parameters import Parameters, Sizes, split_cached


@dataclass(frozen=True)
class LayerCache:
    """Values and keys of all positions so far, for each layer: (B, capacity, H (V + K))."""

    kept: tuple[torch.Tensor, ...]


def empty_cache(x: torch.Tensor, num_layers: int, batch_size: int, capacity: int, sizes: Sizes) -> LayerCache:
    """A cache of no positions.

    Args:
        x: a tensor of the rows' type and device.
        num_layers: number of layers.
        batch_size: B sequences.
        capacity: most positions of a sequence.
        sizes: heads of the layers.

    Raises:
        ValueError: a number is not positive.
    """
    for name, value in (("num_layers", num_layers), ("batch_size", batch_size), ("capacity", capacity)):
        check_whole(name, value, "must be a whole number of at least 1")
        if value < 1:
            raise bad(name, value, "must be at least 1")
    size = (batch_size, capacity, sizes.gates + sizes.factors)
    return LayerCache(tuple(x.new_zeros(size) for _ in range(num_layers)))


def extend_stu_layers(
    x: torch.Tensor,
    offsets: torch.Tensor,
    firsts: torch.Tensor,
    max_seq_len: int,
    max_new: int,
    mask: ProductionMask,
    layers: Sequence[Parameters],
    sizes: Sizes,
    cache: LayerCache,
    *,
    backend: str = "triton",
) -> torch.Tensor:
    """`stu_layers` on new rows behind cached ones, one or thousands; their values and keys go into the cache.

    The results are those of `stu_layers` over all rows, as far as the mask lets no older row see a newer one.
    So new targets may follow any history. New history may follow history without contextual rows; it replaces
    cached targets. With the same schedules the attention has the same bits.

    Args:
        x: (L, D), the new rows of all sequences in order; the last axis is contiguous.
        offsets: (B + 1,) int32 or int64, of the new rows.
        firsts: (B,) int32 or int64, the position of each sequence's first new row: the number of cached ones
            that stay.
        max_seq_len: rows of the longest sequence with its new ones, or more; at most the cache's capacity.
            The kernels leave out positions behind the capacity only by this promise of the caller.
        max_new: most new rows of a sequence, or more.
        mask: of all rows, old and new: num_targets counts both, and divisor is the full call's. attn_scale,
            (L,), has the new rows' factors.
        layers, sizes: see `stu_layers`.
        backend: "triton" or "eager", see `stu_layers`.
        cache: of `empty_cache`; changed in place.

    Returns:
        (L, D) in x's type.

    Raises:
        ValueError: an argument does not fit, or the cache belongs to other layers; the message has the fix.
        RuntimeError: the backend cannot run here.
    """
    check(x, mask, layers, sizes, backend)
    # Before anything is written to the cache.
    check_mask_numbers(mask)
    check_whole("max_seq_len", max_seq_len, "must be a whole number")
    check_whole("max_new", max_new, "must be a whole number")
    for name, tensor in (("offsets", offsets), ("firsts", firsts)):
        is_whole = tensor.dtype in (torch.int32, torch.int64)
        if not is_whole or tensor.device != x.device or not tensor.is_contiguous():
            value = (str(tensor.dtype), str(tensor.device), tensor.stride())
            raise bad(name, value, f"must be contiguous int32 or int64 on {x.device}")
    targets, scale = mask.num_targets, mask.attn_scale
    for name, own, length in (("num_targets", targets, firsts.numel()), ("attn_scale", scale, x.size(0))):
        if own is not None and own.shape != (length,):
            raise bad(f"mask.{name}.shape", tuple(own.shape), f"must be ({length},)")
    kept = cache.kept
    if len(kept) != len(layers):
        raise bad("cache", f"{len(kept)} layers", f"must have {len(layers)}, one for each of layers")
    batch_size, capacity, width = kept[0].shape
    if width != sizes.gates + sizes.factors or kept[0].dtype != x.dtype or kept[0].device != x.device:
        value = (width, str(kept[0].dtype), str(kept[0].device))
        raise bad("cache", value, f"must be {sizes.gates + sizes.factors} wide in {x.dtype} on {x.device}")
    if offsets.shape != (batch_size + 1,):
        raise bad(
            "offsets.shape", tuple(offsets.shape), f"must be ({batch_size + 1},), the cache's sequences"
        )
    if firsts.shape != (batch_size,):
        raise bad("firsts.shape", tuple(firsts.shape), f"must be ({batch_size},), the cache's sequences")
    if not 0 <= max_new <= max_seq_len <= capacity:
        rule = f"needs 0 <= max_new <= max_seq_len={max_seq_len} <= {capacity}, the cache's capacity"
        raise bad("max_new", max_new, rule)
    if backend == "eager":
        for parameters, own in zip(layers, kept, strict=True):
            values, keys = split_cached(own, sizes)
            x = stu_layer_eager_cached(x, offsets, firsts, mask, parameters, sizes, values, keys)
        return x
    require_inference(x, layers)
    appended = Appended(firsts, capacity, max_new)
    return launcher().launch_cached(x, offsets, appended, max_seq_len, mask, layers, sizes, kept)
