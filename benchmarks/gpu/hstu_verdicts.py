"""Inputs of the research forward, and the verdict rule on each side's states.

The reference's error is one draw of a random number. Where few rows carry it, such as first positions of deep
models, it may be small by chance. A side that fails is judged again with rounding samples, as the harness
judges every tap (`parity.verdict.sampling_error`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch

from parity.base.precision import Precision
from parity.runners.oracle import sampling
from parity.runners.oracle.rounding import samples_of
from parity.verdict.rule import judge
from parity.verdict.sampling_error import RoundingSamples

MODULES_OF_A_BLOCK = 6
# Seconds. From a difference of 37,609 on, time buckets may depend on the logarithm's last bit. PyTorch's
# logarithm on a GPU differs from the CPU's, which the kernels use.
LATEST = 37_000

Side = Callable[["Inputs"], torch.Tensor]


@dataclass
class Inputs:
    """A batch, padded and jagged.

    Shapes: lengths (B,), ids and timestamps (B, N), flat ids (B N,), offsets (B + 1,)."""

    lengths: torch.Tensor
    ids: torch.Tensor
    timestamps: torch.Tensor
    flat: torch.Tensor
    offsets: torch.Tensor

    @classmethod
    def drawn(
        cls, batch: int, num_items: int, width: int, is_full: bool, seed: int, device: str = "cuda"
    ) -> Inputs:
        """Rows of the whole width, or of uniform random lengths; a single one of these has half of it."""
        generator = torch.Generator(device).manual_seed(seed)
        shape = (batch, width)
        lengths = torch.full((batch,), width, device=device)
        if not is_full:
            lengths = torch.randint(1, width + 1, (batch,), generator=generator, device=device)
            if batch == 1:
                lengths.fill_((width + 1) // 2)
        ids = torch.randint(1, num_items, shape, generator=generator, device=device)
        is_valid = torch.arange(width, device=device) < lengths[:, None]
        ids = ids * is_valid
        times = torch.randint(LATEST, shape, generator=generator, device=device).sort(1).values
        flat = torch.zeros(batch * width, dtype=torch.int64, device=device)
        valid = ids[is_valid]
        flat[: valid.numel()] = valid
        offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        return cls(lengths, ids, times, flat, offsets)

    def become(self, other: Inputs) -> None:
        """Take another batch's values, in the memory that a graph reads."""
        for name, value in vars(other).items():
            getattr(self, name).copy_(value)

    def valid(self, states: torch.Tensor) -> torch.Tensor:
        """(..., B, N, D) -> the rows of the sequences, (..., L, D), on the CPU."""
        positions = torch.arange(states.size(-2), device=self.lengths.device)
        mask = positions < self.lengths[:, None]
        return states[..., mask.to(states.device), :].cpu()

    def on_cpu(self) -> Inputs:
        return Inputs(*(tensor.cpu() for tensor in vars(self).values()))


def dense(model: torch.nn.Module) -> Side:
    """The dense model as a function of inputs."""
    return lambda x: model(x.lengths, x.ids, model.get_item_embeddings(x.ids), {"timestamps": x.timestamps})


def judged(
    precision: Precision,
    config: object,
    model: torch.nn.Module,
    wide: torch.nn.Module,
    sides: dict[str, Side],
    x: Inputs,
) -> dict[str, tuple[str, int]]:
    """By side, PASS or the reason, and the number of rounding samples of the verdict.

    Args:
        model, wide: the dense reference in the precision and in float64, on the inputs' device.
    """
    oracle, reference = x.valid(dense(wide)(x)), x.valid(dense(model)(x))
    longest_sum = max(model.sequence_width, config.item_embedding_dim)
    modules = MODULES_OF_A_BLOCK * config.num_blocks + 2
    samples: torch.Tensor | None = None
    result = {}
    for name, side in sides.items():
        states = side(x)
        states = x.valid(states) if states.dim() == 3 else states[: oracle.size(0)].cpu()
        verdict, count = judge(oracle, reference, states, precision, longest_sum, modules=modules), 0
        if not verdict.passed:
            samples = rounding_samples(wide, x, precision, oracle) if samples is None else samples
            if count := len(samples):
                verdict = judge(
                    oracle,
                    reference,
                    states,
                    precision,
                    longest_sum,
                    modules=modules,
                    rounding_samples=RoundingSamples(samples),
                )
        result[name] = ("PASS" if verdict.passed else verdict.reason), count
    return result


def rounding_samples(
    wide: torch.nn.Module, x: Inputs, precision: Precision, oracle: torch.Tensor
) -> torch.Tensor:
    """(K, L, D), the oracle under random roundings on the CPU; the larger it is, the fewer, down to none."""
    model, inputs = copy.deepcopy(wide).cpu(), x.on_cpu()
    count = samples_of(oracle)
    if not count:
        return oracle.new_empty((0, *oracle.shape))
    with sampling.LargestResult() as largest, torch.inference_mode():
        dense(model)(inputs)
    samples = sampling.rounding_samples(
        inputs.on_cpu, lambda own: {"states": dense(model)(own)}, ["states"], precision, count, largest.bytes
    )
    return inputs.valid(samples["states"])
