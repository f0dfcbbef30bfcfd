"""The oracle: the dense reference in float64, with samples of rounding errors at its taps.

Weights and inputs are rounded to the tested precision first. The distance of a result from the oracle is the
error of the computation, without that of storing weights and inputs.

The oracle runs on the CPU: a GPU gives no more exact float64, and has other work. A batch with `GPU_FLOPS` a
row or more runs on the GPU, where there is one; the runner's label says so. Rounding samples, which small
results alone have, are always the CPU's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from parity.base.interruption import raisable
from parity.base.precision import Precision
from parity.capture.captures import Capture, ModuleCall, Through
from parity.capture.names import TapName
from parity.capture.torch_hooks import tapped
from parity.case import Case
from parity.inputs.weights import rounded
from parity.runners.base import Arrays, Tensors
from parity.runners.oracle.own_types import OwnResults, OwnTypes
from parity.runners.oracle.repetition import require_same
from parity.runners.oracle.rounding import Errors, OtherOperations, sample_count, samples_of
from parity.runners.oracle.sampling import LargestResult, rounding_samples
from parity.runners.oracle.widening import InFloat64
from parity.runners.torch.eager import TorchModules, TorchRunner

GPU_FLOPS = 1e11
"""FLOPs of a row, by the case's counts, from which the oracle runs on a GPU: seconds of a CPU's core in every
pass, and modules run alone besides."""
_MOST_NUMBERS = 1 << 27
"""Most parameters of a model that is built in the half type, too. Larger ones have no types of their own."""
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
        self._is_as_written = False

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

    def _entry(self, arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
        with self._widening():
            return super()._entry(arguments)

    def _call_taps(self, call: ModuleCall, args: list, kwargs: dict) -> dict[str, torch.Tensor]:
        with self._widening():
            return super()._call_taps(call, args, kwargs)

    def _widening(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self._is_as_written else InFloat64(self._precision)

    @contextlib.contextmanager
    def _as_written(self) -> Iterator[None]:
        """Inside, the model computes in float32 where it asks for that."""
        self._is_as_written = True
        try:
            yield
        finally:
            self._is_as_written = False

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
    _widens_samples = False
    """Whether samples have errors where the model asks for float32. Numbers there may decide, such as buckets
    of time: a choice that jumps in one sample would widen the limits of all results behind it."""
    _half: TorchRunner | None = None
    """The model in the tested precision, a half type; None before it is asked for."""
    _errors = Errors
    _samples_of = staticmethod(samples_of)

    def load(self, case: Case, precision: Precision, weights: Tensors) -> None:
        self._half = None
        super().load(case, precision, weights)

    def run_tapped(self, arrays: Arrays, capture: Capture | None = None, whole: bool = True) -> Capture:
        capture = Capture() if capture is None else capture
        counts: dict[str, int] = {}
        elements = 0

        def count(name: str, tap: torch.Tensor) -> dict[str, torch.Tensor]:
            nonlocal elements
            elements += tap.numel()
            counts[name] = self._samples_of(tap)
            return {name: tap}

        with LargestResult() as largest:
            super().run_tapped(arrays, replace(capture, tensors=Through(capture.tensors, count)), whole)
        if not whole:
            return capture
        if not self._is_repeatable:
            require_same(capture.tensors, self.run(arrays))
            self._is_repeatable = True

        def run(arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
            with tapped(self.model, keep=self._samples_of) as sampled:
                outputs = self._entry(arguments)
            return sampled.tensors | outputs

        samples = self._samples(
            lambda: self._arguments(arrays),
            run,
            counts,
            elements,
            largest.bytes,
            lambda half: half.run(arrays),
        )
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
        counts = {name: self._samples_of(output) for name, output in outputs.items()}
        return outputs | self._samples(
            lambda: self._arguments(arrays),
            self._entry,
            counts,
            elements,
            largest.bytes,
            lambda half: half.run(arrays),
        )

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
            {name: self._samples_of(tap) for name, tap in results.items()},
            sum(tap.numel() for tap in results.values()),
            largest.bytes,
            lambda half: half.run_call(call, inputs, arrays),
        )

    def _samples(
        self,
        arguments: Callable[[], Any],
        run: Callable[[Any], dict[str, torch.Tensor]],
        counts: dict[str, int],
        elements: int,
        largest: int,
        run_half: Callable[[TorchRunner], Any],
    ) -> dict[str, torch.Tensor]:
        """Rounding samples of results.

        Args:
            arguments, run, largest: See `rounding_samples`.
            counts: Number of samples by tap.
            elements: Elements of all taps of the pass.
            run_half: The same pass of a model in the tested precision.
        """
        taps = [tap for tap, count in counts.items() if count]
        count = min(sample_count(elements), max(counts.values(), default=0))
        if not count:
            return {}
        options = taps, self._precision, count, largest
        own_types = self._own_types(run_half) if self._precision.is_half else None
        samples = None
        with self._sampling():
            # Errors of a half type would be too large where the model asks for float32.
            widens = self._widens_samples and (own_types is not None or not self._precision.is_half)
            with contextlib.nullcontext() if widens else self._as_written():
                with contextlib.suppress(OtherOperations):
                    samples = rounding_samples(arguments, run, *options, own_types, self._errors)
            if samples is None:
                with self._as_written():
                    samples = rounding_samples(arguments, run, *options, errors_of=self._errors)
        return {str(TapName.parse(tap).of_samples()): samples[tap][: counts[tap]] for tap in taps}

    def _own_types(self, run_half: Callable[[TorchRunner], Any]) -> OwnResults | None:
        """The results of a pass in the half type; None where the model has no such run on a CPU."""
        if sum(parameter.numel() for parameter in self.model.parameters()) > _MOST_NUMBERS:
            return None
        try:
            if self._half is None:
                half = TorchRunner(_CPU)
                half.load(self.case, self._precision, self.model.state_dict())
                self._half = half
            with OwnTypes() as types:
                run_half(self._half)
        except raisable():
            return None
        return types.results
