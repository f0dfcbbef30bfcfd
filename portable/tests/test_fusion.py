"""Fusion and folding for a GPU, tested without one; `gpu/test_gpu_fusion.py` tests the rest."""

import contextlib

import nvtripy as tp
import plugin_examples
import pytest
import torch
from dense_hstu import Shape, TorchHSTU, sample, tripy_from_torch
from gpu_operations import OPERATIONS, X
from plugin_examples import added

from mlir_tensorrt.runtime.api import MTRTException
from tripy_portable.constant_folding import fold
from tripy_portable.dtypes import BY_TORCH
from tripy_portable.ir.types import tensor_type
from tripy_portable.planner import Plan
from tripy_portable.runtime import folding, fusion
from tripy_portable.runtime.cuda_plan import CudaPlan
from tripy_portable.runtime.folding import DeviceFolding
from tripy_portable.runtime.options import Options

SMALL = Shape(num_items=20, max_len=12, dim=10, heads=2, head_dim=5, blocks=1)
HOST = torch.device("cpu")


def without_data(tensor):
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def traced_and_plain(program, inputs):
    """Results of the traced graph, run on the host, and of the plan that it was traced from."""
    rehearsed = Plan(program, without_data, writes_over=False)
    used = [inputs[position] for position in rehearsed.input_positions]
    graph = fusion.trace(rehearsed, rehearsed.constants, [without_data(tensor) for tensor in used])
    for node in graph.graph.nodes:
        # Where the graph makes a tensor, it does so where it was traced.
        if node.kwargs.get("device") is not None:
            node.update_kwarg("device", HOST)
    graph.recompile()
    plan = Plan(program, lambda tensor: tensor)
    return graph(*Plan(program, lambda t: t, writes_over=False).constants, *used), plan.run(inputs)


def program_of(executable, tensors):
    return fold(executable.program, [tensor_type(tuple(t.shape), BY_TORCH[t.dtype]) for t in tensors])


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_traced_operation_gives_the_bits_of_its_plan(name):
    compiled = tp.compile(OPERATIONS[name], args=[tp.InputInfo((2, 3), tp.float32)])
    traced, plain = traced_and_plain(program_of(compiled._executable, [X]), [X])
    for result, expected in zip(traced, plain, strict=True):
        assert torch.equal(result, expected)


@pytest.mark.parametrize("dtype", [tp.float32, tp.float16, tp.bfloat16], ids=str)
def test_a_traced_model_gives_the_bits_of_its_plan(dtype, monkeypatch):
    # PyTorch's sigmoid has other last bits on the CPU than on a GPU; the next test compares what replaces it.
    monkeypatch.setattr(fusion, "_DECOMPOSITIONS", {})
    torch.manual_seed(0)
    ids, ts = sample(SMALL, 2, 7)
    infos = [tp.InputInfo((2, 7), tp.int32), tp.InputInfo((2, 7), tp.int64)]
    compiled = tp.compile(tripy_from_torch(TorchHSTU(SMALL), dtype), args=infos)
    traced, plain = traced_and_plain(program_of(compiled._executable, [ids, ts]), [ids, ts])
    assert torch.equal(traced[0], plain[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_sigmoid_is_within_its_bound(dtype):
    x = torch.linspace(-87, 87, 4001).to(dtype)
    exact = torch.sigmoid(x.double())
    # Units in the last place of the exact result, and of the least normal number below it.
    info = torch.finfo(dtype)
    unit = torch.exp2(torch.floor(torch.log2(exact))).clamp(min=info.tiny) * info.eps
    assert ((fusion._sigmoid(x).double() - exact).abs() <= 4 * unit).all()


@pytest.mark.parametrize("gathers", [1, 2])
def test_a_computed_index_of_several_gathers_is_stored(gathers):
    """Inductor would compute it for each of them. A single gather reads it as it is computed."""
    tables = [torch.arange(5.0) * (number + 1) for number in range(gathers)]

    def function(x):
        index = tp.cast(x * 2.0, tp.int32)
        return sum((tp.gather(tp.Tensor(table), 0, index) for table in tables[1:]),
                   tp.gather(tp.Tensor(tables[0]), 0, index))  # fmt: skip

    compiled = tp.compile(function, args=[tp.InputInfo((2, 3), tp.float32)])
    program = program_of(compiled._executable, [X])
    plan = Plan(program, without_data, writes_over=False)
    graph = fusion.trace(plan, plan.constants, [without_data(X)])
    stored = [node for node in graph.graph.nodes if node.target is torch.ops.aten.as_strided.default]
    assert len(stored) == (gathers > 1)
    traced, plain = traced_and_plain(program, [X])
    assert torch.equal(traced[0], plain[0])


def test_constants_are_not_traced_into_the_graph():
    """Weights are arguments: the graph holds no copy of them."""
    compiled = tp.compile(lambda x: x @ tp.ones((3, 3)) + 1.0, args=[tp.InputInfo((2, 3), tp.float32)])
    plan = Plan(program_of(compiled._executable, [X]), without_data, writes_over=False)
    graph = fusion.trace(plan, plan.constants, [without_data(X)])
    assert len(plan.constants) == 2
    assert [node.op for node in graph.graph.nodes].count("placeholder") == 3
    assert not [node for node in graph.graph.nodes if node.op == "get_attr"]


@pytest.mark.skipif(torch.__version__ < "2.11", reason="fusion needs PyTorch 2.11")
def test_inductor_knows_every_option():
    from torch._inductor import config

    with config.patch(fusion.INDUCTOR_OPTIONS):
        assert config.emulate_precision_casts


@pytest.fixture
def options_known():
    fusion._missing.cache_clear()
    yield
    fusion._missing.cache_clear()


def test_without_triton_fusion_is_refused(monkeypatch, options_known):
    monkeypatch.setattr(fusion, "has_triton", lambda: False)
    compiled = tp.compile(lambda x: tp.exp(x) + 1.0, args=[tp.InputInfo((2, 3), tp.float32)])
    plan = Plan(program_of(compiled._executable, [X]), lambda tensor: tensor)
    with pytest.raises(MTRTException, match="TRIPY_PORTABLE_FUSE=1 needs Triton: install it, or leave"):
        CudaPlan(plan, Options(fuse=True))


def test_an_older_inductor_is_refused(monkeypatch, options_known):
    monkeypatch.setattr(fusion, "has_triton", lambda: True)
    monkeypatch.setattr(fusion, "INDUCTOR_OPTIONS", {"no_such_option": True})
    with pytest.raises(MTRTException, match="needs PyTorch 2.11 or newer, whose Inductor has no_such_option"):
        fusion.require_fusion()


def test_a_plugin_stays_itself_between_traced_steps():
    """A plugin that PyTorch cannot trace: it is one operation of the graph, and gives the plan's bits."""

    def function(x):
        return added(tp.exp(x) * 2.0, added(x, x) - 1.0) + x

    compiled = tp.compile(function, args=[tp.InputInfo((2, 3), tp.float32)])
    traced, plain = traced_and_plain(program_of(compiled._executable, [X]), [X])
    assert torch.equal(traced[0], plain[0])
    assert plugin_examples.CALLS


def test_folding_on_a_device_computes_floats_there_and_integers_on_the_host(monkeypatch):
    sent = []
    monkeypatch.setattr(folding, "moved", lambda tensor, device: sent.append(tensor.dtype) or tensor.clone())

    def evaluate(*arguments):
        infos = [tp.InputInfo((2, 3), tp.float32)]
        program = tp.compile(lambda x: x + tp.cast(arguments[0], tp.float32), args=infos)._executable.recorded
        return fold(program, compute=DeviceFolding(HOST, contextlib.nullcontext()))

    integers = tp.Tensor([[1, 2, 3]]) * 2 // 4
    constants = evaluate(integers).constants
    assert not sent
    assert [c.tolist() for c in constants.values()] == [[[0.0, 1.0, 1.0]]]
    constants = evaluate(tp.exp(tp.Tensor([[1.0, 2.0, 3.0]])) * 2.0).constants
    assert set(sent) == {torch.float32}
    assert torch.equal(*constants.values(), torch.exp(torch.tensor([[1.0, 2.0, 3.0]])) * 2)


def test_folding_on_a_device_sees_the_strides_of_a_plan(monkeypatch):
    """A view of a computed constant stays a view where it is computed further."""
    seen = []
    monkeypatch.setattr(
        folding, "moved", lambda tensor, device: tensor.clone(memory_format=torch.contiguous_format)
    )
    infos = [tp.InputInfo((3, 2), tp.float32)]
    compiled = tp.compile(lambda x: x + tp.exp(tp.transpose(tp.exp(tp.ones((2, 3))), 0, 1)), args=infos)
    compute = DeviceFolding(HOST, contextlib.nullcontext())

    def spy(lowered, arguments):
        results = compute(lowered, arguments)
        seen.extend(compute._originals[id(a)][1].stride() for a in arguments if id(a) in compute._originals)
        return results

    fold(compiled._executable.recorded, compute=spy)
    assert (1, 3) in seen
