"""Records of saved batches: what they say of rows adds up."""

import pytest
from pydantic import ValidationError

from parity.base.errors import UserError
from parity.execution.record import ORACLE, REFERENCE, Record, RowTrialRecord, RunnerRecord, read_record


@pytest.mark.parametrize(("rows", "differences"), [((0, 1), [0.5]), ((0,), [0.5, 0.5]), ((), [])])
def test_a_trial_has_a_difference_for_each_row(rows, differences):
    RowTrialRecord(kind="alone", rows=(0, 1), taps={"head": [0.0, 0.5]})
    with pytest.raises(ValidationError, match=f"head has {len(differences)} differences of {len(rows)} rows"):
        RowTrialRecord(kind="alone", rows=rows, taps={"head": differences})


@pytest.mark.parametrize("missing", [REFERENCE, ORACLE])
def test_a_record_without_what_verdicts_rest_on_is_refused(tmp_path, missing):
    path = tmp_path / "fp32" / "record.json"
    path.parent.mkdir()
    record = Record(precision="fp32", runners={name: RunnerRecord() for name in (REFERENCE, ORACLE, "tripy")})
    path.write_text(record.model_dump_json())
    assert read_record(path) == record
    del record.runners[missing]
    path.write_text(record.model_dump_json())
    with pytest.raises(UserError, match=f"has no runner {missing}"):
        read_record(path)
