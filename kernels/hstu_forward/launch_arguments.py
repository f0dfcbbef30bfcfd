"""Arguments that the forward's launches share."""

from __future__ import annotations

import torch
import triton

from kernels.hstu_forward.parameters import Parameters
from kernels.hstu_forward.schedules import AttentionTile, Batch
from kernels.hstu_forward.weights import BlockWeights


def on_gpu(parameters: Parameters) -> bool:
    """Whether kernels may use a GPU's assembly; the interpreter runs on the CPU."""
    return parameters.item_weights.device.type == "cuda"


def can_depend(parameters: Parameters) -> bool:
    """Whether a kernel may start before its predecessor ends (programmatic dependent launch)."""
    return on_gpu(parameters) and torch.cuda.get_device_capability(parameters.item_weights.device)[0] >= 9


def bias_arguments(batch: Batch, block: BlockWeights) -> tuple[tuple[object, ...], dict]:
    """Times and a block's bias weights as the kernels' arguments; any tensor replaces missing times."""
    if block.times is None:
        return (batch.times, block.position_weights, batch.times), {"HAS_TIME": False, "SHIFT": 0}
    tensors = (batch.times, block.position_weights, block.times.entries)
    return tensors, {"HAS_TIME": True, "SHIFT": block.times.shift}


def sizes_of(batch: Batch, block: BlockWeights, block_m: int) -> tuple[int, ...]:
    """capacity, num_times, num_sequences, num_blocks, width."""
    capacity = 0 if batch.cached is None else batch.cached.capacity
    return capacity, batch.timestamps.size(1), batch.sequences, batch.row_blocks(block_m), block.width


def firsts_of(batch: Batch) -> torch.Tensor:
    """The first new position of each sequence; without a cache, any tensor."""
    return batch.offsets if batch.cached is None else batch.cached.firsts


def unrolled(batch: Batch, tile: AttentionTile) -> int:
    """Blocks of columns of a split in the longest row, if their biases come first, or 0."""
    return triton.cdiv(batch.max_seq_len, tile.block_n * tile.splits) if tile.is_unrolled else 0


def dependence(parameters: Parameters) -> dict[str, bool]:
    """Options of a kernel that waits for its predecessor itself."""
    depends = can_depend(parameters)
    return {"DEPENDENT": depends, **({"launch_pdl": True} if depends else {})}
