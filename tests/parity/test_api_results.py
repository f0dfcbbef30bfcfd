"""`parity.compare` on ports whose modules nest their results otherwise, or return some of them alone."""

import nvtripy as tp
import pytest
import torch

import parity
from parity.capture.arguments import Received
from parity.capture.captures import Capture, ModuleCall
from parity.verdict.calls import spare_result
from parity.verdict.evidence import Results
from parity.verdict.result_names import MOST_RESULTS, with_reference_names
from tests.parity.comparisons import evidence_with
from tests.parity.live_models import modules

X = torch.randn(24, 6, 5, generator=torch.Generator().manual_seed(1))


class Halves(torch.nn.Module):
    """Two results of one shape in a dictionary, and their sum over the steps."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(5, 8)

    def forward(self, x):
        left, right = self.layer(x).chunk(2, -1)
        return {"left": left, "right": right}, (left + right).sum(1)


class Model(torch.nn.Module):
    uses_sum = False

    def __init__(self):
        super().__init__()
        self.halves = Halves()
        self.mix = Mix()

    def forward(self, x):
        halves, total = self.halves(x)
        result = self.mix(**halves)
        return result + torch.tanh(total)[:, None] if self.uses_sum else result


class Summing(Model):
    uses_sum = True


class Mix(torch.nn.Module):
    def forward(self, left, right):
        return left * torch.tanh(right)


class HalvesPort(tp.Module):
    def __init__(self, dtype, form):
        super().__init__()
        self.form = form
        self.layer = tp.Linear(5, 8, dtype=dtype)

    def forward(self, x):
        left, right = tp.split(self.layer(x), 2, dim=2)
        if self.form == "turned":
            return right, left
        if self.form == "wrong":
            return left, right * 1.5
        if self.form == "more":
            return left, right, tp.sum(left + right, dim=1), tp.sum(x, dim=2)
        return left, right


class MixPort(tp.Module):
    def forward(self, left, right):
        return left * tp.tanh(right)


class ModelPort(tp.Module):
    def __init__(self, dtype, form="", fault=False):
        super().__init__()
        self.fault = fault
        self.form = form
        self.halves = HalvesPort(dtype, form)
        self.mix = MixPort()

    def forward(self, x):
        left, right = self.halves(x)[:2]
        if self.form == "turned":
            left, right = right, left
        return self.mix(left, right + 1.0 if self.fault else right)


def judged(reference=Model, **port):
    return parity.compare(reference(), lambda dtype: ModelPort(dtype, **port), {"x": X}, ("fp32",))


def test_results_pair_by_order_and_shape_and_one_that_nothing_reads_is_a_note():
    result = judged()
    assert result.passed, result
    found = modules(result)
    assert [found[f"halves[0][{side}]"].status for side in ("left", "right")] == ["PASS", "PASS"]
    assert (found["halves[1]"].status, found["halves[1]"].gap) == (
        "GAP",
        "the reference alone returns its result [1]",
    )


def test_a_result_of_the_port_alone_is_a_note():
    result = judged(form="more")
    assert result.passed, result
    found = modules(result)
    assert [found[tap].status for tap in ("halves[0][left]", "halves[0][right]", "halves[1]")] == ["PASS"] * 3
    assert found["halves[3]"].gap == "the port alone returns its result [3]"


@pytest.mark.parametrize(
    ("port", "place"),
    [
        ({"form": "turned"}, "FAIL at halves[0][left]"),
        ({"form": "wrong"}, "FAIL at halves[0][right]"),
        # A result that is left out hides no later fault, and is none.
        ({"fault": True}, "FAIL at mix"),
        ({"reference": Summing}, "FAIL at forward.output"),
    ],
)
def test_results_of_other_names_hide_no_fault(port, place):
    assert place in str(judged(**port))


def _renamed(ours, theirs, part="tapped", **more):
    """The port's results of one call under the reference's names, with the shapes of both sides."""
    reference = Capture(tensors={tap: torch.zeros(shape) for tap, shape in theirs.items()})
    reference.calls = [ModuleCall("block", "block", "Block", [], {}, tuple(theirs))]
    reference.longest_sums, reference.longest_sums_before = {"block": 1}, dict.fromkeys(theirs, 1)
    evidence = evidence_with(reference=reference, oracle={}, oracle_isolated={})
    results = Results({}, **{part: {tap: torch.zeros(shape) for tap, shape in ours.items()}}, **more)
    return with_reference_names(evidence, results)


LONG, SHORT = (4, 6, 5), (4, 5)
STATES = {"block[0]": LONG, "block[1]": (1, *SHORT)}


@pytest.mark.parametrize(
    ("ours", "theirs", "names"),
    [
        ({"block": LONG}, STATES, ["block[0]"]),
        ({"block": SHORT}, {"block[0]": LONG, "block[1]": (4, 1, 5)}, ["block[1]"]),
        (STATES, {"block": LONG}, ["block", "block[1]"]),
        # Names of both sides stay.
        ({"block[1]": LONG}, STATES, ["block[1]"]),
        ({"block": SHORT}, {"block": LONG}, ["block"]),
        # Two choices, no choice, and too many of them.
        ({"block": LONG}, {"block[0]": LONG, "block[1]": LONG}, ["block"]),
        ({"block": (4, 7)}, STATES, ["block"]),
        (
            {"block": (MOST_RESULTS, 3)},
            {f"block[{n}]": (n + 1, 3) for n in range(MOST_RESULTS)},
            ["block[7]"],
        ),
        ({"block": (4, 3)}, {f"block[{n}]": (n, 3) for n in range(MOST_RESULTS + 1)}, ["block"]),
        # As many on both sides have one choice.
        (
            {f"block[{n}]": (n, 3) for n in range(MOST_RESULTS + 1)},
            {f"block[part{n}]": (n, 3) for n in range(MOST_RESULTS + 1)},
            [f"block[part{n}]" for n in range(MOST_RESULTS + 1)],
        ),
        # No two results take one name.
        (
            {"block[0]": SHORT, "block[1]": LONG, "block[2]": (4, 7)},
            {"block[0]": LONG, "block[2][a]": (4, 7)},
            ["block[0]", "block[1]", "block[2]"],
        ),
    ],
)
@pytest.mark.parametrize("part", ["tapped", "isolated"])
def test_names_of_results(ours, theirs, names, part):
    assert list(getattr(_renamed(ours, theirs, part), part)) == names


def test_calls_with_results_of_other_names_keep_their_arguments():
    received = Capture()
    received.arguments = {call: Received("", 0, 0, ()) for call in ("block", "head", "head@1")}
    results = _renamed({"block": LONG}, STATES, received=received)
    assert list(results.tapped) == ["block[0]"]
    assert list(results.received.arguments) == ["block", "head", "head@1"]


def test_a_call_without_a_common_result_has_no_spare_one():
    evidence = evidence_with(absence=lambda path, kind: "stated")
    tensors = dict(evidence.reference.tensors)
    first, *others = evidence.kinds
    assert spare_result(evidence, Results({}, tensors), first, "Block") == ""
    without = {tap: tensor for tap, tensor in tensors.items() if tap != first}
    assert others
    assert spare_result(evidence, Results({}, without), first, "Block") == ""
