"""Causes of wrong choices: many changes give the same integers, and few of them say anything."""

import pytest
import torch

from tests.parity.verdict.planted import told

ROWS, D, CODES = 40, 6, 13
RNG = torch.Generator().manual_seed(11)
X = torch.randn(ROWS, D, generator=RNG, dtype=torch.float64)
BOOK = torch.randn(D, CODES, generator=RNG, dtype=torch.float64)
TERM = 3 * torch.randn(CODES, generator=RNG, dtype=torch.float64)


def nearest(x, term=TERM, factor=1.0, shown=torch.argmin):
    return shown(factor * (x @ BOOK) + term, -1)


def test_a_factor_that_drowns_another_term_is_no_cause():
    """Any large factor gives the choices of the product alone."""
    port = lambda x: nearest(x, term=0 * TERM)  # noqa: E731, a function as users write it
    assert told(nearest, port, {"x": X}) == f"fits the reference without the term of shape {CODES} in add"


def test_a_factor_that_is_one_of_many_is_no_cause():
    """The term is a part of another operation, so that only factors fit."""

    def reference(x, factor=1.0):
        return torch.argmin(torch.maximum(factor * (x @ BOOK), 1e-3 * TERM), -1)

    def port(x):
        return reference(x, factor=1e6)

    assert "times" not in told(reference, port, {"x": X})


@pytest.mark.parametrize(("factor", "words"), [(D, "6"), (D**-0.5, "0.408248 = 1/sqrt(6)")])
def test_a_factor_that_the_choices_tell(factor, words):
    text = told(nearest, lambda x: nearest(x, factor=factor), {"x": X})
    assert text == f"fits the reference with the result of mm times {words}"


def test_a_change_of_the_code_goes_before_a_number():
    """Both give the same choices, and the product comes first in the code."""

    def reference(x, scale=1 / D):
        return (x @ BOOK * scale).gt(0.5)

    text = told(reference, lambda x: reference(x, scale=1.0), {"x": X})
    assert text == "fits the reference without the step times 0.166667"


def test_another_operation_goes_before_a_number():
    """A mean of four columns is the sum of a product by a quarter, in all bits."""
    weight = BOOK[:, :4]
    text = told(lambda x: (x @ weight).sum(-1), lambda x: (x @ weight).mean(-1), {"x": X})
    assert text == "fits the reference with mean in place of sum"


COUNTS = torch.arange(ROWS) % 3
HALF = "the term 0.5 in add"
SMALL = 0.9 * torch.rand(ROWS, D, generator=RNG, dtype=torch.float64)


@pytest.mark.parametrize(
    ("reference", "port", "arguments", "text"),
    [
        # As a term times 0 is.
        (lambda x, y: x + 0.5 * y, lambda x, y: x, {"x": X, "y": SMALL}, "the second term in add"),
        # As a bound is that nothing reaches.
        (lambda n: n.clamp(max=1), lambda n: n, {"n": COUNTS}, "clamp"),
        # As a term is that is rounded to 0.
        (
            lambda x, y: (x - y).argmin(-1),
            lambda x, y: x.argmin(-1),
            {"x": X, "y": SMALL},
            "the second term in sub",
        ),
        # As a result is that is rounded to an integer before.
        (lambda x: torch.floor(9 * x + 0.5).long(), lambda x: torch.floor(9 * x).long(), {"x": SMALL}, HALF),
    ],
)
def test_an_operation_that_is_left_out_goes_before_its_equals(reference, port, arguments, text):
    found = told(lambda **own: reference(**own), lambda **own: port(**own), arguments)
    assert found == f"fits the reference without {text}"


HISTORY = torch.arange(ROWS) % 4


@pytest.mark.parametrize(
    ("reference", "port", "text"),
    [
        (lambda ids: ids > 0, lambda ids: ids >= 0, "with >= in place of >"),
        (lambda ids: ids <= 2, lambda ids: ids < 2, "with < in place of <="),
        (lambda ids: torch.arange(ROWS) >= 9, lambda ids: torch.arange(ROWS) > 9, "with > in place of >="),
        # Shifted data alone fit.
        (lambda ids: ids % 3, lambda ids: (ids + 1) % 3, "with ids shifted by +1"),
    ],
)
def test_a_change_of_the_code_goes_before_shifted_data(reference, port, text):
    assert told(reference, port, {"ids": HISTORY}) == f"fits the reference {text}"


def test_a_number_goes_before_shifted_data():
    """Each row of the table is four times the one before, so that both give one result in all bits."""
    table = 4.0 ** torch.arange(5, dtype=torch.float64)[:, None] * X[0, :4]

    def reference(ids):
        return table[ids] @ BOOK[:4]

    text = told(reference, lambda ids: 4 * reference(ids), {"ids": HISTORY})
    assert text == "fits the reference with the result of mm times 4"


POSITIVE = torch.rand(D, CODES, generator=RNG, dtype=torch.float64)
SIGNS = torch.where(torch.rand(D, CODES, generator=RNG) < 0.5, 1.0, -1.0).double()
ONE_EACH = torch.eye(D, dtype=torch.float64)


@pytest.mark.parametrize(("least", "most"), [(0.2, 0.3), (0.55, 0.9)])
def test_a_factor_is_no_cause_where_its_double_or_its_half_gives_the_same(least, most):
    """The first numbers are above 1 times 6 and 12, the others times 3 and 6, and above 10 times 12."""
    weight = SIGNS * (least + (most - least) * POSITIVE)
    weight[0, 0] = most

    def reference(x, factor=1.0):
        product = factor * (x @ weight)
        return product.gt(1.0) & product.lt(10.0)

    text = told(reference, lambda x: reference(x, factor=6.0), {"x": ONE_EACH})
    assert "times" not in text


def test_a_factor_that_is_no_cause_does_not_end_the_search():
    weight = SIGNS * (2.0 + POSITIVE)

    def reference(x, scale=0.1):
        return (x @ weight * scale).gt(1.0)

    text = told(reference, lambda x: reference(x, scale=1.0), {"x": ONE_EACH})
    assert text == "fits the reference without the step times 0.1"


Y = torch.randn(CODES, D, generator=RNG, dtype=torch.float64)
PAIRS = {"x": X[:, None], "y": Y}
EXCHANGED, SMALLEST = "with the operands of sub exchanged", "with argmin in place of argmax"
SAME = ", which give the same result"


def scores(x, y):
    return torch.sinh(x - y).sum(-1)


@pytest.mark.parametrize("port", [lambda x, y: scores(x, y).argmin(-1), lambda x, y: scores(y, x).argmax(-1)])
def test_a_sign_that_is_lost_before_a_choice_has_no_one_place(port):
    """The choice does not tell where: in the difference, or in the choice itself."""
    text = told(lambda x, y: scores(x, y).argmax(-1), port, PAIRS)
    assert text == f"fits the reference {EXCHANGED} or {SMALLEST}{SAME}"


@pytest.mark.parametrize("port", [lambda x: (x @ BOOK).argmax(-1), lambda x: (-(x @ BOOK)).argmin(-1)])
def test_a_sign_that_is_left_out_before_a_choice_is_one_of_several_changes(port):
    text = told(lambda x: (-(x @ BOOK)).argmax(-1), port, {"x": X})
    assert text == f"fits the reference with x in place of -x or {SMALLEST}{SAME}"


def test_a_sign_that_numbers_show_has_one_place():
    text = told(lambda x, y: scores(x, y).amax(-1), lambda x, y: scores(y, x).amax(-1), PAIRS)
    assert text == f"fits the reference {EXCHANGED}"


def test_operations_in_the_same_words_are_named_once():
    text = told(
        lambda x: x.neg().neg().neg().matmul(BOOK).argmax(-1), lambda x: (x @ BOOK).argmax(-1), {"x": X}
    )
    assert text == f"fits the reference with x in place of -x or {SMALLEST}{SAME}"


@pytest.mark.parametrize(
    ("rows", "changes"),
    [
        (ROWS, "with x and y exchanged, with the operands of sub exchanged or with 2 other changes"),
        (1, f"{EXCHANGED}, with x in place of -x or {SMALLEST}"),
    ],
)
def test_of_many_changes_with_one_result_the_first_are_named(rows, changes):
    def reference(x, y):
        return torch.sinh(-(x - y)).argmax(-1)

    arguments = {"x": X, "y": X.flip(0)[:rows]}
    text = told(reference, lambda x, y: torch.sinh(x - y).argmax(-1), arguments)
    assert text == f"fits the reference {changes}{SAME}"


def test_changes_of_one_operation_with_one_result_are_one_cause():
    """No integer lies between 0 and 1."""
    text = told(lambda ids: ids > 0, lambda ids: ids >= 1 - 1, {"ids": HISTORY})
    assert text == "fits the reference with >= in place of >"
