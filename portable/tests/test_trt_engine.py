"""Running engines: why not, where that is so; and binding tensors, on a stand-in for TensorRT's runtime."""

import ctypes
import enum
from types import SimpleNamespace

import pytest
import torch

from tripy_portable import trt
from tripy_portable.trt import engine as engine_module
from tripy_portable.trt import library as libraries

DataType = enum.Enum("DataType", ["FLOAT", "HALF", "INT32"])
TensorIOMode = enum.Enum("TensorIOMode", ["INPUT", "OUTPUT"])
TensorLocation = enum.Enum("TensorLocation", ["DEVICE", "HOST"])


TENSORS = {
    "arg0": (TensorIOMode.INPUT, DataType.FLOAT, TensorLocation.DEVICE),
    "arg1": (TensorIOMode.INPUT, DataType.INT32, TensorLocation.HOST),
    "result0": (TensorIOMode.OUTPUT, DataType.FLOAT, TensorLocation.DEVICE),
}


class FakeEngine:
    """result0 = 2 * arg0, of shape (-1, 3) with up to 4 rows; arg1 is a dimension input that is not read."""

    num_io_tensors = 3

    def get_tensor_name(self, index):
        # In an order of its own: tensors are found by name.
        return ["result0", "arg1", "arg0"][index]

    def get_tensor_mode(self, name):
        return TENSORS[name][0]

    def get_tensor_dtype(self, name):
        return TENSORS[name][1]

    def get_tensor_location(self, name):
        return TENSORS[name][2]

    def get_tensor_shape(self, name):
        return () if name == "arg1" else (-1, 3)

    def get_tensor_profile_shape(self, name, profile):
        return [(0, 3), (2, 3), (4, 3)]

    def create_execution_context(self):
        return FakeContext()


class FakeContext:
    def __init__(self):
        self.shapes, self.addresses = {}, {}

    def set_input_shape(self, name, shape):
        self.shapes[name] = shape
        return name == "arg1" or (shape[1:] == (3,) and shape[0] <= 4)

    def set_tensor_address(self, name, address):
        assert address != 0
        self.addresses[name] = address

    def infer_shapes(self):
        return [name for name in ("arg0", "arg1") if name not in self.shapes]

    def get_tensor_shape(self, name):
        return self.shapes["arg0"]

    def execute_async_v3(self, stream):
        count = 3 * self.shapes["arg0"][0]
        values = (ctypes.c_float * count).from_address(self.addresses["arg0"])
        results = (ctypes.c_float * count).from_address(self.addresses["result0"])
        for index, value in enumerate(values):
            results[index] = 2 * value
        return True


class FakeLogger:
    def __init__(self):
        pass


def make_library(engine, says=()):
    class Runtime:
        def __init__(self, logger):
            self.logger = logger

        def deserialize_cuda_engine(self, engine_bytes):
            for text in says:
                self.logger.log(SimpleNamespace(name="ERROR"), text)
            return engine

    return SimpleNamespace(
        ILogger=FakeLogger, Runtime=Runtime, TensorIOMode=TensorIOMode, TensorLocation=TensorLocation
    )


def make_engine(engine, says=()):
    result = trt.Engine.__new__(trt.Engine)
    result._bind(make_library(engine, says), b"engine", torch.device("cpu"))
    return result


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_says_so(monkeypatch):
    monkeypatch.setattr(libraries, "load", lambda: make_library(FakeEngine()))
    with pytest.raises(trt.CannotRun, match="PyTorch sees no CUDA device"):
        trt.Engine(b"engine")


def test_an_engine_for_other_gpus_is_refused_in_tensorrts_words():
    with pytest.raises(trt.CannotRun, match="The engine cannot run on this GPU"):
        make_engine(None, says=["Error Code 6: API Usage Error (The engine cannot run on this GPU)"])


def test_tensors_are_bound_by_name_and_results_are_fresh():
    engine = make_engine(FakeEngine())
    x = torch.arange(6.0).reshape(3, 2).T
    rows = torch.tensor(2, dtype=torch.int32)
    (first,) = engine([x, rows])
    (second,) = engine([x, rows])
    assert torch.equal(first, 2 * x)
    assert first.data_ptr() != second.data_ptr()


def test_a_tensor_without_elements_has_an_address_too():
    (result,) = make_engine(FakeEngine())([torch.empty(0, 3), torch.tensor(0, dtype=torch.int32)])
    assert result.shape == (0, 3)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([torch.zeros(5, 3), torch.tensor(1, dtype=torch.int32)], r"shape \(5, 3\).*bounds .*\(4, 3\)"),
        (
            [torch.zeros(2, 3).half(), torch.tensor(1, dtype=torch.int32)],
            "float16, the engine needs .*float32",
        ),
        ([torch.zeros(2, 3)], "the engine also needs arg1; pass 2 inputs"),
    ],
)
def test_what_the_engine_does_not_take_is_named(inputs, message):
    with pytest.raises(ValueError, match=message):
        make_engine(FakeEngine())(inputs)


@pytest.mark.skipif(
    trt.available() is not None or not torch.cuda.is_available(),
    reason="needs a TensorRT library and a CUDA device",
)
def test_an_engine_computes_what_tripy_does():
    import nvtripy as tp

    executable = tp.compile(lambda x: tp.softmax(x, dim=-1), args=[tp.InputInfo(((1, 2, 4), 3), tp.float32)])
    built = trt.build(trt.program_of(executable))
    try:
        engine = trt.Engine(built.engine_bytes)
    except trt.CannotRun as reason:
        pytest.skip(str(reason))
    x = torch.randn(3, 3, device="cuda")
    (result,) = engine([x])
    torch.cuda.synchronize()
    # Three roundings and a sum of three terms.
    assert (result - torch.softmax(x, -1)).abs().max() <= 8 * torch.finfo(torch.float32).eps


def test_dtypes_cover_what_an_engine_can_have_as_input_or_output():
    assert set(engine_module._TORCH_DTYPES) >= {
        "FLOAT",
        "HALF",
        "BF16",
        "INT64",
        "INT32",
        "INT8",
        "BOOL",
        "FP8",
    }
