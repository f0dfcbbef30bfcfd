"""Arguments of a plugin's functions: descriptors, symbolic integers, tensors, launch parameters.

The interface is `tensorrt.plugin`'s public one, as TensorRT documents it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tripy_portable.dtypes import DataType

_FAKE = "Not accessible for fake 'ShapeExpr's. Check is_fake first."


class SymInt32:
    """An integer that may not be known yet, with TensorRT's arithmetic: `+`, `-`, `*`, `//` and `cdiv`."""

    def __init__(self, value: int | SymInt32 | None = None):
        self._value: int | None = value._value if isinstance(value, SymInt32) else value

    @property
    def is_fake(self) -> bool:
        """Whether it stands for an extent that is not known."""
        return self._value is None

    @property
    def is_constant(self) -> bool:
        """Whether the value is known.

        Raises:
            RuntimeError: the extent is fake, as in TensorRT.
        """
        if self._value is None:
            raise RuntimeError(_FAKE)
        return True

    def constant_value(self) -> int:
        """The value.

        Raises:
            RuntimeError: the extent is fake.
        """
        if self._value is None:
            raise RuntimeError(_FAKE)
        return self._value

    def _combine(self, other: int | SymInt32, operation: Any) -> Any:
        right = other._value if isinstance(other, SymInt32) else other
        known = self._value is not None and right is not None
        return type(self)(operation(self._value, right) if known else None)

    def __add__(self, other: int | SymInt32) -> Any:
        return self._combine(other, lambda a, b: a + b)

    def __sub__(self, other: int | SymInt32) -> Any:
        return self._combine(other, lambda a, b: a - b)

    def __mul__(self, other: int | SymInt32) -> Any:
        return self._combine(other, lambda a, b: a * b)

    def __floordiv__(self, other: int | SymInt32) -> Any:
        return self._combine(other, lambda a, b: a // b)

    def __repr__(self) -> str:
        return f"{type(self).__name__}[{'?' if self._value is None else self._value}]"


class ShapeExpr(SymInt32):
    """One dimension of a tensor; fake while its extent is not known."""


def cdiv(first: int | ShapeExpr, second: int | ShapeExpr) -> ShapeExpr:
    """`first` divided by `second`, rounded up.

    Raises:
        ValueError: both are plain integers, as in TensorRT.
    """
    if isinstance(first, int):
        if isinstance(second, int):
            raise ValueError("Both arguments cannot be 'int's")
        first = ShapeExpr(first)
    return first._combine(second, lambda a, b: -(-a // b))


class ShapeExprs:
    """The dimensions of a tensor."""

    def __init__(self, length: int, _is_dummy: bool = False):
        self._shapes = [ShapeExpr() for _ in range(length)]

    @classmethod
    def from_tuple(cls, shape_exprs: Sequence[int | ShapeExpr]) -> ShapeExprs:
        """Dimensions from integers and expressions."""
        exprs = cls(len(shape_exprs))
        exprs._shapes = [ShapeExpr(extent) for extent in shape_exprs]
        return exprs

    def numel(self) -> ShapeExpr:
        """The number of elements."""
        total = ShapeExpr(1)
        for extent in self._shapes:
            total = total * extent
        return total

    def __iter__(self) -> Iterator[ShapeExpr]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def __getitem__(self, index: int) -> ShapeExpr:
        return self._shapes[index]

    def __setitem__(self, index: int, extent: ShapeExpr) -> None:
        self._shapes[index] = extent


class TensorDesc:
    """A tensor's dimensions and element type, without data."""

    def __init__(self, shape_expr: ShapeExprs | None = None, dtype: DataType | None = None):
        self.shape_expr = shape_expr
        self.dtype = dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._dims())

    def like(self) -> TensorDesc:
        """A descriptor of the same dimensions and element type."""
        return TensorDesc(ShapeExprs.from_tuple(tuple(self._dims())), self.dtype)

    def _dims(self) -> ShapeExprs:
        if self.shape_expr is None:
            raise ValueError("the descriptor has no dimensions yet: set its shape_expr")
        return self.shape_expr


def from_shape_expr(shape_expr: tuple[int | ShapeExpr, ...] | ShapeExprs, dtype: DataType) -> TensorDesc:
    """A descriptor of given dimensions and element type."""
    shape = ShapeExprs.from_tuple(shape_expr) if isinstance(shape_expr, tuple) else shape_expr
    return TensorDesc(shape, dtype)


class Tensor:
    """A tensor with data, for an implementation to read or to write.

    PyTorch and others read it without a copy: by DLPack, or by `__cuda_array_interface__` on a GPU.
    """

    def __init__(self, tensor: torch.Tensor, dtype: DataType):
        self._tensor = tensor
        self.dtype = dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._tensor.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return tuple(self._tensor.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides, in elements."""
        return tuple(self._tensor.stride())

    @property
    def data_ptr(self) -> int:
        """The address of the first element."""
        return self._tensor.data_ptr()

    def numel(self) -> int:
        """The number of elements."""
        return self._tensor.numel()

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        # -1: no waiting. Implementations queue their work in the stream that all of the plan's work is in.
        return self._tensor.__dlpack__(stream=-1 if self._tensor.is_cuda else None, **options)

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._tensor.__cuda_array_interface__


class SymExprs:
    """Scalar arguments of a kernel: `SymInt32`s between the pointers to inputs and to outputs."""

    def __init__(self, length: int):
        self._values: list[SymInt32 | None] = [None] * length

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> SymInt32 | None:
        return self._values[index]

    def __setitem__(self, index: int, value: SymInt32) -> None:
        self._values[index] = value


class SymIntExprs(SymExprs):
    """Scalar arguments that are integers."""


class KernelLaunchParams:
    """Grid, block and bytes of dynamic shared memory of a kernel's launch, each a `SymInt32`."""

    _NAMES = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared_mem")

    def __init__(
        self,
        grid_x: int | SymInt32 = 1,
        grid_y: int | SymInt32 = 1,
        grid_z: int | SymInt32 = 1,
        block_x: int | SymInt32 = 1,
        block_y: int | SymInt32 = 1,
        block_z: int | SymInt32 = 1,
        shared_mem: int | SymInt32 = 0,
    ):
        values = (grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_mem)
        for name, value in zip(self._NAMES, values):
            setattr(self, name, value)

    def __setattr__(self, name: str, value: int | SymInt32) -> None:
        if name not in self._NAMES:
            raise AttributeError(f"KernelLaunchParams object has no attribute '{name}'")
        self.__dict__[name] = SymInt32(value)
