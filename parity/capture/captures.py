"""The results of one runner: tensors by tap name, and the calls that the reference made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from parity.base.precision import coarser
from parity.base.real_numbers import in_real
from parity.base.trees import Leaf, dotted, leaves
from parity.capture.arguments import Argument, Received
from parity.capture.live_copies import LiveCopies
from parity.capture.names import TapName
from parity.capture.spool import LARGE_BYTES, Spool, content_digest
from parity.capture.values import Opaque

METHODS = ("cached_forward",)
"""Methods of modules that count as calls, besides `forward`."""
LARGE_FOLDER = "tensors"
"""Name of the folder of large tensors, beside the runners' folders: runners share equal tensors."""


def large_folder(stem: Path) -> Path:
    """The folder of the large tensors of the capture `<runner>/<stem>`."""
    return stem.parent.parent / LARGE_FOLDER


@dataclass(frozen=True)
class ModuleCall:
    """One call of one module of the reference, replayable on any side.

    Attributes:
        path: Path of the module in the model, as in its state-dict keys.
        tap: Name of the call, see `TapName.module_call`.
        kind: Class name of the reference's module.
        args: Positional arguments: a tree of containers, constants, other values that can be stored,
            `TensorKey`s, and `Opaque`s in place of all others.
        kwargs: Keyword arguments, likewise.
        outputs: Tap names of the tensors that the call returned.
        method: "forward", or one of `METHODS`.
    """

    path: str
    tap: str
    kind: str
    args: list
    kwargs: dict
    outputs: tuple[str, ...]
    method: str = "forward"

    def function(self, module: Any) -> Callable[..., Any]:
        """The function of this call, of the module at `path` on either side."""
        return module if self.method == "forward" else getattr(module, self.method)

    @property
    def tensor_keys(self) -> set[str]:
        """Keys of the tensors that the call receives."""
        return set(argument_keys(self.args, self.kwargs).values())

    @property
    def opaque(self) -> dict[str, str]:
        """Classes of arguments that cannot be stored, by dotted path. With one the call cannot run alone."""
        arguments = leaves({"args": self.args, "kwargs": self.kwargs})
        return {dotted(path): leaf.kind for path, leaf in arguments if isinstance(leaf, Opaque)}

    @property
    def appends(self) -> bool:
        """Whether the call is of the forward that appends an item to a cache."""
        return TapName.parse(self.tap).appends


@dataclass(frozen=True)
class TensorKey(Leaf):
    """Stands for a tensor inside a `ModuleCall`; the tensor is `Capture.call_inputs[key]`.

    Attributes:
        key: Its key.
        is_complex: Whether the reference's tensor is complex. The stored one holds its parts.
    """

    key: str
    is_complex: bool = False


@dataclass
class Capture:
    """Tensors by tap name in the order in which the modules finished, and the calls that returned them.

    Attributes:
        tensors: Results by tap name.
        calls: Calls of the reference's modules.
        call_inputs: Tensors that the calls received, by `TensorKey.key`; of a run without recorded calls, the
            arguments that are no tap, by `TapName`.
        arguments: Arguments of the calls in the order in which they begin, by the call's tap; of whole
            batches only.
        longest_sums: Terms of the longest sum inside the module, by path, and of the whole forward under "";
            see `parity.capture.longest_sums`.
        coarsest_types: Coarsest floating-point type that a result is rounded to inside the module, by path; a
            module without a rounding has none.
        unknown_sums: Operations whose longest sum is not known, with the origin of their terms in words, by
            path of the innermost module; the path is "" outside of all modules.
        longest_sums_before: Terms of the longest sum of all operations before the tap, by tap.
        largest_results: Size of the largest tensor that was computed inside the module, by path, in bytes.
        forms: Forms of the results that are no dense tensors of real numbers in the model, in words, by tap.
        padded: Taps of a run with garbage in the padding that differ from the clean run's in the padding
            alone; their tensors are the clean ones.
        evaluated: Lines of a Tripy model's code that evaluate a tensor while the model is compiled, by path
            of the module whose code runs, the entry's under "". The executable holds the value as a constant,
            where other inputs have another one.
        live: Copies of the running model's tensors, whose keys are those of `tensors` and `call_inputs`.
    """

    tensors: MutableMapping[str, torch.Tensor] = field(default_factory=dict)
    calls: list[ModuleCall] = field(default_factory=list)
    call_inputs: MutableMapping[str, torch.Tensor] = field(default_factory=dict)
    arguments: dict[str, Received] = field(default_factory=dict)
    longest_sums: dict[str, int] = field(default_factory=dict)
    coarsest_types: dict[str, torch.dtype] = field(default_factory=dict)
    unknown_sums: dict[str, dict[str, str]] = field(default_factory=dict)
    longest_sums_before: dict[str, int] = field(default_factory=dict)
    largest_results: dict[str, int] = field(default_factory=dict)
    forms: dict[str, str] = field(default_factory=dict)
    padded: set[str] = field(default_factory=set)
    evaluated: dict[str, str] = field(default_factory=dict)
    live: LiveCopies = field(default_factory=LiveCopies, repr=False, compare=False)

    @classmethod
    def spooled(cls, stem: Path, large: int = LARGE_BYTES) -> Capture:
        """A capture whose tensors go to the disk as they come; `save_capture` to its stem completes it."""
        folder = large_folder(stem)
        return cls(tensors=Spool(folder, large), call_inputs=Spool(folder, large))

    def beside(self) -> Capture:
        """An empty capture that stores tensors as this one does, and shares the inputs of its calls."""
        tensors = self.tensors.beside() if isinstance(self.tensors, Spool) else {}
        return Capture(tensors=tensors, call_inputs=self.call_inputs)

    def argument(self, argument: Argument) -> torch.Tensor:
        """The tensor of an argument of one of this capture's calls."""
        taps, key = self.tensors, argument.tensor
        return taps[key] if key in taps else self.call_inputs[key]

    def intern(self, tensor: torch.Tensor) -> TensorKey:
        """Store one copy of an input tensor, however many calls receive it."""
        known = next((key for key in self.live.keys(tensor) if key in self.call_inputs), "")
        if known:
            return TensorKey(known, tensor.is_complex())
        # A copy has the strides of its shape; `contiguous` leaves those of an axis of size 1 as they are.
        content = in_real(tensor).clone(memory_format=torch.contiguous_format)
        digest = content_digest(content)
        key = digest[:16]
        if key not in self.call_inputs:
            if isinstance(self.call_inputs, Spool):
                self.call_inputs.add(key, content.cpu(), digest)
            else:
                self.call_inputs[key] = content.cpu()
        self.live.add(tensor, key, content)
        return TensorKey(key, tensor.is_complex())

    def renamed(self, rename: Callable[[TapName], TapName]) -> Capture:
        """The tensors and arguments under other names; calls are left out. Texts that are no names stay."""

        def name(text: str) -> str:
            return str(rename(TapName.parse(text))) if text else ""

        return Capture(
            tensors={name(tap): tensor for tap, tensor in self.tensors.items()},
            call_inputs={name(key): tensor for key, tensor in self.call_inputs.items()},
            arguments={
                name(call): replace(
                    received,
                    arguments=tuple(
                        replace(own, tensor=name(own.tensor), origin=name(own.origin))
                        for own in received.arguments
                    ),
                )
                for call, received in self.arguments.items()
            },
        )

    def keep_new_forms(self, known: int) -> None:
        """Drop calls behind the first `known` ones with the form of one of these, arguments and results."""
        forms = {_form(call) for call in self.calls[:known]}
        self.calls[known:] = [call for call in self.calls[known:] if _form(call) not in forms]

    def add_appending(self, appending: Capture) -> None:
        """Add the calls of a run that appends an item, without repetitions of this run's calls."""
        known = {_identity(call) for call in self.calls}
        for call in appending.calls:
            if _identity(call) in known:
                continue
            outputs = tuple(str(TapName.parse(name).appending()) for name in call.outputs)
            tap = str(TapName.parse(call.tap).appending())
            self.calls.append(replace(call, tap=tap, outputs=outputs))
            for name, output in zip(call.outputs, outputs, strict=True):
                self.tensors[output] = appending.tensors[name]
                self.longest_sums_before[output] = appending.longest_sums_before[name]
                if name in appending.forms:
                    self.forms[output] = appending.forms[name]
        if appending.call_inputs is not self.call_inputs:
            self.call_inputs.update(appending.call_inputs)
        for path, dtype in appending.coarsest_types.items():
            self.coarsest_types[path] = coarser(dtype, self.coarsest_types.get(path, dtype))
        for path, operations in appending.unknown_sums.items():
            self.unknown_sums.setdefault(path, {}).update(operations)
        for own, others in (
            (self.longest_sums, appending.longest_sums),
            (self.largest_results, appending.largest_results),
        ):
            for path, size in others.items():
                own[path] = max(size, own.get(path, 0))


def _identity(call: ModuleCall) -> tuple[str, str, str]:
    return call.path, repr(call.args), repr(call.kwargs)


def _form(call: ModuleCall) -> tuple[str, str, frozenset[str], tuple[str, ...]]:
    arguments = frozenset(argument_keys(call.args, call.kwargs))
    return call.path, call.method, arguments, tuple(TapName.parse(tap).output for tap in call.outputs)


def tensor_leaves(result: Any, is_tensor: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    """Yield `(output, tensor)` for each tensor in a module's result, other values left out.

    The output is as in `TapName`: empty for a single tensor. Another value, such as a size or an object, is
    compared where a call receives it.
    """
    tensors = [(path, leaf) for path, leaf in leaves(result) if is_tensor(leaf)]
    for path, leaf in tensors:
        yield "".join(f"[{key}]" for key in path) if len(tensors) > 1 else "", leaf


def argument_keys(args: list, kwargs: dict) -> dict[str, str]:
    """Keys of the tensors of a recorded call, by the dotted path of the argument, such as `args.0`."""
    arguments = leaves({"args": args, "kwargs": kwargs})
    return {dotted(path): leaf.key for path, leaf in arguments if isinstance(leaf, TensorKey)}


class Through(MutableMapping[str, torch.Tensor]):
    """Another mapping, whose tensors are changed on their way into it.

    Args:
        inner: The other mapping.
        change: From a name and a tensor to the names and tensors that take its place.
    """

    def __init__(
        self,
        inner: MutableMapping[str, torch.Tensor],
        change: Callable[[str, torch.Tensor], Mapping[str, torch.Tensor]],
    ) -> None:
        self._inner = inner
        self._change = change

    def __setitem__(self, name: str, tensor: torch.Tensor) -> None:
        self._inner.update(self._change(name, tensor))

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._inner[name]

    def __delitem__(self, name: str) -> None:
        del self._inner[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._inner)

    def __len__(self) -> int:
        return len(self._inner)
