"""Records of saved batches: what they say of rows adds up."""

import pytest
from pydantic import ValidationError

from parity.execution.record import RowTrialRecord


@pytest.mark.parametrize(("rows", "differences"), [((0, 1), [0.5]), ((0,), [0.5, 0.5]), ((), [])])
def test_a_trial_has_a_difference_for_each_row(rows, differences):
    RowTrialRecord(kind="alone", rows=(0, 1), taps={"head": [0.0, 0.5]})
    with pytest.raises(ValidationError, match=f"head has {len(differences)} differences of {len(rows)} rows"):
        RowTrialRecord(kind="alone", rows=rows, taps={"head": differences})
