"""The programs that measure, on a GPU: they run, and give what the stored files have."""

from __future__ import annotations

import pytest
import torch

from parity.timing.ceilings import find_ceilings
from parity.timing.gpu import this_gpu
from perf_model.measure.ceilings import copy_bandwidth, host_seconds, kernel_seconds, l2_bandwidth
from perf_model.measure.machine import environment
from perf_model.measure.points import time_points
from perf_model.measure.timing import GraphTimer
from perf_model.points import Point
from tests.parity.timing.made_ceilings import h200

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def test_host_overheads_have_the_kinds_that_are_stored():
    actual = host_seconds()
    assert set(actual) == set(h200().host_seconds)
    assert all(0 < seconds < 1e-3 for seconds in actual.values())


def test_the_l2_is_faster_than_the_memory_behind_it():
    timer, gpu = GraphTimer(), this_gpu()
    assert l2_bandwidth(timer, gpu.l2_bytes) > copy_bandwidth(timer)
    assert 0 < kernel_seconds(timer) < 1e-4


def test_a_larger_point_takes_longer_each_time():
    """128 times the work: other programs on the GPU do not hide it."""
    sizes = ({"m": 1024, "n": 1024, "k": 1024}, {"m": 8192, "n": 4096, "k": 4096})
    points = [Point("product", "bf16", size) for size in (*sizes, sizes[1])]
    small, large, again = time_points(points, runs=5)
    assert min(large.median, again.median) > 10 * small.median


def test_the_environment_names_driver_and_command():
    assert {"driver_version", "torch", "command", "created"} <= set(environment())


def test_no_copy_here_is_faster_than_the_stored_ceiling_where_this_gpu_has_one():
    """Beside other programs it may be slower."""
    stored = find_ceilings(this_gpu())
    if stored is None:
        pytest.skip("nobody has measured this kind of GPU")
    assert 0 < copy_bandwidth(GraphTimer()) < 1.1 * stored.copy_bandwidth
