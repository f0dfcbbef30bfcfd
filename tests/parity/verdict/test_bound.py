"""Bounds and limits as whole values."""

import math

import pytest

from parity.base.precision import PRECISIONS
from parity.verdict.bound import Bound, bound_for
from parity.verdict.distances import Distance

FP16 = PRECISIONS["fp16"]
UNIT = 2.0**-11


def test_a_bound_states_its_facts():
    bound = bound_for(FP16, 7, modules=4)
    stored, added = 2.0**-22, 2.0**-48
    assert bound == Bound(
        k=2.0 * math.sqrt((stored + 7 * added) / (stored + 3 * added)),
        floor=2.0 * UNIT * 2.0,
        longest_sum=7,
        unit_roundoff=UNIT,
    )
    assert bound_for(FP16, 7) == bound_for(FP16, 7, modules=1) != bound_for(FP16, 7, modules=2)
    assert bound_for(FP16, 0, modules=4) == Bound(0.0, 0.0, 0, UNIT)


def test_one_roundoff_of_a_constant_does_not_shrink_with_rows():
    limit = Bound(k=3.0, floor=8.0, longest_sum=7, unit_roundoff=UNIT).limit(Distance(1.0, 2.0, 4.0), 16.0)
    assert limit.l2 == pytest.approx(math.sqrt(3.0**2 + 8.0**2), rel=1e-15)
    assert limit.largest == pytest.approx(math.sqrt(6.0**2 + 8.0**2), rel=1e-15)
    # The floor over the root of the rows, and the floor over the root of the roundings of an operation.
    assert limit.scale_error == pytest.approx(math.sqrt(12.0**2 + 2.0**2 + 4.0**2), rel=1e-15)


@pytest.mark.parametrize(
    ("terms", "text"),
    [
        (0, "no arithmetic in this module: the port must be equal bit for bit"),
        (1, "k = 2, floor = 0.000977 from unit round-off 0.000488 and the longest sum, 1 term"),
        (2, "k = 2, floor = 0.000977 from unit round-off 0.000488 and the longest sum, 2 terms"),
    ],
)
def test_the_explanation_of_a_bound(terms, text):
    assert bound_for(FP16, terms).explain() == text


def test_the_lasting_part_of_a_limit_has_no_rows():
    bound = Bound(k=3.0, floor=8.0, longest_sum=7, unit_roundoff=UNIT)
    assert bound.lasting(0.0) == 4.0
    assert bound.lasting(1.0) == 5.0


def test_the_error_of_a_half_type_in_float32_grows_with_the_root_of_the_sum():
    for name in ("fp16", "bf16"):
        share = PRECISIONS["fp32"].unit_roundoff / PRECISIONS[name].unit_roundoff
        for terms, root in ((0, 1), (1, 1), (16, 4)):
            bound = bound_for(PRECISIONS[name], terms)
            assert bound.error_in_float32 == pytest.approx(bound.floor * share * root, rel=1e-12)
    assert bound_for(PRECISIONS["fp32"], 16).error_in_float32 == math.inf
