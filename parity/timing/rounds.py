"""Interleaved rounds: every runner is timed once a round, so that drift of the machine's speed meets all.

On a GPU the first run of a runner in a round is not counted, since it meets caches and clocks as another
process left them. Work that can be captured is also timed as replays of a CUDA graph, which show kernels
without launches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch

from parity.timing.measure import Replayed

WARM_UPS = 1
"""Runs that are not counted. Runners have run the batch before: one run is enough."""
MIN_ROUNDS, MAX_ROUNDS = 5, 30
GPU_REPEATS, GPU_MAX_ROUNDS = 2, 20
"""Counted runs of a runner in one round on a GPU, and the limit of rounds there."""
MODULE_ROUNDS, MODULE_REPEATS = 2, 3
GPU_MIN_MODULE_ROUNDS, GPU_MODULE_ROUNDS, GPU_MODULE_REPEATS = 2, 8, 2
"""The pace of launches changes within seconds: the spread of two rounds is smaller than that between runs."""
REPLAY_ROUNDS = 2
"""Replays do not wait for the host: fewer rounds show their spread."""
CPU_SECONDS = 0.03
"""Time on a CPU after which no other round of models, or of modules, begins behind the least number."""
GPU_SECONDS, GPU_RUN_SECONDS = 0.5, 6.0
"""The same on a GPU, and the part of it that all pairs of case and precision of a run share."""
NO_REPLAY = Replayed([])

Result = TypeVar("Result")


class NotTimed(Exception):
    """A runner cannot be timed; the message is the reason."""


@dataclass(frozen=True)
class TimedRuns:
    """Runs of one whole model.

    Attributes:
        seconds: Time of each run.
        peak_bytes: Peak of the GPU memory that PyTorch held; None if PyTorch does not know it.
    """

    seconds: list[float]
    peak_bytes: int | None = None


class TimedRunner(Protocol):
    """A loaded runner. Every method may raise `NotTimed`."""

    def prepare(self) -> None:
        """Get ready; called once, before any runner is timed."""

    def time(self, repeats: int) -> TimedRuns:
        """Run the whole model."""

    def time_calls(self, repeats: int) -> Mapping[str, list[float]]:
        """Seconds of each recorded call alone, by tap."""

    def time_replays(self, repeats: int) -> Replayed:
        """Replay a CUDA graph of the whole model."""

    def time_call_replays(self, repeats: int) -> Mapping[str, Replayed]:
        """Replay a CUDA graph of each recorded call, by tap."""


@dataclass
class RunnerTimes:
    """Measured times of one runner in seconds.

    Attributes:
        seconds: Runs of the whole model.
        module_seconds: Runs of single calls, by tap.
        replays: Replays of the whole model.
        module_replays: Replays of single calls, by tap.
        peak_bytes: Peak of GPU memory during runs of the whole model; None if it is not known.
        failure: Reason why times are missing; empty if none are.
    """

    seconds: list[float] = field(default_factory=list)
    module_seconds: dict[str, list[float]] = field(default_factory=dict)
    replays: Replayed = NO_REPLAY
    module_replays: dict[str, Replayed] = field(default_factory=dict)
    peak_bytes: int | None = None
    failure: str = ""


class InterleavedRounds:
    """Times several loaded runners. A runner that fails is not timed further.

    Args:
        runners: Runners by name.
        units: Number of pairs of case and precision of the run.

    Attributes:
        times: Times by runner.
    """

    def __init__(self, runners: Mapping[str, TimedRunner], units: int = 1) -> None:
        self.times = {name: RunnerTimes() for name in runners}
        self._runners = runners
        self._on_gpu = torch.cuda.is_available()
        self._seconds = min(GPU_SECONDS, GPU_RUN_SECONDS / units) if self._on_gpu else CPU_SECONDS
        for name in runners:
            self._ask(name, lambda runner: runner.prepare())

    def time_models(self) -> None:
        """Time whole models."""
        for name in self.times:
            self._ask(name, lambda runner: runner.time(WARM_UPS))
        uncounted, repeats, most = (1, GPU_REPEATS, GPU_MAX_ROUNDS) if self._on_gpu else (0, 1, MAX_ROUNDS)
        for _ in self._rounds(MIN_ROUNDS, most):
            for name, times in self.times.items():
                runs = self._ask(name, lambda runner: runner.time(uncounted + repeats))
                if runs is None:
                    continue
                times.seconds += runs.seconds[uncounted:]
                if runs.peak_bytes is not None:
                    times.peak_bytes = max(runs.peak_bytes, times.peak_bytes or 0)

    def time_modules(self, names: Iterable[str]) -> None:
        """Time every recorded call of these runners alone."""
        names = [*names]
        least, most, repeats = 1, MODULE_ROUNDS, MODULE_REPEATS
        if self._on_gpu:
            least, most, repeats = GPU_MIN_MODULE_ROUNDS, GPU_MODULE_ROUNDS, GPU_MODULE_REPEATS
        for _ in self._rounds(least, most):
            for name in names:
                measured = self._ask(name, lambda runner: runner.time_calls(1 + repeats)) or {}
                for tap, seconds in measured.items():
                    # The first run of a round warms up.
                    self.times[name].module_seconds.setdefault(tap, []).extend(seconds[1:])

    def _rounds(self, least: int, most: int) -> Iterator[None]:
        """At least so many rounds, and more while there is time."""
        began = time.monotonic()
        for number in range(most):
            if number >= least and time.monotonic() - began > self._seconds:
                break
            yield

    def time_replays(self, names: Iterable[str]) -> None:
        """Time replays of all whole models, and of the calls of these runners; nothing without a GPU."""
        if not self._on_gpu:
            return
        for name in [*self.times] * REPLAY_ROUNDS:
            replays = self._ask(name, lambda runner: runner.time_replays(1 + GPU_REPEATS))
            times = self.times[name]
            times.replays = _joined(times.replays, replays or NO_REPLAY)
        for name in [*names] * REPLAY_ROUNDS:
            measured = self._ask(name, lambda runner: runner.time_call_replays(1 + GPU_MODULE_REPEATS)) or {}
            known = self.times[name].module_replays
            known |= {tap: _joined(known.get(tap, NO_REPLAY), replays) for tap, replays in measured.items()}

    def _ask(self, name: str, command: Callable[[TimedRunner], Result]) -> Result | None:
        times = self.times[name]
        if times.failure:
            return None
        try:
            return command(self._runners[name])
        except NotTimed as error:
            times.failure = str(error)
            return None


def _joined(known: Replayed, latest: Replayed) -> Replayed:
    """All replays but the first of each round; a reason against replays in any round is against all."""
    reason = known.reason or latest.reason
    return Replayed([] if reason else [*known.seconds, *latest.seconds[1:]], reason)
