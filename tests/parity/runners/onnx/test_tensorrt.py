"""The tensorrt_onnx runner: engines of the exported reference, refusals by module, runs where they run."""

import json
import sys

import pytest
import torch

pytest.importorskip("polygraphy", reason="the runner builds through Polygraphy: pip install polygraphy")
import polygraphy.config

from parity.base.precision import PRECISIONS
from parity.runners import Unavailable, make_runner
from parity.runners.base import BuiltOnly, Refused
from tests.parity.onnx_setup import setup

try:
    make_runner("tensorrt_onnx")
    reason = ""
except Unavailable as error:
    reason = str(error)
# Exports are made once in a process.
pytestmark = pytest.mark.xdist_group("onnx_export")
needs_library = pytest.mark.skipif(bool(reason), reason=reason)
cannot_run = pytest.mark.skipif(
    torch.cuda.is_available(), reason="there is a CUDA device, which may run engines"
)


def loaded(name, precision="fp32"):
    result, runner = setup(name), make_runner("tensorrt_onnx")
    runner.load(result.case, PRECISIONS[precision], result.weights)
    return result, runner


@needs_library
@cannot_run
@pytest.mark.parametrize(
    ("name", "precision", "dtype"),
    [
        ("dlrm_tiny", "bf16", "BFloat16"),
        pytest.param("hstu_tiny", "fp16", "Half", marks=pytest.mark.full),
    ],
)
def test_engines_are_built_where_they_cannot_run(name, precision, dtype, tmp_path):
    result, runner = loaded(name, precision)
    arrays = result.arrays(result.case.input.batch_size, 0)
    facts = runner.build(arrays, tmp_path)
    assert [entry["shape"] for entry in facts] == ["dynamic batch"]
    for entry in facts:
        assert dtype in entry["dtypes"]
        assert entry["layers"] > 50
        assert 0 < entry["engine_layers"] < entry["layers"]
        assert (tmp_path / f"{entry['key']}.engine").stat().st_size == entry["bytes"]
        listing = json.loads((tmp_path / f"{entry['key']}.json").read_text())["inspector"]
        assert len(listing["layers"]) == entry["engine_layers"]
        outputs = [b["name"] for b in listing["bindings"] if b["mode"] == "Output"]
        assert outputs == list(runner.exported.outputs)
    assert runner.build(arrays, tmp_path) is facts
    for step in (runner.run, runner.run_tapped):
        with pytest.raises(BuiltOnly, match="PyTorch sees no CUDA device"):
            step(arrays)


@needs_library
def test_an_engine_of_static_sizes_is_built_where_engines_run(monkeypatch, tmp_path):
    result, runner = loaded("dlrm_tiny")
    monkeypatch.setattr(runner, "_on_device", lambda built: None)
    monkeypatch.setattr("parity.runners.onnx.tensorrt._read_engine", lambda engine: (1, [], {}))
    facts = runner.build(result.arrays(result.case.input.batch_size, 0), tmp_path)
    assert [entry["shape"] for entry in facts] == ["dynamic batch", "static"]


@needs_library
def test_a_refusal_has_tensorrts_words_and_the_module(tmp_path):
    result, runner = loaded("dlrm_tiny")
    node = next(
        n for n in runner.exported.graph if n.op_type == "Relu" and "bot_l.1" in str(n.metadata_props)
    )
    node.op_type = "NoSuchOperator"
    with pytest.raises(Refused, match=rf"in NoSuchOperator \({node.name}\) of module bot_l.1\n  TensorRT: "):
        runner.build(result.arrays(4, 0), tmp_path)


@needs_library
def test_where_engines_run_names_carry_the_results(monkeypatch, tmp_path):
    """ONNX Runtime stands in for the engine: the rest is the runner's own."""
    result, runner = loaded("dlrm_tiny")
    arrays = result.arrays(4, 0)
    monkeypatch.setattr(runner, "_open", result.onnx._open)
    expected = result.onnx.run(arrays)
    actual = runner.run(arrays)
    assert list(actual) == list(expected)
    assert all(torch.equal(actual[name], expected[name]) for name in expected)
    taps = runner.run_tapped(arrays).tensors
    assert set(taps) == {*runner.exported.taps, *runner.exported.outputs}


@needs_library
def test_a_batch_of_another_shape_is_another_engine(monkeypatch):
    result, runner = loaded("dlrm_tiny")
    monkeypatch.setattr(runner, "_open", result.onnx._open)
    for batch in (4, 4, 6):
        runner.run(result.arrays(batch, 0))
    assert len(runner._sessions) == 2


def test_without_a_library_the_runner_is_unavailable_with_the_reason(monkeypatch):
    # The import without a library changes it for the process.
    monkeypatch.setattr(polygraphy.config, "USE_TENSORRT_RTX", polygraphy.config.USE_TENSORRT_RTX)
    monkeypatch.delitem(sys.modules, "parity.runners.onnx.tensorrt", raising=False)
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    with pytest.raises(Unavailable, match="tensorrt_rtx: .*pip install"):
        make_runner("tensorrt_onnx")


@needs_library
def test_without_polygraphy_the_runner_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "parity.runners.onnx.tensorrt", raising=False)
    monkeypatch.setitem(sys.modules, "polygraphy", None)
    with pytest.raises(Unavailable, match="`pip install polygraphy onnx onnxscript`"):
        make_runner("tensorrt_onnx")
