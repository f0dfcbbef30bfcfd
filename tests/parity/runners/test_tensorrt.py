"""The tensorrt runner: BUILT rows with their engines, refusals as failures, and running where engines run."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cases.hstu.synthetic import synthetic
from cases.shipped import load_case
from parity.base.precision import PRECISIONS
from parity.execution.record import BuildRecord
from parity.inputs.weights import case_weights
from parity.report.files import read_report
from parity.report.overview import engine
from parity.runners import Unavailable, make_runner
from parity.runners.base import BuiltOnly, Refused
from parity.timing.measure import Replayed, Timed
from tests.parity.saved_runs import manifest, quick_runs, seal

# One process makes the fixtures of this module.
pytestmark = pytest.mark.xdist_group("tensorrt")

trt = pytest.importorskip("tripy_portable.trt", reason="nvtripy compiles with TensorRT itself here")
reason = trt.available()
needs_library = pytest.mark.skipif(reason is not None, reason=reason or "")
cannot_run = pytest.mark.skipif(
    torch.cuda.is_available(), reason="there is a CUDA device, which may run engines"
)


@pytest.fixture(scope="module")
def built_run(command, tmp_path_factory):
    """hstu_tiny on tensorrt, saved."""
    folder = tmp_path_factory.mktemp("built") / "run"
    arguments = ("--case", "hstu_tiny", "--precision", "fp32,bf16", "--runners", "tensorrt", "-v")
    with quick_runs():
        ended = command(*arguments, "--save", folder)
    return folder, ended


@needs_library
@cannot_run
def test_engines_are_built_where_they_cannot_run(built_run):
    folder, ended = built_run
    assert (ended.code, ended.err) == (0, "")
    flat = " ".join(ended.out.split())
    assert "BUILT (not run: PyTorch sees no CUDA device): hstu_tiny, bf16, tensorrt (tensorrt" in flat
    assert "BUILT: every graph; nothing was compared; 2 engines built and not run." in flat
    for precision in read_report(folder / "report.json").cases[0].precisions:
        row = next(runner for runner in precision.runners if runner.runner == "tensorrt")
        assert (row.status, row.verdict) == ("BUILT", "NONE")
        assert [build.shape for build in row.builds] == ["dynamic batch"]
        wanted = {"fp32": "Float", "bf16": "BFloat16"}[precision.precision]
        for build in row.builds:
            assert wanted in build.dtypes
            assert build.layers > 500
            assert build.engine_layers > 0
            assert build.seconds > 0
            path = folder / "hstu_tiny/batch_0000" / precision.precision / "tensorrt" / f"{build.key}.engine"
            assert path.stat().st_size == build.bytes
            listing = json.loads(path.with_suffix(".json").read_text())["inspector"]
            assert len(listing["layers"]) == build.engine_layers
            assert [b["name"] for b in listing["bindings"] if b["mode"] == "Output"] == [
                f"result{i}" for i in range(3)
            ]


@needs_library
@cannot_run
def test_a_replay_tells_of_the_same_engines(built_run, replayed):
    folder, _ = built_run
    code, report, _ = replayed(folder)
    assert code == 0
    assert report.cases == read_report(folder / "report.json").cases


@pytest.mark.usefixtures("beside_another_report")
def test_a_refusal_is_a_failure_with_tensorrts_words(saved_run, replayed, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(saved_run.folder, copy)
    words = "TensorRT refuses the graph in tensorrt.top_k (%t1)\n  your line: similarity.py:7 in forward"
    for path in copy.glob("*/batch_*/fp32/record.json"):
        record = json.loads(path.read_text())
        record["runners"]["tensorrt"] = {"label": "tensorrt (made up)", "status": "REFUSED", "reason": words}
        path.write_text(json.dumps(record))
    runners = [*manifest(copy)["runners"], "tensorrt"]
    seal(copy, runners=runners, runners_asked=runners)
    code, report, out = replayed(copy)
    assert code == 1
    row = next(runner for runner in report.cases[0].precisions[0].runners if runner.runner == "tensorrt")
    assert (row.verdict, row.status, row.diagnosis.text) == ("FAIL", "REFUSED", words)
    said = f"FAIL: hstu_tiny, fp32, tensorrt (made up), typical: {words}"
    assert " ".join(said.split()) in " ".join(out.split())


@pytest.fixture
def runner():
    """A loaded tensorrt runner, and the arrays of its case."""
    result = make_runner("tensorrt")
    case = load_case("hstu_tiny")

    weights, _ = case_weights(case)
    result.load(case, PRECISIONS["fp32"], weights)
    return result, synthetic(case).arrays


@needs_library
def test_a_graph_that_tensorrt_refuses_is_refused_at_the_ports_line(runner, tmp_path, monkeypatch):
    import nvtripy as tp

    result, arrays = runner

    def entry(arguments, traced):
        return {"score.encoded": tp.sigmoid(tp.cast(arguments["past_ids"], tp.int8))}

    monkeypatch.setattr(result, "_entry", entry)
    line = entry.__code__.co_firstlineno + 1
    with pytest.raises(Refused, match=rf"your line: .*{Path(__file__).name}:{line} in entry"):
        result.build(arrays, tmp_path)


@needs_library
@cannot_run
def test_after_a_build_that_cannot_run_nothing_runs(runner, tmp_path):
    result, arrays = runner
    facts = result.build(arrays, tmp_path)
    assert result.build(arrays, tmp_path) is facts
    for step in (result.run, result.run_tapped, result.run_incremental):
        with pytest.raises(BuiltOnly, match="PyTorch sees no CUDA device"):
            step(arrays)


@needs_library
def test_an_engine_of_static_sizes_is_built_where_engines_run(runner, monkeypatch, tmp_path):
    from parity.runners import tensorrt as tensorrt_runner

    result, arrays = runner
    monkeypatch.setattr(tensorrt_runner.trt, "Engine", lambda engine_bytes: None)
    assert [facts["shape"] for facts in result.build(arrays, tmp_path)] == ["dynamic batch", "static"]


@needs_library
@cannot_run
def test_the_engine_of_a_model_without_dynamic_sizes_is_static(runner, monkeypatch, tmp_path):
    result, arrays = runner
    monkeypatch.setattr(type(result.case), "dynamic_sizes", lambda case, arrays: {})
    assert [facts["shape"] for facts in result.build(arrays, tmp_path)] == ["static"]


@needs_library
def test_where_engines_run_the_whole_model_runs_on_one(runner, monkeypatch):
    from tripy_portable.runtime.client import RuntimeClient
    from tripy_portable.runtime.session import RuntimeSession, RuntimeSessionOptions

    from parity.runners import tensorrt as tensorrt_runner
    from parity.runners.tripy import compiled as tripy_compiled
    from parity.runners.tripy.compiled import Compiled

    product, arrays = runner
    runs, stream = [], object()

    class Engine:
        """Runs the portable executable, which stands for the engine's bytes, on tensors by position."""

        def __init__(self, executable):
            self.session = RuntimeSession(RuntimeSessionOptions(), executable)

        def __call__(self, tensors):
            runs.append(len(tensors))
            memrefs = [RuntimeClient().create_memref_view_from_dlpack(t.__dlpack__()) for t in tensors]
            return [result.tensor for result in self.session.execute_function("main", memrefs)]

    monkeypatch.setattr(tensorrt_runner.trt, "program_of", lambda executable: executable._executable)
    monkeypatch.setattr(tensorrt_runner, "_built", lambda inner, _: SimpleNamespace(engine_bytes=inner))
    monkeypatch.setattr(tensorrt_runner.trt, "Engine", Engine)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    on_engine = product.run(arrays)
    runs.clear()
    # The engine is timed, in its own stream, and not the executable that it was built of.
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(
        tripy_compiled, "measure", lambda run, repeats, queue: Timed([queue is stream] * repeats, run())
    )
    timed = product.time(arrays, 2)
    assert timed.seconds == [True, True]
    assert len(runs) == 1
    assert all(torch.equal(out, on_engine[name]) for name, out in timed.result.items())
    assert product.time_replays(arrays, 2) == Replayed([])
    product._executables.clear()
    monkeypatch.setattr(tensorrt_runner, "_OnEngine", lambda *arguments: Compiled(*arguments[:3]))
    expected = product.run(arrays)
    assert list(on_engine) == ["score.encoded", "score.current", "score.similarity"]
    assert all(torch.equal(on_engine[name], expected[name]) for name in expected)


def test_without_a_library_the_runner_is_unavailable_with_the_reason(monkeypatch):
    monkeypatch.setattr("tripy_portable.trt.library.LIBRARIES", ("no_such_tensorrt",))
    with pytest.raises(Unavailable, match="no_such_tensorrt: No module named.*pip install"):
        make_runner("tensorrt")


@needs_library
@pytest.mark.parametrize(
    ("name", "layers"),
    [
        (
            "dlrm_tiny_quantised",
            {
                "bot_l.0.product": ["Int8", "Int8"],
                "bot_l.2.product": ["FP8", "FP8"],
                "top_l.2.product": ["Int8", "Int8"],
            },
        ),
        (
            "hstu_tiny_quantised",
            {
                "_hstu._attention_layers.0._uvqk_product": ["Int8", "Int8"],
                "_hstu._attention_layers.0._o.product": ["FP8", "FP8"],
                "_hstu._attention_layers.1._uvqk_product": ["FP8", "FP8"],
            },
        ),
        (
            "stu_tiny_quantised",
            {
                "_stu_module._stu_layers.0._uvqk_product": ["Int8", "Int8"],
                "_stu_module._stu_layers.0._output_product": ["FP8", "FP8"],
                "_stu_module._stu_layers.1._output_product": ["Int8", "Int8"],
            },
        ),
    ],
)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_products_of_quantised_operands_are_quantised_in_the_engine(name, layers, precision, tmp_path):
    case = load_case(name)
    runner = make_runner("tensorrt")
    runner.load(case, PRECISIONS[precision], case_weights(case)[0])
    builds = runner.build(case.make_inputs().inputs[0].arrays, tmp_path)
    assert builds
    for build in map(BuildRecord.model_validate, builds):
        gemms = {layer.modules[0]: list(layer.operands) for layer in build.quantised if layer.type == "gemm"}
        assert gemms == layers
        # Weights alone are dequantised inside a layer.
        assert any(layer.operands == ("Int4",) for layer in build.quantised)
        assert all(path in engine(build) for path in layers)
