"""The oracle: the dense reference in float64, with samples of rounding errors at its taps.

Weights and inputs are rounded to the tested precision first. The distance of a result from the oracle is the
error of the computation, without that of storing weights and inputs.

The oracle runs on the CPU: a GPU gives no more exact float64, and has other work. A batch with `GPU_FLOPS` a
row or more runs on the GPU, where there is one; the runner's label says so. Rounding samples, which small
results alone have, are always the CPU's.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from parity.base.interruption import raisable
from parity.base.precision import Precision
from parity.base.real_numbers import with_numbers_in
from parity.capture.captures import Capture, ModuleCall, Through
from parity.capture.names import TapName
from parity.capture.torch_hooks import tapped
from parity.case import Case
from parity.inputs.weights import rounded
from parity.runners.base import Arrays, Tensors
from parity.runners.oracle.own_types import OwnResults, OwnTypes
from parity.runners.oracle.repetition import require_same
from parity.runners.oracle.rounding import sample_count, samples_of
from parity.runners.oracle.sampling import LargestResult, rounding_samples
from parity.runners.torch.eager import TorchModules, TorchRunner

GPU_FLOPS = 1e11
"""FLOPs of a row, by the case's counts, from which the oracle runs on a GPU: seconds of a CPU's core in every
pass, and modules run alone besides."""
_MOST_NUMBERS = 1 << 24
"""Most parameters of a module that is copied for its types. Tables have more, and no types of their own."""
_CPU = torch.device("cpu")


def device_of(case: Case, arrays: Arrays) -> torch.device:
    """The oracle's device for a batch, or for some rows of it. A case without counts runs on the CPU."""
    if not torch.cuda.is_available():
        return _CPU
    try:
        flops = case.work(arrays, torch.float32.itemsize)[""].flops
    except ValueError:
        return _CPU
    return torch.device("cuda" if flops >= GPU_FLOPS * case.batch_size_of(arrays) else "cpu")


class Float64Runner(TorchModules):
    """The dense reference in float64, on the device of `device_of`."""

    def __init__(self) -> None:
        super().__init__(_CPU)
        self._precision: Precision
        self._is_sampling = False

    def label(self) -> str:
        return f"oracle (float64, {self.device.type})"

    def place(self, arrays: Arrays) -> bool:
        """Move the model to the device for a batch. Returns whether that is a GPU."""
        wanted = _CPU if self._is_sampling else device_of(self.case, arrays)
        if wanted != self.device:
            self.model.to(wanted)
            self.device = wanted
        return wanted.type == "cuda"

    def _arguments(self, arrays: Arrays) -> dict[str, Any]:
        self.place(arrays)
        return super()._arguments(arrays)

    def _place(self, leaf: Any) -> Any:
        # A type of the tested precision is the model's, such as that of one of its tensors.
        return self.dtype if leaf is self._precision.dtype else super()._place(leaf)

    def _call_arguments(self, call: ModuleCall, inputs: Tensors, arrays: Arrays) -> tuple[list, dict]:
        self.place(arrays)
        return super()._call_arguments(call, inputs, arrays)

    @contextlib.contextmanager
    def _sampling(self) -> Iterator[None]:
        """Inside, the model runs on the CPU."""
        self._is_sampling = True
        try:
            yield
        finally:
            self._is_sampling = False

    def load(self, case: Case, precision: Precision, weights: Tensors) -> None:
        self._precision, self.device = precision, _CPU
        self._build(case, torch.float64, rounded(rounded(weights, precision.dtype), torch.float64))

    def can_run(self, call: ModuleCall) -> bool:
        # It is no runner of the incremental forward, whose results equal those of the full forward.
        return not call.opaque

    def widening(self) -> int:
        return torch.float64.itemsize // self._precision.dtype.itemsize


class OracleRunner(Float64Runner):
    """The float64 reference, whose captures hold rounding samples beside taps, the fewer the larger a tap is.

    Some rows of a batch have no samples: a batch in several parts has many rows. The first whole batch runs
    twice. The model has to be a function of its inputs: otherwise the samples would widen every limit.
    """

    _is_repeatable = False

    def run_tapped(self, arrays: Arrays, capture: Capture | None = None, whole: bool = True) -> Capture:
        capture = Capture() if capture is None else capture
        counts: dict[str, int] = {}
        elements = 0

        def count(name: str, tap: torch.Tensor) -> dict[str, torch.Tensor]:
            nonlocal elements
            elements += tap.numel()
            counts[name] = samples_of(tap)
            return {name: tap}

        with LargestResult() as largest:
            super().run_tapped(arrays, replace(capture, tensors=Through(capture.tensors, count)), whole)
        if not whole:
            return capture
        if not self._is_repeatable:
            require_same(capture.tensors, self.run(arrays))
            self._is_repeatable = True

        def run(arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
            with tapped(self.model, keep=samples_of) as sampled:
                outputs = self._entry(arguments)
            return sampled.tensors | outputs

        samples = self._samples(lambda: self._arguments(arrays), run, counts, elements, largest.bytes)
        capture.tensors.update(samples)
        return capture

    def run_outputs(self, arrays: Arrays) -> dict[str, torch.Tensor]:
        """The outputs of the entry with the samples that `run_tapped` gives them. No tap is held."""
        elements = 0

        def count(tap: torch.Tensor) -> bool:
            nonlocal elements
            elements += tap.numel()
            return False

        with LargestResult() as largest, tapped(self.model, keep=count):
            outputs = self.run(arrays)
        elements += sum(output.numel() for output in outputs.values())
        counts = {name: samples_of(output) for name, output in outputs.items()}
        samples = self._samples(lambda: self._arguments(arrays), self._entry, counts, elements, largest.bytes)
        return outputs | samples

    def run_call(
        self, call: ModuleCall, inputs: Tensors, arrays: Arrays, whole: bool = True
    ) -> dict[str, torch.Tensor]:
        # Read once: they may be files.
        inputs = {key: inputs[key] for key in call.tensor_keys}
        with LargestResult() as largest:
            results = super().run_call(call, inputs, arrays, whole)
        if not whole:
            return results
        return results | self._samples(
            lambda: self._call_arguments(call, inputs, arrays),
            lambda arguments: self._call_taps(call, *arguments),
            {name: samples_of(tap) for name, tap in results.items()},
            sum(tap.numel() for tap in results.values()),
            largest.bytes,
            own_types=lambda: self._own_types(call, inputs, arrays),
        )

    def _own_types(self, call: ModuleCall, inputs: Tensors, arrays: Arrays) -> OwnResults | None:
        """The results of a module alone in a run of a half type; None where there are no such ones."""
        module, is_half = self._modules[call.path], self._precision.dtype.itemsize < torch.float32.itemsize
        if not is_half or sum(tensor.numel() for tensor in module.parameters()) > _MOST_NUMBERS:
            return None
        runner = TorchRunner(_CPU)
        runner.case, runner.dtype = self.case, self._precision.dtype
        try:
            runner._modules = {call.path: with_numbers_in(copy.deepcopy(module).cpu(), runner.dtype)}
            with OwnTypes() as types:
                runner.run_call(call, inputs, arrays)
        except raisable():
            return None  # It has no copy, or no run in that type on a CPU.
        return types.results

    def _samples(
        self,
        arguments: Callable[[], Any],
        run: Callable[[Any], dict[str, torch.Tensor]],
        counts: dict[str, int],
        elements: int,
        largest: int,
        of_float32: bool = False,
        own_types: Callable[[], OwnResults | None] = lambda: None,
    ) -> dict[str, torch.Tensor]:
        taps = [tap for tap, count in counts.items() if count]
        count = min(sample_count(elements), max(counts.values(), default=0))
        if not count:
            return {}
        with self._sampling():
            options = count, largest, of_float32, own_types()
            samples = rounding_samples(arguments, run, taps, self._precision, *options)
        return {str(TapName.parse(tap).of_samples()): samples[tap][: counts[tap]] for tap in taps}
