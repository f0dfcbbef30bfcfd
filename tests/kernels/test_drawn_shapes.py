"""Kernels at shapes that nobody chose: drawn by a seed from the ranges below, judged by the project's rule.

On a GPU sizes are those of real models. Triton's interpreter gets small ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from kernels.dlrm import Bags
from kernels.dlrm.forward import FusedDLRM
from kernels.hstu_attention import ProductionMask, ResearchMask, hstu_attention
from kernels.hstu_attention.hopper_launch import refusal
from kernels.hstu_attention.layout import Call
from kernels.hstu_forward import GraphedHSTUForward, HSTUForward
from kernels.stu_layer import Sizes
from parity.base.precision import PRECISIONS
from parity.verdict.rule import judge
from reference.dlrm import DLRM_Net
from reference.dlrm_layers import interaction_width
from tests.kernels.dlrm.test_forward import mixed, on_device, round_dense_layers
from tests.kernels.hstu_attention import attention_cases
from tests.kernels.hstu_forward import forward_cases
from tests.kernels.hstu_forward.test_cache import stepped
from tests.kernels.marks import DEVICE, GPU, needs_hopper, needs_triton
from tests.kernels.stu_layer import layer_cases

SEED = 20261125
COUNT = 40 if GPU else 4
HALVES = ("fp16", "bf16") if GPU else ("fp16",)
FLOAT32_FORMS = ("ieee", "fp16x3")
numbers = pytest.mark.parametrize("number", range(COUNT))


@dataclass(frozen=True)
class Draw:
    """Numbers from one generator. `least` and `most` are for a GPU, `few` is the interpreter's largest."""

    generator: torch.Generator

    @classmethod
    def of(cls, family: int, number: int) -> Draw:
        return cls(torch.Generator().manual_seed(SEED + 1000 * family + number))

    def upto(self, least: int, most: int) -> int:
        """A whole number, small ones as likely as large ones by their number of bits."""
        low, high = np.log2(least), np.log2(most + 1)
        return min(most, int(2 ** (low + (high - low) * torch.rand(1, generator=self.generator).item())))

    def size(self, least: int, most: int, few: int) -> int:
        return self.upto(least, most if GPU else few)

    def one_of(self, *values):
        return values[int(torch.randint(len(values), (1,), generator=self.generator))]

    def lengths(self, most: int) -> tuple[int, ...]:
        """Rows of a batch of at most `most` elements each: full, ragged, short, and one row alone."""
        batch = self.size(1, 48, 4)
        kind = self.one_of("full", "ragged", "short", "one long", "alone")
        if kind == "alone":
            return (self.upto(1, most),)
        if kind == "full":
            return (most,) * min(batch, 6)
        ends = {"ragged": most, "short": max(1, most // 16), "one long": 2}[kind]
        rows = torch.randint(ends + 1, (batch,), generator=self.generator).tolist()
        rows[int(torch.randint(batch, (1,), generator=self.generator))] = most
        return tuple(rows)

    def precision(self) -> str:
        return self.one_of("fp32", *HALVES)


def production_mask(draw: Draw, lengths: tuple[int, ...], alpha: float):
    """Of every option: targets of a length of their own a row, a window, contextual rows, a scale."""
    longest = max(lengths)
    contextual = draw.one_of(0, 0, 1, min(5, longest), draw.upto(1, longest))
    window = draw.one_of(0, 0, 1, draw.upto(1, 2 * longest))
    targets = None
    if draw.one_of(False, True):
        room = torch.tensor([max(0, length - contextual) for length in lengths])
        targets = (torch.rand(len(lengths), generator=draw.generator) * (room + 1)).long().clamp(max=room)
        targets = targets.to(draw.one_of(torch.int32, torch.int64))
    has_scale = draw.one_of(False, True)

    def make(generator: torch.Generator, total: int) -> ProductionMask:
        scale = 0.5 + torch.rand(total, generator=generator) if has_scale else None
        return ProductionMask(alpha, float(longest), scale, targets, window, contextual)

    return make


def research_mask(draw: Draw, lengths: tuple[int, ...]):
    """With and without times. The table of positions is as wide as the longest row, or wider."""
    longest = max(lengths)
    width = longest + draw.one_of(0, 1, 30)
    has_time = draw.one_of(False, True, True)
    buckets = draw.one_of(128, 128, 16, 300)
    span = draw.one_of(10**3, 10**6, 10**9)

    def make(generator: torch.Generator, total: int) -> ResearchMask:
        position = torch.randn(2 * width - 1, generator=generator)
        if not has_time:
            return ResearchMask(position, float(width))
        times = torch.randint(span, (len(lengths), width), generator=generator).sort(1).values
        weights = torch.randn(buckets + 1, generator=generator)
        return ResearchMask(position, float(width), times, weights)

    return make


def attention_case(number: int) -> tuple[attention_cases.Case, str, Draw]:
    draw = Draw.of(1, number)
    lengths = draw.lengths(draw.size(1, 700, 40))
    attention_dim, value_dim = draw.size(1, 256, 40), draw.size(1, 256, 40)
    if draw.one_of(False, True, True):
        value_dim = attention_dim = draw.one_of(32, 64, 128) if GPU else 16
    mask = (
        research_mask(draw, lengths)
        if draw.one_of(False, True)
        else production_mask(draw, lengths, draw.one_of(1.0, attention_dim**-0.5))
    )
    heads = draw.size(1, 8, 3)
    return attention_cases.Case(heads, attention_dim, value_dim, mask, lengths), draw.precision(), draw


def sliced(x: torch.Tensor) -> torch.Tensor:
    """The same numbers as a slice of a wider tensor."""
    wide = x.new_full((x.size(0), x.size(1), x.size(2) + 16), float("nan"))
    wide[..., 8:-8] = x
    return wide[..., 8:-8]


@needs_triton
@numbers
def test_attention(number):
    case, precision, draw = attention_case(number)
    dot = draw.one_of("ieee", "tf32x3") if precision == "fp32" and GPU else "ieee"
    is_sliced, is_short = draw.one_of(False, True), draw.one_of(False, True)

    def run(q, k, v, offsets, longest, mask):
        if is_sliced:
            q, k, v = map(sliced, (q, k, v))
        if is_short:
            offsets = offsets.int()
        return hstu_attention(q, k, v, offsets, longest, mask, dot_precision=dot)

    verdict = attention_cases.verdict(case, precision, run, number)
    assert verdict.passed, (case, precision, dot, is_sliced, verdict.reason)


@needs_hopper
@numbers
def test_hopper_attention(number):
    draw = Draw.of(2, number)
    lengths = draw.lengths(draw.upto(1, 1500))
    size = draw.one_of(32, 64, 128)
    mask = production_mask(draw, lengths, size**-0.5)
    case = attention_cases.Case(draw.upto(1, 8), size, size, mask, lengths)

    def run(q, k, v, offsets, longest, mask):
        assert not refusal(Call(q, k, v, offsets, longest, mask), torch.empty_like(v))
        return hstu_attention(q, k, v, offsets, longest, mask, backend="hopper")

    precision = draw.one_of("fp16", "bf16")
    verdict = attention_cases.verdict(case, precision, run, number)
    assert verdict.passed, (case, precision, verdict.reason)


@needs_triton
@numbers
def test_production_layers(number):
    draw = Draw.of(3, number)
    lengths = draw.lengths(draw.size(1, 500, 20))
    sizes = Sizes(draw.size(1, 8, 3), draw.size(1, 160, 12), draw.size(1, 160, 12), draw.one_of(False, True))
    mask = production_mask(draw, lengths, sizes.attention_dim**-0.5)
    case = layer_cases.Case(draw.size(1, 700, 40), sizes, lengths=lengths)
    precision = draw.precision()
    dtype = PRECISIONS[precision].dtype
    drawn = mask(torch.Generator().manual_seed(number), sum(lengths))
    inputs = replace(layer_cases.inputs_of(case, dtype, number), mask=drawn).to(dtype=dtype)
    verdict = layer_cases.judged(inputs, case, precision, lambda inputs: inputs.run("triton"))
    assert verdict.passed, (case, drawn, precision, verdict.reason)


def steps_of(draw: Draw, lengths: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Lengths after each append: some rows wait, others take one or many."""
    steps = [lengths]
    for _ in range(2):
        steps.append(tuple(draw.one_of(n, n // 2, max(0, n - 1), 0) for n in steps[-1]))
    return (*dict.fromkeys(((0,) * len(lengths), *reversed(steps))),)


@needs_triton
@numbers
@pytest.mark.parametrize("form", ["call", "graph", "steps"])
def test_research_forward(form, number):
    if form == "graph" and not GPU:
        pytest.skip("no CUDA device: a CUDA graph needs one")
    draw = Draw.of(4, number)
    sizes = (draw.size(4, 512, 40), draw.size(1, 8, 4), draw.size(1, 128, 20), draw.size(1, 128, 20))
    config, model = forward_cases.small_model(
        **forward_cases.sized(*sizes),
        max_sequence_len=draw.size(2, 300, 20),
        num_blocks=draw.upto(1, 3 if GPU else 1),
    )
    lengths = draw.lengths(draw.upto(1, model.sequence_width))
    precision = draw.precision()
    dot = draw.one_of(*FLOAT32_FORMS) if precision == "fp32" else "ieee"
    steps = steps_of(draw, lengths)
    settings = forward_cases.settings_of(config, model)

    def run(state, ids, offsets, times, longest):
        forward = HSTUForward(state, settings, dot)
        if form == "call":
            return forward(ids, offsets, times, longest)
        if form == "graph":
            sizes = (len(lengths) + 2, sum(lengths) + 7, longest, times.size(1))
            return GraphedHSTUForward(forward, *sizes)(ids, offsets, times)
        return stepped(forward, ids, offsets, times, longest, steps)

    verdict = forward_cases.verdict(config, model, precision, lengths, run)
    assert verdict.passed, (form, config, lengths, precision, dot, steps, verdict.reason)


@needs_triton
@numbers
@torch.no_grad()
def test_dlrm(number):
    draw = Draw.of(5, number)
    tables = tuple(draw.size(1, 5000, 60) for _ in range(draw.size(1, 30, 5)))
    width, itself = draw.size(1, 256, 20), draw.one_of(False, True)
    bottom = (draw.size(1, 40, 9), *(draw.size(1, 600, 40) for _ in range(draw.upto(1, 3))), width)
    top = (
        interaction_width("dot", len(tables) + 1, width, itself),
        *(draw.size(1, 900, 40) for _ in range(draw.upto(1, 3))),
        1,
    )
    net = DLRM_Net(
        width, tables, bottom, top, arch_interaction_itself=itself, sigmoid_top=len(top) - 2,
        rng=np.random.RandomState(number),
    ).eval()  # fmt: skip
    batch, precision = draw.size(1, 2000, 6), draw.precision()
    dtype = PRECISIONS[precision].dtype
    longest = draw.one_of(1, 3, 60)
    lS_o, lS_i = [], []
    for rows in tables:
        lengths = torch.randint(longest + 1, (batch,), generator=draw.generator)
        lS_o.append(lengths.cumsum(0) - lengths)
        lS_i.append(torch.randint(rows, (int(lengths.sum()),), generator=draw.generator))
    dense = torch.randn(batch, bottom[0], generator=draw.generator).to(dtype)
    net = round_dense_layers(net, dtype)
    state = {name: value.to(DEVICE) for name, value in net.state_dict().items()}
    model = FusedDLRM(state, sigmoid_top=len(top) - 2, itself=itself, dtype=dtype)
    result = model(dense.to(DEVICE), on_device(Bags.join(lS_o, lS_i))).cpu()
    oracle = mixed(net.double(), dense, lS_o, lS_i, torch.float64)
    reference = mixed(net.float(), dense.to(DEVICE), lS_o, lS_i, dtype).cpu()
    # Bags, and the layers of both MLPs behind one another, with the interaction between them.
    modules = len(bottom) - 1 + 1 + len(top) - 1
    sums = max(*bottom, *top, longest)
    verdict = judge(oracle, reference, result, PRECISIONS[precision], sums, modules=modules)
    assert verdict.passed, (tables, bottom, top, batch, precision, verdict.reason)
