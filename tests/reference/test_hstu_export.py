"""torch.export and ONNX export of the dense model with a dynamic batch, and runs of what was exported."""

from __future__ import annotations

import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from tests.reference.hstu_setup import (
    ATTENTIONS,
    PREPROCESSORS,
    longest_sum,
    make_batch,
    make_model,
    small_config,
)
from tests.reference.rounding import unit_roundoff

INPUT_NAMES = ("past_lengths", "past_ids", "timestamps", "ratings", "item_ids")
BATCH = torch.export.Dim("batch", min=1, max=1024)
# One export of each kind in `make test`.
EXPORTED = pytest.mark.parametrize(
    "preprocessor",
    [
        pytest.param(name, marks=pytest.mark.full if number else ())
        for number, name in enumerate(PREPROCESSORS)
    ],
)


class Score(torch.nn.Module):
    """`HSTUDenseModel.score` with tensors for arguments."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, past_lengths, past_ids, timestamps, ratings, item_ids):
        payloads = {"timestamps": timestamps, "ratings": ratings}
        return self.model.score(past_lengths, past_ids, payloads, item_ids)


def arguments(batch):
    return batch.lengths, batch.ids, batch.payloads["timestamps"], batch.ratings, batch.candidates


def variant(preprocessor):
    normalization, bias = dict(zip(PREPROCESSORS, ATTENTIONS[:3], strict=True))[preprocessor]
    categorical = {"embedding": "categorical", "num_categories": 11} if preprocessor == "combined" else {}
    return small_config(
        preprocessor, num_blocks=2, normalization=normalization, relative_attention_bias=bias, **categorical
    )


def assert_same_function(config, model, batch, outputs):
    """Two float32 evaluations differ by the error of each, which float64 shows; see `rounding_bound`."""
    expected = batch.score(model)
    exact = batch.score(make_model(config).double())
    for actual, low, high in zip(outputs, expected, exact, strict=True):
        actual = torch.as_tensor(actual)
        assert actual.shape == low.shape
        assert actual.dtype == low.dtype
        measured = (low.double() - high).abs().max().item()
        floor = unit_roundoff(torch.float32) * high.abs().max().item()
        assert (actual - low).abs().max().item() <= 2 * longest_sum(config) * (measured + floor)


@EXPORTED
def test_torch_export_with_dynamic_batch(preprocessor):
    config = variant(preprocessor)
    model = make_model(config)
    program = torch.export.export(
        Score(model).eval(), arguments(make_batch(config, (1, 9, 4))), dynamic_shapes=[{0: BATCH}] * 5
    )
    for lengths in ((5,), (9, 1), (1, 2, 3, 4, 9, 9, 8)):
        batch = make_batch(config, lengths, seed=len(lengths))
        assert_same_function(config, model, batch, program.module()(*arguments(batch)))


@EXPORTED
def test_torch_export_with_dynamic_sequence(preprocessor):
    config = variant(preprocessor)
    model = make_model(config)
    # The full width is a program of its own: there the last row has no successor.
    n = torch.export.Dim("n", min=4, max=config.padded_length - 1)
    shapes = [
        {0: BATCH},
        {0: BATCH, 1: n},
        {0: BATCH, 1: n * config.positions_per_item},
        {0: BATCH, 1: n},
        {0: BATCH},
    ]
    example = make_batch(config, (1, 5, 4)).trimmed(7)
    program = torch.export.export(Score(model).eval(), arguments(example), dynamic_shapes=shapes)
    for width, lengths in ((5, (4, 1)), (11, (9, 1, 10, 3))):
        batch = make_batch(config, lengths, seed=width).trimmed(width)
        assert_same_function(config, model, batch, program.module()(*arguments(batch)))


@EXPORTED
def test_onnx_export_with_dynamic_batch(preprocessor, tmp_path):
    config = variant(preprocessor)
    model = make_model(config)
    path = tmp_path / "hstu.onnx"
    torch.onnx.export(
        Score(model).eval(),
        arguments(make_batch(config, (1, 9, 4))),
        path,
        dynamo=True,
        verbose=False,
        input_names=INPUT_NAMES,
        dynamic_shapes=[{0: BATCH}] * 5,
    )
    exported = onnx.load(path)
    onnx.checker.check_model(exported, full_check=True)
    assert tuple(value.name for value in exported.graph.input) == INPUT_NAMES
    for value in exported.graph.input:
        assert value.type.tensor_type.shape.dim[0].dim_param, f"{value.name} has a fixed batch"
    evaluator = ReferenceEvaluator(exported)
    for lengths in ((5,), (1, 2, 3, 4, 9, 9, 8)):
        batch = make_batch(config, lengths, seed=len(lengths))
        feeds = {name: tensor.numpy() for name, tensor in zip(INPUT_NAMES, arguments(batch), strict=True)}
        assert_same_function(config, model, batch, evaluator.run(None, feeds))
