"""Changes of one operation that confuse it with a relative: another function, option or order of operands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as F

from parity.verdict.causes.operations import Change, Operation, changed

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "elu": F.elu,
    "selu": F.selu,
    "leaky_relu": F.leaky_relu,
    "softplus": F.softplus,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "relu6": F.relu6,
    "logsigmoid": F.logsigmoid,
}
_WRITTEN = {"hardtanh": "relu6", "log_sigmoid_forward": "logsigmoid"}
"""Operations that an activation of another name consists of."""
_SIMPLER = {"softplus": ("exp",), "elu": ("expm1",), "gelu": ("tanh",)}
"""Functions that an activation equals in a part of its range."""
_SLOPES = (0.01, 0.02, 0.05, 0.1, 0.125, 0.2, 0.25, 0.3, 0.5, 1.0, 2.0)
"""Usual slopes and scales of activations."""
_WITH_SLOPE = {"leaky_relu": ("negative_slope",), "elu": ("alpha", "scale"), "softplus": ("beta",)}
"""Activations with a slope or a scale, by the names of these arguments."""
_RELATIVES = tuple(
    frozenset(names.split())
    for names in (
        "exp expm1 exp2",
        "log log1p log2 log10",
        "sqrt rsqrt square",
        "sin cos",
        "floor ceil round trunc",
        "maximum minimum",
        "amax amin",
        "argmax argmin",
        "sum mean",
        "amax mean",
        "amin mean",
        "_softmax _log_softmax",
        "add sub",
        "mul div",
        "mul add",
        "remainder fmod",
        "cumsum cumprod",
        "bitwise_and bitwise_or bitwise_xor",
        "logical_and logical_or logical_xor",
    )
)
_OF_TENSORS = frozenset({"mul", "add"})
"""Relatives of two tensors. A constant of one is no constant of the other."""
_LEFT_OUT = frozenset(
    (
        "clamp clamp_min clamp_max abs exp log log1p sqrt round floor ceil trunc "
        "cumsum cumprod flip roll tril triu masked_fill _softmax _log_softmax bitwise_not logical_not"
    ).split()
)
"""Functions of one tensor that keep its shape and that a port can forget."""
_JOINED = frozenset("bitwise_and bitwise_or logical_and logical_or".split())
"""Operations that join two conditions."""
_ORDERED = frozenset({"sub", "div", "where"})
"""Operations that differ with the order of `self` and `other`."""
_POOLINGS = ("sum", "mean", "max")
"""Modes of `embedding_bag`, by their number."""
_OFF_BY_ONE = {"div": "other"} | dict.fromkeys("reciprocal rsqrt sqrt pow log log2 log10".split(), "self")
"""Operands that hold a count, such as a degree or a length, or have an offset."""
_SCALINGS = frozenset({"mul", "div"})
_OF_INTEGERS = frozenset("mul add sub pow bitwise_left_shift _to_copy".split())
"""Operations whose integers may grow large."""
_ROUNDINGS = ("floor", "trunc", None)
_NO_SWITCH = frozenset(
    (
        "keepdim non_blocking pin_memory sparse scale_grad_by_freq half_to_float include_last_offset "
        "train training"
    ).split()
)
"""Options that change a shape, a layout or nothing; `training` would also write into running statistics."""


def exchanges_of(operation: Operation) -> Iterator[Change]:
    """All relatives of an operation that are tried."""
    for kind in (
        _activations,
        _halves,
        _relatives,
        _forgotten,
        _orders,
        _switches,
        _modes,
        _offsets,
        _complements,
        _casts,
        _places,
    ):
        yield from kind(operation)


def _activations(operation: Operation) -> Iterator[Change]:
    present = _WRITTEN.get(operation.name, operation.name)
    if present not in _ACTIVATIONS:
        return
    for name, function in _ACTIVATIONS.items():
        if name != present:
            text = f"with {name} in place of {present}"
            yield Change(text, lambda o, function=function: _first(o, function(o.args[0])))
    for name in _SIMPLER.get(present, ()):
        text = f"with {name} in place of {present}"
        yield Change(text, lambda o, name=name: getattr(torch, name)(o.args[0]))
    yield Change(f"without {present}", lambda o: _first(o, o.args[0]))
    named = operation.named()
    for name in _WITH_SLOPE.get(present, ()):
        for slope in _SLOPES:
            if slope != named[name]:
                text = f"with {name} {slope:g} in place of {named[name]:g} in {present}"
                yield changed(text, {name: slope})


def _first(operation: Operation, tensor: torch.Tensor) -> Any:
    """A tensor in place of the result, or of the first of several, which others accompany."""
    result = operation.run()
    return tensor if isinstance(result, torch.Tensor) else (tensor, *result[1:])


def _halves(operation: Operation) -> Iterator[Change]:
    """The gate and the gated half of a gated linear unit exchanged."""
    if operation.name == "glu":
        named = operation.named()
        x, dim = named["self"], named["dim"]
        yield changed("with the halves of glu exchanged", {"self": x.roll(x.shape[dim] // 2, dim)})


def _relatives(operation: Operation) -> Iterator[Change]:
    for group in _RELATIVES:
        if operation.name in group and (group != _OF_TENSORS or _has_two_tensors(operation)):
            for name in sorted(group - {operation.name}):
                text = f"with {name.lstrip('_')} in place of {operation.words}"
                yield Change(
                    text + _by_constant(operation, group),
                    lambda o, name=name: getattr(torch, name)(*o.args, **o.kwargs),
                )


def _has_two_tensors(operation: Operation) -> bool:
    other = operation.named().get("other")
    return isinstance(other, torch.Tensor) and other.ndim > 0


def _by_constant(operation: Operation, group: frozenset[str]) -> str:
    """The constant of a product or a quotient, in words: it tells which of several is meant."""
    constant = operation.named().get("other")
    is_number = isinstance(constant, (int, float)) and not isinstance(constant, bool)
    return f" by {constant:.6g}" if "mul" in group and is_number else ""


def _forgotten(operation: Operation) -> Iterator[Change]:
    if operation.name in _LEFT_OUT:
        yield Change(f"without {operation.words}", lambda o: o.args[0])
    if operation.name == "neg":
        yield Change("with x in place of -x", lambda o: o.args[0])
    yield from _unmasked(operation)
    bounds = {name: operation.named().get(name) for name in ("min", "max")}
    if operation.name == "clamp" and None not in bounds.values():
        for name, value in bounds.items():
            yield changed(f"without the {name} of clamp, {value}", {name: None})


def _unmasked(operation: Operation) -> Iterator[Change]:
    """A mask or a factor left out: one side of a choice everywhere, or no product with a tensor.

    Also one of two conditions that hold together, or in turn.
    """
    named = operation.named()
    if operation.name in _JOINED and operation.run().dtype is torch.bool:
        for place, rest in (("second", "self"), ("first", "other")):
            if isinstance(named.get(rest), torch.Tensor):
                text = f"without the {place} condition in {operation.words}"
                yield Change(text, lambda o, rest=rest: _everywhere(o, rest))
    if operation.name == "where":
        for place, name in (("first", "self"), ("second", "other")):
            if isinstance(named.get(name), torch.Tensor):
                yield Change(
                    f"with the {place} value of where everywhere", lambda o, name=name: _everywhere(o, name)
                )
    if operation.name not in ("mul", "div"):
        return
    factors = {name: named.get(name) for name in ("self", "other")}
    if not all(isinstance(factor, torch.Tensor) and factor.ndim for factor in factors.values()):
        return
    is_alike = factors["self"].shape == factors["other"].shape
    for name, rest, place in (("other", "self", "second "), ("self", "other", "first ")):
        shape = "x".join(map(str, factors[name].shape))
        factor = f"{place if is_alike else ''}factor of shape {shape}"
        if operation.name == "div":
            text = f"without the divisor of shape {shape}" if name == "other" else ""
        else:
            text = "without the mask in mul" if _is_mask(factors[name]) else f"without the {factor}"
        if text:
            yield Change(text, lambda o, rest=rest: _everywhere(o, rest))


def _everywhere(operation: Operation, name: str) -> torch.Tensor:
    """One operand in the shape and the type of the result."""
    result = operation.run()
    return operation.named()[name].to(result.dtype).expand(result.shape)


def _is_mask(operand: Any) -> bool:
    """Whether an operand is a tensor of zeros and ones, with both."""
    if not isinstance(operand, torch.Tensor) or operand.is_complex():
        return False
    ones = operand == 1
    return bool(ones.any()) and not bool(ones.all()) and bool((ones | (operand == 0)).all())


def _orders(operation: Operation) -> Iterator[Change]:
    if operation.name not in _ORDERED:
        return
    named = operation.named()
    first, second = named.get("self"), named.get("other")
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        text = f"with the operands of {operation.name} exchanged"
        yield changed(text, {"self": second, "other": first})


def _offsets(operation: Operation) -> Iterator[Change]:
    """A count that is one off: a degree with or without the node itself, a logarithm of 1 + x."""
    name = _OFF_BY_ONE.get(operation.name, "")
    operand = operation.named().get(name)
    if isinstance(operand, torch.Tensor) and not operand.dtype.is_complex:
        what = "divisor" if operation.name == "div" else "operand"
        for step in (1, -1):
            yield changed(f"with {step:+d} at the {what} of {operation.words}", {name: operand + step})


def _complements(operation: Operation) -> Iterator[Change]:
    """A gate for its complement, or the other way round."""
    if operation.name == "sigmoid":
        yield Change("with 1 - x in place of the gate x of sigmoid", lambda o: 1 - o.run())
    named = operation.named()
    if operation.name == "rsub" and named["other"] == 1:
        yield Change("with x in place of its complement 1 - x", lambda o: o.named()["self"])


def _casts(operation: Operation) -> Iterator[Change]:
    """A result as integers of 32 bits, where it is of 64 bits and larger or has a fraction."""
    if operation.name not in _OF_INTEGERS | _SCALINGS:
        return
    result = operation.run()
    if not result.ndim:
        return
    is_scaled = operation.name in _SCALINGS and result.dtype.is_floating_point
    if is_scaled or result.dtype is torch.int64:
        whole = _as_int32(result)
        if not torch.equal(whole, result):
            words = operation.words.strip("_")
            is_lost = is_scaled and not whole.any()
            text = (
                f"with 0 in place of the result of {words}"
                if is_lost
                else f"with the result of {words} as int32"
            )
            yield Change(text, lambda o: _as_int32(o.run()))


def _places(operation: Operation) -> Iterator[Change]:
    """Indices of two axes exchanged, a shift in the other direction, a mean for a maximum with its place."""
    named = operation.named()
    if operation.name == "index":
        indices = list(named["indices"])
        for first, second in combinations(range(len(indices)), 2):
            if indices[first] is not None and indices[second] is not None:
                what = f"the indices of axes {first} and {second} exchanged"
                # Such as the four corners around a place.
                yield Change(
                    f"with {what}",
                    lambda o, first=first, second=second: _looked_up_otherwise(o, first, second),
                    together=f"lookups that have {what}",
                    takes_few=False,
                )
    if operation.name == "roll":
        shifts = list(named["shifts"])
        other_way = [-shift for shift in shifts]
        yield changed(f"with a roll by {other_way} in place of {shifts}", {"shifts": other_way})
    if operation.name in ("max", "min") and "dim" in named:
        text = f"with mean in place of {operation.name}"
        yield Change(text, lambda o: (o.args[0].mean(*o.args[1:]), o.run()[1]))


def _looked_up_otherwise(operation: Operation, first: int, second: int) -> Any:
    """The result of a lookup with the indices of two axes in each other's place."""
    indices = list(operation.named()["indices"])
    indices[first], indices[second] = indices[second], indices[first]
    return operation.run({"indices": indices})


def _as_int32(result: torch.Tensor) -> torch.Tensor:
    return result.to(torch.int32).to(result.dtype)


def _switches(operation: Operation) -> Iterator[Change]:
    """Options that are on or off, and the correction of a variance."""
    named = operation.named()
    for name, present in named.items():
        if isinstance(present, bool) and name not in _NO_SWITCH:
            text = f"with {name} {not present} in place of {present} in {operation.words}"
            yield changed(text, {name: not present})
    if "correction" in named:
        correction = named["correction"]
        present = 1 if correction is None else correction
        text = f"with a correction of {1 - present} in place of {present} in {operation.words}"
        yield changed(text, {"correction": 1 - present})


def _modes(operation: Operation) -> Iterator[Change]:
    named: dict[str, Any] = operation.named()
    if "embedding_bag" in operation.name:
        present = named["mode"]
        for mode, name in enumerate(_POOLINGS):
            if mode != present:
                text = f"with bags by {name} in place of {_POOLINGS[present]}"
                yield changed(text, {"mode": mode})
        if named["per_sample_weights"] is not None:
            yield changed("without the weights of the bags", {"per_sample_weights": None})
        if named.get("padding_idx", -1) >= 0:
            yield changed("with padding among the bags", {"padding_idx": -1})
    if operation.name == "native_group_norm":
        present, channels = named["group"], named["C"]
        for count in (count for count in range(1, channels + 1) if channels % count == 0):
            if count != present:
                yield changed(f"with {count} groups in place of {present}", {"group": count})
    if operation.name == "div" and "rounding_mode" in named:
        for rounding in _ROUNDINGS:
            if rounding != named["rounding_mode"]:
                text = f"with rounding {rounding} in place of {named['rounding_mode']} in div"
                yield changed(text, {"rounding_mode": rounding})
