"""Choices with known errors, and a search among them, without runs of a model."""

import torch

from parity.runners.oracle.choice import Choice
from parity.runners.oracle.choices import Choices
from parity.runners.oracle.replays import Replay
from parity.verdict.bound import Bound
from parity.verdict.choices.admissible import limits
from parity.verdict.choices.search import search
from parity.verdict.port_choices import PortChoices

BOUND = Bound(k=2.0, floor=0.0, longest_sum=4, unit_roundoff=2**-8)
ERROR = 0.01
"""Error of the reference and of all samples: the limit of a number is 0.088."""


def measure(choice: Choice, error: float = ERROR) -> None:
    """Give all numbers of a choice one error, in the reference and in 32 samples."""
    choice.samples = 32
    choice.squares = [torch.full_like(tensor, 32 * error**2) for tensor in choice.numbers]
    choice.reference = [tensor + error for tensor in choice.numbers]


def shown_choices(
    model, values: torch.Tensor, numbers: torch.Tensor, number: int, mask: torch.Tensor, taken: torch.Tensor
) -> PortChoices:
    """The port's choices in a model.

    Args:
        model: Runs on the numbers.
        values: The port's choice.
        numbers: The numbers.
        number: That of the choice in the model.
        mask: Elements of the choice that results show.
        taken: Elements that the verdict takes.
    """
    with Choices() as recorded:
        model(numbers)
    choice = recorded.choices[number]
    measure(choice)
    known = choice.sizes[0], limits(choice, BOUND)[0]
    return PortChoices({number: (values, taken)}, {number: (values, mask)}, {number: known})


class Search:
    """A search in a model, with the number of its runs and the results under the choices that it took."""

    def __init__(self, model, numbers, port, rows, prescribed=None):
        self.model, self.numbers = model, numbers
        self.runs = 0
        replay = self._run(prescribed or {})
        self.taken = search(self._results, replay, prescribed or {}, port, BOUND, rows)
        self.results = self._run(self.taken).oracle

    def _results(self, prescribed):
        self.runs += 1
        return self._run(prescribed).oracle

    def _run(self, prescribed):
        with Choices(prescribed) as recorded:
            results = self.model(self.numbers.clone())
        for choice in filter(None, recorded.choices):
            measure(choice)
        return Replay(recorded, results, results)
