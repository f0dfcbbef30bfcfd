"""Faults of the attention's CUDA source: the verdict catches each. A copy of the source is compiled for it.

No fault lets a warp wait for ever or reaches outside of a tensor: either would end the other tests, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from kernels.hstu_attention import hopper_launch
from kernels.hstu_attention.hopper_launch import CUDA_FLAGS, HEADS, SOURCE
from tests.kernels.cuda_faults import Edit, built, edited, selected
from tests.kernels.hstu_attention.attention_cases import Case, before_garbage, production, verdict
from tests.kernels.hstu_attention.test_hopper import LENGTHS, MASKS, run
from tests.kernels.marks import needs_hopper, needs_nvcc

CASES = {name: (mask, LENGTHS) for name, mask in MASKS.items()} | {
    # A warp of the work list has two sequences.
    "many sequences": (production(), tuple(range(9, 49))),
    # A last tile of one row, behind three blocks of columns, and its neighbour of one block.
    "long and short": (production(), (257, 128) * 4),
    # Rows of targets and of the history in every tile, so that each warpgroup has a block to visit.
    "long histories": (production(has_targets=True), (300, 130, 64, 257, 600, 200, 140)),
}
# Rows behind the last sequence, of one that is all NaN: a tile's.
BEHIND = 128
TYPES = {"bf16": "__nv_bfloat16", "fp16": "__half"}


@dataclass(frozen=True)
class Fault(Edit):
    """A fault, and the call that shows it: mask and lengths, size of the heads, type."""

    case: str = "causal"
    size: int = 64
    precision: str = "bf16"


FAULTS = {
    "mask: a row does not see itself": Fault(
        "weights.cuh", "static_cast<unsigned>(width) || column == own;", "static_cast<unsigned>(width);"
    ),
    "mask: the row eight further down sees what the upper one sees": Fault(
        "weights.cuh", "lower.sees(column)", "upper.sees(column)"
    ),
    "mask: targets see earlier targets": Fault(
        "tiles.cuh", "position = position > last ? last : position;", "", "targets"
    ),
    "mask: a window wider by one": Fault(
        "tiles.cuh", "position - mask.window;", "position - mask.window - 1;", "window"
    ),
    "mask: a window narrower by one behind contextual rows": Fault(
        "tiles.cuh", "far > 0 ? far + merged : 0", "far > 0 ? far + merged + 1 : 0", "everything"
    ),
    "mask: the last contextual row is an ordinary one": Fault(
        "tiles.cuh",
        "if (row < mask.contextual) return",
        "if (row < mask.contextual - 1) return",
        "contextual rows",
    ),
    "mask: contextual rows count as none": Fault(
        "tiles.cuh", "mask.contextual > 1 ? mask.contextual - 1 : 0;", "mask.contextual;", "everything"
    ),
    "block: the diagonal's taken whole": Fault("attention.cuh", " || column + N > visible.all.end;", ";"),
    "block: the window's first taken whole": Fault(
        "attention.cuh", "return column < visible.all.begin || ", "return ", "window wider than a block"
    ),
    "block: the window's first left out": Fault(
        "tiles.cuh",
        "blocks.begin = some.begin / columns;",
        "blocks.begin = (some.begin + columns - 1) / columns;",
        "window wider than a block",
    ),
    "block: the history behind the contextual rows' left out": Fault(
        "tiles.cuh", "first.end > last.end ? first.end : last.end}", "last.end}", "contextual rows"
    ),
    "block: the diagonal's taken twice": Fault(
        "tiles.cuh", "begin / columns > blocks.middle ? begin / columns : blocks.middle;", "begin / columns;"
    ),
    "block: the targets' own left out": Fault(
        "tiles.cuh", " + (behind > blocks.own ? behind - blocks.own : 0);", ";", "long histories"
    ),
    "block: a warpgroup's last left out": Fault(
        "attention.cuh",
        "int last = group.blocks.count - 1;",
        "int last = group.blocks.count > 1 ? group.blocks.count - 2 : 0;",
    ),
    "block: the sum of earlier ones lost": Fault("attention.cuh", "step > 0 || add", "step > 0"),
    "row end: values of the next sequence not cleared": Fault(
        "attention.cuh", "if (inside < N) clear_rows", "if (inside < 0) clear_rows"
    ),
    "row end: the first value of the next sequence not cleared": Fault(
        "attention.cuh", "(shared.v[at.stage], inside,", "(shared.v[at.stage], inside + 1,"
    ),
    "row end: rows of the next sequence stored": Fault(
        "attention.cuh",
        "inside = row < tile.length;",
        "inside = row < tile.row + kTileRows;",
        "long and short",
    ),
    "row end: the last partial tile left out": Fault(
        "work_list.cuh", "tile.row < tile.length;", "tile.row + kTileRows <= tile.length;"
    ),
    "tile: a thread's two rows swapped": Fault(
        "attention.cuh",
        "const int at_o = column / 2 + 4 * i + 2 * half;",
        "const int at_o = column / 2 + 4 * i + 2 - 2 * half;",
    ),
    "tile: one of the heads left out": Fault(
        "shared.cuh", "total = list->count * heads;", "total = list->count * (heads - 1);"
    ),
    "tile: every warp's first sequence for all of its own": Fault(
        "work_list.cuh", "static_cast<int>(start), i);", "static_cast<int>(start), 0);", "many sequences"
    ),
    "sequence: targets read as 32 bits": Fault(
        "work_list.cuh", "of.wide_targets, mine", "false, mine", "targets"
    ),
    "sequence: keys of the first one": Fault(
        "shared.cuh",
        "head,\n                                          start + blocks.at(i) * N);",
        "head, blocks.at(i) * N);",
    ),
    "sequence: another one's scale": Fault(
        "attention.cuh", "scale_of(arguments, at)", "scale_of(arguments, row)", "everything"
    ),
    "head: the first one's values": Fault(
        "shared.cuh",
        "&shared.v_full[values.stage], head,",
        "&shared.v_full[values.stage], 0,",
    ),
    "head: the first one's result": Fault("attention.cuh", "head * arguments.out_head;", "0;"),
    "head: the second 64 elements are the first": Fault(
        "shared.cuh", "barrier, span * kSpan, head, row)", "barrier, 0, head, row)", size=128
    ),
    "head: the first 16 elements left out": Fault("attention.cuh", "step > 0);", "step > 1);"),
    "head: the first 16 elements twice": Fault(
        "attention.cuh", "inside = step * 32 % kBytes;", "inside = 0;", size=32
    ),
    "stage: keys of the block before": Fault(
        "attention.cuh",
        "shared.k[place.stage]);\n                products_commit();\n                multiply_values",
        "shared.k[behind.stage]);\n                products_commit();\n                multiply_values",
    ),
    "stage: values of the block behind": Fault(
        "attention.cuh",
        "shared.v[behind.stage], has_sum);\n                products_commit();",
        "shared.v[place.stage], has_sum);\n                products_commit();",
    ),
    "stage: the other place of the queries": Fault(
        "attention.cuh", "shared.q[slot.stage][number];", "shared.q[slot.stage ^ 1][number];"
    ),
    "stage: the other warpgroup's queries": Fault(
        "attention.cuh", "shared.q[slot.stage][number];", "shared.q[slot.stage][1 - number];"
    ),
    "stage: values copied one block late": Fault(
        "shared.cuh", "start + blocks.at(i - 1) * N);", "start + blocks.at(i > 1 ? i - 2 : 0) * N);"
    ),
    "tensor: keys in place of values": Fault(
        "attention.cu", "call.v, call.v_row, call.v_head, N)", "call.k, call.k_row, call.k_head, N)"
    ),
    "scale: alpha left out of the result": Fault("attention.cuh", "arguments.alpha * scale_of", "scale_of"),
    "scale: float16 read as bfloat16": Fault(
        "attention.cuh",
        "arguments.scale_type == 1",
        "arguments.scale_type == 3",
        "everything",
        precision="fp16",
    ),
    "SiLU: base e in place of 2": Fault("attention.cuh", "-1.4426950408889634f", "-1.0f"),
    "SiLU: a shared reciprocal not undone": Fault("weights.cuh", "x[i + 1] *= r * a;", "x[i + 1] *= r;"),
    "SiLU: elements of a pair swapped": Fault(
        "weights.cuh",
        '"cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low)',
        '"cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(low), "f"(high)',
    ),
    "turn: what a thread stores goes to its neighbour": Fault(
        "attention.cuh", "if (to == i) all[i] = got;", "if (turn == i) all[i] = got;"
    ),
    "columns of a thread start at those of its neighbour": Fault(
        "attention.cuh", "first_column = 2 * (lane % 4);", "first_column = 2 * (lane % 4) ^ 2;"
    ),
}
# A fault each of the masks, the copies, and the stages.
IN_MAKE_TEST = (
    "mask: targets see earlier targets",
    "row end: values of the next sequence not cleared",
    "stage: values of the block behind",
)


def one_form(size: int, precision: str) -> list[Edit]:
    """Edits that leave one size of heads and one type: a quick build."""
    both = (
        "call->is_half ? hopper::launch_sized<__half>(*call, queue) : "
        "hopper::launch_sized<__nv_bfloat16>(*call, queue)"
    )
    others = (f"if (call.size == {other})" for other in HEADS if other != size)
    return [
        Edit(SOURCE.name, both, f"hopper::launch_sized<{TYPES[precision]}>(*call, queue)"),
        *(Edit(SOURCE.name, other, "if constexpr (false)") for other in others),
    ]


def is_caught(fault: Fault, edits: list[Edit], folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the verdict of the fault's call fails with the kernel of a copy that has these edits."""
    source = edited(SOURCE, [*one_form(fault.size, fault.precision), *edits], folder)
    launch = built(source, CUDA_FLAGS, "hopper_attention")
    monkeypatch.setattr(hopper_launch, "_library", lambda: launch)
    mask, lengths = CASES[fault.case]
    case = Case(2, fault.size, fault.size, mask, lengths)
    return not verdict(case, fault.precision, before_garbage(run, BEHIND)).passed


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_s_text_stands_once_in_the_source(name):
    assert FAULTS[name].is_of(SOURCE)


@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize("size", HEADS)
def test_one_form_s_text_stands_once_in_the_source(size, precision):
    assert all(edit.is_of(SOURCE) for edit in one_form(size, precision))


@needs_hopper
@needs_nvcc
@pytest.mark.parametrize(
    ("case", "size", "precision"), sorted({(f.case, f.size, f.precision) for f in FAULTS.values()})
)
def test_the_copied_source_is_right_in_every_call_of_a_fault(
    case, size, precision, lasting_folder, monkeypatch
):
    plain = Fault("", "", "", case, size, precision)
    assert not is_caught(plain, [], lasting_folder, monkeypatch)


@needs_hopper
@needs_nvcc
@pytest.mark.parametrize("name", selected(FAULTS, IN_MAKE_TEST))
def test_a_fault_of_the_source_is_caught(name, lasting_folder, monkeypatch):
    assert is_caught(FAULTS[name], [FAULTS[name]], lasting_folder, monkeypatch)
