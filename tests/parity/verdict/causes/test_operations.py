"""Names of operations, and their words in a cause."""

import pytest
import torch

from parity.verdict.causes.operations import Operation

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
