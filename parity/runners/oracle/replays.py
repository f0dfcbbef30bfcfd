"""Runs of the oracle and the reference under prescribed choices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from parity.base.interruption import raisable
from parity.base.memory import is_lack
from parity.base.precision import Precision
from parity.capture.captures import Capture, ModuleCall
from parity.capture.names import TapName
from parity.case import Case
from parity.runners.oracle.choices import (
    Choices,
    ChoosingOracle,
    ChoosingReference,
    DifferentChoices,
    Prescribed,
)
from parity.runners.oracle.programs import ProgramOracle


class Replays:
    """Runs the oracle and the reference again under prescribed choices.

    Args:
        case: The case.
        precision: The tested precision.
        weights: The weights in any precision.
        arrays: The batch's inputs.
    """

    def __init__(
        self,
        case: Case,
        precision: Precision,
        weights: Callable[[], Mapping[str, torch.Tensor]],
        arrays: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._case, self._precision = case, precision
        self._weights, self._arrays = weights, arrays
        self._runners: tuple[ChoosingOracle, ChoosingReference] | None = None
        self._programs: ProgramOracle | None = None
        self._whole_programs: Mapping[str, torch.Tensor] | None = None

    def runners(self) -> tuple[ChoosingOracle, ChoosingReference]:
        """The oracle and the reference, loaded once."""
        if self._runners is None:
            device = None if self._precision.needs_cuda else torch.device("cpu")
            self._runners = ChoosingOracle(), ChoosingReference(device)
            for runner in self._runners:
                runner.load(self._case, self._precision, self._weights())
        return self._runners

    def whole(self, prescribed: Prescribed, sampled: bool) -> Replay:
        """The whole model under prescribed choices; the oracle alone unless `sampled`.

        Raises:
            DifferentChoices: The model has other choices, or cannot run under these.
        """
        with _prescribing(prescribed):
            return self._whole(prescribed, sampled)

    def _whole(self, prescribed: Prescribed, sampled: bool) -> Replay:
        oracle, reference = self._prepared(prescribed)
        captured = oracle.run_tapped(self._arrays(), whole=sampled)
        if not sampled:
            return Replay(oracle.recorded, captured.tensors, {})
        reference.recorded = oracle.recorded
        again = reference.run_recorded(self._arrays())
        return Replay(oracle.recorded, captured.tensors, again.tensors, captured, again)

    def call(
        self, call: ModuleCall, inputs: Mapping[str, torch.Tensor], prescribed: Prescribed, sampled: bool
    ) -> Replay:
        """One call alone under prescribed choices; the oracle alone unless `sampled`. Raises as `whole`."""
        with _prescribing(prescribed):
            return self._call(call, inputs, prescribed, sampled)

    def _call(
        self, call: ModuleCall, inputs: Mapping[str, torch.Tensor], prescribed: Prescribed, sampled: bool
    ) -> Replay:
        oracle, reference = self._prepared(prescribed)
        tensors = oracle.run_call(call, inputs, self._arrays(), whole=sampled)
        if not sampled:
            return Replay(oracle.recorded, tensors, {})
        reference.recorded = oracle.recorded
        return Replay(oracle.recorded, tensors, reference.run_call(call, inputs, self._arrays()))

    def programs(self, call: ModuleCall, inputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Results of other right programs for one call alone, (K, ...) by tap, under the oracle's choices.

        It is empty where a rounding changes which operations the call makes.
        """
        with contextlib.suppress(DifferentChoices):
            return _samples_by_tap(self._program_oracle().run_call(call, inputs, self._arrays()))
        return {}

    def whole_programs(self) -> Mapping[str, torch.Tensor]:
        """As `programs`, of the whole model. It runs once."""
        if self._whole_programs is None:
            self._whole_programs = {}
            with contextlib.suppress(DifferentChoices):
                captured = self._program_oracle().run_tapped(self._arrays())
                self._whole_programs = _samples_by_tap(captured.tensors)
        return self._whole_programs

    def _program_oracle(self) -> ProgramOracle:
        if self._programs is None:
            self._programs = ProgramOracle()
            self._programs.load(self._case, self._precision, self._weights())
        self._programs.recorded = None
        return self._programs

    def _prepared(self, prescribed: Prescribed) -> tuple[ChoosingOracle, ChoosingReference]:
        oracle, reference = self.runners()
        oracle.recorded, oracle.prescribed = None, prescribed
        return oracle, reference


def _samples_by_tap(results: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    names = [*map(TapName.parse, results)]
    return {str(name.of_tap()): results[str(name)] for name in names if name.samples}


@contextlib.contextmanager
def _prescribing(prescribed: Prescribed) -> Iterator[None]:
    """In the body, the reference's code runs under choices that it may not be able to make.

    A wrong port may choose an index that no table has.
    """
    try:
        yield
    except raisable() as error:
        if not prescribed or is_lack(error) or isinstance(error, DifferentChoices):
            raise
        raise DifferentChoices(f"the model cannot run under these choices: {error}") from error


@dataclass(frozen=True)
class Replay:
    """Oracle and reference under the same choices.

    Attributes:
        choices: The oracle's choices, with the numbers of samples and reference.
        oracle, reference: Results by tap, rounding samples included.
        oracle_capture, reference_capture: The runs, of a whole model.
    """

    choices: Choices
    oracle: Mapping[str, torch.Tensor]
    reference: Mapping[str, torch.Tensor]
    oracle_capture: Capture | None = None
    reference_capture: Capture | None = None
