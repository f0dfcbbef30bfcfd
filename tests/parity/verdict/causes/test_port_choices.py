"""Causes where the port chooses otherwise than the oracle, within rounding."""

import numpy as np
import pytest
import torch

from parity.runners.oracle.choices import Choices
from parity.verdict.causes import OtherResult, Program, cause
from parity.verdict.choices.admissible import limits
from parity.verdict.distances import Distance
from parity.verdict.patterns import FailedTensor
from parity.verdict.port_choices import PortChoices
from tests.parity.verdict.choices.searches import BOUND, measure

ROWS, N, D = 24, 10, 5
RNG = torch.Generator().manual_seed(3)
X = torch.randn(ROWS, D, generator=RNG, dtype=torch.float64)
ITEMS = torch.randn(N, D, generator=RNG, dtype=torch.float64)
ITEMS[1] = ITEMS[0] + 1e-3
"""The first two items are a tie in every row."""
WEIGHTS = torch.tensor([0.3, 0.2, 0.1], dtype=torch.float64)
NOISE = 5e-3 * torch.randn(ROWS, N, generator=RNG, dtype=torch.float64)


def model(x, noise=0.0, term=0.3, factor=1.0, unused=None):
    """The best items, and what follows from them; it does not read the last argument."""
    scores = factor * (x @ ITEMS.T) + noise
    index = scores.topk(3, -1).indices
    return {"index": index, "y": torch.tanh(WEIGHTS @ ITEMS[index]) + term}


def compared(x, noise=0.0, power=1):
    """Indices of the best differences from zeros: without the product, all scores are equal."""
    scores = (x @ ITEMS.T) ** power - torch.zeros(ROWS, N, dtype=torch.float64) + noise
    return {"index": scores.topk(3, -1).indices}


def explained(result, choices=True, model=model, others=(), prescribe=(), noise=NOISE, more=None, **port):
    """The cause for one result of a port whose scores have noise.

    Args:
        result: Its name.
        choices: Whether the search knows the port's choices.
        model: The reference, and the port with `port` as options.
        others: Other results, in which it has to hold.
        prescribe: Rows whose choice is the port's in the verdict, too.
        noise: Of the scores.
        more: Arguments that the model does not read.
    """
    own = model(X, noise, **port)
    taken = torch.zeros(ROWS, 3, dtype=torch.bool)
    taken[list(prescribe)] = True
    with Choices({0: (own["index"], taken)}) as recorded:
        oracle = model(X)
    measure(recorded.choices[0])
    shown = {0: (own["index"], torch.ones_like(taken))}
    choice = recorded.choices[0]
    known = PortChoices({0: (own["index"], taken)}, shown, {0: (choice.sizes[0], limits(choice, BOUND)[0])})

    def failed(name):
        limit = Distance(*[1e-9 if name == "y" else 0.0] * 3)
        both = (tensor[name].double().numpy() for tensor in (oracle, own))
        axes = ("rows", "columns")
        return FailedTensor(*both, np.ones(oracle[name].shape, bool), limit, axes, own[name].dtype)

    def program(name, more):
        return Program(
            lambda arguments: model(**arguments)[name],
            {"x": X, **(more or {})},
            choices=known if choices else None,
        )

    beside = [OtherResult(program(name, None), failed(name)) for name in others]
    return cause(program(result, more), failed(result), beside)


def test_a_change_that_allows_any_choice_is_no_cause():
    """Of equal scores, the port's choices are always the best ones."""
    assert not torch.equal(compared(X, power=2)["index"], compared(X)["index"])
    text = explained("index", model=compared, power=2, noise=0.0)
    assert text == "fits the reference with the constant 2 in place of 1 in pow"


TERM = "fits the reference without the term 0.3 in add"


def test_a_result_behind_a_choice_of_the_port_has_its_cause():
    other = model(X, NOISE)["index"]
    assert not torch.equal(other, model(X)["index"])
    assert explained("y", term=0.0) == TERM
    assert explained("y", term=0.0, choices=False) == ""


def test_a_choice_itself_has_its_cause():
    assert explained("index", factor=-1.0, choices=False) == ""
    sign = "with the other sign of 1 in mul or with largest False in place of True in topk"
    assert explained("index", factor=-1.0) == f"fits the reference {sign}, which give the same result"


def test_the_oracle_of_the_verdict_has_choices_of_the_port():
    assert explained("y", term=0.0, prescribe=range(ROWS)) == TERM
    assert explained("y", term=0.0, prescribe=range(ROWS // 2)) == TERM
    assert explained("y", term=0.0, prescribe=range(ROWS), choices=False) == ""


def test_a_cause_holds_in_other_results_under_the_ports_choices():
    assert explained("y", term=0.0, others=["index"]) == TERM


@pytest.mark.parametrize("result", ["y", "index"])
def test_choices_alone_are_no_cause(result):
    """Rounding explains them, whatever the verdict took: no change of the program is needed."""
    assert not torch.equal(model(X, NOISE)[result], model(X)[result])
    assert explained(result) == ""
    # Nor are they with a change that changes nothing.
    assert explained(result, more={"unused": torch.arange(3)}) == ""


def test_a_port_with_another_error_has_no_cause():
    assert explained("y", term=0.3 + 0.01 * torch.sin(1e3 * X)) == ""


def test_choices_beyond_rounding_are_not_taken():
    assert explained("index", factor=-1.0, noise=100 * NOISE) == ""
