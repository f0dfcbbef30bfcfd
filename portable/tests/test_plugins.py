"""Quickly deployable plugins: registered as TensorRT documents, called by nvtripy, run by their `impl`."""

import subprocess
import sys

import numpy as np
import nvtripy as tp
import pytest
import torch
from plugin_examples import CALLS, added, describe_kernel_only
from test_errors import assert_points_at, message_of

import tensorrt
from tensorrt import plugin as trtp
from tripy_portable import trt
from tripy_portable.diagnostics import UnsupportedOperation
from tripy_portable.program import Program


def on_gpu(array):
    return tp.copy(tp.Tensor(array), tp.device("gpu"))


def values(tensor):
    return torch.from_dlpack(tp.copy(tensor, tp.device("cpu"))).numpy()


DYNAMIC = [tp.InputInfo(((1, 2, 5), 3), tp.float32)] * 2


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=lambda dtype: dtype.__name__)
def test_an_eager_call(dtype):
    x = np.arange(6, dtype=dtype).reshape(2, 3)
    np.testing.assert_array_equal(values(added(tp.Tensor(x), tp.Tensor(x + 1))), x + 3 * (x + 1))


def test_bfloat16_crosses_without_a_copy():
    x = tp.cast(on_gpu(np.arange(4, dtype=np.float32)), tp.bfloat16)
    np.testing.assert_array_equal(values(tp.cast(added(x, x), tp.float32)), np.arange(4) * 4.0)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_compiled_graph_with_unknown_extents(rows):
    compiled = tp.compile(lambda x, y: added(x * 2.0, y) + 1.0, args=DYNAMIC)
    x = np.full((rows, 3), 2.0, np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(values(compiled(on_gpu(x), on_gpu(x))), x * 2 + 3 * x + 1)


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_the_description_gives_the_output_its_shape_and_type(rows):
    compiled = tp.compile(
        lambda x: tp.plugin("example::blocks", [x], name="seven77"),
        args=[tp.InputInfo(((1, 2, 4), 5), tp.float32)],
    )
    result = compiled(on_gpu(np.zeros((rows, 5), np.float32)))
    assert tuple(result.shape) == (-(-(2 * rows + 1) // 4), 5, 3)
    np.testing.assert_array_equal(values(result), np.full(result.shape, 7, np.int32))


def test_an_input_is_contiguous_as_in_an_engine():
    CALLS.clear()
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    compiled = tp.compile(
        lambda x: added(tp.transpose(x, 0, 1), tp.transpose(x, 0, 1)),
        args=[tp.InputInfo((2, 3), tp.float32)],
    )
    np.testing.assert_array_equal(values(compiled(on_gpu(x))), 4 * x.T)
    assert [(contiguous, strides) for contiguous, strides, _ in CALLS] == [(True, (2, 1))]
    if not torch.cuda.is_available():
        assert CALLS[0][2] == 0


def test_a_call_on_constants_runs_with_the_graph_and_not_while_compiling():
    one = tp.Tensor(np.ones((2, 3), np.float32))
    CALLS.clear()
    compiled = tp.compile(lambda x: added(one, one) + x, args=[tp.InputInfo((2, 3), tp.float32)])
    assert not CALLS
    for count in (1, 2):
        np.testing.assert_array_equal(
            values(compiled(on_gpu(np.zeros((2, 3), np.float32)))), np.full((2, 3), 4)
        )
        assert len(CALLS) == count


def test_a_saved_executable_needs_the_registration_before_it_is_loaded(tmp_path):
    path = tmp_path / "added.tpymodel"
    tp.compile(added, args=DYNAMIC).save(str(path))
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(values(tp.Executable.load(str(path))(on_gpu(x), on_gpu(x))), 4 * x)
    script = f"import nvtripy as tp; tp.Executable.load({str(path)!r})"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.returncode != 0
    assert "calls plugin 'example::scaled_add', which is not registered in this process" in result.stderr
    assert "import the module that registers it before loading" in result.stderr


def test_a_program_that_was_not_loaded_from_a_file_needs_it_as_well(monkeypatch):
    executable = tp.compile(added, args=DYNAMIC)
    monkeypatch.setattr("tripy_portable.plugins.registry._REGISTERED", {})
    with pytest.raises(tp.TripyException, match="not registered in this process"):
        executable(on_gpu(np.ones((5, 3), np.float32)), on_gpu(np.ones((5, 3), np.float32)))


X = np.zeros((2, 3), np.float32)
WRONG = {
    "unregistered": (
        lambda x: tp.plugin("example::other", [x]),
        r"'example::other' is compiled into TensorRT engines.*registered in this process \(.*scaled_add",
    ),
    "unknown attribute": (
        lambda x: tp.plugin("example::scaled_add", [x, x], factr=1.0),
        "Unexpected attribute: 'factr'",
    ),
    "attribute of another type": (
        lambda x: tp.plugin("example::scaled_add", [x, x], factor=1),
        "(?s)Unexpected attribute type: 'int'.*expected type: 'float'",
    ),
    "no attribute": (
        lambda x: tp.plugin("example::scaled_add", [x, x]),
        r"needs a value for each of its attributes, and has none for \['factor'\]",
    ),
    "dtype": (
        lambda x: tp.plugin("example::scaled_add", [x, tp.cast(x, tp.float16)], factor=1.0),
        "x and y must have one dtype",
    ),
    "no implementation": (
        lambda x: tp.plugin("example::kernel_only", [x], size=1),
        "(?s)'example::kernel_only' has no implementation that.*register one with `tensorrt.plugin.impl`",
    ),
    "two outputs": (
        lambda x: tp.plugin("example::two", [x], size=1)[0],
        "'example::two' has 2 outputs, and nvtripy 0.1.7 can call plugins with one",
    ),
    "output info": (
        lambda x: tp.plugin("scaled_add", [x, x], [(2, tp.float16)], namespace="example", factor=1.0),
        "are incompatible with return type",
    ),
    "inputs": (
        lambda x: tp.plugin("scaled_add", [x], [(2, tp.float32)], namespace="example", factor=1.0),
        r"takes 2 inputs \(x, y\), but got 1",
    ),
    "another version": (
        lambda x: tp.plugin("scaled_add", [x, x], [(2, tp.float32)], "2", "example", factor=1.0),
        "native TensorRT code",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_named(wrong):
    call, message = WRONG[wrong]
    with pytest.raises((tp.TripyException, UnsupportedOperation, ValueError), match=message):
        call(tp.Tensor(X)).eval()


def test_an_error_points_at_the_users_line():
    def user():
        x = tp.Tensor(X)
        return tp.plugin("example::kernel_only", [x], size=1).eval()  # here

    assert_points_at(message_of(user), "# here")


def test_nvtripy_passes_on_one_attribute_and_no_more():
    """A fact of nvtripy 0.1.7 that plugins for it must heed: it hands all attributes over as one argument."""

    @trtp.register("example::two_attributes")
    def describe(x: trtp.TensorDesc, a: int, b: int) -> trtp.TensorDesc:
        return x.like()

    with pytest.raises(TypeError, match="missing 1 required positional argument: 'b'"):
        tp.plugin("example::two_attributes", [tp.Tensor(X)], a=1, b=2)


def _no_hints(x, a):
    return x


def _default(x: trtp.TensorDesc, a: int = 1) -> trtp.TensorDesc:
    return x


def _tensor_last(a: int, x: trtp.TensorDesc) -> trtp.TensorDesc:
    return x


def _reserved(x: trtp.TensorDesc, stream: int) -> trtp.TensorDesc:
    return x


def _no_tensor(a: int) -> trtp.TensorDesc:
    return trtp.TensorDesc()


def _no_return(x: trtp.TensorDesc):
    return x


def _several(*x: trtp.TensorDesc) -> trtp.TensorDesc:
    return x[0]


@pytest.mark.parametrize(
    "function", [_no_hints, _default, _tensor_last, _reserved, _no_tensor, _no_return, _several]
)
def test_a_description_that_tensorrt_would_refuse(function):
    with pytest.raises(ValueError, match="example::wrong"):
        trtp.register("example::wrong")(function)
    with pytest.raises(UnsupportedOperation):
        _ = trtp.op.example.wrong


@pytest.mark.parametrize("plugin_id", ["noname", "a::b.c", "::x", "trt::x", "std::x", "example::scaled_add"])
def test_an_id_that_tensorrt_would_refuse(plugin_id):
    with pytest.raises(ValueError, match=plugin_id.replace(".", r"\.")):
        trtp.register(plugin_id)(describe_kernel_only)


def test_attribute_types_that_cannot_be_passed_on():
    def describe(x: trtp.TensorDesc, data: bytes) -> trtp.TensorDesc:
        return x.like()

    with pytest.raises(UnsupportedOperation, match="'data'"):
        trtp.register("example::bytes")(describe)


def test_an_implementation_of_another_signature():
    def order(y: trtp.Tensor, x: trtp.Tensor, factor: float, outputs: tuple, stream: int): ...
    def kind(x: trtp.Tensor, y: trtp.Tensor, factor: int, outputs: tuple, stream: int): ...
    def no_tensor(x: int, y: trtp.Tensor, factor: float, outputs: tuple, stream: int): ...
    def tactic(x, y, factor, outputs, stream, tactic): ...

    for function in (order, kind, no_tensor, tactic):
        with pytest.raises(ValueError, match="example::scaled_add"):
            trtp.impl("example::scaled_add")(function)
    with pytest.raises(ValueError, match="is not registered"):
        trtp.impl("example::other")(order)


Compiled = tuple[str, str, trtp.KernelLaunchParams, trtp.SymIntExprs]


def test_a_kernel_compiled_ahead_of_time_is_kept_and_checked():
    def compile_kernel(x: trtp.TensorDesc, size: int, outputs: tuple, tactic: int) -> Compiled:
        params = trtp.KernelLaunchParams(grid_x=trtp.cdiv(x.shape_expr.numel(), size))
        params.block_x = 128
        extra = trtp.SymIntExprs(1)
        extra[0] = trtp.SymInt32(x.shape_expr.numel())
        return "name", "ptx", params, extra

    trtp.aot_impl("example::kernel_only")(compile_kernel)
    stored = trtp.op.example.kernel_only.aot_impl_func
    desc = trtp.from_shape_expr((5, 3), tensorrt.float32)
    _, _, params, extra = stored(desc, 4, (desc.like(),), 0)
    assert (params.grid_x.constant_value(), params.grid_y.constant_value()) == (4, 1)
    assert (params.block_x.constant_value(), extra[0].constant_value(), len(extra)) == (128, 15, 1)
    with pytest.raises(AttributeError, match="no attribute 'grid'"):
        params.grid = 1

    def no_return(x: trtp.TensorDesc, size: int, outputs: tuple, tactic: int): ...
    def no_tactic(x: trtp.TensorDesc, size: int, outputs: tuple) -> Compiled: ...

    for function in (no_return, no_tactic):
        with pytest.raises(ValueError, match="example::kernel_only"):
            trtp.aot_impl("example::kernel_only")(function)


def test_arithmetic_of_extents():
    known, unknown = trtp.ShapeExpr(7), trtp.ShapeExpr()
    results = [known + 1, known - known, known * 2, known // 2, trtp.cdiv(known, 2), trtp.cdiv(9, known)]
    assert [result.constant_value() for result in results] == [8, 0, 14, 3, 4, 2]
    for result in (unknown + 1, known * unknown, trtp.cdiv(unknown, 2)):
        assert result.is_fake
        with pytest.raises(RuntimeError, match="fake"):
            result.constant_value()
    with pytest.raises(ValueError, match="Both arguments"):
        trtp.cdiv(1, 2)


def test_tensorrt_is_not_given_a_graph_with_plugins():
    if reason := trt.available():
        pytest.skip(reason)
    program = trt.program_of(tp.compile(lambda x: added(added(x, x), x), args=DYNAMIC[:1]))
    with pytest.raises(trt.NoPlugins, match=r"has no layer: example::scaled_add \(2 times\)"):
        trt.build(program)


def test_a_program_with_a_plugin_survives_its_file():
    program = tp.compile(added, args=DYNAMIC)._executable.program
    again = Program.from_bytes(program.to_bytes())
    assert [(node.op, node.attrs) for node in again.nodes] == [
        (node.op, node.attrs) for node in program.nodes
    ]
    assert ("factor", 3.0) in again.nodes[-1].attrs["attributes"]
