"""Further batches with more rows: like the typical one, from other seeds; none where a case makes none."""

import numpy as np
import pytest

from cases.shipped import load_case
from parity.base.errors import UserError
from parity.case.plan import PlannedBatch
from parity.inputs.arrays import make_inputs, more_rows


def test_a_further_batch_has_more_rows_of_another_seed():
    case = load_case("dlrm_tiny")
    typical = make_inputs(case).typical
    first, second = (more_rows(case, typical, number, 4) for number in (1, 2))
    rows = 4 * case.batch_size_of(typical)
    assert case.batch_size_of(first.inputs) == case.batch_size_of(second.inputs) == rows
    assert (first.name, second.name) == ("more rows 1", "more rows 2")
    assert (first.further, second.further) == (1, 2)
    assert {batch.further for batch in make_inputs(case).batches} == {0}
    assert f"{rows} rows" in first.purpose
    assert first.inputs.digest != second.inputs.digest
    assert more_rows(case, typical, 1, 4).inputs.digest == first.inputs.digest


def test_a_batch_size_that_the_case_refuses_grows():
    case = load_case("hstu_tiny")
    typical = make_inputs(case.with_overrides(batch_size=9)).typical
    # 3 * 9 = 27 is the padded length, which no other axis may have.
    assert case.batch_size_of(more_rows(case, typical, 1, 3).inputs) == 28


def test_a_case_of_fixed_inputs_makes_no_further_batch(monkeypatch):
    case = load_case("dlrm_tiny")
    typical = make_inputs(case).typical
    monkeypatch.setattr(type(case), "make_inputs", lambda self: dict(typical.arrays))
    assert more_rows(case, typical, 1, 4) is None
    assert np.array_equal(case.make_inputs()["counts"], typical["counts"])


def test_a_plan_has_no_name_of_a_further_batch(monkeypatch):
    case = load_case("dlrm_tiny")
    inputs = make_inputs(case.with_overrides(seed=9)).typical
    monkeypatch.setattr(type(case), "plan", lambda self: [PlannedBatch(name, "own", dict(inputs))])
    for name in ("more rows", "more rows of mine", "more rows 1b", "other rows 1"):
        assert [batch.name for batch in make_inputs(case).batches] == ["typical", name]
    name = "more rows 12"
    with pytest.raises(UserError, match="plan: more rows 12 is the name of a further batch"):
        make_inputs(case)
