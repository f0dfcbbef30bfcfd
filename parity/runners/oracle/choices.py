"""Passes of a model whose choices are recorded or prescribed (`parity.runners.oracle.choice`).

Inside `Choices`, each choice has a number in the order in which the operations run. A choice may be
prescribed. Everything behind it then follows the prescribed one.

Integers that code makes from choices are followed: a cast, a slice, an offset, a lookup of ids. The choice
behind such a result can then be read off it.

A pass may run on a GPU, and its repetitions on the CPU. What is recorded of it lies on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from parity.base.dispatch import EachOperation, mapped, tensors_in
from parity.capture.captures import Capture, ModuleCall
from parity.capture.terms.call import Call
from parity.runners.base import Arrays
from parity.runners.oracle.choice import ROUNDING, Choice, is_choice, is_fractional, operands_of, result_of
from parity.runners.oracle.float64 import OracleRunner
from parity.runners.torch.eager import TorchModules, TorchRunner

MOVING = frozenset(
    "view _unsafe_view reshape select slice transpose permute t squeeze unsqueeze expand clone detach alias "
    "flip cat stack split split_with_sizes unbind repeat roll constant_pad_nd _to_copy lift_fresh".split()
)
"""Operations that move integers, which may be a choice."""
POINTWISE = frozenset(
    "add sub rsub mul neg floor_divide div remainder fmod clamp where index gather index_select take "
    "bitwise_and bitwise_or bitwise_xor bitwise_not logical_and logical_or logical_not logical_xor "
    "__lshift__ __rshift__ bitwise_left_shift bitwise_right_shift "
    "gt ge lt le eq ne abs maximum minimum".split()
)
"""Operations whose result depends, element by element, on the integers at its place."""
MOST_TOGETHER = 8
"""Most elements of choices that one integer holds and that are followed: a byte has eight bits."""
_CPU = torch.device("cpu")
Values = Callable[[int], torch.Tensor]
"""From the number of a choice to values in its place."""
Prescribed = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""By the number of a choice, its values and the mask of the prescribed ones."""


@dataclass(frozen=True)
class Link:
    """The choices that the elements of a tensor come from.

    Attributes:
        labels: (K, ...) Elements of choices, numbered through all choices of a pass; -1 for none. An integer
            that packs several of them, such as a byte of two codes, has K > 1.
        replay: The tensor that other values in the place of the choices give.
        numbers: Numbers of the choices.
        is_moved: Whether the tensor holds the choices themselves.
        tensor: The tensor.
    """

    labels: torch.Tensor
    replay: Callable[[Values], torch.Tensor]
    numbers: frozenset[int]
    is_moved: bool
    tensor: torch.Tensor


class Choices(EachOperation):
    """Inside, choices are recorded, and prescribed ones are taken.

    Args:
        prescribed: By the number of a choice, its values and the mask of the prescribed ones.
        earlier: A recorded pass, all of whose choices this pass takes; its choices get this pass's numbers.
        is_reference: Whether this pass is the reference's.
    """

    def __init__(
        self,
        prescribed: Prescribed | None = None,
        earlier: Choices | None = None,
        is_reference: bool = False,
    ) -> None:
        super().__init__()
        self._is_reference = is_reference
        self.choices: list[Choice | None] = []
        self.offsets: dict[int, int] = {}
        self._prescribed = prescribed or {}
        self._earlier = earlier
        self._links: dict[int, Link] = {}
        self._labels = 0
        self._count = 0

    def link(self, tensor: torch.Tensor) -> Link | None:
        """The choices that a tensor of this pass comes from; None if it comes from none."""
        known = self._links.get(id(tensor))
        return known if known is not None and known.tensor is tensor else None

    def operation(self, func: Any, args: tuple, kwargs: dict) -> Any:
        name = func.overloadpacket.__name__
        if is_choice(func, name, args, kwargs):
            self._count += 1
            call = Call(func, args, kwargs, ())
            chosen = self._record(call, name) if self._earlier is None else self._repeat(call, name)
            if chosen is not None:
                return chosen
        result = func(*args, **kwargs)
        if self._links:
            self._follow(func, name, args, kwargs, result)
        return result

    def _record(self, call: Call, name: str) -> Any:
        """The result of a choice; None for an operation whose numbers are integers already."""
        number = self._count - 1
        if name in ROUNDING and not is_fractional(call.args[0]):
            self.choices.append(None)
            return None
        copy = _copied(call)
        result = call.func(*call.args, **call.kwargs)
        value = natural = result[1] if isinstance(result, (tuple, list)) else result
        if number in self._prescribed:
            values, mask = self._prescribed[number]
            if values.shape != natural.shape:
                raise DifferentChoices(f"choice {number} has another shape")
            values, mask = values.to(natural), mask.to(natural.device)
            value = torch.where(mask, values, natural)
            result = result_of(call, name, value)
            value = result[1] if isinstance(result, tuple) else result
        # Contiguous, whatever the layout of the numbers: searches number the elements of a choice.
        copies = (_copy(part).contiguous() for part in (value, natural))
        self.choices.append(Choice(copy, name, *copies))
        self._begin(number, value)
        return result

    def _repeat(self, call: Call, name: str) -> Any:
        """The result of the earlier pass's choice; None for an operation that was none."""
        earlier, number = self._earlier.choices, self._count - 1
        if number >= len(earlier):
            raise DifferentChoices(f"choice {number} is a new one")
        choice = earlier[number]
        if choice is None:
            return None
        shapes = [tensor.shape for tensor in operands_of(call, name)]
        if choice.operation != name or shapes != [tensor.shape for tensor in choice.operands]:
            raise DifferentChoices(f"choice {number} is another one")
        with _disable_current_modes():
            choice.take(call, self._is_reference)
        return result_of(call, name, choice.value.to(operands_of(call, name)[0].device))

    def _begin(self, number: int, value: torch.Tensor) -> None:
        self.offsets[number] = self._labels
        labels = torch.arange(self._labels, self._labels + value.numel()).reshape(1, *value.shape)
        self._labels += value.numel()
        self._links[id(value)] = Link(
            labels, lambda values: values(number).to(value.dtype), frozenset({number}), True, value
        )

    def _follow(self, func: Any, name: str, args: tuple, kwargs: dict, result: Any) -> None:
        """Link integers that come from choices."""
        moves, pointwise = name in MOVING, name in POINTWISE
        if not (moves or pointwise):
            return
        links = [
            link for leaf in tensors_in((*args, *kwargs.values())) if (link := self.link(leaf)) is not None
        ]
        if not links:
            return
        outputs = result if isinstance(result, (tuple, list)) else [result]
        if not all(isinstance(out, torch.Tensor) and not is_fractional(out) for out in outputs):
            return
        args, kwargs = _copied_tree(args, self.link), _copied_tree(kwargs, self.link)

        def replay(values: Values) -> Any:
            def fill(leaf: Any) -> Any:
                return leaf.replay(values) if isinstance(leaf, Link) else leaf

            return func(*mapped(fill, args), **mapped(fill, kwargs))

        labels = _moved_labels(func, name, args, kwargs, links) if moves else [_joined_labels(links, result)]
        numbers = frozenset().union(*(link.numbers for link in links))
        is_moved = moves and all(link.is_moved for link in links)
        for place, (output, own) in enumerate(zip(outputs, labels, strict=True)):
            if own is not None:
                part = replay if output is result else (lambda values, place=place: replay(values)[place])
                self._links[id(output)] = Link(own, part, numbers, is_moved, output)


class DifferentChoices(Exception):
    """Two passes of one model have other choices: its control flow depends on them, or it cannot run so."""


def _copied(call: Call) -> Call:
    """The call with copies of its tensors, which code behind it may overwrite."""
    return Call(call.func, mapped(_copy, call.args), mapped(_copy, call.kwargs), ())


def _copy(leaf: Any) -> Any:
    """A copy of a tensor on the CPU, and the CPU in place of a device."""
    if isinstance(leaf, torch.device):
        return _CPU
    return leaf.detach().to(_CPU, copy=True) if isinstance(leaf, torch.Tensor) else leaf


def _copied_tree(tree: Any, link: Callable[[torch.Tensor], Link | None]) -> Any:
    """The tree with links in the place of linked tensors, and copies of the others."""

    def copied(leaf: Any) -> Any:
        return (link(leaf) if isinstance(leaf, torch.Tensor) else None) or _copy(leaf)

    return mapped(copied, tree)


def _moved_labels(
    func: Any, name: str, args: tuple, kwargs: dict, links: list[Link]
) -> list[torch.Tensor | None]:
    """The labels of the results of an operation that moves integers."""
    layers = []
    for layer in range(max(len(link.labels) for link in links)):

        def labels(leaf: Any, layer: int = layer) -> Any:
            if isinstance(leaf, Link):
                own = leaf.labels
                return own[layer] if layer < len(own) else torch.full(own.shape[1:], -1)
            return torch.full(leaf.shape, -1) if isinstance(leaf, torch.Tensor) else leaf

        if name == "_to_copy":
            layers.append([labels(args[0])])
        elif name == "constant_pad_nd":
            layers.append([func(labels(args[0]), args[1], -1)])
        else:
            moved = func(*mapped(labels, args), **mapped(labels, kwargs))
            layers.append(moved if isinstance(moved, (tuple, list)) else [moved])
    return [torch.stack(parts) for parts in zip(*layers, strict=True)]


def _joined_labels(links: list[Link], result: torch.Tensor) -> torch.Tensor | None:
    """The labels of a pointwise result; -1 for an element of too many choices, None for another shape."""
    joined: list[torch.Tensor] = []
    for link in links:
        for layer in link.labels:
            try:
                labels = layer.expand(result.shape)
            except RuntimeError:
                return None
            for place, known in enumerate(joined):
                fits = (known < 0) | (known == labels)
                joined[place] = torch.where(fits & (labels >= 0), labels, known)
                labels = torch.where(fits, -1, labels)
            if not joined or bool((labels >= 0).any()):
                joined.append(labels)
    labels = torch.stack(joined)
    too_many = (labels[MOST_TOGETHER:] >= 0).any(0)
    return torch.where(too_many, -1, labels[:MOST_TOGETHER])


class Choosing(TorchModules):
    """Runs passes inside a `Choices`: the first one records it, and all others repeat it.

    Attributes:
        recorded: The pass that others repeat; None to record it.
        prescribed: See `Choices`.
    """

    recorded: Choices | None = None
    prescribed: Prescribed | None = None
    _is_reference = False

    def _choosing(self) -> Choices:
        if self.recorded is None:
            self.recorded = Choices(self.prescribed)
            return self.recorded
        return Choices(earlier=self.recorded, is_reference=self._is_reference)

    def _entry(self, arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
        with self._choosing():
            return super()._entry(arguments)

    def _call_taps(self, call: ModuleCall, args: list, kwargs: dict) -> dict[str, torch.Tensor]:
        with self._choosing():
            return super()._call_taps(call, args, kwargs)


class ChoosingOracle(Choosing, OracleRunner):
    """The oracle with rounding samples, which repeat its choices."""

    # The oracle itself has run twice.
    _is_repeatable = True
    # No choice jumps.
    _widens_samples = True


class ChoosingReference(Choosing, TorchRunner):
    """The reference, which repeats the choices of the oracle."""

    _is_reference = True

    def run_recorded(self, arrays: Arrays) -> Capture:
        """The tapped run with its calls, without those that append an item."""
        return self._tapped(arrays, None, record_calls=True)
