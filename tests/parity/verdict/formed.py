"""A model whose block makes one call, which the port may make in another form, for tests of forms."""

from types import SimpleNamespace

from parity.base.precision import PRECISIONS
from parity.verdict.bound import bound_for
from parity.verdict.judgement import MODEL_OUTPUT, TapJudgement
from parity.verdict.rule import failure
from tests.parity.comparisons import OUTPUT, TENSORS, B, N, evidence_with, normal, results_with
from tests.parity.verdict.received_calls import capture

WRONG = failure("wrong", bound_for(PRECISIONS["fp32"], 1))
RIGHT = SimpleNamespace(passed=True, min_detectable_error=1e-3)
X, BIAS = normal(7, B, N, N), TENSORS["bias"]
TURNED = "they have their axes in another order"
SCALED = "they are times a factor"


def sides(x, bias, **changes):
    """The evidence and results of a model whose block calls "bias" with `x`, on both sides."""
    evidence = evidence_with(oracle_received=capture(("bias", {"x": X.double()})), **changes)
    own = capture(("bias", {"x": X}))
    evidence.reference.arguments, evidence.reference.call_inputs = own.arguments, own.call_inputs
    results = results_with(received=capture(("bias", {"x": x})))
    for part in (results.tapped, results.poisoned):
        part["bias"] = bias
    return evidence, results


def judgements(wrong=("bias",), alone=()):
    """Taps with the wrong ones inside the model, and those that are wrong alone."""
    return [
        TapJudgement(
            tap,
            tap.removeprefix("append:"),
            MODEL_OUTPUT if tap == OUTPUT else "Module",
            WRONG if tap in wrong else RIGHT,
            WRONG if tap in alone else None,
        )
        for tap in TENSORS
    ]


def turned(tensor):
    """A tensor with its last two axes exchanged."""
    return tensor.transpose(1, 2)
