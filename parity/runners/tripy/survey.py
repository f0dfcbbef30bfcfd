"""The coverage of a loaded port by inputs, on graphs of its own: no judged graph has probes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import nvtripy as tp
import torch

from parity.capture.captures import Capture
from parity.case import Case
from parity.coverage import lines
from parity.coverage.lines import Lines
from parity.coverage.probes import Probes, Probing, instrumented
from parity.coverage.questions import Coverage, Kind, Question
from parity.coverage.sizes import sizes_of
from parity.coverage.source import functions, port_code
from parity.runners.base import Appends, Arrays, Runner, Unavailable
from parity.runners.tripy.compiled import Compiled, DynamicSizes, to_host
from parity.runners.tripy.lean_traces import leanly

_READ = "a graph that reads it"


class Survey:
    """Builds the port of a loaded runner again, traces it with probes, and runs it.

    Args:
        case: The case, in the runner's form.
        dtype: Type of the port's numbers.
        model: The loaded port.
        modules: Modules of the port by path.
        parameters: Tensors of the loaded port by the names of their sources.
        runner: A copy of the runner, which gets its graphs from `graph`.
        asked: What the weights ask.
    """

    def __init__(
        self,
        case: Case,
        dtype: tp.dtype,
        model: tp.Module,
        modules: Mapping[str, tp.Module],
        parameters: Mapping[str, tp.Tensor],
        runner: Runner,
        asked: Coverage,
    ) -> None:
        if case.is_live:
            # The user's session may have imported a module again.
            for forget in (
                functions.cache_clear,
                instrumented.cache_clear,
                lines.reports.clear,
                lines.parsed.clear,
            ):
                forget()
        self._code = port_code(case)
        if self._code.without_file:
            raise Unavailable(f"no file has the code of {', '.join(self._code.without_file)}")
        sources = self._code.modules
        self._case = case
        self._coverage, self._told = Coverage(asked.seen), Coverage()
        self._lines = Lines(sources)
        self._probing = Probing(sources, self._coverage)
        self._modules = modules
        self._reads = {
            id(tensor.trace_tensor): Question(kind=Kind.WEIGHT, place=name, answers=(_READ,))
            for name, tensor in parameters.items()
        }
        for question in self._reads.values():
            self._coverage.add(question)
        self._runner = runner
        with self._lines.on(), self._probing.on():
            built = leanly(lambda: case.build_port(dtype))
        # The user has built a live Tripy model before.
        self._is_rebuilt = built is not model

    def answer(self, arrays: Arrays, recorded: Capture) -> Coverage:
        """The questions and answers of one batch, without those of earlier ones.

        Args:
            arrays: The batch.
            recorded: The reference's capture of it, with its calls.
        """
        runner = self._runner
        runner.run(arrays)
        if isinstance(runner, Appends):
            runner.run_incremental(arrays)
        self._lines.answer(self._coverage)
        self._coverage.update(sizes_of(self._case, arrays, recorded, self._modules))
        new = self._coverage.without(self._told)
        self._told.update(new)
        return Coverage({question: seen for question, seen in new.seen.items() if self._asks(question)})

    def _asks(self, question: Question) -> bool:
        """Whether a question is about the port, and inputs can answer it."""
        if not question.module:
            return True
        is_construction = question.place.endswith(".__init__")
        return self._code.has(question.module, question.place) and (self._is_rebuilt or not is_construction)

    def graph(self, function: Callable, arguments: Any, dynamic_sizes: DynamicSizes) -> Compiled:
        """A function as a graph with probes."""

        def measured(arguments: Any) -> dict[str, tp.Tensor]:
            # The compilation runs no line of the port, and takes longer while lines are recorded.
            with self._lines.on():
                outputs = function(arguments)
            for identity in self._reads.keys() & _read(outputs.values()):
                self._coverage.add(self._reads[identity], [_READ])
            return outputs

        with self._probing.on() as probes:
            return _Probed(measured, arguments, dynamic_sizes, probes)


def _read(outputs: Iterable[tp.Tensor | torch.Tensor]) -> set[int]:
    """Identities of all tensors that a trace reads for its outputs."""
    left = [output.trace_tensor for output in outputs if isinstance(output, tp.Tensor)]
    seen: set[int] = set()
    while left:
        tensor = left.pop()
        if id(tensor) not in seen:
            seen.add(id(tensor))
            left.extend(tensor.producer.inputs)
    return seen


class _Probed(Compiled):
    """A graph with the tensors of all probes as outputs, which gives their values to the probes."""

    def __init__(
        self, function: Callable, arguments: Any, dynamic_sizes: DynamicSizes, probes: list[Probes]
    ) -> None:
        def probed(arguments: Any) -> dict[str, tp.Tensor]:
            outputs = function(arguments)
            return outputs | {name: tensor for one in probes for name, tensor in one.tensors.items()}

        super().__init__(probed, arguments, dynamic_sizes)
        self._probes = probes

    def __call__(self, arguments: Any) -> dict[str, tp.Tensor]:
        outputs = super().__call__(arguments)
        for probes in self._probes:
            probes.answer({name: to_host(outputs.pop(name)) for name in probes.tensors})
        return outputs
