"""Errors of users name the field, the value and the fix."""

import pickle
import re
from dataclasses import dataclass

import pytest

import parity
from parity.base.errors import MAX_CHARACTERS, MAX_LINES, UserError, from_here, with_arguments


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


@with_arguments
@dataclass
class _Box:
    width: int
    height: int = 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: _Box(),
            "_Box: takes other arguments (missing a required argument: 'width'); give width, height",
        ),
        (lambda: _Box(1, depth=2), "takes other arguments (got an unexpected keyword argument 'depth')"),
        (lambda: parity.PlannedBatch("a", "b"), "PlannedBatch: takes other arguments (missing a required "),
        (lambda: parity.Batches(), "Batches: takes other arguments"),
        (lambda: parity.Result(), "Result: takes other arguments"),
        (lambda: parity.ModelPair(), "ModelPair: takes other arguments"),
        (lambda: parity.compare(), "compare: takes other arguments"),
        (lambda: parity.check(runner="tripy"), "check: takes other arguments"),
        (lambda: parity.case(runner="tripy"), "parity.case: takes other arguments"),
        (
            lambda: parity.CaseReference(),
            "CaseReference.target: is missing; give an import path, such as target='package.module:",
        ),
        (
            lambda: parity.CaseReference(target=3),
            "CaseReference.target: 3 is of another type; give an import path",
        ),
        (
            lambda: parity.CaseReference(target="a:b", batch=3),
            "CaseReference.batch: 3 is no field; give target, ",
        ),
        (lambda: parity.CaseReference("a:b"), "CaseReference: a:b has no name; name it, as in target="),
    ],
)
def test_wrong_arguments_of_a_public_name_are_errors_of_the_user(call, message):
    with pytest.raises(UserError, match=re.escape(message)):
        call()


def test_a_type_error_of_the_code_inside_stays():
    @from_here
    def broken(x):
        return x + None

    with pytest.raises(TypeError, match="unsupported operand"):
        broken(1)


def test_an_error_of_a_file_names_its_option():
    error = UserError("folder/file.csv", "", "cannot be read", "give the folder")
    assert str(error.of("--data")) == "--data: folder/file.csv cannot be read; give the folder"
    of_option = UserError("--samples", 3, "are too many", "give fewer")
    assert of_option.of("--data") is of_option
