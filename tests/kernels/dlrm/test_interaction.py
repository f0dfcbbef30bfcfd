"""DLRM's interaction in one kernel, against `FeatureInteraction` of the reference."""

import math

import pytest
import torch

from kernels.dlrm import KernelError, dot_interaction, interaction_columns
from reference.dlrm_layers import FeatureInteraction, interaction_width
from tests.identifiers import shortened
from tests.kernels.dlrm.kernel_setup import (
    DEVICE,
    assert_right,
    backends,
    drawn,
    needs_products,
    placed,
)

BACKENDS = pytest.mark.parametrize("backend", backends())
ITSELF = pytest.mark.parametrize("itself", [False, True])
# MLPerf's and Kaggle's sizes, some that no block divides, one vector, as many as there may be.
SHAPES = [(3, 27, 128), (5, 27, 16), (2, 5, 7), (4, 1, 3), (1, 2, 1), (2, 33, 100), (1, 64, 20), (1, 3, 300)]


def reference(vectors, itself):
    return lambda features: FeatureInteraction("dot", vectors, itself).to(features.device)(features)


@BACKENDS
@ITSELF
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_interaction(backend, itself, precision, shape):
    needs_products(precision, backend)
    inputs = [drawn(shape, 3, precision)]
    result = dot_interaction(*placed(inputs), itself, backend=backend)
    assert_right(result, reference(shape[1], itself), inputs, precision, longest_sum=shape[2])


@ITSELF
def test_columns_are_the_references(itself):
    for vectors in (1, 2, 27):
        assert interaction_columns(vectors, 16, itself) == interaction_width("dot", vectors, 16, itself)


@BACKENDS
@ITSELF
def test_rows_further_apart_than_long(backend, itself):
    """Every element of the result is written, none of those between the rows."""
    inputs = [drawn((3, 5, 16), 4)]
    width = interaction_columns(5, 16, itself)
    storage = torch.full((3, width + 7), math.nan, device=DEVICE)
    result = dot_interaction(*placed(inputs), itself, backend=backend, out=storage[:, :width])
    assert_right(result, reference(5, itself), inputs, "fp32", longest_sum=16)
    assert storage[:, width:].isnan().all()


@BACKENDS
def test_an_empty_batch(backend):
    assert dot_interaction(torch.empty(0, 5, 8, device=DEVICE), backend=backend).shape == (0, 18)


@pytest.mark.parametrize(
    ("features", "words"),
    [
        (torch.zeros(3, 4), r"features_BFD has shape \(3, 4\): give \(batch, vectors, columns\)"),
        (torch.zeros(3, 65, 4), "vectors=65: give 1 to 64"),
        (torch.zeros(3, 4, 513), "columns=513: give 1 to 512"),
        (torch.zeros(3, 0, 4), "vectors=0: give 1 to 64"),
    ],
    ids=shortened,
)
def test_errors(features, words):
    with pytest.raises(KernelError, match=words):
        dot_interaction(features, backend="torch")


def test_the_interpreter_refuses_what_it_would_multiply_wrong(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    pytest.importorskip("triton", reason="Triton is not installed")
    with pytest.raises(KernelError, match="interpreter multiplies its bit patterns as integers"):
        dot_interaction(torch.zeros(2, 3, 4, dtype=torch.bfloat16), backend="triton")
