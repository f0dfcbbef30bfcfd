"""Errors of runners in words."""

import nvtripy as tp

from parity.execution.errors import first_line


def raised(function):
    try:
        function()
    except tp.TripyException as error:
        return first_line(error)
    raise AssertionError("nvtripy raises nothing")


def test_nvtripy_s_error_has_what_the_function_expects():
    text = raised(lambda: tp.masked_fill(tp.ones((2, 2)), tp.ones((2, 2)), 0.0))
    assert text == (
        "Invalid inputs for function: 'masked_fill'. Expected: 'mask.dtype' to be equal to 'bool' "
        "(but it was 'float32')."
    )


def test_nvtripy_s_error_has_the_reason_against_an_overload():
    text = raised(lambda: tp.softmax(tp.ones((2, 2)), axis=1))
    assert "function: 'softmax'. Not a valid overload because: Parameter: 'axis'" in text


def test_nvtripy_s_error_has_the_names_of_missing_weights():
    assert raised(lambda: tp.Linear(2, 3)(tp.ones((2, 2)))).endswith("Not set parameters were: weight, bias")


def test_the_compiler_s_error_has_no_stack_of_calls():
    def multiplied(x, y):
        return x @ y

    inputs = [tp.InputInfo((4, size), tp.float32) for size in (5, 3)]
    text = raised(lambda: tp.compile(multiplied, args=inputs))
    assert "operand shapes do not have consistent sizes" in text
    assert "Stack Info" not in text
    assert len(text) < 400


def test_another_error_has_its_first_line():
    assert first_line(ValueError("one\ntwo")) == "one"
    assert first_line(ValueError()) == "no message"
