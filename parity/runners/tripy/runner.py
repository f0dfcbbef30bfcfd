"""The port, run by nvtripy: its modules, and its incremental forward."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import nvtripy as tp
import torch

from parity.base.trees import map_tree
from parity.capture.captures import METHODS, Capture, tensor_leaves
from parity.capture.names import TapName
from parity.capture.tripy_hooks import Traced, is_tripy_tensor
from parity.runners.base import Appends, Arrays
from parity.runners.tripy.compiled import DynamicSizes, placed
from parity.runners.tripy.modules import TripyModules


class TripyRunner(TripyModules, Appends):
    """The port in Tripy."""

    def run_incremental(self, arrays: Arrays) -> dict[str, torch.Tensor]:
        steps = self.case.incremental_arguments(arrays)
        if steps is None:
            return {}
        outputs: dict[str, torch.Tensor] = {}
        for _, results in self._appends(arrays, steps):
            outputs = {name: results[name] for name in self.case.incremental_outputs}
        return outputs

    def _appends(self, arrays: Arrays, steps: Sequence[dict]) -> Iterator[tuple[dict, dict]]:
        """The arguments and the results of each append."""
        sizes = self.case.dynamic_sizes(arrays)
        kept = self._run_step("prefill", self._prefill, map_tree(steps[0], self._host), sizes)
        cache, outputs = self.case.resumed_cache(kept, arrays), set(self.case.incremental_outputs)
        for step in steps[1:]:
            # The cache goes from one executable to the other as a server keeps it: as tensors.
            arguments = map_tree(step, self._host) | {"cache": self.case.unflatten_cache(cache)}
            results = self._run_step("extend", self._extend, arguments, sizes)
            cache = {name: tensor for name, tensor in results.items() if name not in outputs}
            yield arguments, results

    def run_appending(self, arrays: Arrays) -> Capture:
        capture, steps = Capture(), self.case.incremental_arguments(arrays)
        if steps is None:
            return capture
        sizes = self.case.dynamic_sizes(arrays)
        calls: Counter[str] = Counter()

        def numbered(name: TapName) -> TapName:
            # Calls count from the beginning of the first step.
            return replace(name, call=name.call + calls[name.path]).appending()

        filling = self._tapped_step("prefill", self._prefill, map_tree(steps[0], self._host), sizes)
        appends = (arguments for arguments, _ in self._appends(arrays, steps))
        extending = (self._tapped_step("extend", self._extend, arguments, sizes) for arguments in appends)
        for step in itertools.chain([filling], extending):
            own = step.renamed(numbered)
            capture.tensors.update(own.tensors)
            capture.call_inputs.update(own.call_inputs)
            capture.arguments.update(own.arguments)
            calls.update(TapName.parse(call).path for call in step.arguments)
        return capture

    def _tapped_step(self, key: str, function: Callable, arguments: dict, sizes: DynamicSizes) -> Capture:
        """The results and arguments of the modules in one step."""

        def with_taps(arguments: dict, traced: Traced) -> dict[str, tp.Tensor]:
            function(arguments, traced)
            return {**traced.arguments, **traced.taps}

        compiled = self._compiled((key, "tapped"), with_taps, arguments, sizes, taps=True, methods=METHODS)
        capture = Capture(arguments=dict(compiled.received))
        for name, tensor in compiled.on_host(placed(arguments)).items():
            (capture.call_inputs if TapName.parse(name).argument else capture.tensors)[name] = tensor
        capture.call_inputs.update(self._own_arguments(compiled))
        return capture

    def _run_step(
        self, key: str, function: Callable, arguments: dict, dynamic_sizes: DynamicSizes
    ) -> dict[str, torch.Tensor]:
        compiled = self._compiled(key, function, arguments, dynamic_sizes)
        return compiled.on_host(placed(arguments))

    def _prefill(self, arguments: dict, traced: Traced) -> dict[str, tp.Tensor]:
        cache = self.case.prefill(self.model, **arguments)
        return dict(tensor_leaves(cache, is_tripy_tensor))

    def _extend(self, arguments: dict, traced: Traced) -> dict[str, tp.Tensor]:
        outputs, cache = self.case.extend(self.model, **arguments)
        named = dict(zip(self.case.incremental_outputs, outputs, strict=True))
        return named if cache is None else named | dict(tensor_leaves(cache, is_tripy_tensor))
