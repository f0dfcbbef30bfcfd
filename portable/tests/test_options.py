"""The environment variables that choose how executables run on a GPU; they mean nothing on the CPU."""

from types import SimpleNamespace

import nvtripy as tp
import pytest
import torch

from mlir_tensorrt.runtime.api import MTRTException
from tripy_portable.graphs import capture_graphs
from tripy_portable.runtime.options import CUDA_GRAPHS, FUSE, TF32, Options
from tripy_portable.runtime.precision import MatrixPrecision


def test_defaults(monkeypatch):
    for name in (TF32, CUDA_GRAPHS, FUSE):
        monkeypatch.delenv(name, raising=False)
    assert Options.from_environment() == Options(allow_tf32=False, cuda_graphs=False, fuse=False)


@pytest.mark.parametrize(
    ("name", "field"), [(TF32, "allow_tf32"), (CUDA_GRAPHS, "cuda_graphs"), (FUSE, "fuse")]
)
def test_each_variable_sets_one_option(name, field, monkeypatch):
    monkeypatch.setenv(name, "1")
    assert getattr(Options.from_environment(), field)
    monkeypatch.setenv(name, "yes")
    with pytest.raises(MTRTException, match=f"{name} must be 0 or 1, but is 'yes'"):
        Options.from_environment()


def test_options_belong_to_the_executable(monkeypatch):
    """They are read when it is made, and not at the call."""
    monkeypatch.setenv(TF32, "1")
    compiled = tp.compile(tp.relu, args=[tp.InputInfo((2,), tp.float32)])
    monkeypatch.setenv(TF32, "0")
    assert compiled._executable.options.allow_tf32
    assert compiled(tp.ones((2,)).eval()).tolist() == [1, 1]


def _switches():
    matmul = torch.backends.cuda.matmul
    names = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    reductions = [(getattr(matmul, name), getattr(matmul, f"{name}_split_k", True)) for name in names]
    cudnn = torch.backends.cudnn
    return matmul.fp32_precision, cudnn.conv.fp32_precision, reductions, cudnn.deterministic


def _fails(switches, precision):
    with precision:
        assert _switches()[:2] == switches
        assert [reduced for reduced, _ in _switches()[2]] == [False, False]
        assert _switches()[3]
        raise KeyError


@pytest.mark.parametrize(("allowed", "name"), [(True, "tf32"), (False, "ieee")])
def test_pytorchs_switches_are_set_and_come_back_after_an_error(allowed, name):
    before, precision = _switches(), MatrixPrecision(allowed)
    for _ in range(2):
        with pytest.raises(KeyError):
            _fails((name, name), precision)
        assert _switches() == before


def test_only_the_switches_of_a_plans_work_are_set():
    def plan(*operations, products=()):
        steps = [SimpleNamespace(node=SimpleNamespace(op=name)) for name in operations]
        return SimpleNamespace(steps=steps, product_types=set(products))

    assert MatrixPrecision.of(plan("gather"), False) is None
    before = _switches()
    with MatrixPrecision.of(plan("matrix_multiply", products=[torch.float32]), False):
        assert _switches() == ("ieee", *before[1:])
    with MatrixPrecision.of(plan("matrix_multiply", products=[torch.bfloat16]), True):
        assert [reduced for reduced, _ in _switches()[2]] == [before[2][0][0], False]
        assert _switches()[:2] == before[:2]
    with MatrixPrecision.of(plan("convolution"), False):
        assert _switches()[1] == "ieee"
        assert _switches()[3]
        assert _switches()[0] == before[0]
    with MatrixPrecision.of(plan("opaque_plugin"), True):
        assert _switches()[:2] == ("tf32", "tf32")
    assert _switches() == before


def test_graphs_are_chosen_by_executable_too(monkeypatch):
    monkeypatch.delenv(CUDA_GRAPHS, raising=False)
    compiled = tp.compile(tp.relu, args=[tp.InputInfo((2,), tp.float32)])
    other = tp.compile(tp.relu, args=[tp.InputInfo((2,), tp.float32)])
    x = tp.ones((2,)).eval()
    capture_graphs(compiled)
    assert compiled._executable.options.cuda_graphs
    assert not other._executable.options.cuda_graphs
    assert [compiled(x).tolist() for _ in range(3)] == [[1, 1]] * 3
    capture_graphs(compiled, enabled=False)
    assert not compiled._executable.options.cuda_graphs
    assert compiled(x).tolist() == [1, 1]
