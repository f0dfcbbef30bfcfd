"""Rooflines and ceilings: units, the least times, and the machine that they hold for."""

from __future__ import annotations

import json

import pytest

from perf_model.ceilings import CeilingsError, find_ceilings, read_ceilings
from perf_model.roofline import Roofline, cold_seconds, roofline
from perf_model.work import Work
from tests.perf_model.gpu import CEILINGS, ROUND, h200


def test_what_bounds_a_module_is_the_largest_of_four():
    assert roofline(Work(), "fp32", ROUND) == Roofline(1e-6, "launch")
    assert roofline(Work(flops=10**9), "fp32", ROUND) == Roofline(1e-4, "flops")
    assert roofline(Work(flops=10**9), "bf16", ROUND) == Roofline(5e-6, "flops")
    # A megabyte fits into the L2: 8 MB are bound by DRAM, 7 of them, and not by the L2.
    assert roofline(Work(output_bytes=8_000_000), "fp32", ROUND) == Roofline(pytest.approx(7e-6), "memory")
    slow_cache = ROUND.model_copy(update={"l2_bandwidth": 1e11})
    assert roofline(Work(input_bytes=800_000), "fp32", slow_cache) == Roofline(pytest.approx(8e-6), "cache")


def test_the_roofline_knows_no_cache_and_no_launch():
    assert cold_seconds(Work(flops=10**9, input_bytes=1000), "fp32", ROUND) == pytest.approx(1e-4)
    assert cold_seconds(Work(flops=10, input_bytes=800_000), "fp32", ROUND) == pytest.approx(8e-7)


@pytest.mark.parametrize("field", ["flops", "weight_bytes", "input_bytes", "output_bytes"])
def test_more_work_never_has_a_lower_limit(field):
    sizes = [10**power for power in range(13)]
    seconds = [roofline(Work(**{field: size}), "tf32", h200()).seconds for size in sizes]
    assert seconds == sorted(seconds)
    assert seconds[-1] > seconds[0]


def test_an_unknown_precision_is_refused():
    with pytest.raises(ValueError, match="'fp8' has no measured matmul rate; use fp32"):
        roofline(Work(flops=1), "fp8", ROUND)


def test_the_measured_ceilings_are_in_the_units_that_they_claim():
    """Between half and all of what the data sheet says: 4.8 TB/s, 67, 494, 989 and 989 TFLOP/s."""
    actual, sheet = h200(), {"fp32": 67e12, "tf32": 494.5e12, "fp16": 989.5e12, "bf16": 989.5e12}
    assert actual.gpu.name == "NVIDIA H200"
    assert 2.4e12 < actual.copy_bandwidth < 4.8e12 < actual.l2_bandwidth < 20e12
    for precision, rate in sheet.items():
        assert rate / 2 < actual.matmul[precision] < rate
    assert 0.5e-6 < actual.kernel_seconds < 5e-6
    assert all(0 < seconds < 1e-3 for seconds in actual.host_seconds.values())


def test_ceilings_are_found_for_the_kind_of_gpu_that_they_were_measured_on(tmp_path):
    (tmp_path / "h200").mkdir()
    (tmp_path / "h200" / "ceilings.json").write_text(h200().model_dump_json())
    assert find_ceilings(h200().gpu, tmp_path) == h200()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "NVIDIA H100"),
        ("multiprocessors", 78),
        ("memory_gib", 70),
        ("l2_bytes", 1),
        ("capability", (8, 0)),
    ],
)
def test_ceilings_are_never_used_for_another_gpu(field, value):
    assert find_ceilings(h200().gpu) == h200()
    assert find_ceilings(h200().gpu.model_copy(update={field: value})) is None


def test_no_file_is_no_ceilings(tmp_path):
    assert find_ceilings(h200().gpu, tmp_path) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"copy_bandwidth": 0}, "copy_bandwidth"),
        ({"copy_bandwidth": "fast"}, "copy_bandwidth"),
        ({"matmul": {"fp32": 1e12}}, "matmul lacks bf16, fp16, tf32"),
        ({"schema_version": "perf_model.ceilings/0"}, "schema_version"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_a_damaged_file_is_named_with_the_fix(tmp_path, change, said):
    path = tmp_path / "ceilings.json"
    path.write_text(json.dumps(json.loads((CEILINGS / "ceilings.json").read_text()) | change))
    with pytest.raises(CeilingsError, match=said) as raised:
        read_ceilings(path)
    assert str(path) in str(raised.value)
    assert "python -m perf_model.measure.ceilings" in str(raised.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CeilingsError, match=r"nothing\.json"):
        read_ceilings(tmp_path / "nothing.json")
