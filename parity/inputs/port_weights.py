"""The reference's weights as the port's tensors: by name, by rules, and none left over on either side."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence

import torch

from parity.base.errors import UserError
from parity.base.real_numbers import in_real
from parity.case import Case, From
from parity.case.patterns import filled, in_groups, matched, matches_any, pattern_of

TRAINING_ONLY = "**num_batches_tracked"
"""Pattern of buffers that count batches of training."""
Shape = tuple[int, ...]


def port_weights(
    case: Case, weights: Mapping[str, torch.Tensor], shapes: Mapping[str, Shape]
) -> dict[str, torch.Tensor]:
    """The port's tensors by their names in the port.

    Args:
        case: The case with its rules.
        weights: The reference's state dict.
        shapes: Shape of each tensor of the port, by its name.

    Raises:
        UserError: A tensor without its counterpart, a source that does not exist, or another shape.
    """
    tensors: dict[str, torch.Tensor] = {}
    parts: dict[str, set[tuple[int, int]]] = {}
    sources = {name: source for name in shapes if (source := source_of(case, name)) is not None}
    _refuse_alone(case, sources, weights, shapes)
    for name, source in sources.items():
        shape = shapes[name]
        for own in source.names:
            parts.setdefault(own, set()).add(source.split or (0, 1))
        tensors[name] = _checked(name, _transformed(name, source, weights, len(shape)), shape)
    _refuse_unmatched_rules(case, shapes)
    _refuse_left_over(case, weights, parts)
    return tensors


def source_of(case: Case, name: str) -> From | None:
    """The source of one of the port's tensors; None for one that the port sets itself."""
    for pattern, source in case.weights.items():
        texts = matched(pattern, name)
        if texts is None:
            continue
        if source is None:
            return None
        if isinstance(source, str):
            return From(filled(source, texts))
        names = [filled(own, texts) for own in source.names]
        return From(*names, transpose=source.transpose, split=source.split, axis=source.axis)
    owner, dot, attribute = name.rpartition(".")
    return From(f"{case.reference_path(owner)}{dot}{attribute}".removeprefix("."))


def _transformed(name: str, source: From, weights: Mapping[str, torch.Tensor], axes: int) -> torch.Tensor:
    """The source's tensor as the port has it, but for axes of 1.

    Args:
        name: Name of the port's tensor.
        source: Its source.
        weights: The reference's state dict.
        axes: Number of axes of the port's tensor.

    Raises:
        UserError: The tensors have no such axes or parts.
    """
    try:
        # A port has no complex numbers: their parts are a last axis of two.
        tensors = [in_real(weights[own]) for own in source.names]
        tensor = torch.cat(tensors, source.axis) if len(tensors) > 1 else tensors[0]
        if source.split is not None:
            part, parts = source.split
            if tensor.shape[source.axis] % parts:
                raise ValueError(f"axis {source.axis} of {tuple(tensor.shape)} has no {parts} equal parts")
            tensor = tensor.chunk(parts, source.axis)[part]
        if source.transpose is True:
            # The last axes of a 1x1 convolution's kernel are no axes of a matrix.
            while tensor.ndim > max(axes, 2) and tensor.shape[-1] == 1:
                tensor = tensor.squeeze(-1)
            tensor = tensor.transpose(-1, -2)
        elif source.transpose:
            tensor = tensor.permute(source.transpose)
    except (RuntimeError, IndexError, ValueError) as error:
        raise UserError(
            f"weights[{name!r}]", source, f"does not fit the tensor ({error})", "change From"
        ) from error
    return tensor.contiguous()


def _checked(name: str, tensor: torch.Tensor, shape: Shape) -> torch.Tensor:
    """The tensor in the port's shape. Axes of 1 may differ, as of a 1x1 convolution and a linear layer."""
    if _without_ones(tensor.shape) == _without_ones(shape):
        return tensor.reshape(shape)
    fix = "name another tensor, or give From(...) a transpose, a split or its axis"
    if _without_ones(tensor.shape)[::-1] == shape and len(shape) == 2:
        fix = "write From(name, transpose=True)"
    raise UserError(f"weights[{name!r}]", tuple(tensor.shape), f"is not the port's shape {shape}", fix)


def _without_ones(shape: Sequence[int]) -> Shape:
    return tuple(size for size in shape if size != 1)


def _refuse_alone(
    case: Case,
    sources: Mapping[str, From],
    weights: Mapping[str, torch.Tensor],
    shapes: Mapping[str, Shape],
) -> None:
    """Raises `UserError` with all tensors of the port whose sources the reference lacks."""
    alone = [name for name, source in sources.items() if any(own not in weights for own in source.names)]
    if not alone:
        return
    name = alone[0]
    absent = next(own for own in sources[name].names if own not in weights)
    near = difflib.get_close_matches(absent, weights, n=1)
    hint = f"; near {absent!r} is {near[0]!r}" if near else ""
    if any(matched(pattern, name) is not None for pattern in case.weights):
        problem = f"needs {absent!r}, which the reference lacks{hint}"
        raise UserError("weights", name, problem, "name a tensor of the reference")
    taken = {own for source in sources.values() for own in source.names}
    left = [
        own for own in weights if own not in taken and not matches_any((*case.unused, TRAINING_ONLY), own)
    ]
    others = f"; the reference has left over {in_groups(left)}" if left else hint
    count = "is a tensor" if len(alone) == 1 else f"are {len(alone)} of {len(sources)} tensors"
    fix = _split_fix(alone, left, weights, shapes) or _fix(name, absent, weights)
    rule = next((rule for rule in case.names if matched(rule, name.rpartition(".")[0]) is not None), None)
    if rule is not None and not any(own.startswith(f"{absent.rpartition('.')[0]}.") for own in weights):
        wrong = f"; names maps {rule!r} to {case.names[rule]!r}, which the reference lacks"
        raise UserError("weights", in_groups(alone), f"{count} of the port alone{wrong}{others}", fix)
    raise UserError("weights", in_groups(alone), f"{count} of the port alone{others}", fix)


def _split_fix(
    alone: Sequence[str],
    left: Sequence[str],
    weights: Mapping[str, torch.Tensor],
    shapes: Mapping[str, Shape],
) -> str:
    """The rules for tensors of the port that are equal parts of one that is left over; empty without one."""
    for own in left:
        for parts in _possible_parts(own, alone):
            if len({shapes[name] for name in parts}) != 1 or not shapes[parts[0]]:
                continue
            first, *others = shapes[parts[0]]
            if tuple(weights[own].shape) == (len(parts) * first, *others):
                patterns = [pattern_of(name) for name in parts]
                # Numbers that tell the parts apart belong to no pattern.
                if len({*patterns}) == len(parts) and all(
                    p.count("*") == pattern_of(own).count("*") for p in patterns
                ):
                    own, parts = pattern_of(own), patterns
                rules = (
                    f"{name!r}: parity.From({own!r}, split=({place}, {len(parts)}))"
                    for place, name in enumerate(parts)
                )
                return f"write weights={{{', '.join(rules)}}} in the reference's order"
    return ""


def _possible_parts(own: str, alone: Sequence[str]) -> Iterator[list[str]]:
    """Tensors of the port that may be the parts of a tensor, the ones in its own module first."""
    *owner, leaf = own.split(".")
    for length in range(len(owner), -1, -1):
        prefix = "".join(f"{name}." for name in owner[:length])
        inside = [name for name in alone if name.startswith(prefix)]
        # A joined tensor may be a parameter of its own, such as `in_proj_weight`.
        parts = [name for name in inside if f"_{leaf}".endswith(f"_{name.rpartition('.')[2]}")]
        if len(parts) > 1:
            yield parts


def _fix(name: str, absent: str, weights: Mapping[str, torch.Tensor]) -> str:
    """The option that gives the tensor a source: `names` where the whole module has another name."""
    owner, (source_owner, _, leaf) = name.rpartition(".")[0], absent.rpartition(".")
    if any(own.startswith(f"{source_owner}.parametrizations.{leaf}.") for own in weights):
        return f"call torch.nn.utils.parametrize.remove_parametrizations(module, {leaf!r}) on {source_owner}"
    is_module = not owner or any(own.startswith(f"{source_owner}.") for own in weights)
    return (
        f"write weights={{{pattern_of(name)!r}: ...}}"
        if is_module
        else f"write names={{{pattern_of(owner)!r}: ...}}"
    )


def _refuse_unmatched_rules(case: Case, shapes: Mapping[str, Shape]) -> None:
    """Raises `UserError` for a rule that decides no tensor of the port."""
    deciding = {
        next((rule for rule in case.weights if matched(rule, name) is not None), "") for name in shapes
    }
    for pattern in case.weights:
        if pattern in deciding:
            continue
        name = next((name for name in shapes if matched(pattern, name) is not None), None)
        if name is None:
            near = difflib.get_close_matches(pattern, shapes, n=1)
            hint = f"; the nearest name is {near[0]!r}" if near else ""
            raise UserError(
                "weights", pattern, f"matches no tensor of the port{hint}", "name a tensor of the port"
            )
        first = next(rule for rule in case.weights if matched(rule, name) is not None)
        raise UserError(
            "weights", pattern, f"decides nothing: {first!r} above it has {name}", "write it above"
        )


def _refuse_left_over(
    case: Case, weights: Mapping[str, torch.Tensor], parts: Mapping[str, set[tuple[int, int]]]
) -> None:
    for name, taken in parts.items():
        count = max(parts for _, parts in taken)
        missing = sorted({(part, count) for part in range(count)} - taken)
        if missing and (0, 1) not in taken:
            raise UserError(
                "weights", name, f"has a part left over, {missing[0]}", "give each part to one tensor"
            )
    needed = [name for name in parts if matches_any(case.unused, name)]
    if needed:
        problem = "is taken by the port" if len(needed) == 1 else "are taken by the port"
        raise UserError("unused", in_groups(needed), problem, "leave out of unused what the port needs")
    unused = (*case.unused, TRAINING_ONLY)
    left = [name for name in weights if name not in parts and not matches_any(unused, name)]
    if not left:
        return
    shared = _shared(case)
    left = [name for name in left if not any(other in parts for other in shared.get(name, ()))]
    if left:
        are, them = ("are", "them") if len(left) > 1 else ("is", "it")
        raise UserError(
            "weights",
            in_groups(left),
            f"{are} left over: no tensor of the port takes {them}",
            f"name {them} in weights, or in unused if the port does not need {them}",
        )


def _shared(case: Case) -> Mapping[str, Sequence[str]]:
    """Names of the reference's tensors by each name of the same tensor."""
    names: dict[int, list[str]] = {}
    for name, tensor in case.build_reference().state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name)
    return {name: group for group in names.values() for name in group}
