"""Traces without messages and repeated look-ups refuse as before, and the message has the user's line."""

import gc

import nvtripy as tp
import pytest
import torch
from nvtripy.backend.mlir import utils as mlir_utils
from nvtripy.common.datatype import DATA_TYPES
from nvtripy.utils import stack_info

import parity
from parity.runners.tripy.lean_traces import (
    MOST_SHARED,
    _dtype,
    _stack_by_lines,
    _types,
    _UnknownMembers,
    lean_traces,
    leanly,
)


def _added(second):
    return leanly(lambda: tp.compile(lambda x: x + second, args=[tp.InputInfo((2,), dtype=tp.float32)]))


def test_a_call_of_other_types_is_refused_after_one_that_fits():
    compiled = _added(1.0)
    assert compiled(tp.copy(tp.Tensor([1.0, 2.0]), tp.device("gpu"))).tolist() == [2.0, 3.0]
    with pytest.raises(tp.TripyException, match=r"x \+ second"):
        _added("one")
    with pytest.raises(tp.TripyException, match=r"x \+ second"):
        _added(tp.Tensor([1, 2]))


def test_a_function_that_fails_runs_again_with_call_stacks():
    with pytest.raises(tp.TripyException, match=r"tp\.reshape\(x, \(5,\)\)"):
        leanly(lambda: tp.compile(lambda x: tp.reshape(x, (5,)), args=[tp.InputInfo((2,), dtype=tp.float32)]))


def test_a_comparison_records_no_call_stacks():
    files = []

    class Port(tp.Module):
        def forward(self, x):
            result = x + 1.0
            files.append({frame.file for frame in result.stack_info})
            return result

    class Reference(torch.nn.Module):
        def forward(self, x):
            return x + 1.0

    assert parity.compare(Reference(), Port, {"x": torch.ones(3)}, ("fp32",)).passed
    assert files
    assert not any(__file__ in frames for frames in files)


def test_each_type_of_a_graph_is_the_one_that_nvtripy_makes():
    # Bound to its module's function before a trace replaces it.
    nvtripys, context = mlir_utils.get_mlir_dtype, mlir_utils.make_ir_context()
    with context, lean_traces():
        assert mlir_utils.get_mlir_dtype is not nvtripys
        for dtype in DATA_TYPES.values():
            assert str(mlir_utils.get_mlir_dtype(dtype)) == str(nvtripys(dtype))


def test_the_types_of_a_list_are_those_of_its_members():
    assert _types([1, 2.0]) != _types([1.0, 2.0])
    assert _types({"a": (1,)}) == _types({"b": (2,)})
    with pytest.raises(_UnknownMembers):
        _types(torch.Size([1]))


def test_a_number_takes_the_type_of_the_tensor_beside_it():
    for dtype in (tp.float16, tp.float32, tp.float16):
        with lean_traces():
            assert (tp.ones((2,), dtype=dtype) * 2.0).dtype is dtype
            assert tp.where(tp.ones((2,)) > 1, tp.ones((2,), dtype=dtype), 0.0).dtype is dtype


def test_the_type_of_an_argument_follows_from_the_same_facts():
    assert _dtype(1) == _dtype(2) != _dtype(1.0)
    assert _dtype(2**31) != _dtype(2**31 - 1) == _dtype(-(2**31)) != _dtype(-(2**31) - 1)
    assert _dtype([tp.ones((2,)), 1]) == _dtype([tp.ones((3,)), 2]) != _dtype([1, tp.ones((2,))])
    assert _dtype(tp.float16) != _dtype(tp.float32)
    with pytest.raises(_UnknownMembers):
        _dtype(torch.Size([1]))


def test_overloads_are_told_apart_by_the_members_of_other_containers():
    class Sizes(tuple):
        """A sequence whose type does not tell its members'."""

    with lean_traces():
        assert tp.ones(Sizes((2, 3))).shape == (2, 3)
        with pytest.raises(tp.TripyException, match="Could not find an implementation"):
            tp.ones(Sizes(("a", "b")))


def test_garbage_is_collected_again_after_a_trace():
    assert leanly(gc.isenabled) is False
    assert gc.isenabled()


def test_a_refused_graph_has_its_own_message_inside():
    with lean_traces():
        for size in (5, 7):
            with pytest.raises(tp.TripyException, match=rf"elements to \[{size}\]") as refused:
                tp.compile(lambda x, s=size: tp.reshape(x, (s,)), args=[tp.InputInfo((2,), dtype=tp.float32)])
            assert str(refused.value).count("elements to") == 1
        assert tp.compile(lambda x: x + 1, args=[tp.InputInfo((2,), dtype=tp.float32)])


def test_the_same_integers_share_memory_inside_a_trace_alone():
    memory = lambda data: tp.Tensor(data).trace_tensor.producer.data  # noqa: E731
    with lean_traces():
        first = memory([3, 4])
        assert memory((3, 4)) is first is memory([3, 4])
        assert tp.Tensor([3, 4]).shape == (2,)
        assert tp.Tensor(3).shape == ()
        assert tp.Tensor([3, 4]).dtype is tp.int32
        assert tp.Tensor([2**40, 1]).dtype is tp.int64
        # Equal to Python, and of other types.
        for other in ([3.0, 4.0], [True, False], [1, 0], [[3, 4]], list(range(MOST_SHARED + 1))):
            assert tp.Tensor(other).tolist() == other
    assert memory([3, 4]) is not first
    assert memory([3, 4]) is not memory([3, 4])


def test_the_stacks_after_an_error_are_those_of_nvtripy():
    def inner():
        return [function() for function in (stack_info.get_stack_info, _stack_by_lines)]

    theirs, ours = inner()
    assert len(ours) == len(theirs) > 2
    assert [vars(frame) for frame in ours] == [vars(frame) for frame in theirs]
