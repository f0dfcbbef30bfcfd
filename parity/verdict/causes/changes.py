"""Changes of one operation that programming errors make, from its name, schema and operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import torch

from parity.verdict.causes.exchanges import exchanges_of
from parity.verdict.causes.operations import SHIFTED, Change, Operation, changed
from parity.verdict.causes.signs_and_places import signs_and_places_of
from parity.verdict.causes.windows import windows_of

EPSILONS = (0.0, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
LARGEST_EPSILON = 1e-2
"""Largest added constant that counts as an epsilon."""
GELU_CUBIC = 0.044715
"""The factor of the cube in GELU by tanh."""
MOST_DIGITS = 7
"""Largest number of digits of a rounded constant."""
MOST_HEADS = 64
"""Largest number of heads that is tried as a factor of a product."""
OTHER_FACTOR = 2.0
"""Ratio of a factor to the next ones that must not fit as well: a result that fits both tells neither."""
MOST_PARTS = 6
"""Largest number of operands or results that are exchanged in pairs."""
FOLDS = "views with the last two axes exchanged, as of heads folded in the other order"
_COMPARISONS = {
    "lt": ("le", "gt", "ge"),
    "le": ("lt", "ge", "gt"),
    "gt": ("ge", "lt", "le"),
    "ge": ("gt", "le", "lt"),
    "eq": ("ne",),
    "ne": ("eq",),
}
"""Comparisons that a port may have in place of one: with or without the equal numbers, or the other way."""
_CONDITIONS = frozenset("lt le gt ge eq ne".split())
_SIGNS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_OPERANDS = {
    "mm": ("self", "mat2"),
    "bmm": ("self", "mat2"),
    "addmm": ("mat1", "mat2"),
    "baddbmm": ("batch1", "batch2"),
}
_WITH_EPSILON = {"add": "other", "clamp": "min", "clamp_min": "min"}
"""The argument that is an epsilon by hand: an added constant, or the least value of a divisor."""
_TRANSPOSED = _OPERANDS | {"_trilinear": ("i2",)} | dict.fromkeys(("add", "sub", "mul"), ("self", "other"))
"""Operands that a port may transpose; `_trilinear` is what a bilinear layer runs."""
_LOOKUPS = {"embedding": ("weight", "indices"), "index_select": ("self", "index")}
_SPLITS = frozenset({"split", "split_with_sizes", "unbind", "chunk"})
_JOINS = frozenset({"cat", "stack"})
_WITH_CONSTANT = _CONDITIONS | frozenset(
    "mul div add sub pow rsub clamp clamp_min clamp_max masked_fill where full full_like".split()
)
_ALONG_AXES = frozenset(
    (
        "_softmax _log_softmax cumsum cumprod flip mean sum var amax amin linalg_vector_norm norm "
        "max min argmax argmin sort argsort topk gather logsumexp"
    ).split()
)


def changes_of(operation: Operation) -> Iterator[Change]:
    """All changes of an operation that are tried."""
    for kind in (_epsilons, _gelu, _biases, _diagonals, _comparisons, _axes, _order, _scales, _constants):
        yield from kind(operation)
    yield from exchanges_of(operation)
    yield from windows_of(operation)
    yield from signs_and_places_of(operation)


def _epsilons(operation: Operation) -> Iterator[Change]:
    named = operation.named()
    name = _WITH_EPSILON.get(operation.name, "eps")
    present = named.get(name)
    if not isinstance(present, float) or (name != "eps" and not 0.0 < present <= LARGEST_EPSILON):
        return
    for epsilon in EPSILONS:
        if epsilon != present:
            text = f"with an epsilon of {epsilon:g} in place of {present:g} in {operation.words}"
            yield changed(text, {name: epsilon})


def _gelu(operation: Operation) -> Iterator[Change]:
    if operation.name == "gelu":
        present = operation.named()["approximate"]
        other = "none" if present == "tanh" else "tanh"
        forms = {"none": "erf", "tanh": "tanh"}
        text = f"with GELU by {forms[other]} in place of {forms[present]}"
        yield changed(text, {"approximate": other})
    # GELU that is written out: x is the argument's cubic root, or a multiple of it.
    if operation.name == "tanh":
        yield Change(
            "with GELU by erf in place of tanh",
            lambda o: torch.erf(_root(o.named()["self"]) / math.sqrt(2)).to(o.named()["self"].dtype),
        )
    if operation.name == "erf":
        yield Change(
            "with GELU by tanh in place of erf", lambda o: _tanh_of(math.sqrt(2) * o.named()["self"])
        )


def _tanh_of(x: torch.Tensor) -> torch.Tensor:
    """The factor of GELU by tanh, without its half and its one."""
    return torch.tanh(math.sqrt(2 / math.pi) * (x + GELU_CUBIC * x**3))


def _root(argument: torch.Tensor) -> torch.Tensor:
    """x of GELU by tanh from the argument of tanh: the real root of a cubic, in float64."""
    width = math.sqrt(3 * GELU_CUBIC)
    sum_of_powers = argument.double() / math.sqrt(2 / math.pi)
    return 2 / width * torch.sinh(torch.asinh(1.5 * width * sum_of_powers) / 3)


def _biases(operation: Operation) -> Iterator[Change]:
    named = operation.named()
    if operation.name in ("addmm", "baddbmm"):
        yield changed(f"without the bias of {operation.words}", {"self": torch.zeros_like(named["self"])})
    elif isinstance(named.get("bias"), torch.Tensor):
        yield changed(f"without the bias of {operation.words}", {"bias": torch.zeros_like(named["bias"])})
    yield from _terms(operation)


def _terms(operation: Operation) -> Iterator[Change]:
    """A term of a sum or a difference left out."""
    named = operation.named()
    terms = {name: named.get(name) for name in ("self", "other")}
    is_sum = operation.name in ("add", "sub")
    if not is_sum or not all(isinstance(term, torch.Tensor) for term in terms.values()):
        return
    shapes = {name: "x".join(map(str, term.shape)) or "1" for name, term in terms.items()}
    for name, place in (("other", "second"), ("self", "first")):
        is_alike = shapes["self"] == shapes["other"]
        term = f"{place} term" if is_alike else f"term of shape {shapes[name]}"
        zeros = torch.zeros_like(terms[name])
        yield changed(f"without the {term} in {operation.words}", {name: zeros})


def _diagonals(operation: Operation) -> Iterator[Change]:
    if operation.name in ("tril", "triu"):
        present = operation.named()["diagonal"]
        for diagonal in (present - 1, present + 1):
            text = f"with the mask shifted: diagonal {diagonal} in place of {present} in {operation.words}"
            yield changed(text, {"diagonal": diagonal})
    if operation.name == "arange":
        for step in (1, -1):
            yield Change(f"with positions {SHIFTED} {step:+d}", lambda o, step=step: o.run() + step)
    if operation.name == "select":
        named = operation.named()
        size = named["self"].shape[named["dim"]]
        present = named["index"] % size
        for index in (present - 1, present + 1):
            if 0 <= index < size:
                yield changed(f"with index {index} in place of {present} of {size}", {"index": index})
    if operation.name in _LOOKUPS:
        table, indices = _LOOKUPS[operation.name]
        named = operation.named()
        last = named[table].shape[named.get("dim", 0)] - 1
        for step in (1, -1):
            index = (named[indices] + step).clamp(0, last)
            yield changed(f"with indices of {operation.words} {SHIFTED} {step:+d}", {indices: index})


def _comparisons(operation: Operation) -> Iterator[Change]:
    for other in _COMPARISONS.get(operation.name, ()):
        text = f"with {_SIGNS[other]} in place of {_SIGNS[operation.name]}"
        yield Change(text, lambda o, other=other: getattr(torch, other)(*o.args))
    if operation.name in _CONDITIONS:
        # Before numbers: a condition that is left out fits one, such as -1 for the id 0 of padding.
        result = operation.run()
        for value, words in ((False, "nowhere"), (True, "everywhere")):
            if bool((result != value).any()) and bool((result == value).any()):
                text = f"with {operation.words} that holds {words}"
                yield Change(text, lambda o, value=value: torch.full_like(o.run(), value))


def _axes(operation: Operation) -> Iterator[Change]:
    named = operation.named()
    if operation.name in _ALONG_AXES:
        rank = named["self"].ndim
        dim = named.get("dim", named.get("dims"))
        axes = [dim] if isinstance(dim, int) else list(dim or ())
        if len(axes) != 1:
            return
        present = axes[0] % max(1, rank)
        for axis in range(rank):
            if axis != present:
                text = f"with {operation.words} over axis {axis} in place of {present}"
                name = "dim" if "dim" in named else "dims"
                yield changed(text, {name: axis if isinstance(dim, int) else [axis]})
    if operation.name == "native_layer_norm" and len(named["normalized_shape"]) == 1:
        (size,), x = named["normalized_shape"], named["input"]
        for axis in range(x.ndim - 1):
            if x.shape[axis] == size or named["weight"] is None:
                yield Change(
                    f"with layer_norm over axis {axis} in place of {x.ndim - 1}",
                    lambda o, axis=axis: _layer_norm_over(o, axis),
                )


def _layer_norm_over(operation: Operation, axis: int) -> Any:
    x = operation.named()["input"].transpose(axis, -1)
    result, *others = operation.run({"input": x, "normalized_shape": [x.shape[-1]]})
    return result.transpose(axis, -1), *others


def _order(operation: Operation) -> Iterator[Change]:
    """Exchanged, transposed and wrongly folded operands."""
    named = operation.named()
    for name in _TRANSPOSED.get(operation.name, ()):
        operand = named[name]
        is_matrix = isinstance(operand, torch.Tensor) and operand.ndim > 1
        if is_matrix and operand.shape[-1] == operand.shape[-2]:
            yield changed(f"with {name} of {operation.words} transposed", {name: operand.transpose(-1, -2)})
    if operation.name in _SPLITS | _JOINS:
        joins = operation.name in _JOINS
        parts = named["tensors"] if joins else operation.run()
        what = "operands" if joins else "parts"
        for first, second in combinations(range(min(len(parts), MOST_PARTS)), 2):
            # Operands may have other lengths along the axis that joins them.
            axis = named.get("dim", 0) if operation.name == "cat" else None
            if _shape_without(parts[first], axis) == _shape_without(parts[second], axis):
                text = f"with {what} {first} and {second} of {operation.words} exchanged"
                yield Change(text, lambda o, pair=(first, second): _exchanged(o, joins, *pair))
    if operation.name in ("permute", "transpose"):
        result = operation.run()
        # Where axes of one length change places, a reshape to the result's shape leaves them as they are.
        before, behind = ([size for size in x.shape if size != 1] for x in (named["self"], result))
        what = "without" if before == behind else "with a reshape in place of"
        if not torch.equal(named["self"].reshape(result.shape), result):
            yield Change(f"{what} {operation.words}", lambda o: o.named()["self"].reshape(o.run().shape))
    if operation.name in ("view", "_unsafe_view"):
        yield from _folds(operation, named["self"], list(named["size"]))


def _shape_without(tensor: torch.Tensor, axis: int | None) -> list[int]:
    """A shape without the length along an axis, or the whole shape."""
    shape = list(tensor.shape)
    if axis is not None and -len(shape) <= axis < len(shape):
        shape[axis] = 0
    return shape


def _folds(operation: Operation, x: torch.Tensor, size: list[int]) -> Iterator[Change]:
    """Heads in the other order: an axis is split into its parts, or two axes are joined."""
    if len(size) == x.ndim + 1 and size[-1] not in (1, -1) and size[-2] not in (1, -1):
        folded = [*size[:-2], size[-1], size[-2]]
        yield Change(
            f"with the last two axes of {operation.words} exchanged",
            lambda o: o.named()["self"].reshape(folded).transpose(-1, -2),
            FOLDS if x.shape[-1] == size[-1] * size[-2] else "",
        )
    if x.ndim == len(size) + 1 and size[-1] in (-1, x.shape[-1] * x.shape[-2]) and 1 not in x.shape[-2:]:
        yield Change(
            "with the last two axes exchanged before a view",
            lambda o: o.named()["self"].transpose(-1, -2).reshape(size),
            FOLDS,
        )
    elif (place := _joined_at(x, size)) is not None:
        axes = [length for length in x.shape if length != 1]
        text = f"with the joined axes of {axes[place]} and {axes[place + 1]} exchanged before a view"
        yield Change(
            text, lambda o: o.named()["self"].reshape(axes).transpose(place, place + 1).reshape(size)
        )


def _joined_at(x: torch.Tensor, size: list[int]) -> int | None:
    """The first of two neighbouring axes that a view joins, axes of 1 aside; None if it does more."""
    known = math.prod(length for length in size if length != -1)
    sizes = [x.numel() // max(1, known) if length == -1 else length for length in size]
    first, second = ([length for length in shape if length != 1] for shape in (list(x.shape), sizes))
    for place in range(len(second)):
        joined = [*first[:place], math.prod(first[place : place + 2]), *first[place + 2 :]]
        if joined == second and len(first) == len(second) + 1:
            return place
    return None


def _exchanged(operation: Operation, joins: bool, first: int, second: int) -> Any:
    parts = list(operation.named()["tensors"] if joins else operation.run())
    parts[first], parts[second] = parts[second], parts[first]
    return operation.run({"tensors": parts}) if joins else tuple(parts)


def _scales(operation: Operation) -> Iterator[Change]:
    """A product times the square root of a width, or divided by it."""
    named = operation.named()
    if operation.name not in _OPERANDS:
        return
    for factor, reading in _factors(*(named[name] for name in _OPERANDS[operation.name])).items():
        number = f"{factor:.6g}"
        words = number if number == reading else f"{number} = {reading}"
        yield Change(
            f"with the result of {operation.words} times {words}",
            _times(factor),
            rivals=(_times(factor * OTHER_FACTOR), _times(factor / OTHER_FACTOR)),
        )


def _factors(left: torch.Tensor, right: torch.Tensor) -> dict[float, str]:
    """Factors of a product, each with its simplest reading.

    Widths are the sizes of a matrix. The rows of a single product are no width: they count the examples. Nor
    is the leading axis of several products, which counts examples and heads.
    """
    sizes = {*left.shape[-1:], *right.shape[-1:], *(left.shape[-2:-1] if left.ndim > 2 else ())}
    widths = sorted(size for size in sizes if size > 1)
    # Scaled by the width of all heads in place of one: the number of heads divides the leading axis.
    rows = right.shape[0] if right.ndim > 2 else 1
    heads = (count for count in range(2, min(rows, MOST_HEADS) + 1) if rows % count == 0)
    factors: dict[float, str] = {}
    for width in widths:
        factors |= {float(width): f"{width}", 1.0 / width: f"1/{width}"}
    for width in (*widths, *heads):
        factors.setdefault(math.sqrt(width), f"sqrt({width})")
        factors.setdefault(1 / math.sqrt(width), f"1/sqrt({width})")
    return factors


def _times(factor: float) -> Callable[[Operation], torch.Tensor]:
    return lambda operation: operation.run() * factor


def _constants(operation: Operation) -> Iterator[Change]:
    """A constant that is rounded, left out of a product or a sum, or has a root too many or too few."""
    if operation.name not in _WITH_CONSTANT:
        return
    named = operation.named()
    for name in ("self", "other", "exponent", "min", "max", "value", "fill_value"):
        value = named.get(name)
        constant = value.item() if isinstance(value, torch.Tensor) and value.ndim == 0 else value
        if isinstance(constant, bool) or not isinstance(constant, (int, float)):
            continue
        is_tensor = isinstance(value, torch.Tensor)
        if _is_step(operation, name) and constant not in (0, 1):
            verb = "divided by" if operation.name == "div" else "times"
            one = torch.ones_like(value) if is_tensor else 1
            yield changed(f"without the step {verb} {constant:.6g}", {name: one})
            for other, text in _roots(float(constant)):
                text = f"with {text} in {operation.words}"
                yield changed(text, {name: torch.full_like(value, other) if is_tensor else other})
        # An epsilon of 0 is one of the epsilons.
        is_term = operation.name in ("add", "sub") and name == "other" and not is_tensor
        if is_term and constant and not 0 < constant <= LARGEST_EPSILON:
            yield changed(f"without the term {constant:.6g} in {operation.words}", {name: 0})
        for other in (*_rounded(float(constant)), *_neighbours(operation, name, constant)):
            text = f"with the constant {other:.8g} in place of {constant:.8g} in {operation.words}"
            yield changed(text, {name: torch.full_like(value, other) if is_tensor else other})


def _roots(constant: float) -> Iterator[tuple[float, str]]:
    """The width that a scale is the root of, and the root of one that is a width, in words."""
    if 0 < constant < math.inf:
        # A large number has an infinite product, and no power.
        square, root = constant * constant, math.sqrt(constant)
        if _is_width(square):
            yield square, f"{square:.6g} in place of its root {constant:.6g}"
        if _is_width(constant):
            yield root, f"the root {root:.6g} in place of {constant:.6g}"


def _is_width(number: float) -> bool:
    """Whether a number, or its inverse, is a whole one above 1."""
    if not 0 < number < math.inf:
        return False
    whole = max(number, 1 / number)
    return round(whole) > 1 and math.isclose(whole, round(whole))


def _is_step(operation: Operation, name: str) -> bool:
    """Whether an operand without axes is a factor or a divisor that a port can leave out."""
    if operation.name == "div":
        return name == "other"
    # On the left, one of two numbers without axes is a result.
    other = operation.named().get("other")
    has_axes = isinstance(other, torch.Tensor) and other.ndim > 0
    return operation.name == "mul" and (name == "other" or has_axes)


def _neighbours(operation: Operation, name: str, constant: float) -> tuple[int, ...]:
    """The next integers, of a constant of integers, a divisor or a power: each may be one off."""
    of_integers = not any(
        isinstance(value, torch.Tensor) and (value.dtype.is_floating_point or value.is_complex())
        for value in operation.named().values()
    )
    is_count = (operation.name, name) in (("div", "other"), ("pow", "exponent"))
    return (constant - 1, constant + 1) if isinstance(constant, int) and (of_integers or is_count) else ()


def _rounded(constant: float) -> list[float]:
    if not math.isfinite(constant):
        return []
    digits = [float(f"{constant:.{count}g}") for count in range(1, MOST_DIGITS + 1)]
    types = [torch.tensor(constant).to(t).double().item() for t in (torch.float16, torch.bfloat16)]
    return list(dict.fromkeys(v for v in (*digits, *types, float(int(constant))) if v != constant))
