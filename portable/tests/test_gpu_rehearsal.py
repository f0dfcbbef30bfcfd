"""Requirements of running on a GPU, tested without one.

Plans run on tensors without data ("meta"), which are not on the CPU either: where an operation would read
values back, or mix in memory of the host, it fails. Streams and graphs have stand-ins that record who waits
for whom. What the GPU itself does, only `tests/gpu` shows.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import nvtripy as tp
import pytest
import torch
from dense_hstu import Shape, TorchHSTU, sample, tripy_from_torch
from gpu_operations import OPERATIONS, X
from harness import compile_graph, constant
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mlir_tensorrt.compiler.dialects import tensorrt
from tripy_portable.constant_folding import fold
from tripy_portable.dtypes import BY_TORCH, F32
from tripy_portable.ir.types import tensor_type
from tripy_portable.kernels.registry import _LOWERINGS
from tripy_portable.planner import Plan
from tripy_portable.runtime import cuda_plan, placement, streams
from tripy_portable.runtime.cuda_plan import CudaPlan
from tripy_portable.runtime.memref import DeviceMemRef
from tripy_portable.runtime.options import Options
from tripy_portable.runtime.placement import Placement

SMALL = Shape(num_items=20, max_len=12, dim=10, heads=2, head_dim=5, blocks=1)


class _HostMemoryRead(AssertionError):
    pass


class NothingFromTheHost(TorchDispatchMode):
    """Fails operations that read host tensors (numbers aside), as a GPU would by copying or not at all."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" and leaf.ndim:
                raise _HostMemoryRead(f"{func} reads host memory")
        return func(*args, **(kwargs or {}))


def without_data(tensor):
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def rehearse(executable, tensors):
    """Runs an executable's plan on tensors without data; returns its results and their types."""
    types = [tensor_type(tuple(t.shape), BY_TORCH[t.dtype]) for t in tensors]
    plan = Plan(fold(executable.program, types), without_data)
    with NothingFromTheHost():
        return plan.run([without_data(t) for t in tensors]), plan


def assert_on_device(results, plan):
    for result, type in zip(results, plan.result_types, strict=True):
        assert result.device.type == "meta"
        assert (tuple(result.shape), result.dtype) == (type.dims, type.element.torch)
        assert result.is_contiguous()


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_stay_on_the_device(name):
    compiled = tp.compile(OPERATIONS[name], args=[tp.InputInfo((2, 3), tp.float32)])
    assert_on_device(*rehearse(compiled._executable, [X]))


def test_every_lowering_is_rehearsed():
    infos = [tp.InputInfo((2, 3), tp.float32)]
    used = set()
    for function in OPERATIONS.values():
        (plan,) = tp.compile(function, args=infos)._executable._plans.values()
        used |= {step.node.op for step in plan.steps}
    # Folded away whenever shapes are known, a view like `reshape`, and what runs code of its own.
    assert set(_LOWERINGS) - used == {"shape", "linspace", "collapse_rank", "opaque_plugin"}


def test_a_model_stays_on_the_device():
    torch.manual_seed(0)
    ids, ts = sample(SMALL, 2, 7)
    infos = [tp.InputInfo((2, 7), tp.int32), tp.InputInfo((2, 7), tp.int64)]
    compiled = tp.compile(tripy_from_torch(TorchHSTU(SMALL), tp.float16), args=infos)
    assert_on_device(*rehearse(compiled._executable, [ids, ts]))


@pytest.mark.parametrize(
    "kernel", [lambda x: x + torch.ones(3), lambda x: x if x.max() > 0 else -x], ids=["memory", "value"]
)
def test_the_rehearsal_can_fail(kernel):
    with pytest.raises((_HostMemoryRead, RuntimeError)), NothingFromTheHost():
        kernel(torch.empty(3, device="meta"))


def test_shapes_stay_on_the_host_and_constants_are_placed_once():
    def build(x):
        shaped = tensorrt.reshape(tensor_type((3, 2), F32), x, shape=constant([3, 2]))
        weight = constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], torch.float32)
        return tensorrt.element_wise(shaped, weight, tensorrt.ElementWiseOperationAttr.get("kSUM"))

    executable = compile_graph(build, [tensor_type((2, 3), F32)])
    placed = []
    Plan(fold(executable.program), lambda tensor: placed.append(tensor) or tensor)
    assert [tuple(tensor.shape) for tensor in placed] == [(3, 2)]


def test_an_input_on_the_host_becomes_a_constant_of_the_plan():
    def function(x, row):
        return tp.gather(x, 0, row)

    infos = [tp.InputInfo((2, 3), tp.float32), tp.DimensionInputInfo((0, 0, 1))]
    program = tp.compile(function, args=infos)._executable.program
    types = [program.types[value] for value in program.inputs]
    plan = Plan(fold(program, types, {1: torch.tensor(1, dtype=torch.int32)}), lambda tensor: tensor)
    assert plan.input_positions == [0]
    (result,) = plan.run([X, None])
    assert torch.equal(result, X[1])


def test_placement_uploads_lasting_tensors_once_and_keeps_expanded_ones_small(monkeypatch):
    weight, other = torch.ones(2, 3), torch.ones(1, 3).expand(1000, 3)
    device = torch.device("meta")
    place = Placement(device, [weight])
    assert place(weight) is place(weight)
    assert place(other) is not place(other)
    assert place(other).shape == (1000, 3)
    assert place(other).untyped_storage().nbytes() == 12
    assert placement.Placement(torch.device("cpu"), [])(other) is other


class Queue:
    """A stand-in for a CUDA stream that records waiting."""

    def __init__(self, name, log):
        self.name, self.log, self.cuda_stream = name, log, hash(name)

    def wait_stream(self, other):
        self.log.append(f"{self.name} waits for {other.name}")

    def synchronize(self):
        self.log.append(f"the host waits for {self.name}")


@pytest.fixture
def gpu(monkeypatch):
    """CUDA's streams, and graphs that do nothing when they are replayed."""
    log = []
    default = Queue("torch", log)
    replayed = SimpleNamespace(replay=lambda: log.append("replay"))
    monkeypatch.setattr(cuda_plan, "current", lambda queue: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: replayed)
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: contextlib.nullcontext())
    for name in ("default_stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda device=None: default)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda tensor, queue: log.append(f"kept for {queue.name}")
    )
    return SimpleNamespace(log=log, torch=default, queue=lambda name: Queue(name, log))


def on_queue(tensor, queue, is_exposed=False):
    result = DeviceMemRef(tensor, BY_TORCH[tensor.dtype], is_exposed)
    result.users = (queue,)
    return result


def cuda_plan_of(build, tensors, **options):
    types = [tensor_type(tuple(t.shape), BY_TORCH[t.dtype]) for t in tensors]
    executable = compile_graph(build, types)
    return CudaPlan(Plan(fold(executable.program), lambda tensor: tensor), Options(**options))


def plus_one(x):
    return tensorrt.element_wise(
        x, constant([1.0, 1.0], torch.float32), tensorrt.ElementWiseOperationAttr.get("kSUM")
    )


def test_a_stream_waits_once_for_each_argument_and_keeps_its_memory(gpu):
    plan, x = cuda_plan_of(plus_one, [torch.ones(2)]), torch.ones(2)
    copies, first, second = gpu.queue("copies"), gpu.queue("first"), gpu.queue("second")
    argument = on_queue(x, copies)
    assert plan.run([argument], first)[0].tolist() == [2, 2]
    assert gpu.log == ["kept for first", "first waits for copies", "kept for first"]
    gpu.log.clear()
    plan.run([argument], first)
    assert gpu.log == []
    plan.run([argument], second)
    assert gpu.log == ["kept for second", "second waits for copies", "kept for second"]


def test_an_argument_of_the_same_stream_costs_nothing(gpu):
    plan, queue = cuda_plan_of(plus_one, [torch.ones(2)]), gpu.queue("own")
    plan.run([on_queue(torch.ones(2), queue)], queue)
    gpu.log.clear()
    plan.run([on_queue(torch.ones(2), queue)], queue)
    assert gpu.log == []


def test_pytorch_and_the_call_wait_for_each_other_over_shared_memory(gpu):
    plan, queue = cuda_plan_of(plus_one, [torch.ones(2)]), gpu.queue("own")
    argument = on_queue(torch.ones(2), queue, is_exposed=True)
    plan.run([argument], queue)
    gpu.log.clear()
    plan.run([argument], queue)
    assert gpu.log == ["own waits for torch", "torch waits for own"]
    gpu.log.clear()
    plan.run([argument], gpu.torch)
    assert not [line for line in gpu.log if line == "torch waits for torch"]


def test_a_consumer_waits_for_the_stream_that_writes(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda pointer, device: gpu.queue(str(pointer)))
    device = torch.device("cpu")
    assert streams.consumers(None, device) == [gpu.torch]
    assert streams.consumers(1, device) == [gpu.torch]
    assert streams.consumers(-1, device) == []
    assert [queue.name for queue in streams.consumers(77, device)] == ["77"]
    with pytest.raises(BufferError, match="use 1 for the legacy default stream"):
        streams.consumers(0, device)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: other)
    other = gpu.queue("other")
    assert streams.consumers(None, device) == [gpu.torch, other]


def test_the_second_call_captures_and_later_ones_replay(gpu):
    plan = cuda_plan_of(plus_one, [torch.ones(2)], cuda_graphs=True)
    first, second = gpu.queue("first"), gpu.queue("second")
    argument = on_queue(torch.ones(2), gpu.queue("copies"))
    assert plan.run([argument], first)[0].tolist() == [2, 2]
    assert "replay" not in gpu.log
    for number in range(3):
        gpu.log.clear()
        result = plan.run([argument], first)[0]
        assert gpu.log == ["replay"]
        assert result.data_ptr() != plan.run([argument], first)[0].data_ptr(), number
    gpu.log.clear()
    plan.run([argument], second)
    assert "second waits for first" in gpu.log
    gpu.log.clear()
    del plan
    assert gpu.log == ["the host waits for second"]


def test_a_graph_reads_what_it_is_called_with(gpu, monkeypatch):
    """The replay's stand-in runs the plan again, on the graph's own memory."""
    plan = cuda_plan_of(plus_one, [torch.ones(2)], cuda_graphs=True)
    queue = gpu.queue("own")
    plan.run([on_queue(torch.ones(2), queue)], queue)
    plan.run([on_queue(torch.ones(2), queue)], queue)
    graph = plan._graph

    def replay():
        for result, fresh in zip(graph._results, plan._plan.run(graph._inputs)):
            result.copy_(fresh)

    monkeypatch.setattr(graph._graph, "replay", replay)
    results = [plan.run([on_queue(torch.full((2,), value), queue)], queue)[0] for value in (3.0, 5.0)]
    assert [result.tolist() for result in results] == [[4, 4], [6, 6]]


@pytest.mark.parametrize(
    ("types", "word"),
    [
        ((torch.float32, torch.int64, torch.float32), torch.int32),
        ((torch.float32, torch.float32, torch.float32), torch.float32),
        ((torch.float32, torch.bool, torch.float32), torch.uint8),
        ((torch.float32, torch.float16, torch.float32), torch.int16),
    ],
    ids=str,
)
def test_inputs_of_all_element_types_enter_a_graph_by_one_kernel(gpu, monkeypatch, types, word):
    def build(x, y, z):
        kind = tensorrt.cast(x.type, y) if types[1] != types[0] else y
        added = tensorrt.element_wise(x, z, tensorrt.ElementWiseOperationAttr.get("kSUM"))
        return tensorrt.element_wise(added, kind, tensorrt.ElementWiseOperationAttr.get("kSUM"))

    copies = []
    foreach = torch._foreach_copy_

    def copying(targets, sources):
        copies.append({tensor.dtype for tensor in (*targets, *sources)})
        foreach(targets, sources)

    plan = cuda_plan_of(build, [torch.ones(3, dtype=t) for t in types], cuda_graphs=True)
    queue = gpu.queue("own")
    monkeypatch.setattr(torch, "_foreach_copy_", copying)
    for number in range(3):
        arguments = [on_queue(torch.full((3,), number, dtype=t), queue) for t in types]
        plan.run(arguments, queue)
    # The second call captures and replays, the third replays.
    assert copies == [{word}] * 2
    expected = torch.full((3,), 2).to(types[1])
    assert torch.equal(plan._graph._inputs[1], expected)
    assert [plan._graph._inputs[i].tolist() for i in (0, 2)] == [[2, 2, 2]] * 2


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bool, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("other", [None, torch.float32])
@pytest.mark.parametrize("shape", [(), (0,), (3, 5)])
def test_every_element_type_enters_a_graph(shape, other, dtype):
    types = [dtype] if other is None else [dtype, other]
    sources = [torch.ones(shape).to(t) for t in types]
    targets = [torch.zeros(shape).to(t) for t in types]
    word = cuda_plan._common_word(targets)
    torch._foreach_copy_(*([cuda_plan._as_words(x, word) for x in side] for side in (targets, sources)))
    for target, source in zip(targets, sources):
        assert torch.equal(target.float(), source.float())


def test_an_executable_without_work_is_not_captured(gpu):
    plan = cuda_plan_of(lambda x: constant([7.0], torch.float32), [torch.ones(2)], cuda_graphs=True)
    for _ in range(3):
        assert plan.run([on_queue(torch.ones(2), gpu.torch)], gpu.torch)[0].tolist() == [7]
    assert "replay" not in gpu.log
