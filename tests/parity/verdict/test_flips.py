"""Rows behind flips that the port is not compared in, with and without a search for hidden choices."""

import numpy as np
import pytest

from parity.verdict.flips import rows_left_out
from tests.parity.comparisons import B, N, copies, evidence_with


def boundary(*rows):
    """Elements of `bias` at a discontinuity: all of some rows (batch, position)."""
    elements = np.zeros((B, N, N), dtype=bool)
    for row in rows:
        elements[row] = True
    return evidence_with(boundary={"bias": elements}, causal=True)


def left_out(evidence, before=None, rows=((0, 1), (3, 2))):
    """The rows that are left out, of a port that differs in some rows."""
    port = copies("bias")
    for row in rows:
        port["bias"][row] += 1
    found = rows_left_out(evidence, port, before)
    return None if found is None else [tuple(place) for place in np.argwhere(found).tolist()]


FIRST, LAST = [(0, 1), (0, 2), (0, 3), (0, 4)], [(3, 2), (3, 3), (3, 4)]


def test_rows_behind_a_flip_are_left_out():
    assert left_out(boundary((0, 1), (3, 2))) == FIRST + LAST
    assert left_out(boundary((3, 2))) == LAST
    assert left_out(boundary((1, 0))) is None
    assert left_out(boundary((0, 1)), rows=()) is None


@pytest.mark.parametrize(
    ("after", "before", "expected"),
    [
        ([(0, 1), (3, 2)], [(0, 1), (3, 2)], FIRST + LAST),
        # The search takes one flip, which then explains nothing.
        ([(0, 1), (3, 2)], [(0, 1)], FIRST),
        ([(3, 2)], [(0, 1), (3, 2)], LAST),
        ([(3, 2)], [(0, 1)], None),
        ([(0, 1)], [(1, 0)], None),
        ([(1, 0)], [(0, 1)], None),
        ([(1, 0)], [(1, 0)], None),
    ],
)
def test_only_flips_before_and_behind_a_search_leave_rows_out(after, before, expected):
    assert left_out(boundary(*after), boundary(*before)) == expected
