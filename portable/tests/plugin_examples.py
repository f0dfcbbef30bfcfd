"""Plugins that the tests call, registered once in a process, whichever file imports them first."""

import nvtripy as tp
import torch

import tensorrt
from tensorrt import plugin as trtp

CALLS: list[tuple] = []


@trtp.register("example::scaled_add")
def describe_scaled_add(x: trtp.TensorDesc, y: trtp.TensorDesc, factor: float) -> trtp.TensorDesc:
    if x.dtype != y.dtype:
        raise ValueError("x and y must have one dtype")
    return x.like()


@trtp.impl("example::scaled_add")
def scaled_add(
    x: trtp.Tensor, y: trtp.Tensor, factor: float, outputs: tuple[trtp.Tensor], stream: int
) -> None:
    a, b = torch.from_dlpack(x), torch.from_dlpack(y)
    CALLS.append((a.is_contiguous(), x.strides, stream))
    torch.add(a, b, alpha=factor, out=torch.from_dlpack(outputs[0]))


@trtp.register("example::blocks")
def describe_blocks(x: trtp.TensorDesc, name: str) -> trtp.TensorDesc:
    rows = trtp.cdiv(x.shape_expr[0] * 2 + 1, 4)
    return trtp.from_shape_expr((rows, x.shape_expr[1], 3), tensorrt.int32)


@trtp.impl("example::blocks")
def blocks(x: trtp.Tensor, name: str, outputs: tuple[trtp.Tensor], stream: int) -> None:
    assert outputs[0].dtype is tensorrt.int32
    torch.from_dlpack(outputs[0]).fill_(len(name))


@trtp.register("example::kernel_only")
def describe_kernel_only(x: trtp.TensorDesc, size: int) -> trtp.TensorDesc:
    return x.like()


@trtp.register("example::two")
def describe_two(x: trtp.TensorDesc, size: int) -> tuple[trtp.TensorDesc, trtp.TensorDesc]:
    return x.like(), x.like()


def added(x, y):
    return tp.plugin("example::scaled_add", [x, y], factor=3.0)
