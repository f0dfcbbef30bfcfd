"""The element types that each operation accepts.

The sets are those of the dialect's definition (`TensorRTOps.td`), adapted to the types that TensorRT 10
accepts. Sources in the public TensorRT-Incubator repository: the dialect's table of versions
(`TensorRTVersionCompatibility.cpp`), and nvtripy's own operator checks, which run against TensorRT.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tripy_portable.diagnostics import VerificationError
from tripy_portable.dtypes import BF16, F8, F16, F32, I1, I4, I8, I32, I64, ElementType
from tripy_portable.ir.types import RankedTensorType

MAX_RANK = 8

FLOAT = frozenset({F16, BF16, F32})
TENSOR = FLOAT | {I1, I8, I32, I64}
ANY = TENSOR | {I4, F8}
NUMERIC = FLOAT | {I8, I32, I64}
INDEX = frozenset({I32, I64})
SHAPE = frozenset({I32})
BOOL = frozenset({I1})

_UNARY = {
    **dict.fromkeys(("kABS", "kNEG", "kSIGN"), NUMERIC),
    "kNOT": BOOL,
    **dict.fromkeys(
        ("kCEIL", "kCOS", "kERF", "kEXP", "kFLOOR", "kLOG", "kRECIP", "kROUND", "kSIN", "kSQRT"), FLOAT
    ),
}
_UNARY_REST = frozenset({F16, F32})

_ELEMENT_WISE = {
    **dict.fromkeys(("kSUM", "kPROD", "kMAX", "kMIN", "kSUB", "kDIV", "kFLOOR_DIV"), NUMERIC),
    "kEQUAL": FLOAT | {I1, I8, I32, I64},
    **dict.fromkeys(("kLESS", "kGREATER"), FLOAT | {I8, I32, I64}),
    "kPOW": FLOAT | {I8, I64},
    **dict.fromkeys(("kAND", "kOR", "kXOR"), BOOL),
}


def _activation(attrs: dict[str, Any]) -> frozenset[ElementType]:
    return NUMERIC if attrs["activation_type"] == "kRELU" else FLOAT | {I8}


def _slice(attrs: dict[str, Any]) -> frozenset[ElementType]:
    return TENSOR if attrs["mode"] in ("kDEFAULT", "kWRAP") else frozenset({I1, I32, I64, F16, F32})


# For each operation, the legal element types of each operand, by position. A callable reads the attributes;
# the last entry repeats for variadic operands.
OPERANDS: dict[str, tuple[Any, ...]] = {
    "constant": (),
    "activation": (_activation,),
    "unary": (lambda attrs: _UNARY.get(attrs["operation"], _UNARY_REST),),
    "element_wise": (lambda attrs: _ELEMENT_WISE[attrs["operation"]],) * 2,
    "cast": (TENSOR,),
    "concatenation": (ANY - {I4},),
    "select": (BOOL, TENSOR, TENSOR),
    "matrix_multiply": (FLOAT, FLOAT),
    "softmax": (FLOAT,),
    "reduce": (FLOAT | INDEX,),
    "normalization": (FLOAT, FLOAT, FLOAT),
    "top_k": (FLOAT | INDEX,),
    "gather": (TENSOR, INDEX),
    "slice": (_slice, SHAPE, SHAPE, SHAPE, TENSOR),
    "shape": (ANY,),
    "reshape": (TENSOR | {I4}, SHAPE),
    "collapse_rank": (TENSOR | {I4},),
    "broadcast": (TENSOR - {I8}, SHAPE),
    "transpose": (TENSOR | {I4},),
    "linspace": (INDEX, frozenset({I32, I64, F32}), frozenset({I32, I64, F32})),
    "quantize": (FLOAT, FLOAT),
    "dequantize": (frozenset({I8, F8, I4}), FLOAT),
    "convolution": (FLOAT, FLOAT, FLOAT),
    "deconvolution": (frozenset({F16, F32}),) * 3,
    "pooling": (FLOAT | {I8},),
    "resize_nearest": (frozenset({I8, F16, F32}), SHAPE),
    "resize_linear": (frozenset({I8, F16, F32}), SHAPE),
    "resize_cubic": (frozenset({I8, F16, F32}), SHAPE),
    "opaque_plugin": (TENSOR,),
}

RESULTS: dict[str, frozenset[ElementType]] = {
    "constant": ANY,
    "cast": TENSOR,
    "linspace": frozenset({I32, I64, F32}),
    "quantize": frozenset({I8, F8, I4}),
    "dequantize": FLOAT,
}

# Operands, by position, whose element types must be equal.
SAME_TYPE: dict[str, tuple[int, ...]] = {
    "element_wise": (0, 1),
    "select": (1, 2),
    "matrix_multiply": (0, 1),
    "normalization": (0, 1, 2),
    "linspace": (1, 2),
    "convolution": (0, 1, 2),
    "deconvolution": (0, 1, 2),
    "slice": (0, 4),
}

_ORDER = (I1, I4, I8, I32, I64, F8, F16, BF16, F32)


def _names(legal: frozenset[ElementType]) -> str:
    return " or ".join(element.code for element in _ORDER if element in legal)


def check(
    name: str,
    operands: Sequence[RankedTensorType | None],
    attrs: dict[str, Any],
    results: Sequence[RankedTensorType],
) -> None:
    """Checks an operation's element types and ranks against the dialect's definition.

    Raises:
        VerificationError: a type is illegal; the message has the operand or result and the legal types.
    """
    rules = OPERANDS[name]
    for index, type in enumerate(operands):
        if type is None:
            continue
        rule = rules[min(index, len(rules) - 1)]
        legal = rule(attrs) if callable(rule) else rule
        if type.element not in legal or type.rank > MAX_RANK:
            raise VerificationError(
                f"operand #{index} must be tensor of {_names(legal)} values with at most {MAX_RANK} "
                f"dimensions, but got '{type}'"
            )
    if name in SAME_TYPE:
        checked = [type for i in SAME_TYPE[name] if i < len(operands) and (type := operands[i]) is not None]
        if len({type.element for type in checked}) > 1:
            raise VerificationError(
                "requires the same element type for all operands, but got "
                + ", ".join(f"'{type}'" for type in checked)
            )
    elif name == "concatenation" and len({type.element for type in operands if type is not None}) > 1:
        raise VerificationError(
            "requires the same element type for all operands, but got "
            + ", ".join(f"'{t}'" for t in operands)
        )
    for index, type in enumerate(results):
        legal = RESULTS.get(name)
        if (legal is not None and type.element not in legal) or type.rank > MAX_RANK:
            raise VerificationError(
                f"result #{index} must be tensor of {_names(legal or ANY)} values with at most {MAX_RANK} "
                f"dimensions, but got '{type}'"
            )
