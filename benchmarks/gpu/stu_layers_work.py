"""Cases of `stu_layers.py`: shapes, inputs and least times."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.hstu_attention import ProductionMask
from kernels.stu_layer import Parameters, Sizes
from kernels.stu_layer.parameters import shapes_of
from parity.base.precision import PRECISIONS
from parity.base.work import Work
from perf_model.work.parts import around, linear

LAYERS = 5


@dataclass(frozen=True)
class Case:
    """B histories of `shortest` to `longest` rows, `targets` targets behind each."""

    batch: int
    shortest: int
    longest: int
    targets: int
    embedding_dim: int = 512
    heads: int = 4
    dim: int = 128
    use_group_norm: bool = False
    seed: int = 0
    precision: str = "bf16"

    @property
    def name(self) -> str:
        norm = ", group norm" if self.use_group_norm else ""
        history = f"{self.shortest}-{self.longest} + {self.targets}"
        width = f"D {self.embedding_dim}, {self.heads} x {self.dim}"
        return f"B {self.batch}, {history}, {width}, {self.precision}{norm}"

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.heads, self.dim, self.dim, self.use_group_norm)

    @property
    def compiled_as(self) -> tuple[object, ...]:
        """Facts that decide which of a peer's kernels are compiled."""
        batches = min(self.batch, 2) + (self.batch >= 16)
        is_multiple = (self.max_seq_len % 16 == 0, self.batch % 16 == 0)
        gates = self.sizes.gates
        return (
            self.dim,
            self.precision,
            self.use_group_norm,
            self.embedding_dim,
            gates,
            batches,
            *is_multiple,
        )

    @property
    def max_seq_len(self) -> int:
        return self.longest + self.targets


CASES = (
    Case(1, 7000, 7000, 2048),
    Case(8, 5000, 8000, 2048),
    Case(32, 300, 5000, 32),
    Case(16, 1000, 3000, 512),
)


def drawn_cases(count: int, seed: int) -> list[Case]:
    """Cases with batch, lengths, targets, heads and widths from the ranges below."""
    generator = torch.Generator().manual_seed(seed)

    def one_of(*values: int) -> int:
        return values[int(torch.randint(len(values), (1,), generator=generator))]

    cases = []
    for number in range(count):
        longest = int(2 ** (8 + 5 * torch.rand(1, generator=generator).item()))
        shortest = int(longest * torch.rand(1, generator=generator).item())
        rows = one_of(4_000, 16_000, 64_000)
        targets = one_of(16, 100, 512)
        batch = max(1, rows // ((longest + shortest) // 2 + targets))
        dim, heads = one_of(32, 64, 128), one_of(2, 4, 8)
        width = one_of(128, 256, 384, 512, 768)
        is_group_norm, precision = one_of(0, 0, 1) == 1, ("bf16", "bf16", "bf16", "fp16")[one_of(0, 1, 2, 3)]
        cases.append(
            Case(batch, shortest, longest, targets, width, heads, dim, is_group_norm, number, precision)
        )
    return cases


@dataclass(frozen=True)
class Inputs:
    """A case's tensors on the GPU."""

    x: torch.Tensor
    offsets: torch.Tensor
    lengths: torch.Tensor
    targets: torch.Tensor
    layers: list[Parameters]
    mask: ProductionMask


def inputs_of(case: Case) -> Inputs:
    """Rows of order one, weights that let each layer move them by about their size."""
    dtype = PRECISIONS[case.precision].dtype
    generator = torch.Generator("cuda").manual_seed(case.seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cuda")

    history = torch.randint(
        case.shortest, case.longest + 1, (case.batch,), generator=generator, device="cuda"
    )
    lengths = history + case.targets
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    targets = torch.full_like(lengths, case.targets)
    shapes = shapes_of(case.sizes, case.embedding_dim)
    layers = []
    for _ in range(LAYERS):
        tensors = {name: normal(*shape) for name, shape in shapes.items()}
        for name, tensor in tensors.items():
            if tensor.dim() == 2:
                tensor /= tensor.size(0) ** 0.5
            elif name.endswith("_norm_weight"):
                tensor.mul_(0.2).add_(1)
            else:
                tensor.mul_(0.2)
        layers.append(Parameters(**{name: tensor.to(dtype) for name, tensor in tensors.items()}))
    mask = ProductionMask(case.dim**-0.5, float(case.max_seq_len), None, targets)
    x = normal(int(offsets[-1]), case.embedding_dim).to(dtype)
    return Inputs(x, offsets, lengths, targets, layers, mask)


def work_of(case: Case, inputs: Inputs) -> tuple[Work, float]:
    """Work of the layers, and the FLOPs of their attention: pairs that the mask lets see each other."""
    width, heads = case.embedding_dim, case.sizes
    rows = inputs.x.size(0)
    history = (inputs.lengths - inputs.targets).double()
    targets = inputs.targets.double()
    pairs = float((history * (history + 1) / 2 + targets * (history + 1)).sum())
    flops = int(2 * pairs * (heads.factors + heads.gates))
    item = inputs.x.element_size()
    parts = (linear(rows, width, heads.projected, item), linear(rows, 3 * heads.gates, width, item))
    moved = item * rows * width
    layer = around(*parts, inputs=moved, outputs=moved, flops=flops)
    return around(*[layer] * LAYERS, inputs=moved, outputs=moved), LAYERS * flops


def floor_us(case: Case, inputs: Inputs, ceilings: dict[str, float]) -> float:
    """Least microseconds of the layers, by the ceilings of this run."""
    work, _ = work_of(case, inputs)
    return 1e6 * max(work.flops / ceilings["bf16_per_s"], work.bytes / ceilings["copy_bytes_per_s"])
