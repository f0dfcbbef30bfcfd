"""Errors of users: nvtripy's messages name what is wrong and show the user's own line."""

import re

import numpy as np
import nvtripy as tp
import pytest

import tensorrt


def message_of(function):
    """The error's text without its colours."""
    with pytest.raises(tp.TripyException) as caught:
        function()
    return re.sub(r"\x1b\[[0-9;]*m", "", str(caught.value))


def assert_points_at(message, code):
    """The message shows the line of this file that has `code`."""
    assert __file__ in message
    assert code in message


def add(a, b):
    return a + b


def test_shape_mismatch():
    def user():
        left, right = tp.ones((2, 3)), tp.ones((2, 4))
        return (left + right).eval()  # here

    message = message_of(user)
    assert "broadcast dimensions must be conformable" in message
    assert_points_at(message, "(left + right).eval()  # here")


def test_shape_mismatch_while_compiling():
    infos = [tp.InputInfo((2, 3), tp.float32), tp.InputInfo((2, 4), tp.float32)]
    message = message_of(lambda: tp.compile(add, args=infos))
    assert "broadcast dimensions must be conformable" in message
    assert_points_at(message, "return a + b")


def test_shape_mismatch_that_only_dynamic_shapes_reveal():
    """Compatible as declared, incompatible for every shape of the profile: found while compiling."""

    def halves(a):
        return tp.reshape(a, (2, -1)) + tp.ones((3, 1))  # never

    message = message_of(lambda: tp.compile(halves, args=[tp.InputInfo(((2, 4, 6),), tp.float32)]))
    assert "broadcast dimensions must be conformable" in message
    assert_points_at(message, "# never")


def test_dtype_mismatch():
    def user():
        return tp.ones((2,), dtype=tp.float32) + tp.ones((2,), dtype=tp.float16)  # dtypes

    message = message_of(user)
    assert "float32" in message
    assert "float16" in message
    assert_points_at(message, "# dtypes")


def test_a_dtype_that_only_the_dialect_rejects():
    def user():
        tensor = tp.cast(tp.ones((2, 2)), tp.int32)
        return tp.softmax(tensor, dim=0).eval()  # softmax

    with _without_input_validation():
        message = message_of(user)
    assert "'tensorrt.softmax' op operand #0 must be tensor of f16 or bf16 or f32" in message
    assert_points_at(message, "# softmax")


class _without_input_validation:
    def __enter__(self):
        tp.config.enable_input_validation = False

    def __exit__(self, *_):
        tp.config.enable_input_validation = True


def test_wrong_rank():
    def user():
        return tp.permute(tp.ones((2, 3)), (0, 1, 2)).eval()  # rank

    assert_points_at(message_of(user), "# rank")


def test_out_of_bounds_slice():
    def user():
        return tp.Tensor([1, 2, 3])[4].eval()  # slice

    message = message_of(user)
    assert "out of bounds access" in message
    assert_points_at(message, "# slice")


def test_reshape_that_changes_the_volume():
    def user():
        return tp.reshape(tp.ones((2, 2)), (3, 3)).eval()  # volume

    message = message_of(user)
    assert "reshape changes volume" in message
    assert_points_at(message, "# volume")


def test_contraction_mismatch():
    def user():
        return (tp.ones((2, 3)) @ tp.ones((4, 5))).eval()  # matmul

    message = message_of(user)
    assert "last dimension of input0 = 3" in message
    assert "input1 = 4" in message
    assert_points_at(message, "# matmul")


@pytest.fixture(scope="module")
def compiled():
    return tp.compile(
        add, args=[tp.InputInfo(((1, 2, 3),), tp.float32), tp.InputInfo(((1, 2, 3),), tp.float32)]
    )


def gpu(values, dtype=np.float32):
    return tp.copy(tp.Tensor(np.asarray(values, dtype)), tp.device("gpu"))


def test_missing_argument(compiled):
    message = message_of(lambda: compiled(gpu([1.0])))
    assert "Missing argument: b" in message


def test_extra_argument(compiled):
    message = message_of(lambda: compiled(gpu([1.0]), gpu([1.0]), c=gpu([1.0])))
    assert "Extra keyword arguments: ['c']" in message


def test_shape_outside_of_the_profile(compiled):
    big = gpu([1.0] * 4)
    message = message_of(lambda: compiled(big, big))
    assert "Unexpected tensor shape" in message
    assert "[1, 3]" in message
    assert_points_at(message, "compiled(big, big)")


def test_wrong_rank_at_run_time(compiled):
    message = message_of(lambda: compiled(gpu([[1.0]]), gpu([[1.0]])))
    assert "expected a rank of: 1 but got: 2" in message


def test_wrong_dtype_at_run_time(compiled):
    message = message_of(lambda: compiled(gpu([1], np.int32), gpu([1], np.int32)))
    assert "For parameter a, expected data type: float32 but got: int32" in message


def test_argument_on_the_wrong_device(compiled):
    message = message_of(lambda: compiled(tp.Tensor([1.0]), gpu([1.0])))
    assert "expected to be on device: gpu but got: cpu" in message


def test_shapes_that_differ_at_run_time(compiled):
    message = message_of(lambda: compiled(gpu([1.0, 2.0]), gpu([1.0, 2.0, 3.0])))
    assert "broadcast dimensions must be conformable" in message


def test_named_dimensions_must_agree():
    size = tp.NamedDimension("size", 1, 2, 4)
    infos = [tp.InputInfo((size,), tp.float32), tp.InputInfo((size,), tp.float32)]
    compiled = tp.compile(add, args=infos)
    message = message_of(lambda: compiled(gpu([1.0, 2.0]), gpu([1.0])))
    assert "named 'size'" in message


def test_evaluating_while_compiling():
    def evaluates(a):
        b = a + 1.0
        b.eval()  # too early
        return b

    message = message_of(lambda: tp.compile(evaluates, args=[tp.InputInfo((2,), tp.float32)]))
    assert "Cannot evaluate a tensor while compiling" in message
    assert_points_at(message, "b.eval()  # too early")


def test_a_tensor_that_is_not_contiguous():
    import torch

    message = message_of(lambda: tp.Tensor(torch.ones(2, 3).t()))
    assert "Non-canonical strides detected" in message
    assert "contiguous()" in message


def test_a_native_plugin_is_named():
    def user():
        out = tp.plugin(name="CustomGelu", inputs=[tp.ones((1,))], output_info=[(1, tp.float32)])  # plug
        return out.eval()

    # nvtripy asks for TensorRT's plugin library once, and for the plugin itself every time.
    message_of(user)
    message = message_of(user)
    assert "plugin 'CustomGelu' (version 1) is native TensorRT code" in message
    assert_points_at(message, "# plug")


def test_tensorrt_itself_is_named_as_missing():
    with pytest.raises(AttributeError, match="stand-in has no 'tensorrt.Builder'"):
        tensorrt.Builder  # noqa: B018
