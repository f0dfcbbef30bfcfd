"""The onnxruntime runner: modules of every family pass, faults are named, what cannot run says so."""

import sys

import numpy as np
import onnx_ir as ir
import pytest
import torch

pytest.importorskip("onnxruntime", reason="the runner needs onnxruntime: pip install onnxruntime")

import parity
from parity.base.precision import PRECISIONS
from parity.inputs.weights import case_weights
from parity.report.schema_modules import DiagnosisReport
from parity.runners import Unavailable, default_runners, make_runner
from parity.verdict.judgement import MODEL_OUTPUT
from tests.parity import fault_runs
from tests.parity.case_runs import clean_run, judged, tapped_paths
from tests.parity.hidden_gpu import without_gpu
from tests.parity.onnx_setup import setup

FP32 = (
    "dlrm_tiny",
    "dlrm_tiny_weighted",
    "dlrm_tiny_qr",
    "dlrm_tiny_md",
    "dlrm_lecture_index",
    "hstu_tiny",
    "hstu_tiny_rated",
    "hstu_tiny_combined",
)
FP16 = ("dlrm_tiny", "dlrm_tiny_weighted", "dlrm_lecture_index", "hstu_tiny", "hstu_tiny_combined")


@pytest.fixture(autouse=True, scope="module")
def _on_the_processor():
    """Its CPU's provider, which the runner refuses beside runners on a GPU."""
    with without_gpu():
        yield


# Exports are made once in a process.
pytestmark = pytest.mark.xdist_group("onnx_export")
# The model in `make test`.
IN_TEST = (("dlrm_tiny", "fp32"),)


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        pytest.param(*run, marks=() if run in IN_TEST else pytest.mark.full)
        for run in [*((name, "fp32") for name in FP32), *((name, "fp16") for name in FP16)]
    ],
)
def test_every_module_passes_alone_and_in_the_model(name, precision, monkeypatch):
    exported = setup(name, precision).onnx.exported
    monkeypatch.setattr("parity.runners.onnx.base.export", lambda *_: exported)
    comparison = judged(name, precision, 0, "onnxruntime")
    assert comparison.passed, comparison.diagnosis
    assert comparison.observer_difference == pytest.approx(0.0, abs=1e-2)
    case = setup(name, precision).case
    assert {tap.path for tap in comparison.taps} >= set(tapped_paths(case))
    for tap in comparison.taps:
        assert tap.accumulated is not None
        assert tap.isolated is not None or tap.kind == MODEL_OUTPUT


def test_bfloat16_is_unavailable_with_onnx_runtimes_words():
    subject, runner = setup("dlrm_tiny"), make_runner("onnxruntime")
    with pytest.raises(Unavailable, match="cannot run bf16: .*NOT_IMPLEMENTED"):
        runner.load(subject.case, PRECISIONS["bf16"], subject.weights)


def test_tf32_is_unavailable_on_the_cpu():
    subject, runner = setup("dlrm_tiny"), make_runner("onnxruntime")
    with pytest.raises(Unavailable, match="tf32 is an arithmetic of CUDA devices"):
        runner.load(subject.case, PRECISIONS["tf32"], subject.weights)


@pytest.mark.parametrize("package", ["onnxruntime", "onnxscript"])
def test_a_missing_package_is_named_with_what_to_install(package, monkeypatch):
    for module in ("onnxruntime", "base"):
        monkeypatch.delitem(sys.modules, f"parity.runners.onnx.{module}", raising=False)
    monkeypatch.delitem(sys.modules, "parity.runners.onnx.export", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(Unavailable, match=f"{package}.*`pip install onnxruntime onnx onnxscript`"):
        make_runner("onnxruntime")


@pytest.mark.parametrize(
    ("is_right", "wrong", "repaired"),
    [
        (True, (), ""),
        (False, (), ", repaired: int64 order"),
        (True, ("Sigmoid",), ", repaired: Sigmoid"),
        (False, ("Elu", "Sigmoid"), ", repaired: int64 order, Elu, Sigmoid"),
    ],
)
def test_the_label_says_version_device_level_and_repairs(monkeypatch, is_right, wrong, repaired):
    import onnxruntime

    monkeypatch.setattr("parity.runners.onnx.int64_order.is_right", lambda: is_right)
    monkeypatch.setattr("parity.runners.onnx.elementwise.wrong", lambda: wrong)
    expected = f"onnxruntime ({onnxruntime.__version__}, cpu, enable_all{repaired})"
    assert make_runner("onnxruntime").label() == expected


class TestBesideAGpu:
    """Where runners work on a GPU, the CPU's provider is no substitute for the GPU's."""

    @pytest.fixture(autouse=True)
    def _gpu(self, monkeypatch):
        setup("dlrm_tiny")  # whose own runner is the CPU's
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def refused(self, precision):
        subject, runner = setup("dlrm_tiny"), make_runner("onnxruntime")
        assert ", cuda, " in runner.label()
        with pytest.raises(Unavailable) as caught:
            runner.load(subject.case, PRECISIONS[precision], subject.weights)
        return str(caught.value)

    def test_without_a_provider_for_it_the_runner_is_unavailable(self):
        assert (
            "this ONNX Runtime has no CUDAExecutionProvider: `pip install onnxruntime-gpu`"
            in self.refused("fp32")
        )

    def test_a_provider_that_does_not_start_is_not_replaced_by_the_cpus(self):
        from parity.runners.onnx.onnxruntime import _CudaSession

        # Asked for and not there: ONNX Runtime itself goes on with the CPU's, and a warning.
        with pytest.raises(Unavailable, match="could not start it"):
            _CudaSession(setup("dlrm_tiny").onnx.exported.plain(), threads=1, allow_tf32=False)

    def test_bfloat16_has_no_way_in(self, monkeypatch):
        import onnxruntime

        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
        assert "NumPy has no bfloat16" in self.refused("bf16")


def test_it_runs_by_name_only():
    assert not {"onnxruntime", "tensorrt_onnx"} & set(default_runners())


def test_times_are_taken_of_the_model_and_of_modules():
    subject = setup("dlrm_tiny")
    arrays = subject.arrays(4, 0)
    capture = subject.other("torch").record(arrays)
    call = next(call for call in capture.calls if call.path == "bot_l")
    subject.onnx.run_call(call, capture.call_inputs, arrays)
    alone = subject.onnx.timed_call(call, capture.call_inputs, arrays).time(3)
    for seconds in (subject.onnx.time(arrays, 3).seconds, alone):
        assert len(seconds) == 3
        assert min(seconds) > 0


class Sums(torch.nn.Module):
    """Weighted sums over a sequence of any width."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Linear(3, 3)

    def forward(self, x_BND):
        return self.scale(x_BND).cumsum(1) / x_BND.shape[1]


class AnyWidth(parity.Case):
    name = "any_width"
    batch_size = 4

    def build_reference(self):
        return Sums()

    def build_port(self, dtype):
        raise NotImplementedError

    def make_inputs(self):
        return {"x_BND": np.random.default_rng(self.seed).standard_normal((4, 6, 3)).astype(np.float32)}


def test_a_batch_of_another_width_has_an_export_of_its_own():
    case, runner = AnyWidth(), make_runner("onnxruntime")
    weights = case_weights(case)[0]
    runner.load(case, PRECISIONS["fp32"], weights)
    reference = make_runner("torch")
    reference.load(case, PRECISIONS["fp32"], weights)
    for shape in ((4, 6, 3), (2, 6, 3), (5, 9, 3), (1, 9, 3), (4, 6, 3)):
        arrays = {"x_BND": np.random.default_rng(3).standard_normal(shape).astype(np.float32)}
        capture = reference.record(arrays)
        (call,) = (call for call in capture.calls if call.path == "scale")
        results = {
            **runner.run(arrays),
            **runner.run_tapped(arrays).tensors,
            **runner.run_call(call, capture.call_inputs, arrays),
        }
        for name, result in results.items():
            torch.testing.assert_close(result, capture.tensors[name])
    assert len(runner._exports) == 2


def test_sessions_follow_the_number_of_threads():
    subject = setup("dlrm_tiny")
    arrays = subject.arrays(4, 0)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        subject.onnx.run(arrays)
        assert {key[-1] for key in subject.onnx._sessions} >= {before + 1}
    finally:
        torch.set_num_threads(before)


class TestFaults:
    """Edits of the exported graph, which the run must see, and name at the module."""

    LOAD = "        self.exported = self._export(typical)\n"
    WEIGHT = "top_l.0.weight"

    @pytest.fixture
    def graph(self, monkeypatch):
        """The graph of dlrm_tiny that the next runner loads, without an export of its own."""
        exported = setup("dlrm_tiny").onnx.exported
        monkeypatch.setattr("parity.runners.onnx.base.export", lambda *_: exported)
        return exported.graph

    def diagnosis(self):
        return clean_run("dlrm_tiny", "fp32", 0).judge("onnxruntime").diagnosis

    def test_the_graph_itself_passes(self, graph):
        assert self.diagnosis().kind == "none"

    def test_a_weight(self, graph, monkeypatch):
        weight = graph.initializers[self.WEIGHT]
        monkeypatch.setattr(weight, "const_value", ir.tensor(weight.const_value.numpy() * 1.01))
        diagnosis = self.diagnosis()
        assert (diagnosis.kind, diagnosis.tap) == ("module", "top_l.0")

    def by_the_command(self, folder, statement) -> DiagnosisReport:
        edited = f"{self.LOAD}        {statement}\n"
        fault_runs.scratch(folder, "parity/runners/onnx/base.py", self.LOAD, edited)
        code, report, shown = fault_runs.run(folder, "--case", "dlrm_tiny", "--runners", "onnxruntime")
        assert code == 1
        assert "FAIL: dlrm_tiny, fp32, onnxruntime" in shown
        return fault_runs.runner(report, "onnxruntime").diagnosis

    @pytest.mark.full
    def test_the_command_names_a_weight(self, tmp_path):
        weight = f'self.exported.graph.initializers["{self.WEIGHT}"]'
        diagnosis = self.by_the_command(
            tmp_path, f"{weight}.const_value = ir.tensor({weight}.const_value.numpy() * 1.01)"
        )
        assert (diagnosis.kind, diagnosis.tap) == ("module", "top_l.0")

    @pytest.mark.full
    def test_the_command_sees_two_taps_with_each_others_names(self, tmp_path):
        swap = (
            "a, b = (next(v for v in self.exported.graph.outputs if v.name == n) for n in "
            '("emb_l.0", "emb_l.1")); a.name, b.name = "spare", a.name; a.name = "emb_l.1"'
        )
        diagnosis = self.by_the_command(tmp_path, swap)
        assert diagnosis.kind == "module"
        assert diagnosis.tap in ("emb_l.0", "emb_l.1")


def test_arrays_come_back_in_the_precision():
    subject = setup("dlrm_tiny", "fp16")
    outputs = subject.onnx.run(subject.arrays(3, 0))
    assert {tensor.dtype for tensor in outputs.values()} == {torch.float16}
    assert all(np.isfinite(tensor.numpy()).all() for tensor in outputs.values())
    assert isinstance(subject.onnx.exported.graph, ir.Graph)
