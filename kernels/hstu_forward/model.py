"""Research HSTU's forward from jagged inputs in fused kernels, one or three a block, and as a CUDA graph.

Legend: B batch, N longest row, L total jagged length, D embedding, H heads, K attention dim, V linear dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from kernels.cuda_build import multiprocessors
from kernels.hstu_attention.argument_checks import bad, check_whole
from kernels.hstu_attention.interface import require_triton
from kernels.hstu_forward import choice, hopper_launch
from kernels.hstu_forward.argument_checks import check_batch, check_settings, check_state
from kernels.hstu_forward.choice import Choice
from kernels.hstu_forward.hopper_weights import Weights, num_buckets_of, weights_of
from kernels.hstu_forward.parameters import DOT_PRECISIONS, Parameters, Settings
from kernels.hstu_forward.schedules import Batch, Cached, Schedule
from kernels.hstu_forward.weights import POSITION_PAD, block_weights, model_shape

BACKENDS = ("auto", "triton", "hopper")


@dataclass(frozen=True)
class Cache:
    """Queries, values and keys of all positions so far, for each block: (B, capacity, parts, factors)."""

    qvk: tuple[torch.Tensor, ...]


class HSTUForward:
    """`HSTUDenseModel.forward` with positional inputs, L2-normalised outputs and no padding.

    Args:
        state: parameters by public name, all on one CUDA device and of one type: float32, float16 or
            bfloat16.
        settings: sizes and constants.
        dot_precision: form of the products of float32, a key of `DOT_PRECISIONS`.
        schedule: kernels and tiles of Triton. None takes the result of `tiles.schedule` for each batch.
        backend: "triton", or "hopper" (CUDA C++ for compute capability 9.0: all blocks of a model in one
            kernel, see `hopper_launch.refusal`). "auto" takes the faster one of the two by the device
            and the shapes of the model and the batch; `choice` tells which one and why.

    Raises:
        ValueError: a parameter is missing or does not fit.
        RuntimeError: the backend cannot run here, or does not take the model.
    """

    def __init__(
        self,
        state: Mapping[str, torch.Tensor],
        settings: Settings,
        dot_precision: str = "ieee",
        schedule: Schedule | None = None,
        backend: str = "auto",
    ) -> None:
        if backend not in BACKENDS:
            raise ValueError(f"backend={backend!r}: choose one of {BACKENDS}")
        if dot_precision not in DOT_PRECISIONS:
            raise ValueError(f"dot_precision={dot_precision!r}: choose one of {tuple(DOT_PRECISIONS)}")
        check_settings(settings)
        check_state(state)
        shape = model_shape(state, settings.num_heads, settings.attention_dim, settings.linear_dim)
        products = DOT_PRECISIONS[dot_precision]
        item_weights = state["_embedding_module._item_emb.weight"].contiguous()
        if products.on_tensor_cores and item_weights.dtype != torch.float32:
            raise ValueError(
                f"dot_precision={dot_precision!r}: needs float32, not {item_weights.dtype}; use 'ieee'"
            )
        if backend != "hopper":
            require_triton(item_weights)
        factors = torch.float16 if products.on_tensor_cores else item_weights.dtype
        blocks = (
            block_weights(state, block, shape, products.projections, factors, settings.bucket_divisor)
            for block in range(shape.num_blocks)
        )
        self.parameters = Parameters(
            shape=shape,
            settings=settings,
            products=products,
            item_weights=item_weights,
            position_weights=state["_input_features_preproc._pos_emb.weight"].contiguous(),
            blocks=tuple(blocks),
        )
        self.backend, self.schedule = backend, schedule
        self.hopper_weights: Weights | None = None
        # The form of all batches, or None where it depends on the batch.
        self._fixed: Choice | None = Choice(backend, "it is asked for")
        if backend == "hopper" and schedule is not None:
            raise ValueError("schedule: backend='hopper' has none; leave it out")
        if backend == "auto":
            buckets = num_buckets_of(state, shape.num_blocks)
            self._fixed = choice.of_model(self.parameters, buckets, has_schedule=schedule is not None)
        if self._fixed is None or self._fixed.backend == "hopper":
            if reason := hopper_launch.refusal(self.parameters, num_buckets_of(state, shape.num_blocks)):
                raise hopper_launch.refused(reason)
            self.hopper_weights = weights_of(state, self.parameters)

    def __repr__(self) -> str:
        shape = self.parameters.shape
        form = "hopper or triton by the batch, see `choice`" if self._fixed is None else self._fixed
        return (
            f"HSTUForward({shape.num_blocks} blocks, D {shape.embedding_dim}, {shape.num_heads} heads of "
            f"{shape.attention_dim} and {shape.linear_dim}, {self.parameters.item_weights.dtype}, "
            f"backend={self.backend!r}: {form})"
        )

    def choice(self, batch_size: int, max_seq_len: int) -> Choice:
        """The form that computes batches of this shape, and the reason."""
        if self._fixed is not None:
            return self._fixed
        device = self.parameters.item_weights.device
        return choice.of_shape(self.parameters, batch_size, max_seq_len, multiprocessors(device))

    def __call__(
        self, ids: torch.Tensor, offsets: torch.Tensor, timestamps: torch.Tensor, max_seq_len: int
    ) -> torch.Tensor:
        """States of all positions.

        Args:
            ids: (L,) int32 or int64, 0 for no item.
            offsets: (B + 1,) int32 or int64; rows from the last offset to L are not computed.
            timestamps: (B, N) int64 seconds, the query time at a row's length, N at least max_seq_len. A
                sequence with times 2^47 seconds or more from its first has NaN states.
            max_seq_len: length of the longest row, or more.

        Returns:
            (L, D).

        Raises:
            ValueError: an argument does not fit; the message has its value and the fix.
            RuntimeError: the backend does not take the batch.
        """
        device = self.parameters.item_weights.device
        check_batch(ids, offsets, timestamps, max_seq_len, device)
        for name, most in (
            ("the model's width", self.parameters.blocks[0].width),
            ("timestamps", timestamps.size(1)),
        ):
            if max_seq_len > most:
                raise ValueError(f"max_seq_len={max_seq_len}: {name} has room for {most}; cut the rows")
        # The CUDA C++ kernel keeps times in shared memory.
        batch = Batch(ids, offsets, timestamps, max_seq_len, timestamps)
        if self.hopper_weights is not None and self.choice(batch.sequences, max_seq_len).backend == "hopper":
            return hopper_launch.states_of(self.parameters, self.hopper_weights, batch)
        # Imported here: the launcher needs triton, this module's settings do not.
        from kernels.hstu_forward.triton_launch import states_of

        return states_of(self.parameters, replace(batch, times=_new_times(timestamps)), self.schedule)

    def empty_cache(self, batch_size: int, capacity: int) -> Cache:
        """A cache of no positions for so many sequences of at most `capacity` positions each.

        Raises:
            ValueError: the model's width has no room for the capacity.
            RuntimeError: the backend has no cache.
        """
        if self.backend == "hopper":
            raise hopper_launch.refused("it has no cache")
        parameters = self.parameters
        width = parameters.blocks[0].width
        check_whole("capacity", capacity, f"the model's width has room for 1 to {width}")
        check_whole("batch_size", batch_size, "must be a whole number of at least 1")
        if batch_size < 1:
            raise bad("batch_size", batch_size, "must be at least 1")
        if not 0 < capacity <= width:
            raise ValueError(f"capacity={capacity}: the model's width has room for 1 to {width}")
        size = (batch_size, capacity, parameters.products.attention, parameters.shape.factors)
        return Cache(tuple(block.uvqk.new_zeros(size) for block in parameters.blocks))

    def extend(
        self,
        cache: Cache,
        ids: torch.Tensor,
        offsets: torch.Tensor,
        firsts: torch.Tensor,
        timestamps: torch.Tensor,
        max_seq_len: int,
        max_new: int,
    ) -> torch.Tensor:
        """States of new positions behind cached ones, and their queries, keys and values in the cache.

        A position's time bias needs the time of its successor. An item without a known one takes the query
        time; append it again, in front of its successor, when that is known. Cached positions from `firsts`
        on are replaced. The numbers equal those of a call over all positions; Triton's kernels compute them.

        Args:
            cache: of `empty_cache`; changed in place.
            ids: (L,) int32 or int64, new items, 0 for none.
            offsets: (B + 1,) int32 or int64, of the new items; rows from the last offset to L are not
                computed.
            firsts: (B,) int32 or int64, the first new position of each sequence: the number of cached ones
                that stay.
            timestamps: (B, N) int64 seconds of all positions, as of `__call__`.
            max_seq_len: length of the longest row with its new positions, or more.
            max_new: most new positions of a row, or more.

        Returns:
            (L, D).

        Raises:
            ValueError: the cache belongs to another batch or has no room, or an argument does not fit.
            RuntimeError: the backend has no cache.
        """
        if self.backend == "hopper":
            raise hopper_launch.refused("it has no cache")
        batch_size, capacity = cache.qvk[0].shape[:2]
        if timestamps.size(0) != batch_size:
            raise ValueError(f"timestamps: {timestamps.size(0)} rows, but the cache has {batch_size}")
        check_batch(ids, offsets, timestamps, max_seq_len, self.parameters.item_weights.device, firsts)
        check_whole(
            "max_new", max_new, f"must be a whole number from 0 to max_seq_len={max_seq_len}", max_seq_len
        )
        for name, most in (("the cache", capacity), ("timestamps", timestamps.size(1))):
            if max_seq_len > most:
                raise ValueError(f"max_seq_len={max_seq_len}: {name} has room for {most}")
        from kernels.hstu_forward.triton_launch import states_of

        times = _new_times(timestamps)
        rows = torch.arange(ids.numel(), device=ids.device)
        sequence = torch.searchsorted(offsets[1:].contiguous(), rows, right=True).clamp(max=batch_size - 1)
        slots = rows - offsets[sequence] + firsts[sequence] + sequence * capacity
        cached = Cached(cache.qvk, firsts, slots, max_new)
        return states_of(
            self.parameters, Batch(ids, offsets, timestamps, max_seq_len, times, cached), self.schedule
        )


def _new_times(timestamps: torch.Tensor) -> torch.Tensor:
    """Memory for the times in the form of `embed_kernel`."""
    sequences, width = timestamps.shape
    return timestamps.new_empty((sequences, width + POSITION_PAD, 2), dtype=torch.float32)


class GraphedHSTUForward:
    """One `HSTUForward` as a CUDA graph for batches of one size: a replay is one launch.

    Its form is that of the largest batch, in `choice`.

    Args:
        forward: the model.
        batch_size: B; empty rows fill up a smaller batch.
        capacity: the largest L.
        max_seq_len: length of the longest row.
        timestamps_width: N of the timestamps.
    """

    def __init__(
        self, forward: HSTUForward, batch_size: int, capacity: int, max_seq_len: int, timestamps_width: int
    ) -> None:
        for name, value in (("batch_size", batch_size), ("capacity", capacity), ("max_seq_len", max_seq_len)):
            check_whole(name, value, "must be a whole number of at least 0")
        # The graph reads the model's parameters in place: they must live as long as it does.
        self.forward = forward
        self.choice = forward.choice(batch_size, max_seq_len)
        device = forward.parameters.item_weights.device
        self.ids = torch.zeros(capacity, dtype=torch.int64, device=device)
        self.offsets = torch.zeros(batch_size + 1, dtype=torch.int64, device=device)
        self.timestamps = torch.zeros(batch_size, timestamps_width, dtype=torch.int64, device=device)
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            # Compiles and loads the kernels, which a capture does not allow.
            forward(self.ids, self.offsets, self.timestamps, max_seq_len)
        torch.cuda.current_stream(device).wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.states = forward(self.ids, self.offsets, self.timestamps, max_seq_len)

    def __repr__(self) -> str:
        return f"GraphedHSTUForward({self.forward!r}, {self.choice})"

    def __call__(self, ids: torch.Tensor, offsets: torch.Tensor, timestamps: torch.Tensor) -> torch.Tensor:
        """(L, D) states, as of `HSTUForward`; the next call overwrites them.

        Raises:
            ValueError: the batch is larger than the captured one.
        """
        length, rows = ids.numel(), offsets.numel() - 1
        for name, size, most in (
            ("ids", length, self.ids.numel()),
            ("offsets", rows, self.offsets.numel() - 1),
            ("timestamps", timestamps.size(1), self.timestamps.size(1)),
        ):
            if size > most:
                raise ValueError(f"{name}: {size} is more than {most}, the captured size")
        targets = [
            self.ids[:length],
            self.offsets[: rows + 1],
            self.timestamps[:rows, : timestamps.size(1)],
        ]
        # One kernel, if the tensors have one type and the timestamps the captured width.
        torch._foreach_copy_(targets, [ids, offsets, timestamps])
        if rows + 1 < self.offsets.numel():
            self.offsets[rows + 1 :] = offsets[-1]
        self.graph.replay()
        return self.states[:length]
