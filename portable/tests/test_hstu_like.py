"""A dense HSTU runs end to end: eagerly, compiled, with dynamic shapes, saved and loaded elsewhere."""

import os
import subprocess
import sys

import numpy as np
import nvtripy as tp
import pytest
import torch
from dense_hstu import Shape, TorchHSTU, sample, tripy_from_torch

SMALL = Shape(num_items=40, max_len=12, dim=8, heads=2, head_dim=4, blocks=2)
ONE_BLOCK = Shape(num_items=40, max_len=12, dim=8, heads=2, head_dim=4, blocks=1)
DTYPES = {tp.float32: torch.float32, tp.float16: torch.float16, tp.bfloat16: torch.bfloat16}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return TorchHSTU(SMALL).eval()


def on_gpu(tensor):
    return tp.copy(tp.Tensor(tensor), tp.device("gpu"))


def run_torch(model, ids, ts):
    with torch.inference_mode():
        return model(ids, ts)


def assert_close(actual, expected, dtype):
    """Rows have unit norm: the bound is 32 units of round-off of the row's largest possible element."""
    actual = torch.from_dlpack(actual).cpu().double()
    assert actual.shape == expected.shape
    assert (actual - expected.double()).abs().max() <= 32 * torch.finfo(DTYPES[dtype]).eps


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_static_shapes_match_torch_float64(dtype):
    torch.manual_seed(0)
    model = TorchHSTU(ONE_BLOCK).eval()
    ids, ts = sample(ONE_BLOCK, batch=3, length=12)
    infos = [tp.InputInfo((3, 12), tp.int32), tp.InputInfo((3, 12), tp.int64)]
    compiled = tp.compile(tripy_from_torch(model, dtype), args=infos)
    expected = run_torch(model.to(DTYPES[dtype]).double(), ids, ts)
    assert_close(compiled(on_gpu(ids), on_gpu(ts)), expected, dtype)


@pytest.fixture(scope="module")
def dynamic(model):
    dims = ((1, 2, 4), (2, 7, 12))
    return tp.compile(
        tripy_from_torch(model), args=[tp.InputInfo(dims, tp.int32), tp.InputInfo(dims, tp.int64)]
    )


def test_dynamic_shapes_over_the_whole_profile(model, dynamic):
    for batch, length in ((1, 2), (2, 7), (4, 12), (3, 5), (1, 12)):
        ids, ts = sample(SMALL, batch, length, seed=length)
        assert_close(dynamic(on_gpu(ids), on_gpu(ts)), run_torch(model, ids, ts), tp.float32)


def test_eager_equals_compiled(model, dynamic):
    ids, ts = sample(SMALL, batch=2, length=7)
    eager = tripy_from_torch(model)(tp.Tensor(ids), tp.Tensor(ts)).eval()
    compiled = dynamic(on_gpu(ids), on_gpu(ts))
    assert torch.equal(torch.from_dlpack(eager), torch.from_dlpack(compiled))


def test_executable_runs_in_a_fresh_process(model, dynamic, tmp_path):
    ids, ts = sample(SMALL, batch=2, length=7)
    np.savez(tmp_path / "inputs.npz", ids=ids.numpy(), ts=ts.numpy())
    dynamic.save(str(tmp_path / "model.tpymodel"))
    script = (
        "import numpy as np, nvtripy as tp\n"
        "data = np.load('inputs.npz')\n"
        "gpu = lambda a: tp.copy(tp.Tensor(a), tp.device('gpu'))\n"
        "out = tp.Executable.load('model.tpymodel')(gpu(data['ids']), gpu(data['ts']))\n"
        "np.save('out.npy', np.from_dlpack(tp.copy(out, tp.device('cpu'))))\n"
    )
    # The number of threads changes the order of PyTorch's sums.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, env=environment)
    actual = torch.from_numpy(np.load(tmp_path / "out.npy"))
    assert torch.equal(actual, torch.from_dlpack(dynamic(on_gpu(ids), on_gpu(ts))).cpu())


def test_running_twice_gives_the_same_bits_and_fresh_memory(dynamic):
    ids, ts = sample(SMALL, batch=2, length=7)
    first = torch.from_dlpack(dynamic(on_gpu(ids), on_gpu(ts)))
    second = torch.from_dlpack(dynamic(on_gpu(ids), on_gpu(ts)))
    assert torch.equal(first, second)
    assert first.data_ptr() != second.data_ptr()
