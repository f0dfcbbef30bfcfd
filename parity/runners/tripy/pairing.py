"""The modules and tensors of a Tripy model under the reference's names."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import nvtripy as tp
import torch

from parity.base.errors import UserError
from parity.base.trees import map_tree
from parity.capture.arguments import named_arguments
from parity.capture.names import TapName
from parity.capture.tripy_hooks import named_modules
from parity.case import Case, Form
from parity.case.pairing import check_paths, entry_of, function_of
from parity.case.patterns import matched
from parity.case.plain_models import in_place_of_model
from parity.case.users_code import of_case
from parity.inputs.port_weights import port_weights, source_of
from parity.inputs.weights import built_reference
from parity.runners.tripy.compiled import tripy_dtype, tripy_value
from parity.runners.tripy.lean_traces import leanly

_HALF = (torch.float16, torch.bfloat16)


def paired_modules(case: Case, model: tp.Module) -> dict[str, tp.Module]:
    """The port's modules by their paths in the reference.

    Raises:
        UserError: Two modules have one path, or a rule of `names` matches no module.
    """
    paths = {path: case.reference_path(path) for path, _ in named_modules(model)}
    check_paths(case.names, paths)
    return {paths[path]: module for path, module in named_modules(model)}


def paired_parameters(case: Case, model: tp.Module) -> dict[str, tp.Tensor]:
    """The port's tensors by the names of their sources in the reference, or by their own if they differ."""
    named = {}
    for name, tensor in model.state_dict().items():
        source = source_of(case, name)
        is_whole = source is not None and source.is_whole
        named[source.names[0] if source is not None and is_whole else name] = tensor
    return named


def weights_of_port(
    case: Case, model: tp.Module, weights: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The reference's weights by the port's names and in its layouts. Raises `UserError`."""
    return port_weights(case, weights, _shapes(model.state_dict()))


def set_parameters(case: Case, model: tp.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Give the port the reference's weights. Raises `UserError`, see `port_weights`.

    A port may keep a tensor in float32 in a run of a half type, which holds the same numbers.
    """
    declared = model.state_dict()
    tensors = weights_of_port(case, model, weights)
    for name, tensor in tensors.items():
        if tensor.dtype in _HALF and declared[name].dtype == tp.float32:
            tensors[name] = tensor.float()
    load_tensors(model, tensors)


def load_tensors(model: tp.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Give a port its tensors by name. Those that it sets itself are not among them, and stay."""
    state = {name: tp.Tensor(tensor) for name, tensor in tensors.items()}
    model.load_state_dict(state, strict=state.keys() == model.state_dict().keys())


def built_port(case: Case, dtype: torch.dtype) -> tp.Module:
    """The port of a case in a type. Raises `UserError` for one that is no module of Tripy."""
    model: Any = leanly(lambda: case.build_port(tripy_dtype(dtype)))
    if not isinstance(model, tp.Module):
        returned, fix = in_place_of_model(model, "nvtripy.Module")
        raise UserError("case", case.name, f"has no port: build_port returns {returned}", fix)
    return model


def require_taking(case: Case, model: tp.Module, arguments: Mapping[str, Any]) -> None:
    """Raises `UserError` for a port whose entry does not take the reference's arguments by their names.

    A case with a `call` of its own may pass them in another way.
    """
    if type(case).call is not Case.call:
        return
    entry = f"{type(model).__name__}.{case.entry}"
    fix = f"give it the parameters {', '.join(arguments)}, or override call in the case"
    if not callable(getattr(model, case.entry, None)):
        raise UserError("case", case.name, f"has a port without the entry {entry}", fix)
    signature = inspect.signature(entry_of(model, case.entry))
    try:
        signature.bind(**arguments)
    except TypeError as error:
        problem = f"has a port that does not take its inputs: {entry}{signature} ({error})"
        raise UserError("case", case.name, problem, fix) from error


def check_port(case: Case, dtype: torch.dtype) -> None:
    """Raises `UserError` for modules and tensors without a counterpart, before a run."""
    with of_case(case, "build_port"):
        model = built_port(case, dtype)
        # A tensor may be computed now.
        shapes = _shapes(model.state_dict())
    check_patterns(case, list(paired_modules(case, model)))
    port_weights(case, built_reference(case).state_dict(), shapes)


def check_patterns(case: Case, paths: Sequence[str]) -> None:
    """Raises `UserError` for a pattern of an option that matches nothing. A form has those of its case.

    Args:
        case: The case.
        paths: Paths of the port's modules in the reference.
    """
    if isinstance(case, Form) or not (case.inert or case.functional or case.unused or case.tolerance):
        return
    model = case.build_reference()
    own = {path: type(module).__name__ for path, module in model.named_modules() if path}
    modules, named = (list(dict.fromkeys(names)) for names in ([*own, *own.values(), *paths], [*own, *paths]))
    tensors = list(model.state_dict())
    for option, known in (("inert", modules), ("functional", modules), ("unused", tensors)):
        for pattern in getattr(case, option):
            _refuse_unmatched(option, pattern, pattern, known)
    for pattern in case.tolerance:
        # The outputs of the entry are not known before it runs.
        if not pattern.startswith((f"{case.entry}.", "*")):
            _refuse_unmatched("tolerance", pattern, TapName.parse(pattern).path, named)


def _refuse_unmatched(option: str, pattern: str, path: str, known: Sequence[str]) -> None:
    if any(matched(path, name) is not None for name in known):
        return
    near = difflib.get_close_matches(path, known, n=1)
    hint = f"did you mean {near[0]!r}? known: " if near else "use names such as "
    deep = pattern.replace("**", "*").replace("*", "**")
    if any(matched(deep, name) is not None for name in known):
        raise UserError(option, pattern, "has a star for one part of the path alone", f"write {deep}")
    what = "tensor of the reference" if option == "unused" else "module"
    raise UserError(option, pattern, f"matches no {what}", hint + ", ".join(known[:3]))


def _shapes(declared: Mapping[str, tp.Tensor]) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor of the port, by its name."""
    return {name: tuple(map(int, tensor.shape)) for name, tensor in declared.items()}


def taken(module: tp.Module, args: list, kwargs: dict) -> tuple[list, dict]:
    """The arguments of the reference's module that the port's module takes.

    The results decide whether the others matter, such as a cache of None or positions that nobody reads.
    """
    parameters = inspect.signature(function_of(module)).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        kwargs = {name: value for name, value in kwargs.items() if name in parameters}
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        args = args[: sum(parameter.kind in positional for parameter in parameters.values())]
    return args, kwargs


def received_arguments(
    case: Case, module: tp.Module, args: list, kwargs: dict, inside: Inside, host: Callable[[Any], Any]
) -> tuple[list, dict]:
    """The arguments of the reference's module in the form in which the port's module receives its own.

    Args:
        case: The case, whose options tell how the forms may differ.
        module: The port's module.
        args, kwargs: The arguments of the reference's module, tensors as `torch.Tensor`s.
        inside: See `Inside`.
        host: The value of an argument that has no type of its own in the port; a tensor stays on the host.
    """
    if case.one_sided:
        args, kwargs = taken(module, args, kwargs)
    if case.squeeze:
        args, kwargs = in_ranks(module, args, kwargs, inside)
    types = types_inside(module, args, kwargs, inside)

    def received(leaf: Any) -> Any:
        return tripy_value(leaf.to(types[id(leaf)])) if id(leaf) in types else host(leaf)

    return map_tree(args, received), map_tree(kwargs, received)


Inside = Mapping[str, tuple[int, torch.dtype]]
"""Number of axes and type of the tensors that a port's module receives inside the model, by argument."""


def in_ranks(module: tp.Module, args: list, kwargs: dict, inside: Inside) -> tuple[list, dict]:
    """Arguments of a module with as many leading axes of 1 as it receives inside the model.

    Args:
        module: The port's module.
        args, kwargs: The arguments of the reference's module.
        inside: See `Inside`.
    """
    wanted = {id(leaf): inside[name][0] for name, leaf in _tensors(module, args, kwargs) if name in inside}

    def in_rank(leaf: Any) -> Any:
        rank = wanted.get(id(leaf))
        if rank is None:
            return leaf
        while leaf.ndim > rank and leaf.shape[0] == 1:
            leaf = leaf[0]
        return leaf.reshape((1,) * (rank - leaf.ndim) + tuple(leaf.shape))

    return map_tree(args, in_rank), map_tree(kwargs, in_rank)


def types_inside(module: tp.Module, args: list, kwargs: dict, inside: Inside) -> dict[int, torch.dtype]:
    """The types of floating-point arguments inside the model, by the identity of the tensor.

    A part of a model may compute in another type than the tested one, such as a loss in float32.
    The arguments are those of `in_ranks`.
    """
    return {
        id(tensor): inside[name][1]
        for name, tensor in _tensors(module, args, kwargs)
        if name in inside and tensor.is_floating_point() and inside[name][1].is_floating_point
    }


def _tensors(module: tp.Module, args: list, kwargs: dict) -> Iterator[tuple[str, torch.Tensor]]:
    """The names and tensors of a module's arguments; none if it does not take them, which its call tells."""
    try:
        named = list(named_arguments(function_of(module), tuple(args), kwargs))
    except TypeError:
        return
    for argument, leaf in named:
        if isinstance(leaf, torch.Tensor):
            yield argument.name, leaf
