"""Taps on a Tripy model: every submodule's outputs and arguments, as additional outputs of the traced graph.

Tripy has no hooks. During the trace, each submodule's `forward` is wrapped. Its results become outputs of the
compiled function, and so do arguments that are nothing else's result. The model's own code stays unchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import nvtripy as tp
from nvtripy.trace.ops.constant import Constant
from nvtripy.trace.ops.shape import GetDimensionSize
from nvtripy.trace.tensor import TraceTensor

from parity.capture.arguments import Argument, Received, named_arguments, with_value
from parity.capture.captures import tensor_leaves
from parity.capture.names import TapName
from parity.capture.overriding import calling
from parity.capture.sources import calling_line
from parity.case.pairing import function_of, overrides_call

Value = TypeVar("Value")


def is_tripy_tensor(value: Any) -> bool:
    """Whether a value is a tensor of Tripy."""
    return isinstance(value, tp.Tensor)


def named_modules(module: tp.Module, prefix: str = "") -> Iterator[tuple[str, tp.Module]]:
    """Yield `(path, module)` for every submodule, depth first, as PyTorch's `named_modules` does."""
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        yield path, child
        yield from named_modules(child, f"{path}.")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A tensor of a trace that the model's code evaluates, so that the graph holds its value.

    Attributes:
        line: File and line of the user's code.
        sizes: Sizes of axes that the value follows from; None if it follows from numbers of the inputs.
    """

    line: str
    sizes: tuple[int, ...] | None


@dataclass
class Traced:
    """The taps and the arguments of a traced model.

    Attributes:
        taps: Results of all modules by name.
        received: Arguments of all calls in the order in which they begin, by the call's tap.
        arguments: Tensors of the arguments that are neither tap nor parameter, by the name of the first.
        parameters: The weights of the model by name.
        evaluated: Tensors that the model's code evaluates, by path of the module whose code runs, the entry's
            under "".
    """

    parameters: Mapping[str, tp.Tensor]
    taps: dict[str, tp.Tensor] = field(default_factory=dict)
    received: dict[str, Received] = field(default_factory=dict)
    arguments: dict[str, tp.Tensor] = field(default_factory=dict)
    evaluated: dict[str, list[Evaluation]] = field(default_factory=dict)
    # By identity of the traced tensor; the tensor itself keeps the identity from another one.
    _named: dict[int, tuple[str, tp.Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, tensor in self.parameters.items():
            self.name(tensor, name)

    def name(self, tensor: tp.Tensor, name: str) -> str:
        """The name of a tensor: `name`, unless it has one."""
        return self._named.setdefault(id(tensor.trace_tensor), (name, tensor))[0]

    def complete(self, call: TapName, argument: Argument, leaf: Any) -> Argument:
        """The argument of a call with its value or tensor."""
        if isinstance(leaf, tp.DimensionSize) or not is_tripy_tensor(leaf):
            return with_value(argument, leaf)
        own = str(replace(call, argument=argument.name))
        known = self.name(leaf, own)
        if known not in self.taps and known not in self.parameters:
            self.arguments[known] = leaf
        return replace(argument, tensor=known, origin=known if known != own else "")


def read_beside(traced: TraceTensor, read: Callable[[tp.Tensor], Value]) -> Value:
    """What `read` returns for a tensor's value. The tensor stays a part of its graph.

    nvtripy compiles no graph with a tensor that was evaluated: another one for the same result is.
    """
    owner = traced.frontend_tensor
    value = read(tp.Tensor.from_trace_tensor(traced, preserve_existing_stack_info=True))
    traced.frontend_tensor = owner
    return value


def _sizes_in(tensor: TraceTensor) -> tuple[int, ...] | None:
    """The sizes of axes that a tensor of a trace follows from; None if an input's numbers count, too."""
    left, sizes = [tensor], []
    while left:
        known = left.pop()
        producer = known.producer
        if known.is_compile_tracer and not any(own.is_compile_tracer for own in producer.inputs):
            return None
        if isinstance(producer, GetDimensionSize):
            sizes.append(read_beside(producer.outputs[0], lambda size: int(size.tolist())))
        else:
            left.extend(producer.inputs)
    return tuple(sizes)


@contextlib.contextmanager
def tapped(
    modules: Mapping[str, tp.Module], parameters: Mapping[str, tp.Tensor], methods: Collection[str] = ()
) -> Iterator[Traced]:
    """Collect every submodule's results and arguments by name while the body traces the model.

    Args:
        modules: The submodules by path.
        parameters: Tensors of the model by name.
        methods: Methods that count as calls, besides `forward`.
    """
    traced = Traced(parameters)
    seen: dict[str, int] = {}
    running: list[str] = []
    # The tensor that is evaluated: its own evaluation evaluates others.
    evaluations: list[tp.Tensor] = []

    def recording(path: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def recording_forward(*args: Any, **kwargs: Any) -> Any:
            call = TapName(path, seen.get(path, 0))
            traced.received[str(call)] = Received(
                parent=running[-1] if running else "",
                finished=len(traced.taps),
                longest_sum_before=0,
                arguments=tuple(
                    traced.complete(call, argument, leaf)
                    for argument, leaf in named_arguments(forward, args, kwargs)
                ),
                source=calling_line(),
            )
            running.append(path)
            result = forward(*args, **kwargs)
            running.pop()
            seen[path] = call.call + 1
            for output, tensor in tensor_leaves(result, is_tripy_tensor):
                tap = str(replace(call, output=output))
                traced.taps[tap] = tensor
                traced.name(tensor, tap)
            return result

        return recording_forward

    def evaluating(evaluate: Callable[[tp.Tensor], tp.Tensor]) -> Callable[[tp.Tensor], tp.Tensor]:
        def recording_evaluate(tensor: tp.Tensor) -> tp.Tensor:
            traced_tensor = tensor.trace_tensor
            is_known = isinstance(traced_tensor.producer, Constant) or not traced_tensor.is_compile_tracer
            if is_known or evaluations:
                return evaluate(tensor)
            evaluations.append(tensor)
            try:
                own = Evaluation(calling_line(), _sizes_in(traced_tensor))
                traced.evaluated.setdefault(running[-1] if running else "", []).append(own)
                return evaluate(tensor)
            finally:
                evaluations.clear()

        return recording_evaluate

    with contextlib.ExitStack() as stack:
        for kind in (tp.Tensor, tp.DimensionSize):
            stack.callback(setattr, kind, "eval", kind.eval)
            kind.eval = evaluating(kind.eval)
        for path, module in modules.items():
            for name in methods:
                if hasattr(module, name):
                    setattr(module, name, recording(path, getattr(module, name)))
                    stack.callback(delattr, module, name)
            if overrides_call(module):
                stack.enter_context(calling(module, recording(path, function_of(module))))
                continue
            # An instance attribute hides the class's method; deleting it restores the method.
            module.forward = recording(path, module.forward)
            stack.callback(delattr, module, "forward")
        yield traced
