"""GPU memory: DLPack, copies and constants; who waits for whom, and when memory may be used again."""

import nvtripy as tp
import pytest
import torch

from mlir_tensorrt.runtime.api import PointerType, RuntimeClient, ScalarTypeCode

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

CLIENT = RuntimeClient()
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.bool]
# About 50 ms on a GPU at 2 GHz: longer than anything the host does in between.
LONG = 100_000_000


@pytest.fixture
def doubled():
    return tp.compile(lambda x: x + x, args=[tp.InputInfo(((1, 1024, 1 << 20),), tp.float32)])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dlpack_in_and_out_shares_memory(dtype):
    source = torch.zeros(2, 3, dtype=dtype, device="cuda")
    tensor = tp.Tensor(source)
    assert tensor.device.kind == "gpu"
    assert tensor.__dlpack_device__() == (2, 0)
    back = torch.from_dlpack(tensor)
    assert back.data_ptr() == source.data_ptr()
    assert (back.dtype, back.device) == (dtype, source.device)


def test_dlpack_of_a_result_shares_its_memory(doubled):
    result = doubled(tp.ones((4,)).eval())
    first, second = torch.from_dlpack(result), torch.from_dlpack(result)
    assert first.is_cuda
    first[0] = 7
    assert second.tolist() == [7, 2, 2, 2]
    assert result.tolist() == [7, 2, 2, 2]


@pytest.mark.parametrize("stream", [None, -1, 1, "own"])
def test_stream_argument_of_dlpack(stream):
    own = torch.cuda.Stream()
    memref = CLIENT.create_memref_view_from_dlpack(torch.ones(3, device="cuda").__dlpack__())
    torch.cuda.synchronize()
    capsule = memref.__dlpack__(stream=own.cuda_stream if stream == "own" else stream)
    with torch.cuda.stream(own):
        assert torch.utils.dlpack.from_dlpack(capsule).tolist() == [1, 1, 1]


def test_stream_zero_of_dlpack_is_rejected():
    memref = CLIENT.create_memref_view_from_dlpack(torch.ones(3, device="cuda").__dlpack__())
    with pytest.raises(BufferError, match="use 1 for the legacy default stream"):
        memref.__dlpack__(stream=0)


def test_a_consumer_waits_for_the_result_and_the_host_does_not(doubled):
    source = tp.copy(tp.Tensor(torch.ones(1024)), tp.device("gpu"))
    elsewhere = torch.cuda.Stream()

    def receive():
        result = doubled(source)
        with torch.cuda.stream(elsewhere):
            return torch.from_dlpack(result) * 1

    # Kernels are loaded and memory is allocated in the first round, which may take the host's time.
    receive()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.ExternalStream(doubled.stream.ptr)):
        torch.cuda._sleep(LONG)
    received = receive()
    assert not elsewhere.query()
    elsewhere.synchronize()
    assert received.eq(2).all()


def test_a_call_waits_for_what_pytorch_is_still_writing(doubled):
    source = torch.zeros(1024, device="cuda")
    tensor = tp.Tensor(source)
    doubled(tensor)
    torch.cuda._sleep(LONG)
    source.fill_(3)
    assert torch.from_dlpack(doubled(tensor)).eq(6).all()


def test_pytorch_may_overwrite_or_free_shared_memory_right_after_the_call(doubled):
    doubled(tp.Tensor(torch.zeros(1024, device="cuda")))
    with torch.cuda.stream(torch.cuda.ExternalStream(doubled.stream.ptr)):
        torch.cuda._sleep(LONG)
    source = torch.full((1024,), 3.0, device="cuda")
    first = doubled(tp.Tensor(source))
    source.fill_(100)
    second = doubled(tp.Tensor(source))
    del source
    torch.full((1024,), -1.0, device="cuda")
    assert torch.from_dlpack(first).eq(6).all()
    assert torch.from_dlpack(second).eq(200).all()


def test_memory_of_dropped_tensors_is_not_reused_too_early(doubled):
    """Arguments, executables and their constants die while the GPU still works on them."""
    results = []
    for value in range(20):
        weight = tp.Tensor(torch.full((4096,), float(value)))
        executable = tp.compile(lambda x, w=weight: x * w, args=[tp.InputInfo((4096,), tp.float32)])
        executable.stream = tp.Stream()
        with torch.cuda.stream(torch.cuda.ExternalStream(executable.stream.ptr)):
            torch.cuda._sleep(LONG // 20)
        results.append(executable(tp.copy(tp.Tensor(torch.full((4096,), 2.0)), tp.device("gpu"))))
        del weight, executable
        torch.full((4096,), -1.0, device="cuda")
    for value, result in enumerate(results):
        assert torch.from_dlpack(result).eq(2 * value).all()


def test_copies_without_a_stream_are_complete_and_see_what_was_queued(doubled):
    source = torch.ones(1024)
    tensor = tp.copy(tp.Tensor(source), tp.device("gpu"))
    source.fill_(9)
    with torch.cuda.stream(torch.cuda.ExternalStream(doubled.stream.ptr)):
        torch.cuda._sleep(LONG)
    assert torch.from_dlpack(tp.copy(doubled(tensor), tp.device("cpu"))).eq(2).all()


def test_copies_with_a_stream_are_queued():
    stream, device = CLIENT.create_stream(), CLIENT.get_devices()[0]
    host = CLIENT.create_memref_view_from_dlpack(torch.arange(4.0).__dlpack__())
    CLIENT.copy_to_host(CLIENT.copy_to_device(host, device, stream), stream=stream)
    stream.sync()
    with torch.cuda.stream(stream.cuda):
        torch.cuda._sleep(LONG)
    there = CLIENT.copy_to_device(host, device, stream)
    back = CLIENT.copy_to_host(there, stream=stream)
    assert not stream.cuda.query()
    assert (there.address_space, back.address_space) == (PointerType.device, PointerType.host)
    stream.sync()
    assert memoryview(back).tolist() == [0, 1, 2, 3]
    existing = CLIENT.create_memref(shape=[4], dtype=ScalarTypeCode.f32)
    assert CLIENT.copy_to_host(there, existing_host_memref=existing) is None
    assert memoryview(existing).tolist() == [0, 1, 2, 3]


def test_device_memrefs_are_gpu_memory_and_host_memrefs_are_not():
    device = CLIENT.get_devices()[0]
    for entry in (
        CLIENT.create_memref(shape=[2], dtype=ScalarTypeCode.i32, device=device),
        CLIENT.create_memref(
            memoryview(b"\1\0\0\0\2\0\0\0"), shape=[2], dtype=ScalarTypeCode.i32, device=device
        ),
    ):
        assert entry.tensor.is_cuda
        assert entry.ptr == entry.tensor.data_ptr()
    assert not CLIENT.create_memref(shape=[2], dtype=ScalarTypeCode.i32).tensor.is_cuda
    assert tp.Tensor([1, 2], device=tp.device("gpu")).tolist() == [1, 2]


def test_weights_are_uploaded_once_and_expanded_constants_take_no_memory():
    weight = tp.Tensor(torch.ones(1024, 1024))
    compiled = tp.compile(
        lambda x: x @ weight + tp.ones((64, 1024, 1024))[:1, :1],
        args=[tp.InputInfo(((1, 2, 64), 1024), tp.float32)],
    )
    # The first product makes cuBLAS take its workspace.
    compiled(tp.ones((1, 1024)).eval())
    before = torch.cuda.memory_allocated()
    for rows in (2, 3, 5, 8, 13, 21, 34):
        compiled(tp.ones((rows, 1024)).eval())
    torch.cuda.synchronize()
    # An allocation makes the allocator look which memory has become free.
    torch.empty(1, device="cuda")
    assert torch.cuda.memory_allocated() - before < 2**20
