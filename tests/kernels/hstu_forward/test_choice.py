"""The choice between the forward's two forms: a rule of device and shape, told with its reason."""

from __future__ import annotations

import pytest
import torch

from kernels.hstu_forward import GraphedHSTUForward, HSTUForward, choice, tiles
from kernels.hstu_forward.hopper_launch import LONGEST
from kernels.hstu_forward.schedules import Batch
from tests.kernels.hstu_forward.forward_cases import LENGTHS, batch, rows, settings_of, sized, small_model
from tests.kernels.hstu_forward.test_hopper import parameters_of
from tests.kernels.marks import DEVICE, needs_hopper, needs_triton

ONE, TWO, EIGHT = sized(50, 1, 50, 50), sized(50, 2, 25, 25), sized(64, 8, 8, 8)


def chosen(sequences: int, longest: int, multiprocessors: int = 132, dtype=torch.bfloat16, **changes) -> str:
    parameters = parameters_of(dtype, "fp16x3" if dtype == torch.float32 else "ieee", **changes)
    return choice.of_shape(parameters, sequences, longest, multiprocessors).backend


def test_the_cuda_kernel_takes_batches_of_fewer_groups_a_multiprocessor_than_tiles_of_heads():
    # 211 rows are 14 groups.
    assert [chosen(n, 211, **ONE) for n in (1, 9, 10, 128)] == ["hopper", "hopper", "triton", "triton"]
    assert [chosen(n, 211, **TWO) for n in (1, 18, 19)] == ["hopper", "hopper", "triton"]
    # Eight heads of 8 elements are four tiles. 61 rows are 4 groups.
    assert [chosen(n, 61, **EIGHT) for n in (128, 132, 133)] == ["hopper", "hopper", "triton"]
    # Three heads of up to 16 elements share no tile.
    assert [chosen(n, 61, **sized(48, 3, 9, 16)) for n in (99, 100)] == ["hopper", "triton"]


def test_the_multiprocessors_count():
    assert [chosen(9, 211, count, **ONE) for count in (125, 126)] == ["triton", "hopper"]


def test_float32_takes_fewer_groups_of_long_rows_and_as_many_of_short_ones():
    assert [chosen(n, 211, dtype=torch.float32, **TWO) for n in (14, 15)] == ["hopper", "triton"]
    assert [chosen(n, 64, dtype=torch.float32, **TWO) for n in (66, 67)] == ["hopper", "triton"]
    # A multiprocessor for each group is enough.
    assert [chosen(n, 211, dtype=torch.float32, **ONE) for n in (9, 10)] == ["hopper", "triton"]


def test_one_block_of_one_head_and_rows_without_room_take_triton():
    assert chosen(1, 51, num_blocks=1, **ONE) == "triton"
    assert chosen(1, 51, num_blocks=1, **TWO) == "hopper"
    assert [chosen(1, n, **TWO) for n in (LONGEST, LONGEST + 1)] == ["hopper", "triton"]


def test_a_wide_model_s_clusters_run_at_once_and_its_blocks_pay_for_the_start():
    wide = sized(256, 4, 64, 64)
    # 211 rows are 14 groups of four thread blocks.
    deep = [chosen(n, 211, num_blocks=6, **wide) for n in (1, 2, 3)]
    assert deep == ["hopper", "hopper", "triton"]
    shallow = [chosen(n, 211, num_blocks=5, **wide) for n in (1, 2, 3)]
    assert shallow == ["triton", "hopper", "triton"]
    single = [chosen(n, 211, dtype=torch.float32, num_blocks=16, **wide) for n in (1, 2, 3)]
    assert single == shallow
    assert [chosen(2, 211, count, num_blocks=5, **wide) for count in (127, 128)] == ["triton", "hopper"]
    # Eight thread blocks share 16 rows.
    assert [chosen(n, 211, num_blocks=6, **sized(512, 8, 64, 64)) for n in (1, 2)] == ["hopper", "triton"]
    assert chosen(1, LONGEST + 1, num_blocks=7, **wide) == "triton"
    # Two thread blocks share 16 rows: 66 pairs have room on 132 multiprocessors, and 67 not.
    pairs = sized(128, 2, 64, 64)
    assert [chosen(n, 16, num_blocks=6, **pairs) for n in (66, 67)] == ["hopper", "triton"]


def test_positions_times_blocks_pay_for_the_start_the_later_the_wider_a_cluster():
    # 60 rows are 4 groups.
    for shares, sizes in ((2, sized(128, 2, 64, 64)), (4, sized(256, 4, 64, 64))):
        found = [chosen(1, 60, num_blocks=n, **sizes) for n in (5 * shares, 5 * shares + 1)]
        assert found == ["triton", "hopper"]
    assert chosen(1, 60, dtype=torch.float32, num_blocks=64, **sized(128, 2, 64, 64)) == "triton"
    # A deep product in float32 is no reason: Triton's programs take few steps there.
    assert chosen(9, 16, dtype=torch.float32, num_blocks=2, **sized(300, 1, 40, 40)) == "triton"


def test_long_rows_take_the_cuda_kernel_of_a_wide_model():
    # 256 rows are 32 thread blocks of two for 16 rows, fewer than half of the multiprocessors.
    pairs = sized(128, 2, 64, 64)
    for dtype in (torch.bfloat16, torch.float32):
        assert [chosen(1, n, dtype=dtype, num_blocks=2, **pairs) for n in (256, 257)] == ["triton", "hopper"]


def test_a_model_that_the_kernel_does_not_take_has_triton_s_form_with_the_reason(monkeypatch):
    monkeypatch.setattr(choice.hopper_launch, "not_hopper", lambda device: "")
    monkeypatch.setattr(choice, "missing_compiler", lambda: "")
    assert choice.of_model(parameters_of(**TWO), 128, has_schedule=False) is None
    for reason, found in (
        ("the schedule is one of Triton's", choice.of_model(parameters_of(**TWO), 128, has_schedule=True)),
        ("254 time buckets, not 255", choice.of_model(parameters_of(**TWO), 255, has_schedule=False)),
        ("D is 513", choice.of_model(parameters_of(**sized(513, 2, 25, 25)), 128, has_schedule=False)),
    ):
        assert found.backend == "triton"
        assert reason in found.reason
    monkeypatch.setattr(choice, "missing_compiler", lambda: "CUDA C++ needs nvcc")
    found = choice.of_model(parameters_of(**TWO), 128, has_schedule=False)
    assert found == choice.refused("model", "CUDA C++ needs nvcc")


@needs_triton
@pytest.mark.skipif(DEVICE.type == "cuda", reason="there is a CUDA device")
def test_the_default_tells_its_form_and_why():
    config, model = small_model()
    forward = HSTUForward(model.state_dict(), settings_of(config, model), "fp16x3")
    found = forward.choice(1, 51)
    assert (found.backend, "capability 9.0, not cpu" in found.reason) == ("triton", True)
    assert "backend='auto': triton: the CUDA C++ kernel does not take the model" in repr(forward)
    named = HSTUForward(model.state_dict(), settings_of(config, model), "fp16x3", backend="triton")
    assert str(named.choice(1, 51)) == "triton: it is asked for"


@needs_hopper
@pytest.mark.parametrize(("sequences", "form"), [(1, "hopper"), (128, "triton")])
def test_the_default_has_the_bits_of_the_chosen_form(sequences, form):
    config, model = small_model()
    state = {name: x.to(DEVICE, torch.bfloat16) for name, x in model.state_dict().items()}
    settings = settings_of(config, model)
    lengths = (LENGTHS * sequences)[:sequences]
    padded, ids, times = batch(model, lengths)
    offsets = torch.tensor((0, *lengths)).cumsum(0)
    arguments = [x.to(DEVICE) for x in (rows(ids, padded), offsets, times)]
    default = HSTUForward(state, settings)
    found = default.choice(sequences, max(LENGTHS))
    assert found.backend == form
    expected = HSTUForward(state, settings, backend=form)(*arguments, max(LENGTHS))
    assert torch.equal(default(*arguments, max(LENGTHS)), expected)
    graph = GraphedHSTUForward(default, sequences, arguments[0].numel(), max(LENGTHS), times.size(1))
    assert torch.equal(graph(*arguments), expected)
    assert graph.choice == found
    assert str(found) in repr(graph)
    assert "hopper or triton by the batch" in repr(default)


@needs_hopper
def test_the_default_takes_narrow_integers_and_has_a_cache():
    config, model = small_model()
    state = {name: x.to(DEVICE, torch.bfloat16) for name, x in model.state_dict().items()}
    default = HSTUForward(state, settings_of(config, model))
    padded, ids, times = (x.to(DEVICE) for x in batch(model, LENGTHS))
    flat, offsets = rows(ids, padded), torch.tensor((0, *LENGTHS), device=DEVICE).cumsum(0)
    expected = HSTUForward(state, settings_of(config, model), backend="triton")(flat, offsets, times, 51)
    torch.testing.assert_close(default(flat.int(), offsets.int(), times, 51), expected, rtol=0, atol=2e-2)
    cache = default.empty_cache(len(LENGTHS), 51)
    states = default.extend(cache, flat, offsets, torch.zeros_like(offsets[1:]), times, 51, 51)
    assert torch.equal(states, expected)


def kept(sequences: int, dtype=torch.bfloat16, **changes) -> tuple[int, int]:
    """Programs that keep their weights, of the projection and of the output, for rows of 211 positions."""
    parameters = parameters_of(dtype, "fp16x3" if dtype == torch.float32 else "ieee", **changes)
    ids, times = torch.zeros(sequences * 211, dtype=torch.int64), torch.zeros(sequences, 211)
    offsets = torch.arange(sequences + 1) * 211
    wide = tiles.schedule(parameters, Batch(ids, offsets, times, 211, times), 132).block
    return wide.project.programs, wide.output.programs


def test_many_rows_of_half_types_keep_their_weights_where_the_gpu_can(monkeypatch):
    wide = sized(256, 4, 64, 64)
    assert kept(128, **wide) == (0, 0)
    monkeypatch.setattr(tiles, "has_warpgroup_products", lambda parameters: True)
    # Two programs of the projection fit a multiprocessor, and one of the output.
    assert kept(128, **wide) == (264, 132)
    assert kept(128, **sized(128, 2, 64, 64)) == (528, 396)
    # From four blocks of 64 rows and 128 columns a multiprocessor on; from 16 rows on.
    assert [kept(n, **wide) for n in (10, 11, 20, 21)] == [(0, 0), (0, 132), (0, 132), (264, 132)]
    # Two parts, an embedding beyond the memory, a number of columns that no block divides.
    assert kept(128, torch.float32, **wide) == (0, 0)
    assert kept(128, **sized(300, 4, 64, 64)) == (0, 0)
    assert kept(128, **sized(256, 3, 64, 64)) == (0, 0)


def test_an_attention_of_few_rows_has_eight_warps_but_for_narrow_values_of_half_types():
    def warps(dtype, heads: int, attention_dim: int, linear_dim: int) -> int:
        dot_precision = "fp16x3" if dtype == torch.float32 else "ieee"
        parameters = parameters_of(dtype, dot_precision, **sized(300, heads, attention_dim, linear_dim))
        ids, times = torch.zeros(100, dtype=torch.int64), torch.zeros(1, 100)
        return tiles.attention_tile(
            Batch(ids, torch.tensor((0, 100)), times, 100, times), parameters, 132
        ).num_warps

    # 16 values, of one head or of two of 8; 32; the type.
    found = [warps(torch.bfloat16, *sizes) for sizes in ((1, 36, 16), (2, 8, 8), (1, 10, 17))]
    assert found == [4, 4, 8]
    assert warps(torch.float32, 1, 36, 16) == 8


def deep(positions: int, dtype=torch.float32, dim: int = 512) -> list[tuple[int, int, int]]:
    """Rows, columns and depth of a program of the projection and of the output, for one row on 132 SMs."""
    dot_precision = "fp16x3" if dtype == torch.float32 else "ieee"
    parameters = parameters_of(dtype, dot_precision, **sized(dim, 8, 64, 64))
    ids, times = torch.zeros(positions, dtype=torch.int64), torch.zeros(1, positions)
    offsets = torch.tensor((0, positions))
    wide = tiles.schedule(parameters, Batch(ids, offsets, times, positions, times), 132).block
    return [(tile.block_m, tile.block_n, tile.block_k) for tile in (wide.project, wide.output)]


# 2048 columns of a projection, and 512 of an output: `positions` are 132 times as many elements a program.
WHOLE, FEW, SOME, MANY, MOST = (16, 32, 512), (16, 64, 128), (32, 64, 128), (64, 64, 64), (64, 128, 64)


def test_a_deep_product_of_float32_is_cut_where_a_multiprocessor_does_not_hold_its_whole_columns():
    # A multiprocessor holds two programs of 16 rows and 32 columns.
    assert [deep(n) for n in (16, 66, 67)] == [[WHOLE, WHOLE], [WHOLE, WHOLE], [FEW, WHOLE]]
    # The largest block of which each multiprocessor has one.
    assert [deep(n) for n in (131, 132)] == [[FEW, WHOLE], [SOME, WHOLE]]
    assert [deep(n) for n in (263, 264, 265)] == [[SOME, WHOLE], [MANY, WHOLE], [MANY, FEW]]
    assert [deep(n) for n in (527, 528)] == [[MANY, FEW], [MOST, SOME]]


def test_a_deep_product_of_half_types_is_cut_after_two_rounds_of_its_whole_columns():
    half, short, tall = torch.bfloat16, (16, 64, 512), (32, 64, 512)
    # More rows where each multiprocessor has a program of 16; two programs of either fit one.
    assert [deep(n, half) for n in (16, 66, 67)] == [[short, short], [short, short], [tall, short]]
    assert [deep(n, half) for n in (528, 529)] == [[tall, short], [MOST, short]]
    assert [deep(n, half)[1] for n in (1056, 1057)] == [short, SOME]
    # Of a depth of 1024, a multiprocessor does not hold two programs of 32 rows.
    assert [deep(n, half, dim=1024)[0] for n in (33, 34)] == [(16, 32, 1024), FEW]
