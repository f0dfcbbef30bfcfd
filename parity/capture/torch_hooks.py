"""Taps on a PyTorch model: every submodule's inputs and outputs, through forward hooks."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from parity.base.real_numbers import in_real, is_tensor
from parity.base.trees import dotted, leaves, map_tree
from parity.capture.arguments import Argument, Received, named_arguments, with_value
from parity.capture.captures import METHODS, Capture, ModuleCall, TensorKey, tensor_leaves
from parity.capture.longest_sums import WHOLE, LongestSums
from parity.capture.names import TapName
from parity.capture.outputs import form_of
from parity.capture.overriding import calling
from parity.capture.values import storable
from parity.case.pairing import function_of, overrides_call


@contextlib.contextmanager
def tapped(
    model: torch.nn.Module,
    record_calls: bool = False,
    keep: Callable[[torch.Tensor], bool] = lambda tensor: True,
    capture: Capture | None = None,
    inputs: Mapping[str, torch.Tensor] | None = None,
    kinds: Collection[str] | None = None,
) -> Iterator[Capture]:
    """Record every submodule's outputs while the body runs the model.

    Args:
        model: Any module tree; containers that are never called leave no tap.
        record_calls: Also record the calls with their inputs, and the longest sum of each module.
        keep: Whether to keep an output.
        capture: Destination of the taps; a new one in memory by default.
        inputs: Tensors of the entry's arguments by name, to record the arguments of all calls; None for none.
        kinds: Classes whose calls keep their tensors; None for all. Other calls are recorded without them,
            and cannot run alone.
    """
    capture = Capture() if capture is None else capture
    seen: dict[str, int] = {}
    pending: list[tuple[str, tuple, dict]] = []
    running: list[str] = []
    finished = 0
    sums = LongestSums() if record_calls else None
    parameters = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    origins = _Origins(capture, parameters | dict(inputs) if inputs is not None else {})
    functions = {path: function_of(module) for path, module in model.named_modules()}
    kept = {path for path, module in model.named_modules() if kinds is None or type(module).__name__ in kinds}

    def before(path: str, args: tuple, kwargs: dict, function: Callable[..., Any] | None = None) -> None:
        keys: dict[int, TensorKey] = {}

        def frozen(leaf: Any) -> Any:
            if not is_tensor(leaf):
                return storable(leaf)
            if path not in kept:
                return TensorKey("")
            if id(leaf) not in keys:
                keys[id(leaf)] = capture.intern(leaf)
            return keys[id(leaf)]

        def complete(argument: Argument, leaf: Any) -> Argument:
            if not is_tensor(leaf):
                return with_value(argument, leaf)
            own = str(TapName(path, seen.get(path, 0), argument=argument.name))
            return origins.complete(argument, own, leaf, frozen(leaf).key if sums is not None else "")

        if inputs is not None:
            named = named_arguments(function or functions[path], args, kwargs)
            capture.arguments[str(TapName(path, seen.get(path, 0)))] = Received(
                parent=running[-1] if running else "",
                finished=finished,
                longest_sum_before=sums.longest_so_far if sums is not None else 0,
                arguments=tuple(complete(argument, leaf) for argument, leaf in named),
            )
        running.append(path)
        if sums is not None:
            # Inputs are copied now: a module may overwrite them.
            pending.append((path, map_tree(args, frozen), map_tree(kwargs, frozen)))
            sums.enter(path)

    def after(path: str, kind: str, result: Any, method: str = "forward") -> None:
        nonlocal finished
        running.pop()
        if sums is not None:
            sums.leave()
        count = seen.get(path, 0)
        seen[path] = count + 1
        outputs = []
        for output, tensor in tensor_leaves(result, is_tensor):
            tap = str(TapName(path, count, output))
            outputs.append(tap)
            if form := form_of(tensor):
                capture.forms[tap] = form
            finished += 1
            if path in kept and keep(real := in_real(tensor)):
                capture.tensors[tap] = real.to("cpu", copy=True)
                if inputs is not None:
                    capture.live.add(tensor, tap)
            if inputs is not None:
                origins.add(tensor, tap, tap)
            if sums is not None:
                capture.longest_sums_before[tap] = sums.longest_so_far
        if sums is not None:
            _, args, kwargs = pending.pop()
            call = str(TapName(path, count))
            capture.calls.append(ModuleCall(path, call, kind, list(args), kwargs, tuple(outputs), method))

    counting = sums if sums is not None else contextlib.nullcontext()
    with hooked(model, before, after), _wrapped_methods(model, before, after), counting:
        yield capture
    if sums is not None:
        capture.longest_sums.update(sums.lengths | {WHOLE: sums.longest_so_far})
        capture.coarsest_types.update(sums.coarsest)
        capture.unknown_sums.update(sums.unknown)
        capture.largest_results.update(sums.largest)


class _Origins:
    """The tensors of a running model that have names already.

    Args:
        capture: Has copies of the named tensors.
        tensors: The weights of the model and tensors of the entry's arguments, by name.
    """

    def __init__(self, capture: Capture, tensors: Mapping[str, torch.Tensor]) -> None:
        self._capture = capture
        # By identity: the tensor, its name, the key of its copy. Weak references do not delay its end.
        self._named: dict[int, tuple[weakref.ref[torch.Tensor], str, str]] = {}
        for name, tensor in tensors.items():
            self.add(tensor, name, name)

    def add(self, tensor: torch.Tensor, name: str, key: str) -> None:
        """Name a tensor, unless it has a name. `key` is that of its copy in the capture."""
        if self._find(tensor) is None:
            self._named[id(tensor)] = weakref.ref(tensor), name, key

    def _find(self, tensor: torch.Tensor) -> tuple[str, str] | None:
        if id(tensor) not in self._named:
            return None
        reference, name, key = self._named[id(tensor)]
        return (name, key) if reference() is tensor and self._is_equal(key, tensor) else None

    def _is_equal(self, key: str, tensor: torch.Tensor) -> bool:
        """Whether a tensor equals its copy: code between modules may overwrite it."""
        if key in self._capture.live.keys(tensor):
            return True
        for copies in (self._capture.tensors, self._capture.call_inputs):
            if key in copies:
                return torch.equal(copies[key], in_real(tensor).cpu())
        return True

    def complete(self, argument: Argument, own: str, tensor: torch.Tensor, key: str) -> Argument:
        """The argument with its tensor, whose name is `own` if it has none.

        `key` is that of the tensor's copy in the capture; empty if there is none.
        """
        known = self._find(tensor)
        origin, known_key = known or ("", own)
        key = key or known_key
        if key not in self._capture.tensors and key not in self._capture.call_inputs:
            self._capture.call_inputs[key] = in_real(tensor).to("cpu", copy=True)
        if known is None or key != known_key:
            self._named[id(tensor)] = weakref.ref(tensor), origin or own, key
        return replace(argument, tensor=key, origin=origin)


@contextlib.contextmanager
def _wrapped_methods(
    model: torch.nn.Module,
    before: Callable[..., Any],
    after: Callable[[str, str, Any, str], Any],
) -> Iterator[None]:
    """Pass the calls of `METHODS` to `before` and `after`. PyTorch's hooks skip them."""
    wrapped: list[tuple[torch.nn.Module, str]] = []

    def wrap(path: str, module: torch.nn.Module, name: str) -> None:
        method = getattr(module, name)

        def recorded(*args: Any, **kwargs: Any) -> Any:
            before(path, args, kwargs, method)
            result = method(*args, **kwargs)
            after(path, type(module).__name__, result, name)
            return result

        # An instance attribute hides the class's method; deleting it restores the method.
        setattr(module, name, recorded)
        wrapped.append((module, name))

    try:
        for path, module in model.named_modules():
            for name in METHODS:
                if path and hasattr(module, name):
                    wrap(path, module, name)
        yield
    finally:
        for module, name in wrapped:
            delattr(module, name)


@dataclass
class Marks:
    """Copies of the tensors that modules received and returned while a model was traced, by name."""

    arguments: dict[str, torch.Tensor] = field(default_factory=dict)
    results: dict[str, torch.Tensor] = field(default_factory=dict)


@contextlib.contextmanager
def marked(model: torch.nn.Module, argument_name: Callable[[str, str], str]) -> Iterator[Marks]:
    """Put a copy in the place of every tensor that enters or leaves a module while the body traces the model.

    The nodes between a call's copies are that module. The copies have the names of its taps.

    Args:
        model: Any module tree.
        argument_name: From a call's base name and the path of an argument, such as `args.0`, to its name.
    """
    marks = Marks()
    seen: dict[str, int] = {}

    def before(path: str, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        call = str(TapName(path, seen.get(path, 0)))

        arguments = {"args": args, "kwargs": kwargs}
        # In the order of the leaves, so that each copy goes where its original was.
        places = (dotted(place) for place, leaf in leaves(arguments) if is_tensor(leaf))

        def copied(leaf: Any) -> Any:
            if not is_tensor(leaf):
                return leaf
            copy = marks.arguments[argument_name(call, next(places))] = leaf.clone()
            return copy

        copies = map_tree(arguments, copied)
        return copies["args"], copies["kwargs"]

    def after(path: str, kind: str, result: Any) -> Any:
        count = seen.get(path, 0)
        seen[path] = count + 1
        # In the order of the leaves, so that each copy goes where its original was.
        names = iter([str(TapName(path, count, output)) for output, _ in tensor_leaves(result, is_tensor)])

        def copied(leaf: Any) -> Any:
            if not is_tensor(leaf):
                return leaf
            copy = marks.results[next(names)] = leaf.clone()
            return copy

        return map_tree(result, copied)

    with hooked(model, before, after):
        yield marks


@contextlib.contextmanager
def module_ranges(model: torch.nn.Module) -> Iterator[None]:
    """Show every submodule that runs in the body as a range of PyTorch's profiler, named by its path."""
    running: list[torch.profiler.record_function] = []

    def before(path: str, args: tuple, kwargs: dict) -> None:
        running.append(torch.profiler.record_function(path))
        running[-1].__enter__()

    def after(path: str, kind: str, result: Any) -> None:
        running.pop().__exit__(None, None, None)

    with hooked(model, before, after):
        yield


@contextlib.contextmanager
def hooked(
    model: torch.nn.Module,
    before: Callable[[str, tuple, dict], Any],
    after: Callable[[str, str, Any], Any],
) -> Iterator[None]:
    """Call both with the path of every running submodule. Their results replace its arguments and results."""
    with contextlib.ExitStack() as stack:
        for path, module in model.named_modules():
            if path == "":
                continue
            kind = type(module).__name__
            if overrides_call(module):
                stack.enter_context(calling(module, _between(path, module, before, after)))
                continue
            first = module.register_forward_pre_hook(
                lambda _, args, kwargs, path=path: before(path, args, kwargs), with_kwargs=True
            )
            stack.callback(first.remove)
            last = module.register_forward_hook(
                lambda _, args, result, path=path, kind=kind: after(path, kind, result)
            )
            stack.callback(last.remove)
        yield


def _between(
    path: str,
    module: torch.nn.Module,
    before: Callable[[str, tuple, dict], Any],
    after: Callable[[str, str, Any], Any],
) -> Callable[..., Any]:
    """A module's own `__call__` between `before` and `after`, as `forward` is between PyTorch's hooks."""
    function, kind = function_of(module), type(module).__name__

    def called(*args: Any, **kwargs: Any) -> Any:
        replaced = before(path, args, kwargs)
        args, kwargs = (args, kwargs) if replaced is None else replaced
        result = function(*args, **kwargs)
        other = after(path, kind, result)
        return result if other is None else other

    return called
