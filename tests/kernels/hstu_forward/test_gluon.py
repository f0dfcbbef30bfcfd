"""Products whose programs keep their weights, on a Hopper GPU, against the reference model."""

from __future__ import annotations

import pytest
import torch

from kernels.hstu_forward import HSTUForward, tiles
from kernels.hstu_forward.schedules import AttentionTile, EmbedTile, Schedule, Tile, Wide
from tests.kernels.hstu_forward.forward_cases import (
    assert_a_graph_serves_smaller_batches,
    batch,
    rows,
    settings_of,
    sized,
    small_model,
    verdict,
)
from tests.kernels.marks import DEVICE, needs_hopper, needs_triton
from tests.kernels.mutation import mutated

pytestmark = [needs_hopper, needs_triton]

# More rows than a block, and a last block of few.
LENGTHS = (51, 0, 33, 1, 32, 51, 17, 48)
# D, heads and their sizes: whole sizes, padded ones, few columns.
SIZES = {
    "256, 4 x 64": sized(256, 4, 64, 64),
    "256, 8 x 32": sized(256, 8, 32, 32),
    "100, 2 x 50": sized(100, 2, 50, 50),
    "128, 1 x 64": sized(128, 1, 64, 64),
    "128, 2 x 64, keys of 32": sized(128, 2, 32, 64),
}


def schedule_of(parameters, programs: int) -> Schedule:
    """So many programs for the output, and as many for each block of columns of the projection."""
    shape = parameters.shape
    block_n = min(128, shape.gates, shape.factors & -shape.factors)
    columns = (shape.gates + shape.factors) // block_n
    project = Tile(64, block_n, shape.dp, 4, 1, programs=programs * columns)
    output = Tile(64, shape.dp, shape.gates, shape.dp // 16, 1, programs=programs)
    return Schedule(EmbedTile(16), Wide(project, AttentionTile(16, 32, 4, 1, heads=shape.pack), output))


def resident(config, model, programs: int = 2):
    """A forward for `verdict`, with `schedule_of`."""

    def run(state, *arguments):
        settings = settings_of(config, model)
        forward = HSTUForward(state, settings, backend="triton")
        schedule = schedule_of(forward.parameters, programs)
        return HSTUForward(state, settings, schedule=schedule, backend="triton")(*arguments)

    return run


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("programs", [1, 2, 132])
def test_programs_that_keep_weights_are_the_model(size, programs, precision):
    config, model = small_model(**SIZES[size])
    actual = verdict(config, model, precision, LENGTHS, resident(config, model, programs))
    assert actual.passed, actual.reason


def test_the_schedule_of_many_rows_keeps_weights(monkeypatch):
    config, model = small_model(**SIZES["256, 4 x 64"])
    seen = []

    def run(state, *arguments):
        forward = HSTUForward(state, settings_of(config, model), backend="triton")
        # As on a GPU of one multiprocessor, whose programs these few rows fill.
        monkeypatch.setattr("kernels.hstu_forward.triton_launch._multiprocessors", lambda _: 1)
        made = tiles.schedule
        monkeypatch.setattr(tiles, "schedule", lambda *a: seen.append(made(*a)) or seen[-1])
        return forward(*arguments)

    actual = verdict(config, model, "bf16", LENGTHS, run)
    assert actual.passed, actual.reason
    assert [(s.block.project.programs, s.block.output.programs) for s in seen] == [(2, 1)]


def test_a_captured_graph_serves_smaller_batches(monkeypatch):
    monkeypatch.setattr("kernels.hstu_forward.triton_launch._multiprocessors", lambda _: 1)
    assert_a_graph_serves_smaller_batches("bf16", "ieee", "triton", **SIZES["256, 4 x 64"])


def test_two_calls_give_equal_bits():
    config, model = small_model(**SIZES["256, 4 x 64"])
    lengths, ids, times = batch(model.bfloat16(), (51,) * 40)
    state = {name: x.to(DEVICE) for name, x in model.state_dict().items()}
    offsets = torch.tensor((0, *lengths.tolist())).cumsum(0)
    arguments = [x.to(DEVICE) for x in (rows(ids, lengths), offsets, times)]
    run = resident(config, model, 132)
    first = run(state, *arguments, 51)
    for _ in range(20):
        assert torch.equal(run(state, *arguments, 51), first)


def test_what_they_do_not_compute_is_refused():
    config, model = small_model(**SIZES["256, 4 x 64"])
    state = {name: x.to(DEVICE) for name, x in model.bfloat16().state_dict().items()}
    settings = settings_of(config, model)
    forward = HSTUForward(state, settings, backend="triton")
    kept = schedule_of(forward.parameters, 2).block
    ids = torch.ones(51, dtype=torch.int64, device=DEVICE)
    offsets = torch.tensor([0, 51], device=DEVICE)
    times = torch.zeros(1, 51, dtype=torch.int64, device=DEVICE)
    columns = Tile(16, 64, 256, 8, 1)
    halves = AttentionTile(16, 32, 4, 1, is_unrolled=True, splits=2)
    for wide, reason in (
        (Wide(kept.project, kept.attention, columns), "project: programs that keep weights"),
        (Wide(Tile(32, 128, 256, 8, 1), halves, kept.output), "output: programs that keep weights"),
    ):
        refusing = HSTUForward(state, settings, schedule=Schedule(EmbedTile(16), wide), backend="triton")
        with pytest.raises(ValueError, match=reason):
            refusing(ids, offsets, times, 51)


FAULTS = {
    "rows of a block behind the first left out": ("(block + step) * BLOCK_M", "block * BLOCK_M", "project"),
    "another block of columns": ("_copy_rows(w, W, start_n,", "_copy_rows(w, W, 0,", "project"),
    "products of rows that are on their way": (
        "async_copy.wait_group(0)\n        fence_async_shared()\n        acc = warpgroup_mma(x,",
        "acc = warpgroup_mma(x,",
        "project",
    ),
    "queries and u in one place": ("(cols - GATES)[None, :]", "cols[None, :] % GATES", "project"),
    "the norm over padded heads": ("if DIM < PAD:", "if DIM > PAD:", "output"),
    "the norm's elements": ("HEADS * V, V, VP)", "width, V, VP)", "output"),
    "no residual": ("+ x.load(products).to(gl.float32)", "", "output"),
    "no bias": ("acc + added[None, :]", "acc", "output"),
    "the block's input as its output": ("stored = x.load(copies)", "stored = gated.load(copies)", "output"),
    "the last norm of rounded sums": ("gl.sum(acc * acc, axis=1)", "gl.sum(acc, axis=1)", "output"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_kernels_is_caught(fault, tmp_path, monkeypatch):
    from kernels.hstu_forward import gluon_kernels, gluon_launch

    old, new, name = FAULTS[fault]
    faulty = mutated(gluon_kernels, old, new, tmp_path, monkeypatch)
    monkeypatch.setattr(gluon_launch, f"{name}_kernel", getattr(faulty, f"{name}_kernel"))
    config, model = small_model(**sized(128, 2, 40, 40))
    actual = verdict(config, model, "fp16", LENGTHS, resident(config, model))
    assert not actual.passed
