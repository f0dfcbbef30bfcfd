"""Explanations by other tensors: a result of another name, and other calls of the module that fails."""

import contextlib
import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from parity.capture.arguments import Argument, Received
from parity.capture.captures import Capture, ModuleCall
from parity.verdict import explanation
from parity.verdict.distances import Distance
from parity.verdict.explanation import explain_alone, explain_tap
from parity.verdict.judgement import TapJudgement
from parity.verdict.port_choices import PortChoices
from tests.parity.comparisons import evidence_with
from tests.parity.verdict.test_explanation import (
    ALONE,
    FAIL,
    GATE,
    INSIDE,
    PASS,
    RESULTS,
    VALID,
    B,
    D,
    N,
    _judged,
    _tensor,
)


@pytest.fixture
def evidence():
    known = {"oracle": {"block": INSIDE}, "oracle_isolated": {"block": ALONE}}
    return evidence_with(reference=Capture(), valid={N: VALID}, batch_size=B, **known)


OTHER = _tensor(6)


@pytest.mark.parametrize(
    ("oracle", "port", "told"),
    [
        ({"earlier": OTHER}, OTHER, "earlier"),
        # Outputs of the entry come first, then the last result of the model.
        ({"earlier": OTHER, "later": OTHER}, OTHER, "later"),
        ({"score.out": OTHER, "later": OTHER}, OTHER, "score.out"),
        ({"short": OTHER[:, :3], "earlier": OTHER, "long": torch.ones(7)}, OTHER, "earlier"),
        ({"append:earlier": OTHER, "earlier@1": OTHER}, OTHER, "earlier@1"),
        ({"append:earlier": OTHER}, OTHER, ""),
        ({"earlier": OTHER}, _tensor(7), ""),
    ],
)
def test_another_result_of_the_model_in_the_place_of_the_right_one_is_named(evidence, oracle, port, told):
    evidence = dataclasses.replace(evidence, oracle={**oracle, "block": INSIDE})
    results = dataclasses.replace(RESULTS, tapped={"block": port.float()})
    texts = explain_tap(evidence, results, _judged(FAIL, None))
    assert [text for text in texts if "oracle's" in text] == [f"equals the oracle's {told}"] * bool(told)


def test_an_input_of_the_model_in_the_place_of_a_result_is_named(evidence):
    results = dataclasses.replace(RESULTS, tapped={"block": OTHER})
    rerun = SimpleNamespace(inputs=lambda: {"ids": GATE, "features": OTHER})
    for own, told in ((rerun, ["equals the input features"]), (None, [])):
        texts = explain_tap(dataclasses.replace(evidence, rerun=own), results, _judged(FAIL, None))
        assert [text for text in texts if text.startswith("equals")] == told


def test_an_argument_of_the_call_in_the_place_of_its_result_is_named(evidence):
    """It may be the result of another module."""
    call = ModuleCall("block", "block", "Block", [], {}, ("block",))
    arguments = tuple(
        Argument(name, 0, tensor=tensor) for name, tensor in (("x", "earlier"), ("y", "block(y)"))
    )
    capture = Capture(
        tensors={"earlier": OTHER, "block": ALONE},
        calls=[call],
        call_inputs={"block(y)": GATE},
        arguments={"block": Received("", 1, 1, arguments)},
        longest_sums={"block": 1},
    )
    known = dataclasses.replace(evidence, reference=capture)
    assert explain_alone(known, OTHER, _judged(PASS, FAIL)) == ("equals its argument x",)
    assert explain_alone(known, GATE, _judged(PASS, FAIL)) == ("equals its argument y",)
    capture.arguments.clear()
    assert "argument" not in "".join(explain_alone(known, GATE, _judged(PASS, FAIL)))


def test_integers_that_are_all_equal_are_no_other_result(evidence):
    ids = torch.arange(B * N).reshape(B, N) ** 2 % 17
    exact = dataclasses.replace(FAIL, limit=Distance(0.0, 0.0, 0.0))
    for other, told in ((ids % 5, True), (torch.full_like(ids, 3), False), (ids % 2, True)):
        known = dataclasses.replace(evidence, oracle={"earlier": other, "block": ids})
        results = dataclasses.replace(RESULTS, tapped={"block": other})
        texts = explain_tap(known, results, _judged(exact, None))
        assert ("equals the oracle's earlier" in texts) is told


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.int64])
def test_another_result_of_any_type_is_named(evidence, dtype):
    """A model may round inside the oracle, too."""
    other = (4 * OTHER).to(dtype)
    known = dataclasses.replace(evidence, oracle={"earlier": other, "block": INSIDE})
    results = dataclasses.replace(RESULTS, tapped={"block": other.float()})
    assert "equals the oracle's earlier" in explain_tap(known, results, _judged(FAIL, None))


def test_a_result_without_its_rounding_is_not_named_after_itself(evidence):
    """The reference's is right where it only moves rounded numbers; the oracle's own is not."""
    verdict = dataclasses.replace(FAIL, bound=dataclasses.replace(FAIL.bound, longest_sum=0))
    rounded = Capture(tensors={"block": INSIDE.bfloat16()})
    results = dataclasses.replace(RESULTS, tapped={"block": INSIDE})
    for oracle, told in (({"block": INSIDE}, ()), ({"earlier": INSIDE, "block": INSIDE}, ("earlier",))):
        known = dataclasses.replace(evidence, reference=rounded, oracle=oracle)
        texts = explain_tap(known, results, _judged(verdict, None))
        assert [text for text in texts if "oracle's" in text] == [
            f"equals the oracle's {tap}" for tap in told
        ]


def test_another_result_of_the_same_call_alone_is_named(evidence):
    call = ModuleCall("block", "block", "Block", [], {}, ("block", "block[1]"))
    capture = Capture(calls=[call], longest_sums={"block": 1})
    alone = {"block": ALONE, "block[1]": OTHER, "head": OTHER}
    known = dataclasses.replace(evidence, reference=capture, oracle_isolated=alone)
    assert explain_alone(known, OTHER, _judged(PASS, FAIL)) == ("equals the oracle's block[1]",)
    assert "oracle's" not in "".join(explain_alone(known, _tensor(8), _judged(PASS, FAIL)))
    # A result that the oracle does not have says nothing.
    missing = dataclasses.replace(known, oracle_isolated={"block": ALONE})
    assert "oracle's" not in "".join(explain_alone(missing, OTHER, _judged(PASS, FAIL)))
    unknown = dataclasses.replace(evidence, oracle_isolated=alone)
    assert "oracle's" not in "".join(explain_alone(unknown, OTHER, _judged(PASS, FAIL)))


def test_a_cause_holds_in_the_last_other_calls_of_the_same_result(evidence, monkeypatch):
    """Right ones count as well; other results, and calls without numbers or without a run, do not."""
    taps = ["block", *(f"block@{number}" for number in range(1, 8)), "block@1[1]", "head"]
    calls = [ModuleCall(tap, tap, "Block", [], {}, (tap,)) for tap in taps if tap != "block@6"]
    choices = {tap: PortChoices({}, {}, {}) for tap in ("block", "block@7")}
    known = dataclasses.replace(
        evidence,
        reference=Capture(calls=calls, longest_sums=dict.fromkeys(taps, 1)),
        oracle_isolated={tap: ALONE + place for place, tap in enumerate(taps)},
        choices_isolated=choices,
        boundary={"block@4": np.arange(B * N * D).reshape(B, N, D) == 2},
        rerun=SimpleNamespace(
            running=[],
            inputs=dict,
            call=lambda call, inputs: dict.fromkeys(call.outputs, ALONE),
            weights_exchanged=lambda path: {},
        ),
    )
    ports = {tap: 2 * ALONE + place for place, tap in enumerate(taps) if tap != "block@5"}
    judged = [
        TapJudgement(
            tap, tap, "Block", PASS, None if tap == "block@2" else PASS if tap == "block@4" else FAIL
        )
        for tap in taps
    ]
    seen = []

    def cause(program, failed, others):
        assert program.choices is choices["block"]
        assert float(program.run({})[0, 0, 0]) == float(ALONE[0, 0, 0])
        seen.extend(others)
        return "fits"

    monkeypatch.setattr(explanation, "cause", cause)
    results = dataclasses.replace(RESULTS, isolated=ports)
    assert explain_tap(known, results, judged[0], judged)[0] == "fits"
    # The last four are 4 to 7, of which 5 has no result and 6 no run.
    for number, other in zip((4, 7), seen, strict=True):
        assert other.program.choices is choices.get(f"block@{number}")
        assert other.result.port.tolist() == ports[f"block@{number}"].tolist()
        assert other.result.oracle.tolist() == known.oracle_isolated[f"block@{number}"].tolist()
        assert other.program.run({}).tolist() == ALONE.tolist()
        # Each call has its own elements at a discontinuity.
        assert other.result.counted[0, 0].tolist() == [True, True, number != 4, True]


def test_a_cause_holds_in_other_results_of_the_call_and_changes_no_right_module(evidence, monkeypatch):
    """The module itself has a right result, and is no right module."""
    call = ModuleCall("block", "block", "Block", [], {}, ("block", "block[1]"))
    exchanged, of_call = [], PortChoices({}, {}, {})

    @contextlib.contextmanager
    def exchange():
        exchanged.append("begun")
        yield
        exchanged.append("ended")

    def call_again(call, inputs):
        exchanged.append("run")
        return {"block": ALONE, "block[1]": OTHER}

    rerun = SimpleNamespace(
        running=[],
        inputs=dict,
        call=call_again,
        weights_exchanged=lambda path: {f"with weights of {path} exchanged": exchange},
    )
    known = dataclasses.replace(
        evidence,
        reference=Capture(calls=[call], longest_sums={"block": 1}),
        oracle_isolated={"block": ALONE, "block[1]": OTHER},
        choices_isolated={"block": of_call},
        rerun=rerun,
    )
    own = TapJudgement("block", "block", "Block", PASS, FAIL)
    right = TapJudgement("block[1]", "block", "Block", PASS, PASS)
    inside = TapJudgement("block.inside", "block.inside", "Inside", PASS, PASS)
    wrong = TapJudgement("block.wrong", "block.wrong", "Inside", PASS, FAIL)
    seen = []

    def cause(program, failed, others):
        for rerun.running[:] in (["block"], ["block", "block.wrong"], ["block", "block.inside"]):
            seen.append(program.is_changeable())
            assert all(other.program.is_changeable() is seen[-1] for other in others)
        (other,) = others
        assert other.program.run({}).tolist() == other.result.oracle.tolist() == OTHER.tolist()
        exchanged.clear()
        for own, result in ((program.exchanged, ALONE), (other.program.exchanged, OTHER)):
            (changed,) = own.values()
            assert list(own) == ["with weights of block exchanged"]
            assert changed({}).tolist() == result.tolist()
        assert exchanged == ["begun", "run", "ended"] * 2
        return "fits"

    monkeypatch.setattr(explanation, "cause", cause)
    results = dataclasses.replace(RESULTS, isolated={"block": 2 * ALONE, "block[1]": OTHER})
    assert explain_tap(known, results, own, [own, right, inside, wrong])[0] == "fits"
    assert seen == [True, True, False]
