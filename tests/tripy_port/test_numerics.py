"""The port's numerics, where they promise bits."""

from __future__ import annotations

import numpy as np
import nvtripy as tp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tripy_port.port_setup import array, runtime_input
from tripy_port.embedding_bags import pool_bags
from tripy_port.numerics import bfloat16_parts

COUNT = 8
# Parts of numbers near the smallest would be below it, and what rounds up to 2^128 is infinite in bfloat16.
POSITIVE = st.floats(2.0**-100, 2.0**127, width=32)
NUMBERS = POSITIVE | POSITIVE.map(lambda number: -number) | st.just(0.0)


def bits(values: np.ndarray) -> np.ndarray:
    """The bits of what is a float32 each."""
    return values.astype(np.float32).view(np.uint32)


@pytest.fixture(scope="module")
def parts():
    return tp.compile(bfloat16_parts, args=[tp.InputInfo((COUNT,), tp.float32)])


@settings(max_examples=200, deadline=None)
@given(numbers=st.lists(NUMBERS, min_size=COUNT, max_size=COUNT))
def test_parts_add_up_exactly_and_fit_into_8_bits(parts, numbers):
    x = np.array(numbers, dtype=np.float32)
    high, middle, low = (array(part) for part in parts(runtime_input(x)))
    assert np.array_equal((low + middle) + high, x)
    for part in (high, middle, low):
        # The lower half of a float32's bits is what bfloat16 doesn't have.
        assert not np.any(bits(part) & 0xFFFF)


def test_pooling_multiplies_nothing_that_tf32_would_round(monkeypatch):
    """Every factor of a matrix product in float32 is seen, and has at most the 11 bits of TF32."""
    factors = []
    plain = tp.Tensor.__matmul__
    monkeypatch.setattr(tp.Tensor, "__matmul__", lambda a, b: (factors.extend((a, b)), plain(a, b))[1])
    generator = np.random.default_rng(0)
    table, weights = (generator.standard_normal(shape).astype(np.float32) for shape in ((9, 5), 4))
    rows, offsets = np.array([8, 0, 3, 3]), np.array([0, 1, 1])
    pooled = pool_bags(
        *(tp.Tensor(values) for values in (table, rows, offsets)), per_sample_weights_L=tp.Tensor(weights)
    )
    one_row = array(pooled)[0]
    assert np.array_equal(one_row, table[8] * weights[0])
    assert factors
    for factor in factors:
        assert not np.any(bits(array(factor)) & (2**13 - 1))
