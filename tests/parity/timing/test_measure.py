"""Measured runs: on the host, queued on a GPU, and as replays of a graph."""

import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from parity.report.assemble import latency_report
from parity.timing import measure as timing
from parity.timing.measure import NotCapturable, Replay, Replayed, Replays, measure, measure_queued

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


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
            time.sleep(0.1)
            with torch.cuda.stream(queue):
                return x + 1

        function()
        # A GPU that other processes use takes an event late, by milliseconds.
        assert max(measure(function, 3, queue).seconds) >= 0.05
        assert max(measure_queued(function, 3, queue).seconds) < 0.05

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
