"""Errors of users name the field, the value and the fix."""

import pickle

import pytest

from parity.base.errors import MAX_CHARACTERS, MAX_LINES, UserError


def test_user_errors_survive_a_process_boundary():
    error = pickle.loads(pickle.dumps(UserError("--batch", 0, "is below 1", "give at least 1")))
    assert (error.field, error.value, error.fix) == ("--batch", 0, "give at least 1")
    assert str(error) == "--batch: 0 is below 1; give at least 1"


@pytest.mark.parametrize(
    "parts",
    [
        ("x" * 5000, "value", "is bad", "fix it"),
        ("--case", "/a" * 5000, "is bad", "fix it"),
        ("--case", 10**4000, "is bad", "fix it"),
        ("--case", "x", "is bad " * 5000, "fix it"),
        ("--case", "x", "\n".join(["a: is bad"] * 100), "fix it"),
        ("--case", "x", "is bad", "use " + "name, " * 5000),
        ("\0" * 500, "\x1b[31m" * 500, "\u202e" * 500, "\ud800" * 500),
    ],
    ids=["field", "path", "number", "problem", "lines", "fix", "controls"],
)
def test_a_message_is_bounded_and_printable(parts):
    message = str(UserError(*parts))
    assert message.count("\n") < MAX_LINES
    assert len(message) <= MAX_CHARACTERS
    assert all(line.isprintable() for line in message.split("\n"))


def test_a_long_value_has_its_beginning_and_its_end():
    message = str(UserError("--save", "/home/" + "long/" * 500 + "end.txt", "exists", "remove it"))
    assert message.startswith("--save: /home/long/")
    assert message.endswith("/long/end.txt exists; remove it")


def test_control_characters_are_escaped():
    assert str(UserError("case", "a\0\x1b[31m\nb", "is bad", "fix it")) == (
        "case: a\\x00\\x1b[31m\\nb is bad; fix it"
    )


def test_a_value_that_says_nothing_leaves_no_gap():
    assert (
        str(UserError("file.csv", "", "cannot be read", "give another"))
        == "file.csv: cannot be read; give another"
    )
