"""Least times: what bounds a module, and by which precision."""

from __future__ import annotations

import pytest

from parity.base.work import Work
from parity.timing.least_time import Roofline, cold_seconds, roofline
from tests.parity.timing.made_ceilings import ROUND, h200


def test_what_bounds_a_module_is_the_largest_of_four():
    assert roofline(Work(), "fp32", ROUND) == Roofline(1e-6, "launch")
    assert roofline(Work(flops=10**9), "fp32", ROUND) == Roofline(1e-4, "flops")
    assert roofline(Work(flops=10**9), "bf16", ROUND) == Roofline(5e-6, "flops")
    # A megabyte fits into the L2: 8 MB are bound by DRAM, 7 of them, and not by the L2.
    assert roofline(Work(output_bytes=8_000_000), "fp32", ROUND) == Roofline(pytest.approx(7e-6), "memory")
    slow_cache = ROUND.model_copy(update={"l2_bandwidth": 1e11})
    assert roofline(Work(input_bytes=800_000), "fp32", slow_cache) == Roofline(pytest.approx(8e-6), "cache")


def test_without_caches_all_bytes_come_from_memory_and_no_launch_counts():
    assert cold_seconds(Work(), "fp32", ROUND) == 0.0
    assert cold_seconds(Work(flops=10**9, input_bytes=10), "fp32", ROUND) == 1e-4
    assert cold_seconds(Work(flops=10, input_bytes=800_000), "fp32", ROUND) == 8e-7
    with pytest.raises(ValueError, match="'int8' has no measured matmul rate; use fp32, tf32, fp16, bf16"):
        cold_seconds(Work(flops=1), "int8", ROUND)


@pytest.mark.parametrize("field", ["flops", "weight_bytes", "input_bytes", "output_bytes"])
def test_more_work_never_has_a_lower_limit(field):
    sizes = [10**power for power in range(13)]
    seconds = [roofline(Work(**{field: size}), "tf32", h200()).seconds for size in sizes]
    assert seconds == sorted(seconds)
    assert seconds[-1] > seconds[0]


def test_an_unknown_precision_is_refused():
    with pytest.raises(ValueError, match="'fp8' has no measured matmul rate; use fp32"):
        roofline(Work(flops=1), "fp8", ROUND)
