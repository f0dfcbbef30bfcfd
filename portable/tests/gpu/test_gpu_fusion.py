"""Fused plans on a GPU: the bits of the step-by-step plan, the bounds of SEMANTICS.md, graphs, streams."""

import nvtripy as tp
import pytest
import torch
from dense_hstu import Shape, TorchHSTU, sample, tripy_from_torch
from gpu_operations import OPERATIONS, X

from tripy_portable.runtime.options import CUDA_GRAPHS, FUSE

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SMALL = Shape(num_items=20, max_len=24, dim=10, heads=2, head_dim=5, blocks=2)
DTYPES = {tp.float32: torch.float32, tp.float16: torch.float16, tp.bfloat16: torch.bfloat16}


def on_gpu(tensor):
    return tp.copy(tp.Tensor(tensor), tp.device("gpu"))


def results_of(function, infos, arguments, monkeypatch, graphs="0"):
    """Results of three calls step by step, and of three fused ones; the executable that was fused."""
    monkeypatch.setenv(CUDA_GRAPHS, graphs)
    both = []
    for fuse in ("0", "1"):
        monkeypatch.setenv(FUSE, fuse)
        executable = tp.compile(function, args=infos)
        both.append([torch.from_dlpack(executable(*arguments)).cpu() for _ in range(3)])
    return (*both, executable)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arithmetic_gives_the_same_bits(dtype, monkeypatch):
    def function(x, y):
        z = (x * y + x) / (y - 3.0) * 0.3
        z = tp.cast(tp.cast(z, tp.float16), dtype) * y + z
        return tp.maximum(z + 0.0, -z) / (x * x + y * y) - tp.where(x > y, x, y / 7.0)

    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(64, 1000, generator=generator) for _ in range(2))
    # Subnormal results, overflow, zeros of both signs.
    x[0], y[1], x[2], x[3] = x[0] * 1e-20, y[1] * 1e-22, x[2] * 1e18, -0.0
    x, y = x.to(DTYPES[dtype]), y.to(DTYPES[dtype])
    infos = [tp.InputInfo((64, 1000), dtype)] * 2
    plain, fused, _ = results_of(function, infos, [on_gpu(x), on_gpu(y)], monkeypatch)
    for result in fused:
        bits = torch.int32 if dtype == tp.float32 else torch.int16
        same = result.view(bits) == plain[0].view(bits)
        assert (same | (result.isnan() & plain[0].isnan())).all()


FUNCTIONS = ["exp", "log", "sqrt", "rsqrt", "sigmoid", "tanh", "sin", "cos", "silu", "gelu"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_within_their_bounds(name, monkeypatch):
    """Each is within 4 units in the last place of the truth; so they are within 8 of each other."""
    function = getattr(tp, name)
    x = torch.linspace(0.01, 20, 10007)
    infos = [tp.InputInfo((10007,), tp.float32)]
    # A product by a power of 2, so that there are two steps.
    plain, fused, _ = results_of(lambda x: function(x) * 0.5, infos, [on_gpu(x)], monkeypatch)
    unit = torch.exp2(torch.floor(torch.log2(plain[0].abs().double()))).clamp(min=2.0**-24) * 2.0**-23
    assert ((fused[0].double() - plain[0].double()).abs() <= 8 * unit).all()


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_agree_with_their_plans(name, monkeypatch):
    infos = [tp.InputInfo((2, 3), tp.float32)]
    plain, fused, _ = results_of(OPERATIONS[name], infos, [on_gpu(X)], monkeypatch)
    for result in fused:
        assert result.dtype == plain[0].dtype
        if result.is_floating_point():
            # Sums of a few terms in another order, or functions: 16 units of the greatest number.
            bound = 16 * torch.finfo(torch.float32).eps * max(1.0, plain[0].abs().max().item())
            assert (result - plain[0]).abs().max() <= bound
        else:
            assert torch.equal(result, plain[0])


@pytest.mark.parametrize("graphs", ["0", "1"], ids=["calls", "graph"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_fused_model_is_right_for_every_shape(dtype, graphs, monkeypatch):
    """Rows have unit norm: the bound is 32 units of round-off of the row's largest possible element."""
    monkeypatch.setenv(CUDA_GRAPHS, graphs)
    monkeypatch.setenv(FUSE, "1")
    torch.manual_seed(0)
    model = TorchHSTU(SMALL).eval().requires_grad_(False)
    dims = ((1, 2, 4), (2, 7, 24))
    infos = [tp.InputInfo(dims, tp.int32), tp.InputInfo(dims, tp.int64)]
    compiled = tp.compile(tripy_from_torch(model, dtype), args=infos)
    exact = model.to(DTYPES[dtype]).double()
    for batch, length in ((2, 7), (4, 24), (2, 7), (2, 7)):
        ids, ts = sample(SMALL, batch, length, seed=length)
        result = torch.from_dlpack(compiled(on_gpu(ids), on_gpu(ts))).cpu().double()
        assert (result - exact(ids, ts)).abs().max() <= 32 * torch.finfo(DTYPES[dtype]).eps


@pytest.mark.parametrize("graphs", ["0", "1"], ids=["calls", "graph"])
def test_a_fused_call_does_not_wait_and_its_results_are_fresh(graphs, monkeypatch):
    monkeypatch.setenv(CUDA_GRAPHS, graphs)
    monkeypatch.setenv(FUSE, "1")
    compiled = tp.compile(lambda x: tp.exp(x) * 2.0 + 1.0, args=[tp.InputInfo((1000,), tp.float32)])
    x = on_gpu(torch.linspace(0, 1, 1000))
    expected = torch.from_dlpack(compiled(x)).clone()
    compiled(x)
    queue = torch.cuda.ExternalStream(compiled.stream.ptr)
    with torch.cuda.stream(queue):
        torch.cuda._sleep(100_000_000)
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = [compiled(x) for _ in range(3)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not queue.query()
    shared = [torch.from_dlpack(result) for result in results]
    assert len({result.data_ptr() for result in shared}) == 3
    assert all(torch.equal(result, expected) for result in shared)


def test_a_fused_result_is_no_alias_of_an_input_or_another_result(monkeypatch):
    monkeypatch.setenv(FUSE, "1")

    def function(x):
        y = tp.exp(x) + 1.0
        return tp.reshape(x, (3, 2)), y, tp.reshape(y, (6,)), y

    compiled = tp.compile(function, args=[tp.InputInfo((2, 3), tp.float32)])
    x = torch.zeros(2, 3, device="cuda")
    results = [torch.from_dlpack(result) for result in compiled(tp.Tensor(x))]
    assert len({tensor.untyped_storage().data_ptr() for tensor in (x, *results)}) == 5
    assert [result.flatten().tolist() for result in results] == [[0.0] * 6, [2.0] * 6, [2.0] * 6, [2.0] * 6]


def test_one_step_is_not_compiled(monkeypatch):
    monkeypatch.setenv(FUSE, "1")
    monkeypatch.setattr("tripy_portable.runtime.cuda_plan.fuse", None)
    compiled = tp.compile(lambda x: tp.exp(x), args=[tp.InputInfo((2, 3), tp.float32)])
    assert torch.equal(torch.from_dlpack(compiled(on_gpu(X))).cpu(), torch.exp(X.cuda()).cpu())
