"""Memory, DLPack, streams, sessions, and executables as files."""

import json
import struct

import numpy as np
import nvtripy as tp
import pytest
import torch
from harness import compile_graph, constant, execute, memrefs, session

from mlir_tensorrt.compiler.dialects import affine, tensorrt
from mlir_tensorrt.runtime.api import (
    Executable,
    MTRTException,
    PointerType,
    RuntimeClient,
    RuntimeSession,
    RuntimeSessionOptions,
    ScalarTypeCode,
)
from tripy_portable.dtypes import F32, I32
from tripy_portable.ir.types import DYNAMIC, tensor_type
from tripy_portable.program import FORMAT_VERSION, MAGIC
from tripy_portable.runtime.executable import MAX_PLANS

CLIENT = RuntimeClient()
ADD = tensorrt.ElementWiseOperationAttr.get("kSUM")
DTYPES = {
    torch.float32: tp.float32,
    torch.float16: tp.float16,
    torch.bfloat16: tp.bfloat16,
    torch.int64: tp.int64,
    torch.int32: tp.int32,
    torch.int8: tp.int8,
    torch.bool: tp.bool,
}


def doubled(x):
    return tensorrt.element_wise(x, x, ADD)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dlpack_in_and_out_shares_memory(dtype):
    source = torch.zeros(2, 3, dtype=dtype)
    tensor = tp.Tensor(source)
    assert tensor.dtype == DTYPES[dtype]
    back = torch.from_dlpack(tensor)
    assert back.data_ptr() == source.data_ptr()
    assert back.dtype == dtype


@pytest.mark.skipif(torch.cuda.is_available(), reason="NumPy reads no GPU memory; tests/gpu do it")
def test_dlpack_of_a_result_shares_its_memory():
    result = tp.ones((4,)).eval()
    first, second = torch.from_dlpack(result), np.from_dlpack(result)
    first[0] = 7
    assert second[0] == 7
    assert result.tolist() == [7, 1, 1, 1]


def test_unknown_dlpack_type_is_rejected():
    with pytest.raises(MTRTException, match="complex64 is not supported"):
        CLIENT.create_memref_view_from_dlpack(torch.zeros(2, dtype=torch.complex64).__dlpack__())


def test_non_canonical_strides_are_rejected_and_extents_of_one_are_free():
    with pytest.raises(
        MTRTException, match=r"Given strides \[1, 2\] do not match canonical strides \[3, 1\]"
    ):
        CLIENT.create_memref_view_from_dlpack(
            torch.zeros(3, 2).t().__dlpack__(), assert_canonical_strides=True
        )
    free = torch.zeros(5, 1, 2)[:, :, :].as_strided((1, 2), (99, 1))
    memref = CLIENT.create_memref_view_from_dlpack(free.__dlpack__(), assert_canonical_strides=True)
    assert memref.shape == [1, 2]


def test_host_memory_exports_a_read_only_buffer_and_device_memory_none():
    host = CLIENT.create_memref(np.arange(6, dtype=np.int32), shape=[2, 3], dtype=ScalarTypeCode.i32)
    view = memoryview(host)
    assert view.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert view.readonly
    device = CLIENT.copy_to_device(host_memref=host, device=CLIENT.get_devices()[0])
    assert (host.address_space, device.address_space) == (PointerType.host, PointerType.device)
    with pytest.raises(TypeError):
        memoryview(device)
    assert memoryview(CLIENT.copy_to_host(device_memref=device)).tolist() == view.tolist()


def test_copies_are_copies():
    source = torch.ones(3)
    host = CLIENT.create_memref_view_from_dlpack(source.__dlpack__())
    device = CLIENT.copy_to_device(host_memref=host, device=CLIENT.get_devices()[0])
    source[0] = 5
    assert device.tensor.tolist() == [1, 1, 1]


def test_array_must_fit_the_shape():
    with pytest.raises(MTRTException, match="doesn't fit shape"):
        CLIENT.create_memref(np.zeros(3, np.float32), shape=[2, 2], dtype=ScalarTypeCode.f32)


def test_a_constant_does_not_follow_its_source():
    """The executable holds the values of compile time, though the tensor is a view of foreign memory."""
    source = torch.ones(2)
    weight = tp.Tensor(source)
    compiled = tp.compile(lambda x: x + weight, args=[tp.InputInfo((2,), tp.float32)])
    source[:] = 100
    assert compiled(tp.zeros((2,)).eval()).tolist() == [1, 1]


def test_both_session_interfaces():
    executable = compile_graph(doubled, [tensor_type((2,), F32)])
    options = RuntimeSessionOptions(num_devices=1, device_id=0)
    argument = memrefs([torch.ones(2)])
    for entry in (RuntimeSession(options, executable), RuntimeSession(CLIENT, options, executable)):
        assert entry.execute_function("main", argument)[0].tensor.tolist() == [2, 2]
    with pytest.raises(TypeError, match="options, executable"):
        RuntimeSession(executable)


def test_results_are_fresh_whatever_they_alias():
    """An argument returned as it is, a view of it, a constant, and one result twice."""

    def build(x):
        constant = tensorrt.shape(x)
        total = doubled(x)
        return [x, tensorrt.collapse_rank(tensor_type((3,), F32), x), constant, total, total]

    executable = compile_graph(build, [tensor_type((1, 3), F32)])
    x = torch.ones(1, 3)
    first, second = execute(executable, [x]), execute(executable, [x])
    addresses = [t.data_ptr() for t in (x, *first, *second)]
    assert len(set(addresses)) == len(addresses)
    with torch.inference_mode():
        for result in first:
            result.fill_(9)
    assert x.tolist() == [[1, 1, 1]]
    assert [r.tolist() for r in execute(executable, [x])] == [r.tolist() for r in second]


def test_plans_of_many_shapes_are_bounded():
    executable = compile_graph(doubled, [tensor_type((DYNAMIC,), F32)], [((0,), (1,), (99,))])
    runner = session(executable)
    for extent in range(99):
        assert runner.execute_function("main", memrefs([torch.ones(extent)]))[0].shape == [extent]
    assert len(executable._plans) == MAX_PLANS


def test_wrong_arguments():
    executable = compile_graph(doubled, [tensor_type((2,), F32)])
    with pytest.raises(MTRTException, match="expects 1 args but received 0"):
        execute(executable, [])
    with pytest.raises(
        MTRTException, match="function expects a memref type with element type f32 but receives i32"
    ):
        execute(executable, [torch.ones(2, dtype=torch.int32)])
    with pytest.raises(MTRTException, match="Runtime shape mismatch"):
        execute(executable, [torch.ones(3)])


@pytest.fixture
def saved():
    """A file with a constant of each kind of element."""

    def build(x):
        size = tensorrt.shape(x)
        return [tensorrt.element_wise(x, x, ADD), size]

    executable = compile_graph(build, [tensor_type((DYNAMIC, 2), F32)], [((0, 2), (1, 2), (4, 2))])
    return executable.serialize()


def test_a_file_gives_the_same_program(saved):
    loaded = Executable(saved)
    assert loaded.serialize() == saved
    total, size = execute(loaded, [torch.ones(3, 2)])
    assert total.tolist() == [[2, 2]] * 3
    assert size.tolist() == [3, 2]
    signature = loaded.get_signature("main")
    assert (signature.get_num_args(), signature.get_num_results()) == (1, 2)
    assert signature.get_arg(0) == tensor_type((DYNAMIC, 2), F32)
    assert signature.get_result(1) == tensor_type((2,), I32)
    with pytest.raises(KeyError, match="'main'"):
        loaded.get_signature("other")


def test_a_file_keeps_the_layout_of_constants():
    """A repeated constant stays small, a permuted one permuted: sums over it keep their order and bits."""

    def build(x):
        repeated = tensorrt.broadcast(
            tensor_type((1000, 1000), F32), constant([1.0], torch.float32), [0], shape=constant([1000] * 2)
        )
        permuted = tensorrt.transpose(
            constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], torch.float32),
            affine.AffineMap.get_permutation([1, 0]),
        )
        return [tensorrt.element_wise(x, repeated, ADD), permuted]

    executable = compile_graph(build, [tensor_type((1000, 1000), F32)])
    data = executable.serialize()
    assert len(data) < 2000
    loaded = Executable(data)
    for number, tensor in executable.program.constants.items():
        assert loaded.program.constants[number].stride() == tensor.stride()
        assert torch.equal(loaded.program.constants[number], tensor)


def test_a_file_is_json_and_raw_bytes(saved):
    version, length = struct.unpack_from("<IQ", saved, len(MAGIC))
    header = json.loads(saved[len(MAGIC) + 12 : len(MAGIC) + 12 + length])
    assert version == FORMAT_VERSION
    assert {"types", "nodes", "constants", "inputs", "outputs", "specs"} == set(header)


def test_damaged_files_are_rejected(saved):
    with pytest.raises(MTRTException, match="not an executable"):
        Executable(b"PK" + saved)
    with pytest.raises(MTRTException, match="not an executable"):
        Executable(saved[:10])
    with pytest.raises(MTRTException, match="damaged or cut short"):
        Executable(saved[:60])
    newer = saved[: len(MAGIC)] + struct.pack("<I", FORMAT_VERSION + 1) + saved[len(MAGIC) + 4 :]
    with pytest.raises(MTRTException, match="compile it again"):
        Executable(newer)


def test_cut_constants_are_rejected():
    data = compile_graph(
        lambda x: tensorrt.element_wise(x, constant([1.0, 2.0], torch.float32), ADD), [tensor_type((2,), F32)]
    )
    with pytest.raises(MTRTException, match="constants are cut short"):
        Executable(data.serialize()[:-64])


def test_streams():
    stream = tp.Stream()
    assert stream != tp.default_stream()
    assert tp.default_stream() == tp.default_stream()
    stream.synchronize()
    compiled = tp.compile(tp.relu, args=[tp.InputInfo((2,), tp.float32)])
    compiled.stream = stream
    assert compiled(tp.ones((2,)).eval()).tolist() == [1, 1]


def test_a_dimension_input_is_shape_arithmetic():
    def reshaped(x, rows):
        return tp.reshape(x, (rows, -1)), tp.Tensor(1) * rows

    compiled = tp.compile(
        reshaped, args=[tp.InputInfo((12,), tp.float32), tp.DimensionInputInfo(value_bounds=(1, 3, 6))]
    )
    x = tp.ones((12,)).eval()
    for rows in (1, 3, 6, 2):
        values, count = compiled(x, tp.DimensionSize(rows))
        assert values.shape == (rows, 12 // rows)
        assert count.tolist() == rows
    with pytest.raises(tp.TripyException, match="not within the bounds"):
        compiled(x, tp.DimensionSize(12))


def test_nested_arguments():
    def total(inputs):
        return inputs["a"] + inputs["rest"][1]

    info = tp.InputInfo((2,), tp.float32)
    compiled = tp.compile(total, args=[{"a": info, "rest": [tp.ones((2,)), info]}])
    one = tp.ones((2,)).eval()
    assert compiled({"a": one, "rest": [None, one]}).tolist() == [2, 2]


def test_each_process_has_its_own_gpu(monkeypatch):
    """Index 0 is the current GPU: a rank of several has its memory on its own one."""
    from tripy_portable.runtime.streams import device_of

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    for current, devices in ((0, ["cuda:0", "cuda:1"]), (3, ["cuda:3", "cuda:0"])):
        monkeypatch.setattr(torch.cuda, "current_device", lambda current=current: current)
        assert [str(device_of.__wrapped__(index)) for index in (0, 1)] == devices
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of.__wrapped__(0).type == "cpu"
