"""One run's results of a batch in one precision, with the verdicts that have their limits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import torch

from parity.base.errors import UserError
from parity.capture.captures import Capture
from parity.capture.names import TapName
from parity.case import Case
from parity.case.users_code import of_case
from parity.execution.folder import PrecisionFolder
from parity.execution.record import ORACLE, REFERENCE
from parity.runners.oracle.choices import DifferentChoices
from parity.verdict.captured import open_batch, replays_of
from parity.verdict.comparison import Comparison, compare_runners
from parity.verdict.distances import Distance
from parity.verdict.evidence import Evidence, Results
from parity.verdict.flips import row_mask
from parity.verdict.judgement import TapJudgement
from parity.verdict.movement import NONE, UNKNOWN, Side, limit_of, movement
from parity.verdict.rule import Verdict


class BatchSide:
    """A batch of one run in one precision.

    Args:
        case: The case.
        folder: The batch's folder in the precision.
        changed: Whether the case's code may be another one than the run's.

    Raises:
        UserError: A file is missing or damaged.
    """

    def __init__(self, case: Case, folder: PrecisionFolder, changed: bool) -> None:
        captured = open_batch(case, folder)
        self.record, self.blocked, self.results = captured.record, captured.blocked, captured.results
        self._comparisons: dict[str, Comparison] = {}
        self._taps: dict[str, dict[str, TapJudgement]] = {}
        self.can_choose = True
        if captured.evidence is None:
            return
        self.evidence: Evidence = captured.evidence
        if changed:
            self._compare([REFERENCE])
        replays = replays_of(case, folder)
        self.evidence.replays = replays
        if changed and replays is not None and not self._is_reproduced(case):
            self.evidence.replays, self.can_choose = None, False
        self._compare(self.results)
        self.calls = {
            call.tap: (repr(call.args), repr(call.kwargs)) for call in self.evidence.reference.calls
        }

    def _compare(self, names: Iterable[str]) -> None:
        """Judge runners against the oracle, which takes the reference's limits."""
        names = tuple(names)
        compared = compare_runners(self.evidence, [self.results[name] for name in names])
        self._comparisons = dict(zip(names, compared, strict=True))
        self._taps = {name: {tap.tap: tap for tap in one.taps} for name, one in self._comparisons.items()}
        judged, oracle = self._taps[REFERENCE], self.evidence.oracle
        self._taps[ORACLE] = {tap: one for tap, one in judged.items() if tap in oracle or one.isolated}

    def _is_reproduced(self, case: Case) -> bool:
        """Whether the present code gives the run's oracle. Another function has no say on its choices."""
        replays = self.evidence.replays
        assert replays is not None
        try:
            with of_case(case, "the reference"):
                again = replays.whole({}, False).oracle
        except (UserError, DifferentChoices):
            return False
        for tap, oracle in self.evidence.oracle.items():
            name = TapName.parse(tap)
            if name.samples or name.appends:
                continue
            saved = self.side(ORACLE, tap, False, ())
            if tap not in again or saved is None or again[tap].shape != oracle.shape:
                return False
            other = Side(again[tap], again[tap], saved.counted, saved.limit, NONE)
            if movement(saved, other, other_oracle=False).status == "moved":
                return False
        return True

    @property
    def runners(self) -> tuple[str, ...]:
        """Names of the runners with results: the oracle first."""
        return () if self.blocked else (ORACLE, *self.results)

    def taps(self, runner: str) -> dict[str, TapJudgement]:
        """The runner's taps with their verdicts, in the order in which modules finish."""
        return self._taps[runner]

    def checks(self, runner: str) -> Mapping[str, Verdict]:
        """The verdicts on incremental outputs, by name."""
        return {} if runner == ORACLE else self._comparisons[runner].checks

    def label(self, runner: str) -> str:
        """The runner's full name."""
        return self.record.runners[runner].label or runner

    def is_conditioned(self, runner: str) -> bool:
        """Whether the verdicts are under choices of the runner's own."""
        return runner != ORACLE and self._comparisons[runner].evidence is not self.evidence

    def received(self, runner: str) -> Capture:
        """The tapped run of a runner, for the arguments of its calls."""
        if runner == ORACLE:
            return self.evidence.oracle_received
        return self.evidence.reference if runner == REFERENCE else self.results[runner].received

    def tapped(self, runner: str) -> Mapping[str, torch.Tensor]:
        """The results of modules inside the model."""
        return self.evidence.oracle if runner == ORACLE else self.results[runner].tapped

    def is_output(self, tap: str) -> bool:
        """Whether a tap is an output of the entry point."""
        return TapName.parse(tap).is_output_of(self.evidence.entry)

    def side(self, runner: str, tap: str, alone: bool, flips: Iterable[np.ndarray | None]) -> Side | None:
        """The result of a module, inside the model or alone; None if it is not judged.

        Args:
            runner, tap: Their names.
            alone: Whether the module ran alone.
            flips: Rows that do not count where a discontinuity may be behind them.
        """
        evidence = self._evidence(runner)
        oracle = (evidence.oracle_isolated if alone else evidence.oracle).get(tap)
        if runner == ORACLE:
            result = oracle
        else:
            results: Results = self.results[runner]
            own = results.untapped if self.is_output(tap) else results.tapped
            result = (results.isolated if alone else own).get(tap)
        judged = self.taps(runner).get(tap)
        verdict = None if judged is None else judged.isolated if alone else judged.accumulated
        if verdict is None:
            return None
        error = NONE if runner == ORACLE else verdict.port
        return Side(
            result,
            oracle,
            self._counted(evidence, tap, result, flips),
            self._limit(verdict, tap, alone),
            error,
        )

    def check(self, runner: str, name: str, flips: Iterable[np.ndarray | None]) -> Side | None:
        """An incremental output; None if it is not judged."""
        evidence, verdict = self._evidence(runner), self.checks(runner).get(name)
        result = self.results[runner].incremental.get(name)
        if verdict is None:
            return None
        oracle = evidence.oracle.get(evidence.incremental_outputs[name])
        return Side(
            result, oracle, self._counted(evidence, name, result, flips), limit_of(verdict), verdict.port
        )

    def _evidence(self, runner: str) -> Evidence:
        return self.evidence if runner == ORACLE else self._comparisons[runner].evidence or self.evidence

    def _counted(
        self, evidence: Evidence, tap: str, result: torch.Tensor | None, flips: Iterable[np.ndarray | None]
    ) -> np.ndarray:
        if result is None:
            return np.zeros(0, dtype=bool)
        shape = tuple(result.shape)
        boundary = evidence.boundary.get(tap)
        if boundary is not None and boundary.shape != shape:
            return np.ones(shape, dtype=bool)
        counted = evidence.counted(tap, shape)
        if boundary is None:
            for mask in (row_mask(rows, result) for rows in flips):
                counted = counted if mask is None else counted & ~mask
        return counted

    def _limit(self, verdict: Verdict, tap: str, alone: bool) -> Distance:
        """The limit of a verdict; of the reference's where a failure has no numbers."""
        if not math.isnan(verdict.limit.l2):
            return limit_of(verdict)
        judged = self.taps(REFERENCE).get(tap)
        own = None if judged is None else judged.isolated if alone else judged.accumulated
        return UNKNOWN if own is None else own.limit
