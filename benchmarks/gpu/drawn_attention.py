"""Attention cases of `drawn.py`: shapes from stated ranges, inputs, sides, verdicts and least times."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.hstu_attention import ProductionMask, Schedule, hstu_attention, search_schedule
from kernels.hstu_attention.hopper_launch import refusal
from kernels.hstu_attention.layout import Call
from kernels.hstu_attention.search import candidates
from parity.base.precision import PRECISIONS
from parity.verdict.rule import judge

# Rows of a sequence and head that the verdict sees: spread evenly.
MOST_JUDGED_ROWS = 512
# The least sequence has contextual rows and a history.
SHORTEST = 16


@dataclass(frozen=True)
class AttentionCase:
    """B histories of `shortest` to `longest` rows, uniform, and `targets` targets behind each."""

    batch: int
    shortest: int
    longest: int
    targets: int
    window: int
    contextual: int
    heads: int
    dim: int
    precision: str
    seed: int

    @property
    def name(self) -> str:
        mask = f"{f', window {self.window}' if self.window else ''}"
        mask += f"{f', {self.contextual} contextual' if self.contextual else ''}"
        history = f"{self.shortest}-{self.longest} + {self.targets}"
        return f"B {self.batch}, {history}, {self.heads} x {self.dim}, {self.precision}{mask}"

    @property
    def max_seq_len(self) -> int:
        return self.longest + self.targets

    @property
    def compiled_as(self) -> tuple[object, ...]:
        """Facts that decide which of a peer's kernels are compiled."""
        batches = min(self.batch, 2) + (self.batch >= 16)
        is_multiple = (self.max_seq_len % 16 == 0, self.batch % 16 == 0)
        mask = (self.targets > 0, self.window > 0, self.contextual > 0)
        return (self.dim, self.precision, *mask, batches, *is_multiple)


# Shapes with goals of their own, at 4 heads of 128: targets, windows, and full rows.
FIXED = tuple(
    AttentionCase(batch, shortest, longest, targets, window, 0, 4, 128, "bf16", number)
    for number, (batch, shortest, longest, targets, window) in enumerate((
        (16, 8192, 8192, 0, 0),
        (8, 16384, 16384, 0, 0),
        (16, 8192, 8192, 512, 0),
        (16, 5000, 8000, 2048, 0),
        (32, 1024, 2048, 1024, 0),
        (1, 7000, 7000, 2048, 0),
        (16, 8192, 8192, 0, 1024),
        (16, 8192, 8192, 512, 1024),
        (64, 1024, 4096, 0, 1024),
    ))
)  # fmt: skip


def drawn_attention(count: int, seed: int) -> list[AttentionCase]:
    """Cases from the ranges below."""
    generator = torch.Generator().manual_seed(seed)

    def one_of(*values: int) -> int:
        return values[int(torch.randint(len(values), (1,), generator=generator))]

    cases = []
    for number in range(count):
        longest = int(2 ** (8 + 6 * torch.rand(1, generator=generator).item()))
        shortest = max(SHORTEST, int(longest * torch.rand(1, generator=generator).item()))
        rows = one_of(8_000, 32_000, 128_000)
        targets = one_of(0, 0, 16, 512, 2048)
        batch = max(1, rows // ((longest + shortest) // 2 + targets))
        window, contextual = one_of(0, 0, 256, 1024), one_of(0, 0, 0, 5)
        heads, dim = one_of(2, 4, 8), one_of(32, 64, 128)
        precision = ("bf16", "bf16", "bf16", "fp16")[one_of(0, 1, 2, 3)]
        cases.append(
            AttentionCase(
                batch, shortest, longest, targets, window, contextual, heads, dim, precision, number
            )
        )
    return cases


@dataclass(frozen=True)
class Inputs:
    """A case's tensors on the GPU."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    offsets: torch.Tensor
    targets: torch.Tensor | None
    mask: ProductionMask


def inputs_of(case: AttentionCase) -> Inputs:
    generator = torch.Generator("cuda").manual_seed(case.seed)
    history = torch.randint(
        case.shortest, case.longest + 1, (case.batch,), generator=generator, device="cuda"
    )
    lengths = history + case.targets
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    targets = torch.full_like(lengths, case.targets) if case.targets else None
    shape = (int(offsets[-1]), case.heads, case.dim)
    dtype = PRECISIONS[case.precision].dtype
    q, k, v = (torch.randn(shape, generator=generator, device="cuda").to(dtype) for _ in range(3))
    return Inputs(q, k, v, offsets, targets, _mask(case, targets))


def _mask(case: AttentionCase, targets: torch.Tensor | None) -> ProductionMask:
    return ProductionMask(
        case.dim**-0.5, float(case.max_seq_len), None, targets, case.window, case.contextual
    )


Side = Callable[[], torch.Tensor]


def _call(case: AttentionCase, i: Inputs) -> Call:
    return Call(i.q, i.k, i.v, i.offsets, case.max_seq_len, i.mask)


def searched(case: AttentionCase) -> Schedule:
    """The schedule that a search chooses for the case."""
    return search_schedule(*_call(case, inputs_of(case)))


def run_candidate(case: AttentionCase, number: int) -> None:
    """Run the search's candidate of this number, if there is one: its kernel is compiled then."""
    call = _call(case, inputs_of(case))
    for schedule in candidates(call)[number : number + 1]:
        hstu_attention(*call, schedule=schedule)


def ours(case: AttentionCase, i: Inputs, with_hopper: bool, schedule: Schedule | None) -> dict[str, Side]:
    """Our sides: Triton's kernel as "ours", on demand with a schedule from a search, and on demand the Hopper
    form where it takes the case.
    """
    call = _call(case, i)
    sides = {"ours": lambda: hstu_attention(*call)}
    if schedule is not None:
        sides["ours, searched"] = lambda: hstu_attention(*call, schedule=schedule)
    if with_hopper and not refusal(call):
        sides["ours, hopper"] = lambda: hstu_attention(*call, backend="hopper")
    return sides


def ours_by_choice(case: AttentionCase, i: Inputs) -> Side:
    """The form that the call's sizes choose."""
    return lambda: hstu_attention(*_call(case, i), backend="auto")


def meta(case: AttentionCase, i: Inputs, use_tma: bool) -> Side:
    """Meta's kernel on contiguous q, k and v, with or without tensor descriptors."""
    module = importlib.import_module("generative_recommenders.ops.triton.triton_hstu_attention")
    return lambda: module.triton_hstu_mha(
        case.max_seq_len, case.dim**-0.5, i.q, i.k, i.v, i.offsets, i.targets, case.window, case.contextual,
        False, use_tma,
    )  # fmt: skip


def judged(case: AttentionCase, i: Inputs, sides: dict[str, Side]) -> dict[str, str]:
    """Reasons of failures by side, empty for a pass; of the longest and the last sequence, two heads."""
    results = {name: side() for name, side in sides.items()}
    reasons = dict.fromkeys(sides, "")
    for row in {int(i.offsets.diff().argmax()), case.batch - 1}:
        start, end = i.offsets[row : row + 2].tolist()
        bounds = torch.tensor([0, end - start], device="cuda")
        mask = _mask(case, None if i.targets is None else i.targets[row : row + 1])
        count = min(end - start, MOST_JUDGED_ROWS)
        seen = torch.linspace(0, end - start - 1, count, dtype=torch.float64, device="cuda").round().long()
        for head in (0, case.heads - 1):
            part = [x[start:end, head : head + 1] for x in (i.q, i.k, i.v)]
            oracle, reference = (
                hstu_attention(*tensors, bounds, end - start, mask, backend="eager")[seen].cpu()
                for tensors in ([x.double() for x in part], part)
            )
            for name, result in results.items():
                own = result[start:end, head : head + 1][seen].cpu()
                longest_sum = max(case.dim, end - start)
                verdict = judge(oracle, reference, own, PRECISIONS[case.precision], longest_sum)
                reasons[name] = reasons[name] or verdict.reason
    return reasons


def visible_pairs(case: AttentionCase, lengths: torch.Tensor) -> float:
    """Pairs of row and column that the mask lets see each other, all sequences."""
    history = (lengths - case.targets).double()
    # All contextual rows are one position; without them, the first row of the history is one.
    first = max(case.contextual, 1)
    window = torch.tensor(float(case.window or 1 << 40), dtype=torch.float64, device=lengths.device)
    positions = history - first
    near = torch.minimum(positions, window)
    pairs = first * near + near * (near + 1) / 2 + (positions - near) * (window + 1)
    pairs += case.contextual * history if case.contextual else torch.ones_like(history)
    a_target = torch.where(positions + 1 <= window, history + 1, window + 1)
    return float((pairs + case.targets * a_target).sum())


def floor_us(case: AttentionCase, i: Inputs, ceilings: dict[str, float]) -> float:
    """Least microseconds: products of visible pairs, or q, k, v and the result once."""
    flops = 4 * case.heads * case.dim * visible_pairs(case, i.offsets.diff())
    moved = 4 * i.q.numel() * i.q.element_size()
    return 1e6 * max(flops / ceilings["bf16_per_s"], moved / ceilings["copy_bytes_per_s"])
