"""Folding, merging, freeing and reuse of memory: what a plan leaves out cannot be observed."""

import nvtripy as tp
import torch
from dense_hstu import Shape, TorchHSTU, tripy_from_torch
from harness import compile_graph, constant, execute, ranked

from mlir_tensorrt.compiler.dialects import affine, tensorrt
from tripy_portable.dtypes import F32
from tripy_portable.ir.types import DYNAMIC, tensor_type

ADD = tensorrt.ElementWiseOperationAttr.get("kSUM")
MULTIPLY = tensorrt.ElementWiseOperationAttr.get("kPROD")
EXP = tensorrt.UnaryOperationAttr.get("kEXP")
VECTOR = tensor_type((4,), F32)


def steps(executable):
    (plan,) = executable._plans.values()
    return [step.node.op for step in plan.steps]


def test_constants_fold_and_dead_operations_go():
    def build(x):
        tensorrt.unary(x, EXP)
        weight = tensorrt.transpose(
            constant([[1.0, 2.0], [3.0, 4.0]], torch.float32), affine.AffineMap.get_permutation([1, 0])
        )
        return tensorrt.element_wise(x, weight, ADD)

    executable = compile_graph(build, [tensor_type((2, 2), F32)])
    assert steps(executable) == ["element_wise"]
    assert execute(executable, [torch.zeros(2, 2)])[0].tolist() == [[1, 3], [2, 4]]


def test_shape_arithmetic_of_dynamic_shapes_is_folded_for_each_shape():
    def build(x):
        shape = tensorrt.shape(x)
        count = tensorrt.element_wise(
            tensorrt.slice(shape, static_start=[0], static_size=[1], static_stride=[1]),
            tensorrt.slice(shape, static_start=[1], static_size=[1], static_stride=[1]),
            MULTIPLY,
        )
        return tensorrt.reshape(ranked(1, torch.float32), tensorrt.unary(x, EXP), shape=count)

    executable = compile_graph(build, [tensor_type((DYNAMIC, DYNAMIC), F32)], [((1, 1), (2, 3), (9, 9))])
    assert len(executable.program.nodes) == 6
    assert steps(executable) == ["unary", "reshape"]
    for shape in ((1, 1), (9, 9), (4, 2)):
        assert execute(executable, [torch.zeros(shape)])[0].tolist() == [1] * (shape[0] * shape[1])


def test_a_hstu_keeps_a_few_hundred_operations():
    shape = Shape(num_items=10, max_len=6, dim=4, heads=2, head_dim=2, blocks=2)
    torch.manual_seed(0)
    info = [tp.InputInfo((2, 6), tp.int32), tp.InputInfo((2, 6), tp.int64)]
    compiled = tp.compile(tripy_from_torch(TorchHSTU(shape)), args=info)
    ops = steps(compiled._executable)
    assert len(ops) < 60 * shape.blocks
    assert not {"shape", "linspace"} & set(ops)


def test_equal_operations_run_once_and_equal_small_constants_are_one():
    def build(x):
        return [
            tensorrt.element_wise(
                tensorrt.element_wise(x, constant([2.0] * 4, torch.float32), MULTIPLY),
                tensorrt.element_wise(x, constant([2.0] * 4, torch.float32), MULTIPLY),
                ADD,
            )
        ]

    executable = compile_graph(build, [VECTOR])
    assert len(steps(executable)) == 2
    assert execute(executable, [torch.arange(4.0)])[0].tolist() == [0, 4, 8, 12]


def test_equal_operations_with_an_equal_constant_as_result_are_that_constant():
    """Each of the three factors is the same constant: read, computed, and computed once more."""

    def build(x):
        ones = constant([1.0] * 4, torch.float32)
        factors = [constant([2.0] * 4, torch.float32)]
        factors += [tensorrt.element_wise(ones, ones, ADD) for _ in range(2)]
        first, second, third = (tensorrt.element_wise(x, factor, MULTIPLY) for factor in factors)
        return [tensorrt.element_wise(tensorrt.element_wise(first, second, ADD), third, ADD)]

    executable = compile_graph(build, [VECTOR])
    assert len(steps(executable)) == 3
    assert execute(executable, [torch.arange(4.0)])[0].tolist() == [0, 6, 12, 18]


def test_constants_that_differ_in_the_sign_of_zero_stay_apart():
    def build(x):
        divide = tensorrt.ElementWiseOperationAttr.get("kDIV")
        return [
            tensorrt.element_wise(x, constant([0.0], torch.float32), divide),
            tensorrt.element_wise(x, constant([-0.0], torch.float32), divide),
        ]

    results = execute(compile_graph(build, [tensor_type((1,), F32)]), [torch.ones(1)])
    assert [r.item() for r in results] == [torch.inf, -torch.inf]


def test_every_value_but_the_results_is_freed_after_its_last_use():
    def build(x):
        y = tensorrt.unary(x, EXP)
        z = tensorrt.element_wise(y, x, ADD)
        return tensorrt.element_wise(z, y, MULTIPLY)

    executable = compile_graph(build, [VECTOR])
    (plan,) = executable._plans.values()
    freed = [value for step in plan.steps for value in step.frees]
    assert len(freed) == len(set(freed)) == 3  # x, y and z


def test_memory_is_reused_only_where_nobody_can_see_it():
    """exp(x) writes over nothing of the caller's; y is needed twice; the view of y keeps y's memory alive."""

    def build(x):
        y = tensorrt.element_wise(x, x, ADD)
        view = tensorrt.transpose(y, affine.AffineMap.get_permutation([1, 0]))
        exponential = tensorrt.unary(y, EXP)
        return [tensorrt.element_wise(exponential, view, ADD), x]

    executable = compile_graph(build, [tensor_type((2, 2), F32)])
    x = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    stored = x.clone()
    total, same = execute(executable, [x])
    torch.testing.assert_close(total, (2 * stored).exp() + (2 * stored).t())
    assert torch.equal(x, stored)
    assert torch.equal(same, stored)


def test_memory_of_a_dead_value_is_reused():
    addresses = []

    def build(x):
        return tensorrt.unary(tensorrt.unary(tensorrt.element_wise(x, x, ADD), EXP), EXP)

    executable = compile_graph(build, [VECTOR])
    (plan,) = executable._plans.values()
    value = torch.zeros(4)
    for step in plan.steps:
        value = step.run(*[value] * len(step.inputs))
        addresses.append(value.data_ptr())
    assert len(set(addresses)) == 1


def test_an_operand_used_on_both_sides_may_be_written_over():
    def build(x):
        y = tensorrt.unary(x, EXP)
        return tensorrt.element_wise(y, y, MULTIPLY)

    assert execute(compile_graph(build, [VECTOR]), [torch.zeros(4)])[0].tolist() == [1] * 4
