"""Several tiny sequences in one program of the attention: every mask, and no trace of a neighbour."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.hstu_attention import ProductionMask, ResearchMask, hstu_attention
from kernels.hstu_attention.layout import Call, layout_of
from tests.kernels.hstu_attention.attention_cases import Case, verdict
from tests.kernels.marks import DEVICE, GPU, needs_triton
from tests.kernels.mutation import mutated

pytestmark = needs_triton
# Empty ones in front, between and behind; as many rows as a pack of two has; packs of one and of several.
LENGTHS = (0, 16, 16, 5, 0, 0, 1, 12, 16, 9, 3, 0)
LONGEST = 16
TARGETS = (0, 3, 1, 2, 0, 0, 0, 5, 0, 6, 0, 0)


def masks(has_targets: bool = False, has_scale: bool = False, window: int = 0, contextual: int = 0):
    def make(generator: torch.Generator, length: int) -> ProductionMask:
        targets = torch.tensor(TARGETS) if has_targets else None
        scale = 0.5 + torch.rand(length, generator=generator) if has_scale else None
        return ProductionMask(0.4, 100.0, scale, targets, window, contextual)

    return make


MASKS = {
    "causal": masks(),
    "scale": masks(has_scale=True),
    "targets": masks(has_targets=True),
    "window": masks(window=4),
    "contextual rows": masks(contextual=3),
    "targets and window": masks(has_targets=True, window=4),
    "everything": masks(True, True, 4, 3),
}


def packed(block: int, packs: int, **options: int):
    """The kernel with this many sequences of a program, in memory that is NaN before."""
    from kernels.hstu_attention import triton_launch

    def run(q, k, v, offsets, max_seq_len, mask):
        sigmoid = "half" if GPU and q.dtype != torch.float32 else "exact"
        cut = triton_launch.Schedule(block, block, 4, 2, sigmoid=sigmoid, packed=packs, **options)
        call = Call(q, k, v, offsets, max_seq_len, mask)
        out = torch.full_like(v, float("nan"), memory_format=torch.contiguous_format)
        return triton_launch.launch_call(call, layout_of(call), "ieee", out, cut)

    return run


def chosen(sequences: int, longest: int, heads: int, dim: int, mask=None, dtype=torch.bfloat16, **options):
    from kernels.hstu_attention.schedules import choose_schedule

    q = torch.empty(sequences * (longest // 2 + 1), heads, dim, dtype=dtype, device="meta")
    return choose_schedule(q, q, longest, mask or ProductionMask(1.0, 1.0), sequences, **options)


@pytest.mark.parametrize(
    ("call", "rows", "packed", "heads"),
    [
        # Blocks of a power of two of rows, with as many sequences as surely fit.
        ((4000, 1, 4, 64), 16, 16, 2),
        ((4000, 5, 4, 64), 16, 3, 2),
        ((4000, 16, 4, 64), 16, 1, 2),
        ((4000, 17, 4, 64), 32, 1, 2),
        ((4000, 64, 4, 64), 64, 1, 4),
        # Heads that share a program leave 132 of them, and are as many as divide all.
        ((2000, 20, 8, 128), 32, 1, 4),
        ((2000, 20, 6, 128), 32, 1, 2),
        ((2000, 20, 3, 128), 32, 1, 1),
        ((131, 20, 4, 128), 32, 1, 2),
        ((65, 20, 4, 128), 32, 1, 1),
        ((2000, 20, 4, 256), 32, 1, 4),
        # Longer blocks gain by a loop over heads alone, and those of 256 columns not at all.
        ((4000, 65, 4, 64), 0, 0, 1),
        ((4000, 64, 3, 64), 0, 0, 1),
        ((65, 64, 4, 64), 0, 0, 1),
        ((4000, 64, 4, 256), 0, 0, 1),
    ],
    ids=str,
)
def test_the_pack_follows_from_sequences_and_heads(call, rows, packed, heads):
    schedule = chosen(*call)
    assert (schedule.packed, schedule.heads) == (packed, heads)
    assert not packed or (schedule.block_m, schedule.block_n) == (rows, rows)


def test_other_calls_have_no_packs():
    research = ResearchMask(torch.zeros(39), 20.0)
    assert chosen(4000, 20, 4, 64).packed
    assert not chosen(4000, 20, 4, 64, research).packed
    assert not chosen(4000, 20, 4, 64, dtype=torch.float32).packed
    # New rows behind a cache.
    assert not chosen(4000, 20, 4, 64, may_pack=False).packed
    # Ahead of time the number of rows is unknown.
    assert not chosen(0, 20, 4, 64).packed


@pytest.mark.parametrize(
    ("longest", "sequences"), [(5, 3), (20, 4), pytest.param(40, 140, marks=pytest.mark.full)]
)
def test_a_call_takes_its_pack(longest, sequences, monkeypatch):
    """With the same result as the other kernel, up to half precision's rounding; and the same bits again."""
    from kernels.hstu_attention import triton_launch

    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(0, longest + 1, (sequences,), generator=generator)
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(DEVICE)
    shape = (int(offsets[-1]), 2, 32)
    q, k, v = (torch.randn(shape, generator=generator).to(DEVICE, torch.float16) for _ in range(3))
    call = (q, k, v, offsets, longest, ProductionMask(0.2, 20.0))
    launched = []
    kernel = triton_launch.packed_attention_kernel
    monkeypatch.setattr(triton_launch, "packed_attention_kernel", Counted(kernel, launched))
    out = hstu_attention(*call)
    assert len(launched) == 1
    assert torch.equal(out, hstu_attention(*call))
    other = triton_launch.Schedule(16, 16, num_warps=4, num_stages=1)
    torch.testing.assert_close(out, triton_launch.launch(*call, "ieee", other))


class Counted:
    """A kernel whose launches by Triton are counted: all in the interpreter, and the first one on a GPU."""

    def __init__(self, kernel, launched: list) -> None:
        self.kernel, self.launched = kernel, launched

    def __getitem__(self, grid):
        self.launched.append(grid)
        return self.kernel[grid]


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("cut", [(16, 1), (32, 2), (64, 3), (64, 4)], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_every_mask_is_right(name, cut, precision):
    if precision == "bf16" and not GPU:
        pytest.skip("Triton's interpreter multiplies bfloat16 as integers")
    actual = verdict(Case(2, 32, 32, MASKS[name], LENGTHS), precision, packed(*cut))
    assert actual.passed, actual.reason


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize(("dim", "value_dim"), [(25, 50), (64, 64), (128, 128), (256, 200)])
def test_every_head_size_is_right(dim, value_dim, heads):
    case = Case(2, dim, value_dim, MASKS["everything"], LENGTHS)
    actual = verdict(case, "fp16", packed(32, 2, heads=heads))
    assert actual.passed, actual.reason


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -7.0])
@pytest.mark.parametrize("name", MASKS)
def test_other_sequences_change_nothing(name, garbage):
    generator = torch.Generator().manual_seed(3)
    lengths = (7, 0, 16, 9, 12)
    offsets = torch.tensor((0, *lengths)).cumsum(0)
    mask = MASKS[name](generator, 44)
    mask = replace(mask, num_targets=None if mask.num_targets is None else torch.tensor([2, 0, 5, 0, 3]))
    dtype = torch.float16 if GPU else torch.float32
    q, k, v = (torch.randn(44, 2, 32, generator=generator).to(dtype) for _ in range(3))
    tensors = {name: x.to(DEVICE) for name, x in vars(mask).items() if isinstance(x, torch.Tensor)}
    mask = replace(mask, **tensors)
    results = []
    for value in (0.0, garbage):
        for x in (q, k, v):
            x[:7], x[23:] = value, value
        placed = [x.to(DEVICE) for x in (q, k, v, offsets)]
        results.append(packed(64, 4)(*placed, 16, mask)[7:23])
    assert torch.isfinite(results[0]).all()
    assert torch.equal(*results)


FAULTS = {
    "sequences see each other": (
        "visible = visible & (start[:, None] == start[None, :])",
        "visible = visible & True",
    ),
    "a sequence begins a row late": ("has_begun = rows >= begin", "has_begun = rows > begin"),
    "the next sequence's targets": ("tl.minimum(i, count - 1)", "tl.minimum(i + 1, count - 1)"),
    "the first rows' scale": ("attn_scale + pack_start + rows", "attn_scale + rows"),
    "the first heads twice": ("head = program % parts * heads", "head = 0 * parts"),
    "the last sequence of a pack left out": ("inside = rows < size", "inside = rows < size - 1"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught(fault, tmp_path, monkeypatch):
    from kernels.hstu_attention import triton_kernel_packs, triton_launch

    faulty = mutated(triton_kernel_packs, *FAULTS[fault], tmp_path, monkeypatch)
    monkeypatch.setattr(triton_launch, "packed_attention_kernel", faulty.packed_attention_kernel)
    assert not verdict(Case(2, 32, 32, MASKS["everything"], LENGTHS), "fp32", packed(64, 4)).passed


def test_a_neighbours_nan_is_seen_without_the_second_pass(tmp_path, monkeypatch):
    from kernels.hstu_attention import triton_kernel_packs, triton_launch

    old = "if tl.max(has_nan, axis=0) > 0:"
    faulty = mutated(triton_kernel_packs, old, old.replace("> 0", "> 1"), tmp_path, monkeypatch)
    monkeypatch.setattr(triton_launch, "packed_attention_kernel", faulty.packed_attention_kernel)
    with pytest.raises(AssertionError):
        test_other_sequences_change_nothing("causal", float("nan"))


def test_nan_of_a_sequence_stays_in_its_own_rows():
    q, k, v = (torch.ones(20, 1, 16, device=DEVICE) for _ in range(3))
    v[5:10] = float("nan")
    out = packed(32, 4)(q, k, v, torch.arange(0, 21, 5, device=DEVICE), 5, ProductionMask(1.0, 1.0))
    assert out[5:10].isnan().all()
    assert torch.isfinite(torch.cat([out[:5], out[10:]])).all()


def test_slices_of_one_projection_are_taken_as_they_are():
    def sliced(q, k, v, offsets, longest, mask):
        parts = torch.cat([x.flatten(1) for x in (v, q, k)], dim=1).split(v[0].numel(), dim=1)
        v, q, k = (x.unflatten(1, (2, -1)) for x in parts)
        return packed(32, 2)(q, k, v, offsets.int(), longest, mask)

    actual = verdict(Case(2, 32, 32, MASKS["everything"], LENGTHS), "fp16", sliced)
    assert actual.passed, actual.reason
