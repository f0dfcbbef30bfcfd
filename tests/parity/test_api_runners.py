"""Other runners in `parity.compare`: a batch of fixed size, and a model that overrides `__call__`."""

import shutil

import nvtripy as tp
import pytest
import torch

import parity
from parity.runners import Unavailable, make_runner


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(5))
        self.layer = torch.nn.Linear(5, 3)

    def __call__(self, x):
        return self.layer(x * self.scale)


class ScaledPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.scale = tp.ones((5,), dtype=dtype)
        self.layer = tp.Linear(5, 3, dtype=dtype)

    def forward(self, x):
        return self.layer(x * self.scale)


def judged(runner, **options):
    """The reports of the runner on the comparison."""
    inputs = {"x": torch.randn(6, 5, generator=torch.Generator().manual_seed(0))}
    result = parity.compare(Scaled(), ScaledPort, inputs, ("fp32",), (runner,), **options)
    return [entry for _, _, entry in result.report.runner_reports() if entry.runner == runner]


@pytest.mark.xdist_group("onnx_export")
@pytest.mark.parametrize("options", [{}, {"dynamic": {"x": {0: 1}}}])
def test_onnxruntime_has_the_batch_of_the_comparison(options):
    runtime = pytest.importorskip(
        "onnxruntime", reason="the runner needs onnxruntime: pip install onnxruntime"
    )
    if torch.cuda.is_available() and "CUDAExecutionProvider" not in runtime.get_available_providers():
        pytest.skip("this ONNX Runtime runs on no GPU: pip install onnxruntime-gpu")
    (entry,) = judged("onnxruntime", **options)
    assert entry.verdict == "PASS", entry.reason


@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler: apt-get install g++")
def test_a_compiled_model_is_called_as_it_is():
    (entry,) = judged("torch_compile")
    assert entry.verdict == "PASS", entry.reason


class Cut(ScaledPort):
    def forward(self, x):
        return super().forward(x)[:, :2]


def test_a_wrong_shape_has_no_numbers(tmp_path):
    result = parity.compare(Scaled(), Cut, {"x": torch.zeros(6, 5)}, ("fp32",))
    folder = result.write(tmp_path / "out")
    for name in ("report.md", "report.junit.xml"):
        text = (folder / name).read_text()
        assert "shape (6, 2) differs from the reference's (6, 3)" in text
        assert "nan" not in text
        assert "0 elements compared" not in text


def test_a_comparison_of_the_reference_alone_says_so():
    result = parity.compare(Scaled(), ScaledPort, {"x": torch.zeros(6, 5)}, ("fp32",), ("torch",))
    assert not result.passed
    assert str(result).startswith("nothing is compared: the reference alone runs; name a runner of the port")


def test_the_words_of_a_missing_package_and_the_remedy_have_one_stop(monkeypatch):
    def missing(name):
        raise ImportError("nvtripy is not here: `pip install .`.", name="nvtripy")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(Unavailable, match="`pip install .`; run inside NVIDIA's Tripy container"):
        make_runner("tripy")
