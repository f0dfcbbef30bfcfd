"""Checks of a layout, and checks of every call: an accepted layout still refuses a wrong call."""

from __future__ import annotations

import pytest
import torch

from kernels.hstu_attention import ProductionMask, ResearchMask, hstu_attention, layout
from kernels.hstu_attention.layout import Call, layout_of
from tests.kernels.marks import DEVICE, needs_triton

PLAIN = ProductionMask(1.0, 4.0)


def call(rows: int, sequences: int, mask=PLAIN, heads: int = 2, dtype: torch.dtype = torch.float32) -> Call:
    q = torch.zeros(rows, heads, 8, dtype=dtype)
    offsets = torch.linspace(0, rows, sequences + 1).long()
    return Call(q, q.clone(), q.clone(), offsets, rows, mask)


def research(sequences: int, width: int) -> ResearchMask:
    times = torch.zeros(sequences, width, dtype=torch.int64)
    return ResearchMask(torch.zeros(2 * width - 1), 4.0, times, torch.zeros(9))


def test_batches_of_any_size_share_a_layout():
    assert layout_of(call(4, 1)) is layout_of(call(9, 3))
    assert layout_of(call(4, 1, research(1, 6))) is layout_of(call(9, 3, research(3, 9)))


@pytest.mark.parametrize(
    "other",
    [
        call(4, 1, heads=3),
        call(4, 1, dtype=torch.float64),
        call(4, 1, research(1, 6)),
        call(4, 1)._replace(offsets=torch.tensor([0, 4], dtype=torch.int32)),
        call(4, 1)._replace(k=torch.zeros(4, 4, 8)[:, ::2]),
        call(4, 1, ProductionMask(1.0, 4.0, num_targets=torch.zeros(1, dtype=torch.int64))),
    ],
)
def test_another_layout_is_another(other):
    assert layout_of(other) is not layout_of(call(4, 1))


SHORT = torch.zeros(3, 2, 8)
WRONG_SIZES = {
    "k.shape=": {"k": SHORT},
    "v.shape=": {"v": SHORT},
    "max_seq_len=-1": {"max_seq_len": -1},
    "mask.divisor=": {"mask": ProductionMask(1.0, 0.0)},
    "mask.max_attn_len=": {"mask": ProductionMask(1.0, 4.0, max_attn_len=-1)},
}


@pytest.mark.parametrize("message", WRONG_SIZES)
def test_sizes_are_checked_in_every_call(message):
    values = call(4, 1)
    hstu_attention(*values, backend="eager")
    wrong = values._replace(**WRONG_SIZES[message])
    with pytest.raises(ValueError, match="^" + message.replace(".", r"\.")):
        hstu_attention(*wrong, backend="eager")


def test_the_masks_sizes_are_checked_in_every_call():
    hstu_attention(*call(4, 1, research(1, 6)), backend="eager")
    with pytest.raises(ValueError, match=r"^mask\.timestamps\.shape="):
        hstu_attention(*call(4, 1, research(2, 6)), backend="eager")
    with pytest.raises(ValueError, match="^max_seq_len=7: the position weights serve 6"):
        hstu_attention(*call(7, 1, research(1, 6)), backend="eager")
    strided = torch.zeros(1, 12, dtype=torch.int64)[:, ::2]
    mask = ResearchMask(torch.zeros(11), 4.0, strided, torch.zeros(9))
    with pytest.raises(ValueError, match=r"^mask\.timestamps\.stride"):
        hstu_attention(*call(4, 1, mask), backend="eager")


def test_a_vector_of_one_and_a_longer_strided_one_are_two_layouts():
    """One element has no neighbour, whatever its stride says."""
    one = torch.zeros(6, dtype=torch.int64)[::3][:1]
    empty = Call(*(torch.zeros(0, 2, 8) for _ in range(3)), one, 0, PLAIN)
    hstu_attention(*empty, backend="eager")
    strided = torch.tensor([0, 9, 9, 4])[::3]
    with pytest.raises(ValueError, match=r"^offsets\.stride"):
        hstu_attention(*call(4, 1)._replace(offsets=strided), backend="eager")


def test_another_backend_is_checked_for_itself():
    values = call(4, 1, dtype=torch.float64)
    hstu_attention(*values, backend="eager")
    with pytest.raises(ValueError, match=r"^q\.dtype=torch\.float64"):
        hstu_attention(*values, backend="triton")


def test_old_layouts_make_room(monkeypatch):
    monkeypatch.setattr(layout, "_MOST_LAYOUTS", 2)
    stored = [layout_of(call(4, 1, heads=heads)) for heads in (1, 2, 3)]
    assert len(layout._LAYOUTS) == 2
    assert layout_of(call(4, 1, heads=3)) is stored[2]
    assert layout_of(call(4, 1, heads=1)) is not stored[0]


@needs_triton
@pytest.mark.parametrize(
    ("rows", "heads", "longest", "sequences", "expected"),
    [
        # Programs of 64 rows, in fills of 132: a fraction, one, several, many.
        (8_447, 1, 9_000, 1, (1, "longest", 16)),
        (8_448, 1, 9_000, 1, (2, "longest", 16)),
        (8_447, 4, 4_095, 3, (3, "long", 32)),
        (8_448, 4, 9_048, 1, (4, "longest", 16)),
        (84_960, 4, 5_032, 32, (6, "long", 16)),
        # Many programs of wide heads leave the cache to fewer pairs.
        (25_343, 4, 1_100, 24, (4, "long", 64)),
        (25_344, 4, 1_100, 24, (5, "long", 32)),
        (25_344, 4, 5_000, 8, (5, "long", 16)),
        (2_111, 1, 9_000, 1, (0, "long", 64)),
        # Short sequences, until their programs are many: wide heads need fewer.
        (4_223, 4, 512, 200, (2, "short", 64)),
        (4_224, 4, 512, 200, (3, "middle", 64)),
        (4_224, 4, 32, 400, (3, "tiny", 64)),
        (4_223, 4, 32, 400, (2, "short", 64)),
        # Ahead of time the number of rows is unknown.
        (0, 4, 4_096, 0, (6, "longest", 16)),
        (0, 4, 1_000, 0, (6, "middle", 16)),
        (0, 4, 512, 0, (6, "short", 16)),
    ],
)
def test_the_schedule_follows_from_programs_and_the_average_length(rows, heads, longest, sequences, expected):
    from kernels.hstu_attention.schedules import choose_schedule, size_class

    q = torch.empty(rows, heads, 128, dtype=torch.bfloat16, device="meta")
    assert size_class(q, q, longest, sequences) == expected
    fills, lengths, group = expected
    targets = ProductionMask(1.0, 4.0, num_targets=torch.zeros(1, dtype=torch.int64))
    window = ProductionMask(1.0, 4.0, max_attn_len=1024)
    if fills >= 5 and lengths != "short":
        assert choose_schedule(q, q, longest, window, sequences, False).group == 16
    for mask in (PLAIN, targets):
        schedule = choose_schedule(q, q, longest, mask, sequences, False)
        assert schedule.group == (256 if lengths == "short" else group if fills > 1 else 64)
        assert schedule.block_m == (32 if lengths == "tiny" else (16, 32, 64, 64, 64, 64, 64)[fills])


@needs_triton
@pytest.mark.parametrize("contextual", [0, 5])
@pytest.mark.parametrize("window", [0, 256, 1024])
def test_large_blocks_need_free_multiprocessors_and_uncut_rows(window, contextual):
    from kernels.hstu_attention.schedules import choose_schedule

    mask = ProductionMask(1.0, 4.0, max_attn_len=window, contextual_seq_len=contextual)
    is_uncut = not window or contextual > 0
    for dim, rows, is_large in (
        (128, 8_500, True),
        (128, 16_800, True),
        (128, 17_000, False),
        (64, 100_000, True),
        (64, 102_000, is_uncut),
        (64, 280_000, False),
        (32, 100_000, True),
        (32, 200_000, is_uncut or window == 1024),
        (32, 280_000, False),
    ):
        q = torch.empty(rows, 1, dim, dtype=torch.bfloat16, device="meta")
        chosen = choose_schedule(q, q, 9_000, mask, sequences=4)
        assert chosen.block_n == (64 if is_large else 32)
        assert chosen.use_tma == (dim > 32)
        has_few_blocks = window == 256 and rows < 101_000
        assert chosen.one_loop == (not is_uncut and (dim == 128 or has_few_blocks))


@needs_triton
@pytest.mark.parametrize(("dim", "groups"), [(32, [256, 64]), (64, [128, 64]), (128, [16, 16])])
def test_wide_heads_and_contexts_leave_the_cache_to_fewer_pairs(dim, groups):
    from kernels.hstu_attention.schedules import choose_schedule

    q = torch.empty(100_000, 8, dim, dtype=torch.bfloat16, device="meta")
    masks = [ProductionMask(1.0, 4.0, contextual_seq_len=rows) for rows in (0, 5)]
    assert [choose_schedule(q, q, 900, mask, sequences=200).group for mask in masks] == groups


@needs_triton
@pytest.mark.parametrize(("rows", "group"), [(12_000, 128), (30_000, 32)])
def test_many_programs_with_few_blocks_leave_the_cache_to_fewer_pairs(rows, group):
    from kernels.hstu_attention.schedules import choose_schedule

    mask = ProductionMask(1.0, 4.0, max_attn_len=256)
    q = torch.empty(rows, 4, 64, dtype=torch.bfloat16, device="meta")
    assert choose_schedule(q, q, 900, mask, sequences=rows // 500).group == group


@needs_triton
def test_short_loops_of_wide_heads_leave_registers_for_more_programs():
    from kernels.hstu_attention.schedules import choose_schedule

    for window, contextual, dim, registers in (
        (256, 0, 128, 128),
        (256, 5, 128, 0),
        (512, 0, 128, 0),
        (0, 0, 128, 0),
        (256, 0, 64, 0),
    ):
        mask = ProductionMask(1.0, 4.0, max_attn_len=window, contextual_seq_len=contextual)
        q = torch.empty(40_000, 4, dim, dtype=torch.bfloat16, device="meta")
        assert choose_schedule(q, q, 9_000, mask, sequences=4).registers == registers


@needs_triton
def test_windows_of_both_widths_have_plans_of_their_own(monkeypatch):
    from kernels.hstu_attention import triton_launch
    from kernels.hstu_attention.schedules import Schedule

    chosen = []
    monkeypatch.setattr(
        triton_launch,
        "choose_schedule",
        lambda *arguments: chosen.append(arguments[3].max_attn_len) or Schedule(16, 16, 4, 1),
    )
    q, offsets = torch.zeros(20, 1, 16, device=DEVICE), torch.tensor([0, 20], device=DEVICE)
    for window in (8, 600, 9, 700):
        hstu_attention(q, q, q, offsets, 20, ProductionMask(1.0, 4.0, max_attn_len=window))
    assert chosen == [8, 600]


@pytest.mark.parametrize(("shared_kib", "stages"), [(227, 3), (163, 3), (99, 2), (64, 1), (8, 1)])
def test_stages_fit_the_shared_memory(shared_kib, stages):
    from kernels.hstu_attention.schedules import Schedule, fitting

    # Queries of 16 KiB, keys and values of 32 KiB a stage.
    x = torch.empty(0, 4, 128, dtype=torch.bfloat16, device="meta")
    schedule = Schedule(64, 64, num_warps=4, num_stages=3, use_tma=True)
    assert fitting(schedule, x, x, shared_kib << 10).num_stages == stages
