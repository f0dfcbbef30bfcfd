"""Latencies: warmed up, synchronised, runner by runner in turns, with the machine to themselves."""

from __future__ import annotations

from collections.abc import Iterable

from parity.machine import Runners
from parity.precision import Precision
from parity.worker import RunnerFailure

WARM_UPS = 3
MIN_ROUNDS, MAX_ROUNDS, ROUNDS_SECONDS = 7, 30, 1.5
MODULE_REPEATS = 7


class Turns:
    """Times several loaded runners in turns, so that a drift of the machine's speed meets all of them.

    A runner that fails here keeps its verdicts; `failures` says why it has no latency.

    Attributes:
        seconds: Whole-model runs, by runner.
        module_seconds: Runs of single modules, by runner and tap.
        failures: Reasons, by runner.
    """

    def __init__(self, names: Iterable[str], runners: Runners, precision: Precision, threads: int) -> None:
        self.seconds: dict[str, list[float]] = {name: [] for name in names}
        self.module_seconds: dict[str, dict[str, list[float]]] = {name: {} for name in self.seconds}
        self.failures: dict[str, str] = {}
        self._runners = runners
        self._precision = precision
        for name in self.seconds:
            self._ask(name, "start", threads)

    def time_models(self, inputs: str) -> None:
        """Rounds of one run a runner: as many as fit a fixed time, within limits."""
        one_round = 0.0
        for name in self.seconds:
            warm = self._ask(name, "time", inputs, WARM_UPS)
            one_round += warm[-1] if warm else 0.0
        rounds = int(min(MAX_ROUNDS, max(MIN_ROUNDS, ROUNDS_SECONDS / max(one_round, 1e-9))))
        for _ in range(rounds):
            for name, seconds in self.seconds.items():
                seconds += self._ask(name, "time", inputs, 1) or []

    def time_modules(self, names: Iterable[str], calls: str) -> None:
        """Every recorded call of the reference, alone."""
        for name in names:
            measured = self._ask(name, "time_calls", calls, MODULE_REPEATS + 1) or {}
            # The first run of each module warms up.
            self.module_seconds[name] = {tap: seconds[1:] for tap, seconds in measured.items()}

    def _ask(self, name: str, command: str, *arguments: object) -> object:
        if name in self.failures:
            return None
        try:
            return self._runners.get(name, self._precision).request(command, *arguments)
        except RunnerFailure as failure:
            self.failures[name] = str(failure)
            return None
