"""Models that choose, with stand-ins for the runs of oracle and reference."""

from dataclasses import replace

import torch

from parity.base.precision import PRECISIONS
from parity.capture.captures import Capture, ModuleCall
from parity.runners.oracle.choices import Choices, DifferentChoices
from parity.runners.oracle.replays import Replay
from parity.verdict.evidence import Evidence, Results
from tests.parity.verdict.choices.searches import measure

BF16 = PRECISIONS["bf16"]
TINY = 1e-9
"""Error of every number: what rounding explains is the floor, 2 * 2**-8 of a number in one module."""
SCORES = torch.tensor([[1.0, 0.999, 0.0], [1.0, 0.5, 0.0], [0.0, 1.0, 0.999]], dtype=torch.float64)
"""The first two items of rows 0 and 2 are a tie, those of row 1 are none."""
VALUES = torch.tensor([1.5, 2.5, 3.5], dtype=torch.float64)
"""Of items. No whole numbers: those would show the choice."""
OWN, PORT, EXPLAINED = [0, 0, 1], [1, 1, 2], [1, 0, 2]
"""Best items of the oracle, of the port, and of the port as far as rounding explains them."""


def ranked(x):
    """A model with a result that shows its choice, and one that does not."""
    best = x.argmax(-1)
    return {"rank": best, "pick": VALUES[best]}


def hidden(x):
    """A model whose choice no integer shows."""
    return {"pick": VALUES[x.argmax(-1)]}


class Runs:
    """Stands in for `Replays`: runs a function, and notes how it was asked to.

    Args:
        models: By tap of a call alone, and "" for the whole model: the function of its numbers.
        numbers: The numbers.
        lost: Whether a prescribed choice leads to others.
    """

    def __init__(self, models, numbers=SCORES, lost=False):
        self.models, self.numbers, self.lost = models, numbers, lost
        self.asked = []
        self.inputs = None

    def whole(self, prescribed, sampled):
        return self._run("", prescribed, sampled)

    def call(self, call, inputs, prescribed, sampled):
        self.inputs = inputs
        return self._run(call.tap, prescribed, sampled)

    def _run(self, tap, prescribed, sampled):
        assert sampled is True or sampled is False
        self.asked.append((tap, {k: mask.tolist() for k, (_, mask) in prescribed.items()}, sampled))
        if self.lost and prescribed:
            raise DifferentChoices
        with Choices(prescribed) as recorded:
            results = self.models[tap](self.numbers.clone())
        if not sampled:
            return Replay(recorded, results, {})
        for choice in filter(None, recorded.choices):
            measure(choice, TINY)
        near = {k: tensor + 0.25 if tensor.is_floating_point() else tensor for k, tensor in results.items()}
        again = Capture(tensors=near, arguments={"again": "received"}, call_inputs={"again": VALUES})
        return Replay(recorded, results, near, Capture(arguments={"oracle": "received"}), again)


def call_of(path):
    return ModuleCall(path, path, path.title(), [], {}, (path,))


def evidence_of(tensors, runs, order=("rank",), sums=8, before=8, **fields):
    """The evidence of a model whose reference and oracle have these tensors."""
    reference = Capture(
        tensors=dict(tensors),
        calls=[call_of(path) for path in order],
        call_inputs={"own": VALUES},
        arguments={"own": "received"},
        longest_sums=dict.fromkeys(order, 8) | {"rank": sums},
        longest_sums_before=dict.fromkeys(order, before),
    )
    options = {"oracle": dict(tensors), "oracle_isolated": {}, **fields}
    return Evidence(
        BF16,
        "score",
        reference,
        options.pop("oracle"),
        options.pop("oracle_isolated"),
        {},
        {},
        {},
        3,
        replays=runs,
        **options,
    )


def silent(evidence):
    """The evidence of a recorded run without calls."""
    return replace(evidence, reference=Capture())


def natural(model=ranked, numbers=SCORES):
    return model(numbers)


def results_of(model=ranked, best=PORT, **results):
    """The port's results under choices of its own."""
    scores = torch.nn.functional.one_hot(torch.tensor(best), 3).double()
    return Results(**{"untapped": {}, "tapped": model(scores), **results})


def masks(*prescribed):
    return [{number: mask.tolist() for number, (_, mask) in own.items()} for own in prescribed]


def lists(tensors):
    return {tap: tensor.tolist() for tap, tensor in tensors.items()}
