"""The modelled cost of a model under a policy, from the operations that its reference dispatches.

Latencies of the portable runtime say nothing about TensorRT. The cost is therefore computed. An operation
takes

    max(bytes / bandwidth, flops / peak)

Its bytes are those of its operands and results, each moved once, in the precision of the module whose forward
contains the operation. Integers keep their type. So do tensors that are float32 in every precision; the
reference runs in float16 to tell them apart. A lookup reads the rows that it returns. Views move nothing.
FLOPs are those of matrix products, as `torch.utils.flop_counter` counts them. Between modules of different
precisions, a cast reads in one precision and writes in the other. The model has neither fusion nor launch
overhead. It ranks assignments and predicts no latency.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from parity.base.dispatch import EachOperation
from parity.base.module_patterns import outwards
from parity.base.precision import PRECISIONS
from parity.base.trees import leaves
from parity.capture.torch_hooks import hooked

MACHINE = "H200 SXM"
BANDWIDTH = 4.8e12
"""Bytes per second, from NVIDIA's data sheet."""
PEAK = {"fp32": 67e12, "fp16": 989.5e12, "bf16": 989.5e12}
"""Dense FLOP per second, from the same sheet."""

_LOOKUPS = frozenset({"embedding", "gather", "index", "index_select", "_embedding_bag_forward_only"})


@dataclass(frozen=True)
class Operation:
    """One operation.

    Attributes:
        floats: Moved elements in the module's precision.
        other_bytes: Moved bytes of all other tensors.
        flops: FLOPs of matrix products.
    """

    floats: int
    other_bytes: int
    flops: int

    def seconds(self, precision: str) -> float:
        """Seconds in a precision."""
        moved = self.floats * width(precision) + self.other_bytes
        return max(moved / BANDWIDTH, self.flops / PEAK[precision])


def width(precision: str) -> int:
    """Bytes of an element."""
    return PRECISIONS[precision].dtype.itemsize


@dataclass
class Work:
    """The work of a model in one run.

    Attributes:
        operations: Operations of each module's own forward by path, without the modules inside it.
        crossings: Elements that cross between a module and its caller, by both paths.
    """

    operations: dict[str, list[Operation]] = field(default_factory=dict)
    crossings: dict[tuple[str, str], int] = field(default_factory=dict)

    def own_seconds(self, path: str, precision: str) -> float:
        """Seconds of a module's own operations."""
        return sum(operation.seconds(precision) for operation in self.operations[path])

    def seconds(self, precisions: Mapping[str, str]) -> float:
        """Seconds of the model with these precisions of its modules, casts included."""
        own = sum(self.own_seconds(path, precisions[path]) for path in self.operations)
        casts = sum(
            cast_seconds(elements, precisions[path], precisions[caller])
            for (path, caller), elements in self.crossings.items()
        )
        return own + casts

    def within(self, paths: Collection[str]) -> Work:
        """The same work, where these modules and the model have that of all other modules inside them."""
        home = {
            path: next(outer for outer in outwards(path) if not outer or outer in paths)
            for path in self.operations
        }
        work = Work({"": []})
        for path, operations in self.operations.items():
            work.operations.setdefault(home[path], []).extend(operations)
        for (path, caller), elements in self.crossings.items():
            edge = (home[path], home[caller])
            if edge[0] != edge[1]:
                work.crossings[edge] = work.crossings.get(edge, 0) + elements
        return work


def cast_seconds(elements: int, one: str, other: str) -> float:
    """Seconds of a cast of elements between two precisions; 0 for equal ones."""
    return 0.0 if one == other else elements * (width(one) + width(other)) / BANDWIDTH


class Counting(EachOperation):
    """Records the `work` of a float16 model that runs inside, in `torch.inference_mode`."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._open = [""]
        self._hooks = hooked(model, self._enter, self._leave)
        self.work = Work({"": []})

    def __enter__(self) -> Counting:
        self._hooks.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        super().__exit__(*details)
        self._hooks.__exit__(*details)

    def _enter(self, path: str, args: tuple, kwargs: dict) -> None:
        self._cross(path, [args, kwargs])
        self._open.append(path)
        self.work.operations.setdefault(path, [])

    def _leave(self, path: str, kind: str, result: Any) -> None:
        self._open.pop()
        self._cross(path, result)

    def _cross(self, path: str, tensors: Any) -> None:
        elements = sum(tensor.numel() for tensor in _tensors(tensors) if _in_precision(tensor))
        edge = (path, self._open[-1])
        self.work.crossings[edge] = self.work.crossings.get(edge, 0) + elements

    def operation(self, func: Any, args: tuple, kwargs: dict) -> Any:
        result = func(*args, **kwargs)
        if not func.is_view:
            self.work.operations[self._open[-1]].append(_operation(func, args, kwargs, result))
        return result


def count(model: torch.nn.Module, run: Any) -> Work:
    """The work of a float16 model while `run()` calls it."""
    with torch.inference_mode(), Counting(model) as counting:
        run()
    return counting.work


def _operation(func: Any, args: tuple, kwargs: dict, result: Any) -> Operation:
    packet = func.overloadpacket
    operands, results = list(_tensors([args, kwargs])), list(_tensors(result))
    returned = sum(_stored(tensor) for tensor in results if _in_precision(tensor))
    read = [_stored(tensor) for tensor in operands if _in_precision(tensor)]
    if packet.__name__ in _LOOKUPS:
        # A returned row is one row of the table, or the sum of several.
        read = [max(returned, _rows_read(operands))]
    others = (tensor for tensor in [*operands, *results] if not _in_precision(tensor))
    flops = flop_registry[packet](*args, **kwargs, out_val=result) if packet in flop_registry else 0
    return Operation(
        floats=sum(read) + returned,
        other_bytes=sum(_stored(tensor) * tensor.element_size() for tensor in others),
        flops=int(flops),
    )


def _rows_read(operands: list[torch.Tensor]) -> int:
    """Elements of the rows that a summing lookup reads; 0 for other lookups."""
    table, indices = operands[0], operands[1]
    return indices.numel() * table.shape[-1] if table.dim() == 2 and indices.dim() == 1 else 0


def _stored(tensor: torch.Tensor) -> int:
    """Elements of a tensor in memory, where an expanded axis counts once."""
    return min(tensor.numel(), tensor.untyped_storage().nbytes() // tensor.element_size())


def _in_precision(tensor: torch.Tensor) -> bool:
    """Whether a tensor follows the model's precision."""
    return tensor.dtype == torch.float16


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Tensors anywhere in nested arguments or results."""
    return (leaf for _, leaf in leaves(value) if isinstance(leaf, torch.Tensor))
