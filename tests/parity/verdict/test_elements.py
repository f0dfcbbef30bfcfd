"""The worst elements of a large tensor."""

import numpy as np
import pytest
import torch

from parity.verdict import elements

BLOCKS = (0, 1, elements.WORST_ELEMENTS, elements.WORST_ELEMENTS + 1, 9, 20)


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("more", [1, 7])
def test_the_worst_elements_are_the_largest_of_all_blocks(blocks, more):
    size = blocks * elements.BLOCK_ELEMENTS + more
    count = min(elements.WORST_ELEMENTS, size)
    for seed in range(4):
        values = np.random.default_rng(seed).permutation(size).astype(np.float64)
        positions = elements._largest(values, count)
        assert sorted(values[positions]) == [*range(size - count, size)]


def test_elements_that_are_no_numbers_are_counted_by_side():
    one, none, two = np.ones(3), np.array([1.0, np.nan, 1.0]), np.array([np.inf, 1.0, np.nan])
    assert elements.non_finite_reason(one, one, one) == ""
    text = "NaN or Inf among the compared elements: 1 in the oracle, 2 in the reference"
    assert elements.non_finite_reason(none, two, one) == text
    assert elements.non_finite_reason(one, one, none).endswith(": 1 in the port")
    alike = elements.non_finite_reason(none, none, none)
    both = "the oracle and the reference have them too"
    assert alike == (
        "NaN or Inf among the compared elements: 1 in the oracle, 1 in the reference, 1 in the port; "
        f"{both}, {elements.NO_VERDICT}: look for them in the inputs and weights"
    )


def test_a_reference_that_does_not_work_in_a_precision_leaves_no_verdict():
    """Whether the port has a number there or not: only elements that it alone loses are its fault."""
    one, first, last = np.ones(3), np.array([np.nan, 1.0, 1.0]), np.array([1.0, 1.0, np.inf])
    told = (
        f"; the oracle has numbers there and the reference none, {elements.NO_VERDICT}: "
        "the reference itself does not work in this precision"
    )
    for reference, port, counts in (
        (first, first, "1 in the reference, 1 in the port"),
        (first + last, last, "2 in the reference, 1 in the port"),
        (first, one, "1 in the reference"),
    ):
        assert elements.non_finite_reason(one, reference, port).endswith(f": {counts}{told}")
    for oracle, reference, port in ((one, one, first), (one, first, last), (one, first, first + last)):
        assert elements.NO_VERDICT not in elements.non_finite_reason(oracle, reference, port)
    # Where the oracle has none either, the model itself has none.
    assert elements.NO_VERDICT not in elements.non_finite_reason(last, first + last, first + last)


def test_the_worst_elements_of_many_blocks():
    """NumPy sorts a few hundred maxima as a whole, and more of them only up to the asked place."""
    maxima = np.random.default_rng(0).permutation(1000).astype(np.float64)
    values = np.repeat(maxima, elements.BLOCK_ELEMENTS)
    values[1 :: elements.BLOCK_ELEMENTS] += 0.5
    positions = elements._largest(values, 1)
    assert values[positions].tolist() == [999.5]
    assert positions.tolist() == [int(maxima.argmax()) * elements.BLOCK_ELEMENTS + 1]
    assert sorted(values[elements._largest(values, 3)])[-1] == 999.5


@pytest.mark.parametrize(
    ("bits", "integer", "number"),
    [(0x7F800001, torch.int32, torch.float32), (0x7C01, torch.int16, torch.float16)],
)
def test_a_signalling_nan_of_memory_that_nobody_wrote_is_no_number(bits, integer, number):
    side = torch.tensor([bits, 0], dtype=integer).view(number)
    values = elements.compared(side, np.ones(2, dtype=bool))
    assert values.dtype == np.float64
    assert list(np.isnan(values)) == [True, False]
