"""The kind of a GPU."""

from __future__ import annotations

import torch
from pydantic import BaseModel, ConfigDict, Field


class GPU(BaseModel):
    """A kind of GPU. Ceilings hold for exactly this kind, partitions included."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    capability: tuple[int, int]
    multiprocessors: int = Field(gt=0)
    memory_gib: int = Field(gt=0, description="rounded, since drivers reserve different amounts")
    l2_bytes: int = Field(gt=0)


def this_gpu() -> GPU:
    """The current CUDA device. Raises `RuntimeError` without one."""
    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device: run this on a machine with a GPU")
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return GPU(
        name=properties.name,
        capability=(properties.major, properties.minor),
        multiprocessors=properties.multi_processor_count,
        memory_gib=round(properties.total_memory / 2**30),
        l2_bytes=properties.L2_cache_size,
    )
