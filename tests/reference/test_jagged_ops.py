"""Jagged operators: fbgemm's and plain torch's, against each other and against loops."""

from __future__ import annotations

import pytest
import torch

from reference import jagged_ops
from reference.build import build_hstu
from reference.jagged_ops import complete_cumsum, dense_to_jagged, jagged_to_padded_dense, resolve_backend
from tests.reference.hstu_setup import ATTENTIONS, PREPROCESSORS, make_batch, make_model, small_config

LENGTHS = ([2, 0, 4, 1], [3], [0, 0], [1, 1, 1])
FBGEMM_MISSING = jagged_ops.backend_reasons().get("fbgemm")
needs_fbgemm = pytest.mark.skipif(FBGEMM_MISSING is not None, reason=str(FBGEMM_MISSING))
BACKENDS = ("plain", pytest.param("fbgemm", marks=needs_fbgemm))


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_by_loops(backend, lengths, dtype, index_dtype):
    if backend == "fbgemm" and dtype == torch.float64:
        with pytest.raises(ValueError, match="backend='fbgemm': .*float64.*; use 'plain' or 'auto'"):
            resolve_backend(backend, dtype)
        return
    values = torch.arange(1, 2 * sum(lengths) + 1).reshape(-1, 2).to(dtype)
    offsets = complete_cumsum(torch.tensor(lengths, dtype=index_dtype), backend)
    assert offsets.dtype == index_dtype
    assert offsets.tolist() == [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    # 3 drops the end of the longest row, 6 leaves padding in every row.
    for width in (3, 6):
        dense = jagged_to_padded_dense(values, offsets, width, -1.0, backend)
        assert dense.shape == (len(lengths), width, 2)
        assert dense.dtype == dtype
        for row, length in enumerate(lengths):
            for position in range(width):
                inside = position < length
                expected = values[int(offsets[row]) + position] if inside else torch.tensor([-1.0, -1.0])
                assert torch.equal(dense[row, position], expected.to(dtype))
        if width >= max(lengths):
            assert torch.equal(dense_to_jagged(dense, offsets, backend), values)


@needs_fbgemm
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("attention", ATTENTIONS, ids="-".join)
@pytest.mark.parametrize("preprocessor", PREPROCESSORS)
def test_model_does_not_depend_on_the_backend(preprocessor, attention, dtype):
    normalization, bias = attention
    config = small_config(preprocessor, normalization=normalization, relative_attention_bias=bias)
    batch = make_batch(config)
    outputs = []
    for backend in ("fbgemm", "plain"):
        model = make_model(config, "jagged", jagged_backend=backend).to(dtype)
        assert model.active_jagged_backend() == backend
        outputs.append(batch.score(model))
    # Both only move rows: the same bits.
    assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))


@needs_fbgemm
def test_auto_follows_the_dtype():
    model = build_hstu(small_config(), "jagged")
    assert model.active_jagged_backend() == "fbgemm"
    assert model.half().active_jagged_backend() == "fbgemm"
    assert model.double().active_jagged_backend() == "plain"


def test_without_fbgemm(monkeypatch):
    monkeypatch.setattr(jagged_ops.importlib.util, "find_spec", lambda name: None)
    jagged_ops.backend_reasons.cache_clear()
    try:
        assert jagged_ops.backend_reasons() == {"fbgemm": "fbgemm_gpu is not installed"}
        assert resolve_backend("auto", torch.float32) == "plain"
        with pytest.raises(ValueError, match="backend='fbgemm': fbgemm_gpu is not installed; use 'plain'"):
            build_hstu(small_config(), "jagged", jagged_backend="fbgemm")
    finally:
        jagged_ops.backend_reasons.cache_clear()


def test_fbgemm_that_does_not_load(monkeypatch):
    def fail(name):
        raise OSError("undefined symbol: _ZN3c10")

    monkeypatch.setattr(jagged_ops.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(jagged_ops.importlib, "import_module", fail)
    jagged_ops.backend_reasons.cache_clear()
    try:
        assert "does not load: undefined symbol" in jagged_ops.backend_reasons()["fbgemm"]
    finally:
        jagged_ops.backend_reasons.cache_clear()


def test_unknown_backend():
    with pytest.raises(ValueError, match="backend='cuda': choose one of 'auto', 'fbgemm', 'plain'"):
        build_hstu(small_config(), "jagged", jagged_backend="cuda")
