"""How runs are timed: turns, warm-ups, quantiles, and the check of the timed results."""

import io
import itertools

import pytest
import torch
from rich.console import Console

from parity.base.precision import PRECISIONS
from parity.report.assemble import latency_report
from parity.report.latencies import milliseconds
from parity.report.terminal import render
from parity.timing import rounds
from parity.timing.measure import Replayed
from parity.timing.rounds import NotTimed, TimedRuns
from tests.parity import made_reports

FP32 = PRECISIONS["fp32"]


class Machine:
    """Makes runners whose commands are listed; the first run of a round takes ten times as long."""

    def __init__(self, replays=None, failing=()):
        self.asked = []
        self.replays = replays or Replayed([0.5] * 6)
        self.failing = failing
        self.peaks = itertools.cycle([100, 123, 110])

    def rounds(self, monkeypatch, on_gpu, units=1):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
        return rounds.InterleavedRounds({name: Runner(self, name) for name in ("a", "b")}, units)

    def commands(self, command):
        return [name for name, asked in self.asked if asked == command]


class Runner:
    def __init__(self, machine, name):
        self._machine = machine
        self._name = name

    def _ask(self, command):
        self._machine.asked.append((self._name, command))
        if (self._name, command) in self._machine.failing:
            raise NotTimed("ERROR: broken")

    def prepare(self):
        self._ask("prepare")

    def time(self, repeats):
        self._ask("time")
        return TimedRuns([10.0] + [1.0] * (repeats - 1), next(self._machine.peaks))

    def time_calls(self, repeats):
        self._ask("time_calls")
        return {"m": [10.0] + [2.0] * (repeats - 1)}

    def time_replays(self, repeats):
        self._ask("time_replays")
        return self._machine.replays

    def time_call_replays(self, repeats):
        self._ask("time_call_replays")
        return {"m": self._machine.replays}


def test_rounds_are_interleaved_and_the_first_run_of_a_gpu_round_does_not_count(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(rounds, "GPU_SECONDS", -1.0)
    timed = machine.rounds(monkeypatch, on_gpu=True)
    timed.time_models()
    assert machine.asked[:2] == [("a", "prepare"), ("b", "prepare")]
    assert machine.commands("time") == ["a", "b"] * (1 + rounds.MIN_ROUNDS)
    assert timed.times["a"].seconds == [1.0] * (rounds.MIN_ROUNDS * rounds.GPU_REPEATS)
    assert timed.times["a"].peak_bytes == timed.times["b"].peak_bytes == 123


def test_on_a_processor_every_run_of_a_round_counts(monkeypatch):
    monkeypatch.setattr(rounds, "CPU_SECONDS", -1.0)
    timed = Machine().rounds(monkeypatch, on_gpu=False)
    timed.time_models()
    assert timed.times["b"].seconds == [10.0] * rounds.MIN_ROUNDS


@pytest.mark.parametrize(
    ("on_gpu", "units", "models", "modules"),
    [(False, 1, 5, 1), (True, 1, 8, 5), (True, 12, 5, 2)],
)
def test_rounds_go_on_while_there_is_time_which_all_units_on_a_gpu_share(
    on_gpu, units, models, modules, monkeypatch
):
    machine, clock = Machine(), itertools.count()
    monkeypatch.setattr(rounds, "GPU_SECONDS", 0.5)
    monkeypatch.setattr(rounds, "GPU_RUN_SECONDS", 0.5)
    timed = machine.rounds(monkeypatch, on_gpu, units)
    # Every look at the clock behind the least number of rounds is 0.15 s later.
    monkeypatch.setattr(rounds.time, "monotonic", lambda: next(clock) * 0.15)
    timed.time_models()
    runs_a_round = rounds.GPU_REPEATS if on_gpu else 1
    assert len(timed.times["a"].seconds) == models * runs_a_round
    timed.time_modules(iter(["a", "b"]))
    assert machine.commands("time_calls") == ["a", "b"] * modules
    repeats = rounds.GPU_MODULE_REPEATS if on_gpu else rounds.MODULE_REPEATS
    assert timed.times["b"].module_seconds == {"m": [2.0] * modules * repeats}


@pytest.mark.parametrize(("on_gpu", "models", "modules"), [(False, 30, 2), (True, 20, 8)])
def test_the_number_of_rounds_is_limited(on_gpu, models, modules, monkeypatch):
    machine = Machine()
    timed = machine.rounds(monkeypatch, on_gpu)
    monkeypatch.setattr(rounds.time, "monotonic", lambda: 0.0)
    timed.time_models()
    timed.time_modules(["a", "b"])
    assert machine.commands("time") == ["a", "b"] * (1 + models)
    assert machine.commands("time_calls") == ["a", "b"] * modules


def test_replays_are_timed_on_a_gpu_only(monkeypatch):
    machine = Machine()
    timed = machine.rounds(monkeypatch, on_gpu=False)
    timed.time_replays(["a"])
    assert not [command for _, command in machine.asked if "replay" in command]
    timed = machine.rounds(monkeypatch, on_gpu=True)
    timed.time_replays(iter(["a"]))
    assert timed.times["a"].replays == Replayed([0.5] * 5 * rounds.REPLAY_ROUNDS)
    assert timed.times["a"].module_replays == {"m": Replayed([0.5] * 5 * rounds.REPLAY_ROUNDS)}
    assert timed.times["b"].module_replays == {}


def test_a_reason_against_replays_stays_and_a_failure_ends_only_one_runner(monkeypatch):
    machine = Machine(Replayed([], "it waits for the GPU"), failing=[("b", "time_replays")])
    timed = machine.rounds(monkeypatch, on_gpu=True)
    timed.time_replays(["a", "b"])
    times = timed.times["a"]
    assert times.replays == times.module_replays["m"] == Replayed([], "it waits for the GPU")
    assert {name: times.failure for name, times in timed.times.items()} == {"a": "", "b": "ERROR: broken"}
    assert machine.commands("time_replays").count("b") == 1
    assert "b" not in machine.commands("time_call_replays")


def test_a_runner_that_cannot_prepare_is_never_timed(monkeypatch):
    machine = Machine(failing=[("a", "prepare")])
    timed = machine.rounds(monkeypatch, on_gpu=False)
    timed.time_models()
    timed.time_modules(["a", "b"])
    assert "a" not in machine.commands("time") + machine.commands("time_calls")
    assert timed.times["a"].seconds == []
    assert timed.times["b"].seconds


def test_quantiles_lie_within_what_was_seen_and_replays_stand_beside():
    found = latency_report([float(n) for n in range(1, 102)], [0.25, 0.5, 0.75])
    assert (found.p10, found.p25, found.median, found.p75, found.p90) == (11, 25.5, 51, 76.5, 91)
    assert (found.runs, found.replay.median, found.replay.runs, found.replay.replay) == (101, 0.5, 3, None)
    assert milliseconds(found) == "51000 ±50%, graph 500 ±50%"
    one = latency_report([3.0])
    assert (one.p10, one.median, one.p90, one.replay) == (3, 3, 3, None)
    two = latency_report([1.0, 9.0])
    assert (two.p25, two.median, two.p75) == (3, 5, 7)


def test_a_terminal_shows_replays_memory_and_clocks():
    latency = latency_report([0.002] * 5, [0.0005] * 5)
    runner = made_reports.port(
        "fp32",
        (made_reports.module("_o", latency=latency),),
        latency=latency,
        replay_reasons={"": "it waits for the GPU"},
        peak_bytes=3 * 2**20,
    )
    report = made_reports.report((made_reports.reference(), runner))
    (case,) = report.cases
    precision = case.precisions[0].model_copy(update={"gpu": {"before timing": "SM clock 1980 MHz"}})
    case = case.model_copy(update={"precisions": (precision,)})
    console = Console(width=120, highlight=False, file=io.StringIO())
    console.print(render(report.model_copy(update={"cases": (case,)}), verbose=True))
    shown = console.file.getvalue()
    rows = [line.split() for line in shown.splitlines() if line.rstrip().endswith("0.500 ±0%")]
    assert [row[-4:] for row in rows] == [["2.00", "±0%", "0.500", "±0%"]] * 2
    assert "fp32: peak memory: tripy (portable, cpu) 3 MiB" in shown
    assert "fp32: GPU before timing: SM clock 1980 MHz" in shown
    assert "no replay: hstu_tiny, fp32, tripy (portable, cpu): it waits for the GPU" in shown
