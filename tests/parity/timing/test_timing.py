"""How runs are timed: turns, warm-ups, quantiles, the check of what was timed, and the GPU's state."""

import io
import itertools
import subprocess
import sys
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from parity.base import gpu_state
from parity.base.precision import PRECISIONS
from parity.report.assemble import latency_report
from parity.report.overview import milliseconds
from parity.report.terminal import render
from parity.timing import measure as timing
from parity.timing import rounds
from parity.timing.measure import NotCapturable, Replay, Replayed, Replays, measure, measure_queued
from parity.timing.rounds import NotTimed, TimedRuns
from tests.parity import made_reports

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
FP32 = PRECISIONS["fp32"]


class Machine:
    """Makes runners whose commands are listed; the first run of a round takes ten times as long."""

    def __init__(self, replays=None, failing=()):
        self.asked = []
        self.replays = replays or Replayed([0.5] * 6)
        self.failing = failing
        self.peaks = itertools.cycle([100, 123, 110])

    def rounds(self, monkeypatch, on_gpu):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
        return rounds.InterleavedRounds({name: Runner(self, name) for name in ("a", "b")})

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
    timed = machine.rounds(monkeypatch, on_gpu=True)
    timed.time_models()
    assert machine.asked[:2] == [("a", "prepare"), ("b", "prepare")]
    assert machine.commands("time") == ["a", "b"] * (1 + rounds.MIN_ROUNDS)
    assert timed.times["a"].seconds == [1.0] * (rounds.MIN_ROUNDS * rounds.GPU_REPEATS)
    assert timed.times["a"].peak_bytes == timed.times["b"].peak_bytes == 123


def test_on_a_processor_every_run_of_a_round_counts(monkeypatch):
    timed = Machine().rounds(monkeypatch, on_gpu=False)
    timed.time_models()
    assert timed.times["b"].seconds == [10.0] * rounds.MIN_ROUNDS


@pytest.mark.parametrize(("on_gpu", "count"), [(False, rounds.MIN_ROUNDS), (True, 10)])
def test_rounds_on_a_processor_end_when_their_commands_take_long(on_gpu, count, monkeypatch):
    machine = Machine()
    timed = machine.rounds(monkeypatch, on_gpu)
    monkeypatch.setattr(Runner, "time", lambda runner, repeats: TimedRuns([1e-6] * repeats))
    monkeypatch.setattr(rounds, "CPU_ROUNDS_SECONDS", -1.0)
    timed.time_models()
    runs_a_round = rounds.GPU_REPEATS if on_gpu else 1
    assert len(timed.times["a"].seconds) == count * runs_a_round


@pytest.mark.parametrize(("on_gpu", "count"), [(False, 2), (True, 6)])
def test_modules_are_interleaved_as_well_in_more_rounds_on_a_gpu(on_gpu, count, monkeypatch):
    machine = Machine()
    timed = machine.rounds(monkeypatch, on_gpu)
    timed.time_modules(iter(["a", "b"]))
    assert machine.commands("time_calls") == ["a", "b"] * count
    assert timed.times["b"].module_seconds == {"m": [2.0] * count * rounds.MODULE_REPEATS}


@pytest.mark.parametrize(("on_gpu", "count"), [(False, 1), (True, 6)])
def test_slow_modules_have_one_round_on_a_processor(on_gpu, count, monkeypatch):
    machine = Machine()
    timed = machine.rounds(monkeypatch, on_gpu)
    monkeypatch.setattr(rounds, "MODULES_SECONDS", -1.0)
    timed.time_modules(["a", "b"])
    assert machine.commands("time_calls") == ["a", "b"] * count


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


def test_measuring_on_the_host_returns_each_run_and_the_last_result():
    results = iter(range(5))

    def function():
        time.sleep(0.002)
        return next(results)

    timed = measure(function, 5, None)
    assert len(timed.seconds) == 5
    assert min(timed.seconds) >= 0.002
    assert timed.result == 4


class Gpu:
    """Stands for a GPU with one stream: it works in order, and events say when they were reached.

    Its host takes `launch` milliseconds for a run that takes the GPU `work`; one that `waits` waits for it.
    """

    def __init__(self, monkeypatch, launch, work, waits=False):
        self.now = self.free = 0.0
        self.launch, self.work, self.waits = launch, work, waits
        self.sleeps = []
        monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: GpuEvent(self))
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)
        monkeypatch.setattr(torch.cuda, "stream", lambda queue: nullcontext())
        monkeypatch.setattr(torch.cuda, "_sleep", self.sleep)

    def queue(self, milliseconds):
        self.free = max(self.free, self.now) + milliseconds

    def sleep(self, cycles):
        self.sleeps.append(cycles)
        self.queue(cycles / 2e6)

    def synchronize(self):
        self.now = max(self.now, self.free)

    def run(self):
        self.now += self.launch
        self.queue(self.work)
        if self.waits:
            self.synchronize()
        return "result"


class GpuEvent:
    def __init__(self, gpu):
        self.gpu = gpu

    def record(self, queue):
        self.reached = max(self.gpu.free, self.gpu.now)

    def query(self):
        return self.gpu.now >= self.reached

    def elapsed_time(self, end):
        return end.reached - self.reached


def test_a_queued_run_takes_what_the_gpu_takes_and_not_the_host(monkeypatch):
    gpu = Gpu(monkeypatch, launch=0.03, work=0.003)
    assert measure(gpu.run, 3, "queue").seconds == pytest.approx([0.033e-3] * 3)
    timed = measure_queued(gpu.run, 3, "queue")
    assert timed.seconds == pytest.approx([0.003e-3] * 3)
    assert (timed.result, gpu.sleeps) == ("result", [timing.BUSY_CYCLES] * 3)


def test_behind_too_little_work_a_run_does_not_count(monkeypatch):
    gpu = Gpu(monkeypatch, launch=0.375, work=0.003)
    assert measure_queued(gpu.run, 2, "queue").seconds == pytest.approx([0.003e-3] * 2)
    assert gpu.sleeps == [timing.BUSY_CYCLES * times for times in (1, 2, 4, 4)]


def test_a_run_that_waits_for_the_gpu_cannot_be_queued(monkeypatch):
    gpu = Gpu(monkeypatch, launch=0.1, work=0.003, waits=True)
    with pytest.raises(NotCapturable, match="waits for the GPU"):
        measure_queued(gpu.run, 1, "queue")
    assert gpu.sleeps[-1] == timing.MOST_BUSY_CYCLES


def test_quantiles_lie_within_what_was_seen_and_replays_stand_beside():
    found = latency_report([float(n) for n in range(1, 102)], [0.25, 0.5, 0.75])
    assert (found.p10, found.p25, found.median, found.p75, found.p90) == (11, 25.5, 51, 76.5, 91)
    assert (found.runs, found.replay.median, found.replay.runs, found.replay.replay) == (101, 0.5, 3, None)
    assert milliseconds(found) == "51000 ±50%, graph 500 ±50%"
    one = latency_report([3.0])
    assert (one.p10, one.median, one.p90, one.replay) == (3, 3, 3, None)


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


class TestGpuState:
    @pytest.fixture(autouse=True)
    def _gpu(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        properties = SimpleNamespace(uuid="1234")
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)

    def test_the_library_is_asked_first(self, monkeypatch):
        fake = SimpleNamespace(
            NVMLError=ValueError,
            NVML_CLOCK_SM=1,
            NVML_CLOCK_MEM=2,
            NVML_TEMPERATURE_GPU=0,
            nvmlInit=lambda: None,
            nvmlDeviceGetHandleByUUID=lambda uuid: {"GPU-1234": "device"}[uuid],
            nvmlSystemGetDriverVersion=lambda: "580.1",
            nvmlDeviceGetClockInfo=lambda device, kind: 1000 * kind,
            nvmlDeviceGetPowerUsage=lambda device: 123456,
            nvmlDeviceGetTemperature=lambda device, kind: 40,
        )
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        assert gpu_state.gpu_state() == {
            "driver": "580.1",
            "SM clock": "1000 MHz",
            "memory clock": "2000 MHz",
            "power": "123.5 W",
            "temperature": "40 C",
        }

    def test_then_the_command(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pynvml", None)
        printed = "580.1, 1980 MHz, 3201 MHz, 80.85 W, 32\n"

        def run(command, **options):
            assert "--id=GPU-1234" in command
            return SimpleNamespace(stdout=printed)

        monkeypatch.setattr(subprocess, "run", run)
        assert list(gpu_state.gpu_state().values()) == ["580.1", "1980 MHz", "3201 MHz", "80.85 W", "32 C"]

    def test_where_neither_answers_it_says_so(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pynvml", None)
        monkeypatch.setenv("PATH", "")
        (reason,) = gpu_state.gpu_state().values()
        assert reason.startswith("nvidia-ml-py is not installed; nvidia-smi: ")

    def test_what_the_command_prints_is_not_guessed_at(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pynvml", None)
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="No devices\n"))
        assert gpu_state.gpu_state()["unknown"].endswith("nvidia-smi printed 'No devices'")


def test_without_a_gpu_there_is_no_state(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_state.gpu_state() == {}


def test_bits_are_compared_with_signs_and_not_a_number():
    nan = torch.tensor([float("nan"), 0.0])
    assert timing.same_bits(nan, nan.clone())
    assert not timing.same_bits(nan, torch.tensor([float("nan"), -0.0]))
    assert not timing.same_bits(torch.ones(2), torch.ones(2, dtype=torch.int32))
    assert not timing.same_bits(torch.ones(2), torch.ones(1, 2))


class TestReplays:
    """Graphs that are captured at the first use."""

    def test_a_graph_is_captured_once_and_without_a_replay(self):
        made = []

        def capture():
            made.append(SimpleNamespace(time=lambda repeats: [0.5] * repeats))
            return made[-1]

        replays = Replays(capture)
        assert not made
        assert replays.time(0) == Replayed([])
        assert replays.time(2) == Replayed([0.5, 0.5])
        assert len(made) == 1

    def test_the_reason_against_a_graph_stays(self):
        asked = []

        def refuse(repeats=0):
            asked.append(repeats)
            raise NotCapturable("it waits")

        for capture in (refuse, lambda: SimpleNamespace(time=refuse)):
            replays = Replays(capture)
            assert replays.time(3) == replays.time(3) == Replayed([], "it waits")
        assert asked == [0, 3]


@NEEDS_GPU
class TestOnAGpu:
    def test_the_time_between_events_is_that_of_the_work(self):
        queue = torch.cuda.Stream()

        def function():
            with torch.cuda.stream(queue):
                torch.cuda._sleep(20_000_000)

        # 20 million cycles at no more than 2 GHz; the host returns at once.
        assert min(measure(function, 3, queue).seconds) >= 0.01

    def test_the_time_of_a_queued_run_is_without_the_hosts(self):
        queue = torch.cuda.Stream()
        x = torch.ones(4, device="cuda")

        def function():
            time.sleep(0.01)
            with torch.cuda.stream(queue):
                return x + 1

        function()
        assert min(measure(function, 3, queue).seconds) >= 0.01
        assert max(measure_queued(function, 3, queue).seconds) < 0.01

    def test_what_waits_cannot_be_queued(self):
        x = torch.ones(4, device="cuda")
        with pytest.raises(NotCapturable, match="it waits for the GPU"):
            measure_queued(lambda: x.sum().item(), 1, torch.cuda.current_stream())

    def test_replays_of_many_small_kernels_are_faster_than_launching_them(self):
        x = torch.randn(64, device="cuda")

        def function():
            y = x
            for _ in range(200):
                y = y * 1.0001 + 0.1
            return {"y": y}

        plain = latency_report(measure(function, 20, torch.cuda.current_stream()).seconds)
        replayed = latency_report(Replay(function).time(20))
        assert replayed.p75 < plain.p25

    @pytest.mark.parametrize(
        ("function", "reason"),
        [
            (lambda x: x * x.sum().item(), "it waits for the GPU"),
            (lambda x: torch.full_like(x, time.perf_counter()), "a replay gives other bits than a run"),
        ],
        ids=["waits", "other bits"],
    )
    def test_what_cannot_be_replayed_says_why_and_spoils_nothing(self, function, reason):
        x = torch.ones(4, device="cuda")
        with pytest.raises(NotCapturable, match=reason):
            Replay(lambda: function(x))
        assert len(Replay(lambda: x + 1).time(2)) == 2
