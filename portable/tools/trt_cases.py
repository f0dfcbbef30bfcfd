"""Every operation of the dialect in every legal element type: one small graph each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from trt_graphs import Case, constant, tensor

from mlir_tensorrt.compiler.dialects import tensorrt as dialect
from tripy_portable.dialect import enums, legality
from tripy_portable.dialect.affine import AffineMap
from tripy_portable.dtypes import BF16, F8, F16, F32, I1, I4, I8, I32, I64, ElementType
from tripy_portable.ir.operations import Value

FLOATS = (F32, F16, BF16)
TENSOR = (F32, F16, BF16, I64, I32, I8, I1)
ANY = (*TENSOR, F8, I4)


def _legal(
    operation: str, attrs: dict[str, Any], candidates: Sequence[ElementType] = ANY
) -> list[ElementType]:
    rule = legality.OPERANDS[operation][0]
    legal = rule(attrs) if callable(rule) else rule
    return [element for element in candidates if element in legal]


def _pointwise() -> Iterator[Case]:
    for source, target in itertools.permutations(TENSOR, 2):
        yield Case(
            "cast",
            f"to {target}",
            str(source),
            (tensor(source, -1, 3),),
            lambda x, t=target: [dialect.cast(tensor(t, -1, 3), x)],
        )
    for name in enums.UnaryOperationAttr.cases:
        for e in _legal("unary", {"operation": name}):
            attr = enums.UnaryOperationAttr.get(name)
            yield Case("unary", name, str(e), (tensor(e, -1, 3),), lambda x, a=attr: [dialect.unary(x, a)])
    for name in enums.ActivationTypeAttr.cases:
        for e in _legal("activation", {"activation_type": name}):
            attr = enums.ActivationTypeAttr.get(name)
            yield Case(
                "activation",
                name,
                str(e),
                (tensor(e, -1, 3),),
                lambda x, a=attr: [dialect.activation(x, a, alpha=0.5, beta=1.0)],
            )
    for name in enums.ElementWiseOperationAttr.cases:
        for e in _legal("element_wise", {"operation": name}):
            attr = enums.ElementWiseOperationAttr.get(name)
            yield Case(
                "element_wise",
                name,
                str(e),
                (tensor(e, -1, 3), tensor(e, 1, 3)),
                lambda x, y, a=attr: [dialect.element_wise(x, y, a)],
            )
    for e in TENSOR:
        if e is not I8:
            types = (tensor(I1, -1, 3), tensor(e, 1, 3), tensor(e, 1, 1))
            yield Case("select", "", str(e), types, lambda c, x, y: [dialect.select(c, x, y)])


def _reducing() -> Iterator[Case]:
    for name in enums.ReduceOperationAttr.cases:
        for e in _legal("reduce", {}):
            attr = enums.ReduceOperationAttr.get(name)
            for keep in (False, True):
                yield Case(
                    "reduce",
                    f"{name}{' keep' if keep else ''}",
                    str(e),
                    (tensor(e, -1, 3, 2),),
                    lambda x, a=attr, k=keep: [dialect.reduce(x, (0, 2), a, keep_dimensions=k)],
                )
    for name in enums.TopKOperationAttr.cases:
        for e in _legal("top_k", {}):
            attr = enums.TopKOperationAttr.get(name)
            yield Case(
                "top_k", name, str(e), (tensor(e, -1, 5),), lambda x, a=attr: dialect.top_k(x, 2, 1, a)
            )
            yield Case(
                "top_k",
                f"{name} of rank 1",
                str(e),
                (tensor(e, 5),),
                lambda x, a=attr: dialect.top_k(x, 2, 0, a),
            )
    for e in FLOATS:
        yield Case("softmax", "", str(e), (tensor(e, -1, 3),), lambda x: [dialect.softmax(x, 1)])
        yield Case(
            "normalization",
            "layer",
            str(e),
            (tensor(e, -1, 4, 6), tensor(e, 1, 1, 6), tensor(e, 1, 1, 6)),
            lambda x, s, b: [dialect.normalization(x, s, b, (2,), eps=1e-5, num_groups=1)],
        )
        yield Case(
            "normalization",
            "instance",
            str(e),
            (tensor(e, -1, 4, 6, 6), tensor(e, 1, 4, 1, 1), tensor(e, 1, 4, 1, 1)),
            lambda x, s, b: [dialect.normalization(x, s, b, (2, 3), eps=1e-5, num_groups=4)],
        )
        for left, right, op0, op1 in (
            ((-1, 2, 3), (1, 3, 4), "kNONE", "kNONE"),
            ((-1, 3, 2), (1, 4, 3), "kTRANSPOSE", "kTRANSPOSE"),
            ((3,), (3, 4), "kVECTOR", "kNONE"),
            ((-1, 3), (3,), "kNONE", "kVECTOR"),
            ((3,), (3,), "kVECTOR", "kVECTOR"),
        ):
            modes = [enums.MatrixOperationAttr.get(op) for op in (op0, op1)]
            yield Case(
                "matrix_multiply",
                f"{op0} {op1}",
                str(e),
                (tensor(e, *left), tensor(e, *right)),
                lambda x, y, m=modes: [dialect.matrix_multiply(x, y, *m)],
            )


def _moving() -> Iterator[Case]:
    for e in ANY:
        if e is not I4:
            yield Case(
                "concatenation",
                "",
                str(e),
                (tensor(e, -1, 4), tensor(e, -1, 4)),
                lambda *xs: [dialect.concatenation(xs, 1)],
            )
        yield Case("constant", "", str(e), (), lambda e=e: [constant([[1, 0], [1, 1]], e)])
        yield Case("shape", "", str(e), (tensor(e, -1, 4),), lambda x: [dialect.shape(x)])
        yield Case(
            "transpose",
            "",
            str(e),
            (tensor(e, -1, 4, 2),),
            lambda x: [dialect.transpose(x, AffineMap.get_permutation((2, 0, 1)))],
        )
        yield Case(
            "reshape",
            "",
            str(e),
            (tensor(e, -1, 4),),
            lambda x, e=e: [dialect.reshape(tensor(e, -1, -1), x, shape=constant([2, -1]))],
        )
        yield Case(
            "reshape",
            "by a computed shape",
            str(e),
            (tensor(e, -1, 4), tensor(F32, -1, 1, 4)),
            lambda x, y, e=e: [dialect.reshape(tensor(e, -1, -1, -1), x, shape=dialect.shape(y))],
        )
        yield Case(
            "collapse_rank",
            "",
            str(e),
            (tensor(e, 1, -1, 4),),
            lambda x, e=e: [dialect.collapse_rank(tensor(e, -1, 4), x)],
        )
        yield Case(
            "broadcast",
            "",
            str(e),
            (tensor(e, 1, 4),),
            lambda x, e=e: [dialect.broadcast(tensor(e, 3, 2, 4), x, (1, 2), shape=constant([3, 2, 4]))],
        )
        yield Case(
            "broadcast",
            "of unknown extents",
            str(e),
            (tensor(e, -1, -1), tensor(F32, 3, -1, -1)),
            lambda x, y, e=e: [dialect.broadcast(tensor(e, 3, -1, -1), x, (1, 2), shape=dialect.shape(y))],
        )
        yield Case(
            "broadcast",
            "of a scalar",
            str(e),
            (tensor(e),),
            lambda x, e=e: [dialect.broadcast(tensor(e, 3, 2), x, (), shape=constant([3, 2]))],
        )
    for e, i in itertools.product(TENSOR, (I32, I64)):
        yield Case(
            "gather",
            f"by {i}",
            str(e),
            (tensor(e, 5, 4), tensor(i, -1, 2)),
            lambda x, y: [dialect.gather(x, y, 0, num_broadcast_dims=0)],
        )
    for mode in enums.SliceModeAttr.cases:
        outside = mode != "kDEFAULT"
        for e in _legal("slice", {"mode": mode}):
            attr = enums.SliceModeAttr.get(mode)

            def body(x: Value, m: Any = attr, o: bool = outside, e: ElementType = e) -> list[Value]:
                fill = constant(1, e) if m.value == "kFILL" else None
                start, size, stride = ([-1, -1], [4, 6], [1, 1]) if o else ([0, 3], [2, 2], [1, -2])
                operands = {"start": constant(start), "size": constant(size), "stride": constant(stride)}
                return [dialect.slice(x, **operands, fill=fill, mode=m)]

            yield Case("slice", mode, str(e), (tensor(e, -1, 4),), body)
    for e in (F32, I32, I64):
        zero = {"start": lambda e=e: constant(0, e), "step": lambda e=e: constant([1, 2], e)}
        yield Case(
            "linspace",
            "",
            str(e),
            (),
            lambda e=e, z=zero: [
                dialect.linspace(tensor(e, 3, 4), shape=constant([3, 4]), **{k: v() for k, v in z.items()})
            ],
        )
        yield Case(
            "linspace",
            "of a computed shape",
            str(e),
            (tensor(F32, -1, 4),),
            lambda x, e=e, z=zero: [
                dialect.linspace(tensor(e, -1, -1), shape=dialect.shape(x), **{k: v() for k, v in z.items()})
            ],
        )


def _quantizing() -> Iterator[Case]:
    layouts = (
        ("per tensor", [0.5], None, ()),
        ("per channel", [0.5] * 4, 0, (4,)),
        ("by blocks", [0.5] * 8, None, (2, 4)),
    )
    for e, q, (layout, scale, axis, dims) in itertools.product(FLOATS, (I8, F8, I4), layouts):
        if layout == "by blocks" and q is I8:
            continue

        def scales(e: ElementType = e, scale: list[float] = scale, dims: tuple[int, ...] = dims) -> Value:
            return constant(torch.tensor(scale).reshape(dims), e)

        yield Case(
            "quantize",
            f"{layout} to {q} and back",
            str(e),
            (tensor(e, 4, 4),),
            lambda x, e=e, q=q, s=scales, a=axis: [
                dialect.dequantize(
                    tensor(e, 4, 4), dialect.quantize(tensor(q, 4, 4), x, s(), axis=a), s(), axis=a
                )
            ],
        )
        yield Case(
            "dequantize",
            f"a constant {layout} from {q}",
            str(e),
            (),
            lambda e=e, q=q, s=scales, a=axis: [
                dialect.dequantize(tensor(e, 4, 4), constant([[1] * 4] * 4, q), s(), axis=a)
            ],
        )


def _windows() -> Iterator[Case]:
    for spatial in (2, 3):
        data, kernel, ones = (-1, 4) + (8,) * spatial, (4, 2) + (3,) * spatial, (1,) * spatial
        for operation, e in itertools.product(("convolution", "deconvolution"), (*FLOATS, I8)):
            if e not in _legal(operation, {}):
                continue
            build = getattr(dialect, operation)
            names = ("kernel", "bias") if operation == "convolution" else ("kernel_weights", "bias_weights")
            yield Case(
                operation,
                f"{spatial}D with 2 groups",
                str(e),
                (tensor(e, *data),),
                lambda x, b=build, n=names, e=e, k=kernel, o=ones: [
                    b(x, o, o, o, **{n[0]: constant(torch.ones(k), e)}, num_groups=2, dilation=o)
                ],
            )
            yield Case(
                operation,
                f"{spatial}D with stride 2 and bias",
                str(e),
                (tensor(e, *data), tensor(e, 4, 4, *(3,) * spatial), tensor(e, 4)),
                lambda x, k, c, b=build, n=names, o=ones: [
                    b(x, [2] * len(o), o, o, **{n[0]: k, n[1]: c}, num_groups=1, dilation=o)
                ],
            )
        for name, e in itertools.product(enums.PoolingTypeAttr.cases, (*FLOATS, I8)):
            attr = enums.PoolingTypeAttr.get(name)
            excludes = None if name == "kMAX" else False
            yield Case(
                "pooling",
                f"{name} {spatial}D",
                str(e),
                (tensor(e, *data),),
                lambda x, a=attr, o=ones, c=excludes: [
                    dialect.pooling(x, [2] * len(o), [2] * len(o), o, o, a, average_count_excludes_padding=c)
                ],
            )
    half, single = (
        enums.ResizeCoordinateTransformationAttr.get("kHALF_PIXEL"),
        enums.ResizeSelectorAttr.get("kFORMULA"),
    )
    flat, floor = (
        enums.ResizeCoordinateTransformationAttr.get("kASYMMETRIC"),
        enums.ResizeRoundModeAttr.get("kFLOOR"),
    )
    for e, by_shape in itertools.product((F32, F16, I8), (False, True)):
        variant = "by shape" if by_shape else "by scales"

        def target(by_shape: bool = by_shape) -> dict[str, Any]:
            return {"output_shape": constant([2, 3, 8, 8])} if by_shape else {"scales": (1.0, 1.0, 2.0, 2.0)}

        source, result = tensor(e, 2, 3, 4, 4), tensor(e, 2, 3, 8, 8)
        yield Case(
            "resize_nearest",
            variant,
            str(e),
            (source,),
            lambda x, r=result, t=target: [dialect.resize_nearest(r, x, flat, floor, single, **t())],
        )
        yield Case(
            "resize_linear",
            variant,
            str(e),
            (source,),
            lambda x, r=result, t=target: [dialect.resize_linear(r, x, half, single, **t())],
        )
        yield Case(
            "resize_cubic",
            variant,
            str(e),
            (source,),
            lambda x, r=result, t=target: [dialect.resize_cubic(r, x, half, single, -0.75, **t())],
        )


def cases() -> list[Case]:
    """All graphs, by operation."""
    graphs = [*_pointwise(), *_reducing(), *_moving(), *_quantizing(), *_windows()]
    return sorted(graphs, key=lambda case: case.operation)
