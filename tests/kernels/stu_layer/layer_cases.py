"""Small production STU layers, and the verdict on a result.

The rule is the project's (`parity.verdict.rule`). The oracle is the definition in float64 on the rounded
inputs, the reference the definition in the tested precision. No test has a tolerance of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.hstu_attention import ProductionMask
from kernels.stu_layer import Parameters, Sizes, stu_layers
from kernels.stu_layer.parameters import shapes_of
from parity.base.precision import PRECISIONS
from parity.verdict.rule import Verdict, judge
from tests.kernels.marks import DEVICE

# Norm, projection, attention, norm and gate, output.
MODULES_OF_A_LAYER = 5
LAYERS = 2
# An empty row, a row of one, and a total that no block divides.
LENGTHS = (5, 0, 1, 33, 20)
TARGETS = (2, 0, 0, 7, 1)

Run = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Case:
    """Sizes of the layers and the batch."""

    embedding_dim: int
    sizes: Sizes
    window: int = 0
    contextual: int = 0
    has_scale: bool = False
    lengths: tuple[int, ...] = LENGTHS


CASES = {
    "odd sizes": Case(12, Sizes(2, 5, 7)),
    "odd sizes, group norm": Case(12, Sizes(2, 5, 7, use_group_norm=True)),
    "powers of two": Case(32, Sizes(2, 16, 16)),
    "powers of two, group norm": Case(32, Sizes(4, 16, 16, use_group_norm=True)),
    "one head wider than the embedding": Case(20, Sizes(1, 16, 48)),
    "every mask": Case(24, Sizes(2, 8, 8), window=9, contextual=3, has_scale=True),
    "a single row": Case(12, Sizes(2, 5, 7), lengths=(1,)),
    "rows of several programs": Case(1500, Sizes(1, 16, 16), lengths=(9,)),
}


@dataclass(frozen=True)
class Inputs:
    x: torch.Tensor
    offsets: torch.Tensor
    longest: int
    mask: ProductionMask
    layers: list[Parameters]
    sizes: Sizes

    def to(self, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> Inputs:
        """On a device, floating-point tensors in a type."""

        def moved(x: torch.Tensor | None) -> torch.Tensor | None:
            return None if x is None else x.to(device, dtype if x.is_floating_point() else None)

        mask = ProductionMask(**{
            name: moved(value) if isinstance(value, torch.Tensor) else value
            for name, value in vars(self.mask).items()
        })  # fmt: skip
        layers = [Parameters(*map(moved, layer)) for layer in self.layers]
        return Inputs(moved(self.x), moved(self.offsets), self.longest, mask, layers, self.sizes)

    def run(self, backend: str) -> torch.Tensor:
        with torch.no_grad():
            return stu_layers(
                self.x, self.offsets, self.longest, self.mask, self.layers, self.sizes, backend=backend
            )


def inputs_of(case: Case, dtype: torch.dtype, seed: int = 0) -> Inputs:
    """Weights with which every layer moves its input by about its size; one row is zero.

    Such a row has a variance of zero: without epsilon its norm is NaN."""
    generator = torch.Generator().manual_seed(seed)
    total, longest = sum(case.lengths), max(case.lengths)
    layers = []
    for _ in range(LAYERS):
        tensors = {
            name: torch.randn(shape, generator=generator) / (shape[0] ** 0.5 if len(shape) == 2 else 1)
            for name, shape in shapes_of(case.sizes, case.embedding_dim).items()
        }
        layers.append(Parameters(**{name: tensor.to(dtype) for name, tensor in tensors.items()}))
    x = torch.randn(total, case.embedding_dim, generator=generator).to(dtype)
    x[total // 2] = 0
    scale = (0.5 + torch.rand(total, generator=generator)).to(dtype) if case.has_scale else None
    targets = torch.tensor(TARGETS) if case.lengths == LENGTHS else None
    mask = ProductionMask(
        case.sizes.attention_dim**-0.5, float(longest), scale, targets, case.window, case.contextual
    )
    offsets = torch.tensor((0, *case.lengths)).cumsum(0)
    return Inputs(x, offsets, longest, mask, layers, case.sizes)


def longest_sum(case: Case) -> int:
    return max(case.embedding_dim, 3 * case.sizes.gates, max(case.lengths), case.sizes.attention_dim)


def verdict(case: Case, precision: str, run: Callable[[Inputs], torch.Tensor], seed: int = 0) -> Verdict:
    """Judge `run(inputs)`, which gets tensors on `DEVICE`."""
    return judged(inputs_of(case, PRECISIONS[precision].dtype, seed), case, precision, run)


def judged(inputs: Inputs, case: Case, precision: str, run: Callable[[Inputs], torch.Tensor]) -> Verdict:
    """`verdict` on other inputs of the case."""
    oracle = inputs.to(dtype=torch.float64).run("eager")
    placed = inputs.to(DEVICE)
    reference, result = placed.run("eager").cpu(), run(placed).cpu()
    modules = MODULES_OF_A_LAYER * LAYERS
    return judge(oracle, reference, result, PRECISIONS[precision], longest_sum(case), modules=modules)
