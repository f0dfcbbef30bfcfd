"""The Triton forms of `kernels.dlrm.mlp`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.dlrm.pointwise_triton import activate

_GROUP_ROWS = 8
_MULTIPROCESSORS = 132


@dataclass(frozen=True)
class Tiles:
    """A program's share of a product: rows, columns, the step along the sum, warps and stages in flight."""

    rows: int
    columns: int
    step: int
    warps: int
    stages: int


@triton.jit
def _linear_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    B,
    OUT: tl.constexpr,
    C: tl.constexpr,
    x_stride,
    weight_stride,
    out_stride,
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    GROUP: tl.constexpr,
):
    # Programs that follow each other share columns of the weight or rows of x, so that both stay in L2.
    program = tl.program_id(0)
    row_tiles = tl.cdiv(B, ROWS)
    column_tiles = tl.cdiv(OUT, COLUMNS)
    group = program // (GROUP * column_tiles)
    group_rows = min(row_tiles - group * GROUP, GROUP)
    within = program % (GROUP * column_tiles)
    row = (group * GROUP + within % group_rows) * ROWS + tl.arange(0, ROWS)
    column = (within // group_rows) * COLUMNS + tl.arange(0, COLUMNS)
    step = tl.arange(0, STEP)
    # A tile beyond the edge reads the last row again, which saves a mask at every load.
    x_row = tl.minimum(row, B - 1).to(tl.int64)
    weight_row = tl.minimum(column, OUT - 1)
    x_ptrs = x_ptr + x_row[:, None] * x_stride + step[None, :]
    weight_ptrs = weight_ptr + weight_row[None, :] * weight_stride + step[:, None]
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, C, STEP):
        if C % STEP == 0:
            x = tl.load(x_ptrs)
            weight = tl.load(weight_ptrs)
        else:
            x = tl.load(x_ptrs, mask=(start + step)[None, :] < C, other=0.0)
            weight = tl.load(weight_ptrs, mask=(start + step)[:, None] < C, other=0.0)
        total = tl.dot(x, weight, total, input_precision="ieee")
        x_ptrs += STEP
        weight_ptrs += STEP
    bias = tl.load(bias_ptr + weight_row).to(tl.float32)
    value = activate(total + bias[None, :], ACTIVATION)
    inside = (row[:, None] < B) & (column[None, :] < OUT)
    at = row[:, None].to(tl.int64) * out_stride + column[None, :]
    tl.store(out_ptr + at, value.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _two_layer_kernel(
    x_ptr,
    weight1_ptr,
    bias1_ptr,
    weight2_ptr,
    bias2_ptr,
    out_ptr,
    B,
    C: tl.constexpr,
    H: tl.constexpr,
    OUT: tl.constexpr,
    x_stride,
    weight1_stride,
    weight2_stride,
    out_stride,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    ROWS: tl.constexpr,
    HIDDEN: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STEP: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    x_row = tl.minimum(row, B - 1).to(tl.int64)
    output = tl.arange(0, OUTPUTS)
    step = tl.arange(0, STEP)
    total = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    # One part of the hidden layer at a time: computed from all of x, activated, rounded, added to the result.
    for first in range(0, H, HIDDEN):
        unit = first + tl.arange(0, HIDDEN)
        hidden = tl.zeros((ROWS, HIDDEN), dtype=tl.float32)
        for start in range(0, C, STEP):
            k = start + step
            x = tl.load(x_ptr + x_row[:, None] * x_stride + k[None, :], mask=k[None, :] < C, other=0.0)
            weight1 = tl.load(
                weight1_ptr + unit[None, :] * weight1_stride + k[:, None],
                mask=(k[:, None] < C) & (unit[None, :] < H),
                other=0.0,
            )
            hidden = tl.dot(x, weight1, hidden, input_precision="ieee")
        bias1 = tl.load(bias1_ptr + unit, mask=unit < H, other=0.0).to(tl.float32)
        active = activate(hidden + bias1[None, :], FIRST).to(x_ptr.dtype.element_ty)
        # A sigmoid makes units from H on nonzero; their weights are zero.
        weight2 = tl.load(
            weight2_ptr + output[None, :] * weight2_stride + unit[:, None],
            mask=(output[None, :] < OUT) & (unit[:, None] < H),
            other=0.0,
        )
        total = tl.dot(active, weight2, total, input_precision="ieee")
    bias2 = tl.load(bias2_ptr + output, mask=output < OUT, other=0.0).to(tl.float32)
    value = activate(total + bias2[None, :], SECOND)
    at = row[:, None].to(tl.int64) * out_stride + output[None, :]
    inside = (row[:, None] < B) & (output[None, :] < OUT)
    tl.store(out_ptr + at, value.to(out_ptr.dtype.element_ty), mask=inside)


def linear_tiles(batch: int, outputs: int, columns: int, element_size: int) -> Tiles:
    """The largest tiles that still keep every multiprocessor busy.

    Measured on one H200, benchmarks/results/dlrm_kernels.md.
    """
    step = min(64, max(16, triton.next_power_of_2(columns)))
    if element_size == 4:
        return Tiles(64, 64, min(step, 32), 4, 3)
    if step == 16:
        return Tiles(64, 128, step, 4, 2)
    for tiles, rounds in ((Tiles(128, 256, step, 8, 3), 1.9), (Tiles(64, 128, step, 4, 4), 0.9)):
        count = triton.cdiv(batch, tiles.rows) * triton.cdiv(outputs, tiles.columns)
        if count >= rounds * _MULTIPROCESSORS:
            return tiles
    wide = triton.cdiv(batch, 64) * triton.cdiv(outputs, 64) >= 0.9 * _MULTIPROCESSORS
    return Tiles(64, 64 if wide else 32, step, 4, 5)


def launch_linear(
    x_BC: torch.Tensor,
    weight_OC: torch.Tensor,
    bias_O: torch.Tensor,
    activation: str,
    out: torch.Tensor,
    tiles: Tiles | None = None,
) -> None:
    """Write activation(x W^T + b) to ``out``; benchmarks replace `linear_tiles` by ``tiles``."""
    batch, columns = x_BC.shape
    outputs = weight_OC.shape[0]
    tiles = tiles or linear_tiles(batch, outputs, columns, x_BC.element_size())
    _linear_kernel[(triton.cdiv(batch, tiles.rows) * triton.cdiv(outputs, tiles.columns),)](
        x_BC,
        weight_OC,
        bias_O,
        out,
        batch,
        outputs,
        columns,
        x_BC.stride(0),
        weight_OC.stride(0),
        out.stride(0),
        ACTIVATION=activation,
        ROWS=tiles.rows,
        COLUMNS=tiles.columns,
        STEP=tiles.step,
        GROUP=_GROUP_ROWS,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )


def two_layer_tiles(columns: int, hidden: int, outputs: int, element_size: int) -> Tiles:
    """Rows, hidden units and step of a program; the sums of both products fit the registers."""
    if element_size == 4:
        return Tiles(16, min(32, max(16, triton.next_power_of_2(hidden))), 32 if columns > 16 else 16, 4, 1)
    units = 64 if outputs > 128 else 128
    step = min(64, max(16, triton.next_power_of_2(columns)))
    return Tiles(64, min(units, max(16, triton.next_power_of_2(hidden))), step, 4, 3)


def launch_two_layers(
    x_BC: torch.Tensor,
    weight_HC: torch.Tensor,
    bias_H: torch.Tensor,
    weight_OH: torch.Tensor,
    bias_O: torch.Tensor,
    activations: tuple[str, str],
    out: torch.Tensor,
    tiles: Tiles | None = None,
) -> None:
    """Write both layers' result to ``out``; benchmarks replace `two_layer_tiles` by ``tiles``."""
    batch, columns = x_BC.shape
    outputs, hidden = weight_OH.shape
    tiles = tiles or two_layer_tiles(columns, hidden, outputs, x_BC.element_size())
    _two_layer_kernel[(triton.cdiv(batch, tiles.rows),)](
        x_BC,
        weight_HC,
        bias_H,
        weight_OH,
        bias_O,
        out,
        batch,
        columns,
        hidden,
        outputs,
        x_BC.stride(0),
        weight_HC.stride(0),
        weight_OH.stride(0),
        out.stride(0),
        FIRST=activations[0],
        SECOND=activations[1],
        ROWS=tiles.rows,
        HIDDEN=tiles.columns,
        OUTPUTS=max(16, triton.next_power_of_2(outputs)),
        STEP=tiles.step,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )
