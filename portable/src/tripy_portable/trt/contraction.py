"""Translations of matrix products and of operations with windows: convolutions, pooling, resizing."""

from __future__ import annotations

from typing import Any

from tripy_portable.trt.network import Conversion, converts


@converts("matrix_multiply")
def _matrix_multiply(op: Conversion) -> list[Any]:
    left, right = (op.enum("MatrixOperation", op.attrs[name]) for name in ("op0", "op1"))
    return [op.out(op.network.add_matrix_multiply(op.inputs[0], left, op.inputs[1], right))]


@converts("convolution", "deconvolution")
def _convolution(op: Conversion) -> list[Any]:
    kernel, bias = op.inputs[1], op.operand(2)
    extents = tuple(kernel.shape)
    maps = extents[0] if op.node.op == "convolution" else extents[1] * op.attrs["num_groups"]
    # The weights are tensors, as Tripy passes them; empty ones say so.
    none = op.library.Weights(op.data_type(op.type(0).element))
    add = getattr(op.network, f"add_{op.node.op}_nd")
    layer = op.layer(add(op.inputs[0], maps, extents[2:], none, none))
    layer.set_input(1, kernel)
    if bias is not None:
        layer.set_input(2, bias)
    layer.stride_nd = tuple(op.attrs["stride"])
    layer.pre_padding = tuple(op.attrs["pre_padding"])
    layer.post_padding = tuple(op.attrs["post_padding"])
    layer.dilation_nd = tuple(op.attrs["dilation"])
    layer.num_groups = op.attrs["num_groups"]
    return [layer.get_output(0)]


@converts("pooling")
def _pooling(op: Conversion) -> list[Any]:
    kind = op.enum("PoolingType", op.attrs["pooling_type"])
    layer = op.layer(op.network.add_pooling_nd(op.inputs[0], kind, tuple(op.attrs["window_size"])))
    layer.stride_nd = tuple(op.attrs["stride"])
    layer.pre_padding = tuple(op.attrs["pre_padding"])
    layer.post_padding = tuple(op.attrs["post_padding"])
    if op.attrs["average_count_excludes_padding"] is not None:
        layer.average_count_excludes_padding = op.attrs["average_count_excludes_padding"]
    return [layer.get_output(0)]


_RESIZE_MODES = {"resize_nearest": "NEAREST", "resize_linear": "LINEAR", "resize_cubic": "CUBIC"}


@converts(*_RESIZE_MODES)
def _resize(op: Conversion) -> list[Any]:
    layer = op.layer(op.network.add_resize(op.inputs[0]))
    layer.resize_mode = getattr(op.library.InterpolationMode, _RESIZE_MODES[op.node.op])
    if op.attrs["scales"] is not None:
        layer.scales = list(op.attrs["scales"])
    elif op.operand(1) is not None:
        dims = op.ints(1)
        if dims is None:
            layer.set_input(1, op.operand(1))
        else:
            layer.shape = tuple(dims)
    else:
        layer.shape = tuple(op.result_types[0].dims)
    layer.coordinate_transformation = op.enum("ResizeCoordinateTransformation", op.attrs["coordinates"])
    layer.selector_for_single_pixel = op.enum("ResizeSelector", op.attrs["selector"])
    if "rounding" in op.attrs:
        layer.nearest_rounding = op.enum("ResizeRoundMode", op.attrs["rounding"])
    if "cubic_coeff" in op.attrs:
        layer.cubic_coeff = op.attrs["cubic_coeff"]
    return [layer.get_output(0)]
