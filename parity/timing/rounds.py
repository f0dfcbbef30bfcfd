"""Latencies: warmed up, synchronised, runner by runner in turns, with the machine to themselves.

On a GPU a turn is longer: its first run, which meets caches and clocks as another process has left them, is
not counted. What can be captured is timed as replays of a CUDA graph as well: a module that is bound by
launches shows there what its kernels take.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from parity.base.precision import Precision
from parity.execution.record import RunnerFailure
from parity.execution.scheduler import Runners
from parity.timing.measure import Replayed

WARM_UPS = 3
MIN_ROUNDS, MAX_ROUNDS, ROUNDS_SECONDS = 7, 30, 1.5
MODULE_ROUNDS, MODULE_REPEATS = 2, 4
GPU_TURN = 5
"""Counted runs of a turn on a GPU."""
GPU_MODULE_ROUNDS = 8
"""Most calls there last as long as the host takes, whose pace changes within seconds: in two turns a call's
spread was less than what the next run differed by."""
REPLAY_ROUNDS = 4
NO_REPLAY = Replayed([])


class Turns:
    """Times several loaded runners in turns, so that a drift of the machine's speed meets all of them.

    A runner that fails here keeps its verdicts; `failures` says why it has no latency.

    Attributes:
        seconds: Whole-model runs, by runner.
        module_seconds: Runs of single modules, by runner and tap.
        replays: Whole models as replays of a CUDA graph, by runner; with the reason where there are none.
        module_replays: Single modules likewise, by runner and tap.
        peak_bytes: The most GPU memory that PyTorch held during whole-model runs, by runner; None elsewhere.
        failures: Reasons, by runner.
    """

    def __init__(self, names: Iterable[str], runners: Runners, precision: Precision, threads: int) -> None:
        self.seconds: dict[str, list[float]] = {name: [] for name in names}
        self.module_seconds: dict[str, dict[str, list[float]]] = {name: {} for name in self.seconds}
        self.replays: dict[str, Replayed] = dict.fromkeys(self.seconds, NO_REPLAY)
        self.module_replays: dict[str, dict[str, Replayed]] = {name: {} for name in self.seconds}
        self.peak_bytes: dict[str, int | None] = dict.fromkeys(self.seconds)
        self.failures: dict[str, str] = {}
        self._on_gpu = torch.cuda.is_available()
        self._module_rounds = GPU_MODULE_ROUNDS if self._on_gpu else MODULE_ROUNDS
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
        for name in self.seconds:
            self._ask(name, "watch_memory")
        for _ in range(rounds):
            for name, seconds in self.seconds.items():
                if self._on_gpu:
                    seconds += (self._ask(name, "time", inputs, 1 + GPU_TURN) or [])[1:]
                else:
                    seconds += self._ask(name, "time", inputs, 1) or []
        for name in self.seconds:
            self.peak_bytes[name] = self._ask(name, "peak_memory")

    def save_outputs(self, stems: Mapping[str, str]) -> None:
        """Save what the last timed run of each model returned, under the runner's stem."""
        for name, stem in stems.items():
            self._ask(name, "save_timed", stem)

    def time_modules(self, names: Iterable[str], calls: str) -> None:
        """Every recorded call of the reference, alone."""
        names = list(names)
        for _ in range(self._module_rounds):
            for name in names:
                measured = self._ask(name, "time_calls", calls, 1 + MODULE_REPEATS) or {}
                for tap, seconds in measured.items():
                    # The first run of each turn warms up.
                    self.module_seconds[name].setdefault(tap, []).extend(seconds[1:])

    def time_replays(self, inputs: str, names: Iterable[str], calls: str) -> None:
        """Whole models, and single modules of `names`, as replays; nothing without a GPU."""
        if not self._on_gpu:
            return
        names = list(names)
        for _ in range(REPLAY_ROUNDS):
            for name in self.seconds:
                found = self._ask(name, "time_replays", inputs, 1 + GPU_TURN) or NO_REPLAY
                self.replays[name] = _joined(self.replays[name], found)
        for _ in range(self._module_rounds):
            for name in names:
                found = self._ask(name, "time_call_replays", calls, 1 + MODULE_REPEATS) or {}
                known = self.module_replays[name]
                known |= {tap: _joined(known.get(tap, NO_REPLAY), each) for tap, each in found.items()}

    def _ask(self, name: str, command: str, *arguments: object) -> object:
        if name in self.failures:
            return None
        try:
            return self._runners.get(name, self._precision).request(command, *arguments)
        except RunnerFailure as failure:
            self.failures[name] = str(failure)
            return None


def _joined(known: Replayed, turn: Replayed) -> Replayed:
    """What is known, and a turn without its first run; a reason against replays is against all of them."""
    reason = known.reason or turn.reason
    return Replayed([] if reason else [*known.seconds, *turn.seconds[1:]], reason)
