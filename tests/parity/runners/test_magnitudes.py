"""Errors of a module's result at another magnitude."""

import math

import numpy as np
import pytest
import torch

from parity.runners.magnitudes import _errors

EXACT = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
REFERENCE = EXACT.float()


def test_errors_are_relative_to_the_oracle():
    port, reference = REFERENCE + 0.5, REFERENCE * 1.5
    own, theirs, broken, compared = _errors(EXACT, reference, port, None)
    assert (own, theirs, broken, compared) == (pytest.approx(0.2), pytest.approx(0.5), 0, 4)


def test_broken_elements_are_counted_where_the_reference_is_finite():
    port = torch.tensor([[math.inf, 4.0], [math.nan, 0.0]])
    assert _errors(EXACT, REFERENCE, port, None) == (0.0, 0.0, 2, 4)
    infinite = torch.tensor([[math.inf, 4.0], [0.0, 0.0]])
    assert _errors(EXACT, infinite, port, None) == (0.0, 0.0, 1, 3)
    first = np.array([[True], [False]])
    assert _errors(EXACT, REFERENCE, port, first) == (0.0, 0.0, 1, 2)


def test_numbers_near_the_end_of_the_type_do_not_count():
    exact = torch.tensor([1.0, 8000.0, 60000.0], dtype=torch.float64)
    port = torch.tensor([1.0, 8000.0, math.inf], dtype=torch.float16)
    *_, broken, compared = _errors(exact, exact.half(), port, None)
    assert (broken, compared) == (0, 2)


@pytest.mark.parametrize(
    ("exact", "reference", "port"),
    [
        (EXACT, REFERENCE, REFERENCE[:1]),
        (EXACT, REFERENCE[:1], REFERENCE),
        (EXACT, REFERENCE, REFERENCE.int()),
        (EXACT, REFERENCE.int(), REFERENCE),
        (EXACT.int(), REFERENCE, REFERENCE),
        (0 * EXACT, REFERENCE, REFERENCE),
    ],
)
def test_other_shapes_integers_and_zeros_have_no_error(exact, reference, port):
    """The shape of a result may depend on its numbers."""
    assert _errors(exact, reference, port, None) is None
