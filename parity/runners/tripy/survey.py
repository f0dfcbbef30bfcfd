"""What inputs ask of a loaded port, measured on graphs of its own: no judged graph has probes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import nvtripy as tp

from parity.capture.captures import Capture
from parity.coverage.lines import Lines
from parity.coverage.probes import Probes, Probing
from parity.coverage.questions import Coverage
from parity.coverage.sizes import sizes_of
from parity.coverage.source import port_modules
from parity.runners.base import Appends, Arrays
from parity.runners.tripy.compiled import Compiled, to_host, tripy_dtype

if TYPE_CHECKING:
    from parity.runners.tripy.runner import TripyModules


class Survey:
    """Builds the port of a loaded runner again, traces it with probes, and runs it.

    Args:
        runner: The runner. It stays as it is.
    """

    def __init__(self, runner: TripyModules) -> None:
        sources = port_modules(runner.case)
        self._coverage = Coverage()
        self._lines = Lines(sources)
        self._probing = Probing(sources, self._coverage)
        self._modules = runner.modules
        self._runner = copy.copy(runner)
        self._runner.use_graphs(self._graph)
        with self._lines.on(), self._probing.on():
            runner.case.build_port(tripy_dtype(runner.dtype))
        self._has_new_lines = True

    def answer(self, arrays: Arrays, recorded: Capture) -> Coverage:
        """All questions with the answers of one batch and of those before it.

        Args:
            arrays: The batch.
            recorded: The reference's capture of it, with its calls.
        """
        runner = self._runner
        runner.run(arrays)
        if isinstance(runner, Appends):
            runner.run_incremental(arrays)
        if self._has_new_lines:
            self._lines.answer(self._coverage)
            self._has_new_lines = False
        self._coverage.update(sizes_of(runner.case, arrays, recorded, self._modules))
        return self._coverage

    def _graph(self, function: Callable, arguments: Any, dynamic_sizes: Mapping[int, int]) -> Compiled:
        with self._lines.on(), self._probing.on() as probes:
            graph = _Probed(function, arguments, dynamic_sizes, probes)
        self._has_new_lines = True
        return graph


class _Probed(Compiled):
    """A graph with the tensors of all probes as outputs, which gives their values to the probes."""

    def __init__(
        self, function: Callable, arguments: Any, dynamic_sizes: Mapping[int, int], probes: list[Probes]
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
