"""Ceilings: their units, and the kind of GPU that they hold for."""

from __future__ import annotations

import json

import pytest

from parity.timing.ceilings import FOLDER, CeilingsError, find_ceilings, read_ceilings
from tests.parity.timing.made_ceilings import h200


def test_the_measured_ceilings_are_in_the_units_that_they_claim():
    """Between half and all of what the data sheet says: 4.8 TB/s, 67, 494, 989 and 1979 TFLOP/s."""
    actual, sheet = h200(), {"fp32": 67e12, "tf32": 494.5e12, "fp16": 989.5e12, "bf16": 989.5e12}
    sheet |= {"int8": 1979e12, "fp8": 1979e12}
    assert actual.gpu.name == "NVIDIA H200"
    assert 2.4e12 < actual.copy_bandwidth < 4.8e12 < actual.l2_bandwidth < 20e12
    for precision, rate in sheet.items():
        assert rate / 2 < actual.matmul[precision] < rate
    assert 0.5e-6 < actual.kernel_seconds < 5e-6
    assert all(0 < seconds < 1e-3 for seconds in actual.host_seconds.values())


def test_ceilings_are_found_for_the_kind_of_gpu_that_they_were_measured_on(tmp_path):
    (tmp_path / "h200.json").write_text(h200().model_dump_json())
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
        ({"schema_version": "parity.ceilings/0"}, "schema_version"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_a_damaged_file_is_named_with_the_fix(tmp_path, change, said):
    path = tmp_path / "ceilings.json"
    path.write_text(json.dumps(json.loads((FOLDER / "h200.json").read_text()) | change))
    with pytest.raises(CeilingsError, match=said) as raised:
        read_ceilings(path)
    assert str(path) in str(raised.value)
    assert "python -m perf_model.measure.ceilings" in str(raised.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CeilingsError, match=r"nothing\.json"):
        read_ceilings(tmp_path / "nothing.json")
