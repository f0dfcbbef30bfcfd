"""Errors of users name the field, the value and the fix."""

import pickle

from parity.base.errors import UserError


def test_user_errors_survive_a_process_boundary():
    error = pickle.loads(pickle.dumps(UserError("--batch", 0, "is below 1", "give at least 1")))
    assert (error.field, error.value, error.fix) == ("--batch", 0, "give at least 1")
    assert str(error) == "--batch: 0 is below 1; give at least 1"
