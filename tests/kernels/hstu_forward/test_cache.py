"""New positions behind cached ones: the fused forward's `extend` against its call over all positions."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from kernels.hstu_forward import Cache, HSTUForward
from kernels.hstu_forward.schedules import EmbedTile, Schedule
from tests.kernels.hstu_forward.forward_cases import (
    LENGTHS,
    TILES,
    WIDE,
    batch,
    rows,
    settings_of,
    sized,
    small_model,
    triton_forward,
    verdict,
)
from tests.kernels.marks import DEVICE, needs_triton
from tests.kernels.mutation import mutated
from tests.selection import first_in_test

# Lengths of four sequences after each call: no, one, several new positions; one sequence begins late.
STEPS = ((0, 0, 0, 0), (20, 1, 0, 16), (20, 1, 33, 17), (30, 1, 50, 17), (30, 1, 51, 17))
SCHEDULES = {
    **{f"block {number}": Schedule(EmbedTile(16, 2), tile) for number, tile in enumerate(TILES)},
    **WIDE,
}


def extended(forward: HSTUForward, ids, times, steps, cache: Cache | None = None) -> torch.Tensor:
    """States of all positions, (B, N, D), from one `extend` after the other."""
    cache = cache or forward.empty_cache(len(steps[0]), times.size(1))
    width = forward.parameters.shape.embedding_dim
    states = torch.full((*ids.shape, width), float("nan"), dtype=forward.parameters.item_weights.dtype)
    for firsts, lengths in pairwise(steps):
        new = [length - first for first, length in zip(firsts, lengths, strict=True)]
        flat = torch.cat([ids[row, f:n] for row, (f, n) in enumerate(zip(firsts, lengths, strict=True))])
        offsets = torch.tensor((0, *new)).cumsum(0)
        tensors = (x.to(DEVICE) for x in (flat, offsets, torch.tensor(firsts), times))
        result = forward.extend(cache, *tensors, max(lengths), max(new)).cpu()
        for row, (first, length) in enumerate(zip(firsts, lengths, strict=True)):
            states[row, first:length] = result[offsets[row] : offsets[row + 1]]
    return states


def stepped(forward: HSTUForward, ids, offsets, times, longest: int, steps) -> torch.Tensor:
    """States of all positions, (L, D), from one `extend` after the other, for the arguments of a call."""
    lengths = torch.diff(offsets.cpu())
    padded = torch.zeros(len(lengths), longest, dtype=torch.int64)
    for row, (start, end) in enumerate(pairwise(offsets.tolist())):
        padded[row, : end - start] = ids[start:end].cpu()
    return rows(extended(forward, padded, times.cpu(), steps), lengths)


def whole(forward: HSTUForward, ids, times, lengths) -> torch.Tensor:
    """States of all positions, (L, D), from one call."""
    offsets = torch.tensor((0, *lengths)).cumsum(0)
    flat = rows(ids, torch.tensor(lengths))
    return forward(*(x.to(DEVICE) for x in (flat, offsets, times)), max(lengths)).cpu()


def forward_for(dot: str, schedule: Schedule | None = None, **changes) -> tuple[HSTUForward, torch.nn.Module]:
    config, model = small_model(**changes)
    state = {name: x.to(DEVICE) for name, x in model.state_dict().items()}
    return triton_forward(state, settings_of(config, model), dot, schedule), model


@needs_triton
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in ("block 0", "in steps") else pytest.mark.full) for n in SCHEDULES],
)
def test_steps_have_the_bits_of_one_call(name):
    changes = sized(100, 2, 50, 50) if name in WIDE else {}
    forward, model = forward_for("fp16x3", SCHEDULES[name], **changes)
    _, ids, times = batch(model, LENGTHS)
    actual = rows(extended(forward, ids, times, STEPS), torch.tensor(LENGTHS))
    assert torch.equal(actual, whole(forward, ids, times, LENGTHS))


@needs_triton
@pytest.mark.parametrize("dot", [pytest.param("ieee", marks=pytest.mark.full), "fp16x3"])
@pytest.mark.parametrize("changes", first_in_test([{}, sized(64, 8, 8, 8), sized(70, 3, 20, 20)]), ids=str)
def test_steps_are_the_model(changes, dot):
    config, model = small_model(**changes)
    settings = settings_of(config, model)

    def run(state, ids, offsets, times, longest):
        return stepped(triton_forward(state, settings, dot), ids, offsets, times, longest, STEPS)

    actual = verdict(config, model, "fp32", LENGTHS, run)
    assert actual.passed, actual.reason


@needs_triton
def test_an_item_appended_again_takes_its_successors_time():
    forward, model = forward_for("fp16x3", SCHEDULES["block 0"])
    _, ids, times = batch(model, (20, 9))
    early = times.clone()
    # The query of the first call, at each sequence's length then, is not the next item's time.
    early[0, 10:] += 10**6
    early[1, 9:] += 10**6
    cache = forward.empty_cache(2, times.size(1))
    extended(forward, ids[:2], early[:2], ((0, 0), (10, 9)), cache)
    steps = ((9, 8), (20, 9))
    states = extended(forward, ids[:2], times[:2], steps, cache)
    expected = whole(forward, ids[:2], times[:2], (20, 9))
    assert torch.equal(states[0, 9:20], expected[9:20])
    assert torch.equal(states[1, 8:9], expected[28:29])


FAULTS = {
    "the cache of another sequence": (
        "qvk_start = sequence.to(tl.int64) * capacity", "qvk_start = 0 * capacity", "block 0",
    ),
    "positions from zero": ("first = tl.load(firsts", "first = 0 * tl.load(firsts", "block 0"),
}  # fmt: skip


@needs_triton
@pytest.mark.parametrize("fault", first_in_test(FAULTS))
def test_a_fault_of_the_cache_is_caught(fault, tmp_path, monkeypatch):
    from kernels.hstu_forward import (
        triton_kernel_block,
        triton_kernel_products,
        triton_kernels,
        triton_launch,
    )

    old, new, name = FAULTS[fault]
    products = mutated(triton_kernel_products, old, new, tmp_path, monkeypatch)
    source = "from kernels.hstu_forward.triton_kernel_products import"
    for module, kernel in ((triton_kernel_block, "block_kernel"), (triton_kernels, "embed_kernel")):
        replaced = mutated(module, source, f"from {products.__name__} import", tmp_path, monkeypatch)
        monkeypatch.setattr(triton_launch, kernel, getattr(replaced, kernel))
    forward, model = forward_for("fp16x3", SCHEDULES[name])
    _, ids, times = batch(model, LENGTHS)
    actual = rows(extended(forward, ids, times, STEPS[:3]), torch.tensor(STEPS[2]))
    assert not torch.equal(actual, whole(forward, ids, times, STEPS[2]))


@needs_triton
def test_what_a_cache_cannot_hold_is_refused():
    forward, model = forward_for("fp16x3")
    with pytest.raises(ValueError, match="capacity=52: the model's width has room for 1 to 51"):
        forward.empty_cache(2, 52)
    cache = forward.empty_cache(2, 30)
    times = torch.zeros(3, 51, dtype=torch.int64, device=DEVICE)
    ids = torch.ones(1, dtype=torch.int64, device=DEVICE)
    offsets, firsts = (torch.tensor(x, device=DEVICE) for x in ((0, 1, 1), (0, 0)))
    with pytest.raises(ValueError, match="timestamps: 3 rows, but the cache has 2"):
        forward.extend(cache, ids, offsets, firsts, times, 1, 1)
    with pytest.raises(ValueError, match="max_seq_len=31: the cache has room for 30"):
        forward.extend(cache, ids, offsets, firsts, times[:2], 31, 1)
