"""Executables: a folded program, its signature, and how to read and write it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from tripy_portable.constant_folding import fold
from tripy_portable.dtypes import ElementType
from tripy_portable.ir.types import RankedTensorType, tensor_type
from tripy_portable.planner import Plan
from tripy_portable.plugins.registry import check_plugins
from tripy_portable.program import Program, is_static
from tripy_portable.runtime.cuda_plan import CudaPlan
from tripy_portable.runtime.folding import folding
from tripy_portable.runtime.options import Options
from tripy_portable.runtime.placement import Placement
from tripy_portable.runtime.streams import device_of

# A loop over sequence lengths needs one plan a length; a plan is small beside the constants.
MAX_PLANS = 32


class FunctionSignature:
    """Types of an executable function's arguments and results."""

    def __init__(self, arguments: list[RankedTensorType], results: list[RankedTensorType]):
        self._arguments = arguments
        self._results = results

    def get_num_args(self) -> int:
        return len(self._arguments)

    def get_num_input_args(self) -> int:
        return len(self._arguments)

    def get_num_output_args(self) -> int:
        return 0

    def get_num_results(self) -> int:
        return len(self._results)

    def get_arg(self, index: int) -> RankedTensorType:
        return self._arguments[index]

    def get_result(self, index: int) -> RankedTensorType:
        return self._results[index]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self._arguments))}) -> ({', '.join(map(str, self._results))})"


class Executable:
    """A compiled function, `main`. `Executable(bytes)` reads the result of `serialize`.

    It caches the plans of the most recent calls by the inputs' shapes, element types and host values.
    """

    def __init__(self, buffer: bytes):
        program = Program.from_bytes(buffer)
        check_plugins(program)
        self._own(program)

    @classmethod
    def from_program(cls, program: Program) -> Executable:
        """An executable of a folded program."""
        executable = cls.__new__(cls)
        executable._own(program)
        return executable

    def _own(self, program: Program) -> None:
        self.program = program
        self.device = device_of(0)
        self.options = Options.from_environment()
        self._place = Placement(self.device, program.constants.values())
        # As nvtripy recorded it, for `trt`: before folding, with locations. A file doesn't keep it.
        self.recorded: Program | None = None
        self._plans: OrderedDict[Any, Plan | CudaPlan] = OrderedDict()

    def capture_graphs(self, enabled: bool) -> None:
        """Choose between launches and a CUDA graph; see `tripy_portable.graphs`. Drops the plans."""
        self.options = replace(self.options, cuda_graphs=enabled)
        self._plans.clear()

    def plan(self, key: Any) -> Plan | CudaPlan | None:
        """The plan that was made for a key, if it is still kept."""
        plan = self._plans.get(key)
        if plan is not None:
            self._plans.move_to_end(key)
        return plan

    def make_plan(
        self, key: Any, types: list[RankedTensorType], values: dict[int, torch.Tensor]
    ) -> Plan | CudaPlan:
        """Makes and caches the plan for concrete input types and host values.

        Raises:
            GraphError: the shapes do not fit; the message names the operation.
        """
        program = self.program
        if values or any(type is not program.types[v] for type, v in zip(types, program.inputs)):
            # With the declared types, and no further values, it is folded already.
            program = fold(program, types, values, folding(self.device, self.options.allow_tf32))
        steps = Plan(program, self._place, writes_over=not self.options.fuse)
        plan: Plan | CudaPlan = CudaPlan(steps, self.options) if self.device.type == "cuda" else steps
        self._plans[key] = plan
        if len(self._plans) > MAX_PLANS:
            self._plans.popitem(last=False)
        return plan

    def plan_for_typical_shapes(self) -> None:
        """Makes the plan for the inputs' typical shapes, so that a misfit fails while compiling.

        Raises:
            GraphError: the shapes do not fit; the message names the operation.
        """
        types, values = [], {}
        for index, (value, spec) in enumerate(zip(self.program.inputs, self.program.specs)):
            type = self.program.types[value]
            if spec.shape_bounds is not None:
                type = tensor_type(spec.shape_bounds.opt, type.element)
            if not is_static(type):
                return
            if spec.on_host:
                extent = spec.value_bounds.opt[0] if spec.value_bounds is not None else 1
                values[index] = torch.full(type.dims, extent, dtype=type.element.torch)
            types.append(type)
        key = plan_key(
            [type.dims for type in types],
            [type.element for type in types],
            [value.item() for value in values.values()],
        )
        self.make_plan(key, types, values)

    def serialize(self) -> bytes:
        """The executable's file format; see `program`."""
        return self.program.to_bytes()

    def get_signature(self, name: str) -> FunctionSignature:
        """The signature of a function; there is one, `main`."""
        if name != "main":
            raise KeyError(f"No function {name!r}: an executable has one, 'main'.")
        types = self.program.types
        return FunctionSignature(
            [types[v] for v in self.program.inputs], [types[v] for v in self.program.outputs]
        )

    def get_data_segments(self) -> list[tuple[str, bytes]]:
        """One segment: the serialized program. It is no TensorRT engine, and its first bytes say so."""
        return [("portable-program", self.serialize())]


def plan_key(
    shapes: Sequence[tuple[int, ...]], elements: Sequence[ElementType], host_values: list[int | float]
) -> Any:
    """The key of a plan: each input's shape and element type, and the values on the host."""
    return (*shapes, *elements, *host_values)
