"""Names of operations, and their words in a cause."""

import pytest
import torch

from parity.verdict.causes.operations import Operation, in_place

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("function", "name", "words"),
    [
        (aten.add.Tensor, "add", "add"),
        (aten.add_.Tensor, "add", "add"),
        (aten._softmax.default, "_softmax", "softmax"),
        (aten.native_layer_norm.default, "native_layer_norm", "layer_norm"),
        (aten._native_batch_norm_legit.default, "_native_batch_norm_legit", "batch_norm"),
        (
            aten._native_batch_norm_legit_no_training.default,
            "_native_batch_norm_legit_no_training",
            "batch_norm",
        ),
    ],
)
def test_names_are_without_marks_and_overloads(function, name, words):
    operation = Operation(function, (), {})
    assert (operation.name, operation.words) == (name, words)


def test_the_result_of_a_change_lies_in_the_tensor_that_is_written():
    target, result = torch.zeros(3), torch.ones(3)
    assert in_place(Operation(aten.mul_.Tensor, (target, 2.0), {}), result) is target
    assert target.tolist() == [1.0, 1.0, 1.0]
    assert in_place(Operation(aten.mul_.Tensor, (target, 2.0), {}), target) is target
    with pytest.raises(RuntimeError, match=r"a result of shape \(2,\) does not fit in place"):
        in_place(Operation(aten.mul_.Tensor, (target, 2.0), {}), result[:2])


def test_other_results_stay_as_they_are():
    target, result = torch.zeros(3), torch.ones(3)
    assert in_place(Operation(aten.mul.Tensor, (target, 2.0), {}), result) is result
    assert in_place(Operation(aten.mul_.Tensor, (target, 2.0), {}), (result,)) == (result,)
    assert target.tolist() == [0.0, 0.0, 0.0]


def test_a_result_is_no_tensor_that_the_operation_only_reads():
    """Code behind it may write into its result; a view is written through."""
    read, source = torch.zeros(3), torch.ones(3)
    operation = Operation(aten.add.Tensor, (read, 2.0), {}, source)
    for tensor in (read, read.expand(2, 3), source):
        own = in_place(operation, tensor)
        assert torch.equal(own, tensor)
        assert own.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
    joined = in_place(Operation(aten.cat.default, ([read, source],), {}), source)
    assert joined is not source
    view = read.view(3, 1)
    assert in_place(Operation(aten.view.default, (read, [3]), {}), view) is view
