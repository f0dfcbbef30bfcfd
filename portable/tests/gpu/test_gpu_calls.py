"""Compiled calls on a GPU: no hidden synchronisation, streams, precision switches, captured graphs."""

import copy

import nvtripy as tp
import pytest
import torch
from dense_hstu import Shape, TorchHSTU, sample, tripy_from_torch
from gpu_operations import OPERATIONS, X

from tripy_portable.runtime.options import CUDA_GRAPHS, TF32

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SMALL = Shape(num_items=20, max_len=24, dim=10, heads=2, head_dim=5, blocks=1)
LONG = 100_000_000


def on_gpu(tensor):
    return tp.copy(tp.Tensor(tensor), tp.device("gpu"))


def torch_of(result):
    return torch.from_dlpack(result)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return TorchHSTU(SMALL).eval()


def compiled_hstu(model):
    dims = ((1, 2, 4), (2, 7, 24))
    infos = [tp.InputInfo(dims, tp.int32), tp.InputInfo(dims, tp.int64)]
    return tp.compile(tripy_from_torch(model), args=infos)


def expected_of(model, ids, ts):
    with torch.inference_mode():
        return copy.deepcopy(model).double()(ids, ts)


def assert_is(result, expected):
    """Rows have unit norm: within 32 units of round-off of float32."""
    difference = torch_of(result).cpu().double() - expected
    assert difference.abs().max() <= 32 * torch.finfo(torch.float32).eps


@pytest.fixture
def no_sync():
    """A switch: from its call to the end of the test, an operation that waits for the GPU raises."""
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("graphs", ["0", "1"], ids=["steps", "graph"])
def test_operations_do_not_synchronise(name, graphs, no_sync, monkeypatch):
    monkeypatch.setenv(CUDA_GRAPHS, graphs)
    compiled = tp.compile(OPERATIONS[name], args=[tp.InputInfo((2, 3), tp.float32)])
    x = on_gpu(X)
    expected = torch_of(compiled(x)).cpu()
    compiled(x)
    no_sync()
    result = compiled(x)
    torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(torch_of(result).cpu(), expected)


@pytest.mark.parametrize("graphs", ["0", "1"], ids=["steps", "graph"])
def test_a_call_returns_before_the_gpu_is_done(model, graphs, no_sync, monkeypatch):
    monkeypatch.setenv(CUDA_GRAPHS, graphs)
    compiled = compiled_hstu(model)
    ids, ts = sample(SMALL, 2, 7)
    arguments = on_gpu(ids), on_gpu(ts)
    for _ in range(2):
        compiled(*arguments)
    compiled.stream.synchronize()
    queue = torch.cuda.ExternalStream(compiled.stream.ptr)
    with torch.cuda.stream(queue):
        torch.cuda._sleep(LONG)
    no_sync()
    result = compiled(*arguments)
    assert not queue.query()
    torch.cuda.set_sync_debug_mode("default")
    compiled.stream.synchronize()
    assert queue.query()
    assert_is(result, expected_of(model, ids, ts))


def test_streams_are_cuda_streams():
    first, second = tp.Stream(), tp.Stream()
    assert first != second
    assert first.ptr not in (0, second.ptr)
    with torch.cuda.stream(torch.cuda.ExternalStream(first.ptr)):
        torch.cuda._sleep(LONG)
    second.synchronize()
    assert not torch.cuda.ExternalStream(first.ptr).query()
    first.synchronize()
    assert torch.cuda.ExternalStream(first.ptr).query()


@pytest.mark.parametrize("graphs", ["0", "1"], ids=["steps", "graph"])
def test_one_executable_in_several_streams(model, graphs, monkeypatch):
    monkeypatch.setenv(CUDA_GRAPHS, graphs)
    compiled = compiled_hstu(model)
    streams = [tp.default_stream(), tp.Stream(), tp.Stream()]
    samples = [sample(SMALL, 3, 9, seed=seed) for seed in range(9)]
    results = []
    for number, (ids, ts) in enumerate(samples):
        compiled.stream = streams[number % 3]
        with torch.cuda.stream(torch.cuda.ExternalStream(compiled.stream.ptr)):
            torch.cuda._sleep(LONG // 10)
        results.append(compiled(on_gpu(ids), on_gpu(ts)))
    for (ids, ts), result in zip(samples, results):
        assert_is(result, expected_of(model, ids, ts))


def matrices():
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(256, 256, generator=generator) for _ in range(2))


def relative_error(function, exact, *tensors):
    infos = [tp.InputInfo(tuple(t.shape), tp.float32) for t in tensors]
    result = torch_of(tp.compile(function, args=infos)(*map(on_gpu, tensors))).cpu().double()
    return ((result - exact).norm() / exact.norm()).item()


def convolve(x, kernel):
    layer = tp.Conv(64, 64, (3, 3), bias=False)
    layer.weight = kernel
    return layer(x)


@pytest.mark.parametrize("allowed", ["0", "1"])
def test_tf32_only_where_it_is_allowed(allowed, monkeypatch):
    """Whatever PyTorch's own switches say; TF32 rounds factors to 11 bits, which is seen in the error."""
    monkeypatch.setenv(TF32, allowed)
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    opposite = "ieee" if allowed == "1" else "tf32"
    before = matmul.fp32_precision, conv.fp32_precision
    matmul.fp32_precision = conv.fp32_precision = opposite
    try:
        a, b = matrices()
        errors = [relative_error(lambda x, y: x @ y, a.double() @ b.double(), a, b)]
        x, kernel = torch.randn(2, 64, 16, 16), torch.randn(64, 64, 3, 3)
        exact = torch.nn.functional.conv2d(x.double(), kernel.double())
        weight = tp.Tensor(kernel)
        errors.append(relative_error(lambda x: convolve(x, weight), exact, x))
        assert (matmul.fp32_precision, conv.fp32_precision) == (opposite, opposite)
    finally:
        matmul.fp32_precision, conv.fp32_precision = before
    for error in errors:
        assert (error > 2.0**-13) == (allowed == "1"), errors


def test_a_graph_gives_the_same_bits_and_fresh_results(model, monkeypatch):
    ids, ts = sample(SMALL, 2, 7)
    arguments = on_gpu(ids), on_gpu(ts)
    plain = torch_of(compiled_hstu(model)(*arguments))
    monkeypatch.setenv(CUDA_GRAPHS, "1")
    compiled = compiled_hstu(model)
    results = [torch_of(compiled(*arguments)) for _ in range(4)]
    assert len({result.data_ptr() for result in results}) == 4
    for result in results:
        assert torch.equal(result, plain)


def test_graphs_of_several_shapes_and_values(monkeypatch):
    monkeypatch.setenv(CUDA_GRAPHS, "1")

    def function(x, rows):
        return tp.concatenate([x, tp.ones((rows, 3))], 0) * 2.0

    infos = [tp.InputInfo(((1, 2, 9), 3), tp.float32), tp.DimensionInputInfo((1, 2, 9))]
    compiled = tp.compile(function, args=infos)
    for _ in range(4):
        for count in (1, 3, 4):
            for rows in (2, 5):
                x = torch.rand(count, 3)
                result = torch_of(compiled(on_gpu(x), tp.DimensionSize(rows))).cpu()
                assert torch.equal(result, torch.cat([x, torch.ones(rows, 3)]) * 2)


def test_an_executable_may_die_while_its_graph_runs(model, monkeypatch):
    monkeypatch.setenv(CUDA_GRAPHS, "1")
    ids, ts = sample(SMALL, 2, 7)
    arguments = on_gpu(ids), on_gpu(ts)
    results = []
    for _ in range(3):
        compiled = compiled_hstu(model)
        for _ in range(2):
            compiled(*arguments)
        with torch.cuda.stream(torch.cuda.ExternalStream(compiled.stream.ptr)):
            torch.cuda._sleep(LONG // 4)
        results.append(compiled(*arguments))
        del compiled
        torch.zeros(1 << 20, device="cuda")
    for result in results:
        assert_is(result, expected_of(model, ids, ts))
