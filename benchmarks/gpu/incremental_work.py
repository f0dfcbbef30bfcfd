"""Streams, and the work on their last positions that `incremental.py` measures, for either side.

Legend: B rows, N positions, C capacity.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from configs import HSTUConfig  # noqa: E402, the project runs from its checkout

CAPACITY = 4096
CHUNK = 128
STATE = "state"

Tensors = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One block or a model of several, for a batch size, a precision and modes."""

    part: str
    num_blocks: int
    batch: int
    precision: str
    modes: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.part}, B {self.batch}, {self.precision}"

    def config(self) -> HSTUConfig:
        return HSTUConfig(
            num_items=1000,
            max_sequence_len=CAPACITY - 1,
            max_output_len=1,
            item_embedding_dim=256,
            num_blocks=self.num_blocks,
            num_heads=4,
        )


# Functions of a model of either side and of its tensors. The first result holds the states of positions, the
# others are `STATE` of the next call.


def block_full(model: Any, x: Any, lengths: Any, timestamps: Any, mask: Any) -> list:
    return [model._hstu(x, lengths, timestamps, mask)[0]]


def block_append(
    model: Any, x: Any, lengths: Any, all_timestamps: Any, next_timestamps: Any, new_lengths: Any, state: list
) -> list:
    x, state = model._hstu.cached_forward(x, lengths, all_timestamps, next_timestamps, new_lengths, state)
    return [x, *state]


def model_full(model: Any, lengths: Any, ids: Any, timestamps: Any) -> list:
    return [model(lengths, ids, model.get_item_embeddings(ids), {"timestamps": timestamps})]


def model_append(model: Any, state: list, new_lengths: Any, ids: Any, timestamps: Any) -> list:
    encoded, state = model.extend(
        state, new_lengths, ids, model.get_item_embeddings(ids), {"timestamps": timestamps}
    )
    return [encoded, *state]


@dataclass(frozen=True)
class Work:
    """A function, the tensors of its timing, and the calls that compute the last `CHUNK` rows.

    Each call takes `STATE` from its predecessor, the first one from its tensors.
    """

    name: str
    function: Callable[..., list]
    tensors: Tensors
    calls: list[Tensors]


def unit_without_edges(config: HSTUConfig, most: int) -> int:
    """Seconds without a multiple up to ``most`` within round-off of a time bucket's edge.

    PyTorch multiplies by a reciprocal on a GPU where others divide, so that buckets at an edge differ. This
    is no error, but the check here would count it.
    """
    multiples = torch.arange(1, most + 1, dtype=torch.float64)
    for unit in itertools.count(60):
        bucket = (multiples * unit).log() / config.bucket_divisor
        if bool(((bucket - bucket.round()).abs() > 8 * 2.0**-24 * bucket).all()):
            return unit


class Streams:
    """A batch of streams of `CAPACITY` items, and the work on their last items."""

    def __init__(self, case: Case, model: torch.nn.Module) -> None:
        generator = torch.Generator().manual_seed(1)
        b, n = case.batch, CAPACITY
        gaps_BN = (10 ** (torch.rand(b, n, generator=generator, dtype=torch.float64) * 1.3)).long()
        times_BN = gaps_BN.cumsum(1) * unit_without_edges(case.config(), int(gaps_BN.sum(1).max()))
        self.ids = torch.randint(1, 1001, (b, n), generator=generator).cuda()
        # The last position of a full row has no successor: its own time is the successor's.
        self.times = torch.cat([times_BN, times_BN[:, -1:]], dim=1).cuda()
        self.model, self.batch = model, b
        _, self.x, _ = model._input_features_preproc(
            self._count(n), self.ids, model.get_item_embeddings(self.ids), {}
        )

    def works(self, part: str) -> list[Work]:
        full, append, new = (
            (block_full, block_append, self._new_of_block)
            if part == "block"
            else (model_full, model_append, self._new_of_model)
        )
        tensors = {"lengths": self._count(CAPACITY), "timestamps": self.times[:, :-1]}
        if part == "block":
            mask = self.model._valid_attn_mask(self.model._attn_mask, self.x)
            tensors |= {"x": self.x, "mask": mask}
        else:
            tensors |= {"ids": self.ids}
        works = [Work("recompute", full, tensors, [tensors])]
        for count in (CHUNK, 1):
            calls = [new(start, count) for start in range(CAPACITY - CHUNK, CAPACITY, count)]
            calls[0][STATE] = self._state_at(CAPACITY - CHUNK, part)
            last = calls[-1] | {STATE: self._state_at(CAPACITY - count, part)}
            works.append(Work(f"append {count}", append, last, calls))
        return works

    def _count(self, value: int) -> torch.Tensor:
        return torch.full((self.batch,), value, device=self.ids.device)

    def _state_at(self, length: int, part: str) -> list[torch.Tensor]:
        """The state after appending so many items in chunks."""
        state = self.model.empty_state(self.batch, CAPACITY)
        for start in range(0, length, CHUNK):
            new = self._new_of_model(start, CHUNK) | {"new_lengths": self._count(min(CHUNK, length - start))}
            _, *state = model_append(self.model, state, **new)
        return state if part == "model" else state[2:]

    def _new_of_model(self, start: int, count: int) -> Tensors:
        ids, times = self.ids[:, start : start + count], self.times[:, start : start + count + 1]
        return {"new_lengths": self._count(count), "ids": ids, "timestamps": times}

    def _new_of_block(self, start: int, count: int) -> Tensors:
        empty = self.times.new_zeros(self.batch, CAPACITY - start)
        return {
            "x": self.x[:, start : start + count],
            "lengths": self._count(start),
            "all_timestamps": torch.cat([empty, self.times[:, : start + count]], dim=1),
            "next_timestamps": self.times[:, start + 1 : start + count + 1],
            "new_lengths": self._count(count),
        }
