"""Explanations: the tensors behind a diagnosis, the limit of their verdict, the reach of a leak."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from parity.base.precision import PRECISIONS
from parity.capture.captures import Capture, ModuleCall, TensorKey
from parity.verdict.distances import Distance
from parity.verdict.evidence import Evidence, Results
from parity.verdict.explanation import NO_CAUSE, explain_alone, explain_tap
from parity.verdict.judgement import TapJudgement
from parity.verdict.rule import failure
from tests.parity.judgements import BOUND, verdict

B, N, D = 3, 5, 4
LENGTHS = np.array([5, 3, 1])
VALID = np.arange(N) < LENGTHS[:, None]
PASS = verdict()
LIMIT = 1e-3
FAIL = dataclasses.replace(verdict(2.0), limit=Distance(LIMIT, LIMIT, LIMIT))


def _tensor(seed):
    return torch.randn(B, N, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


INSIDE, ALONE, GATE = _tensor(1), _tensor(2), _tensor(5)


@pytest.fixture
def evidence():
    return Evidence(
        precision=PRECISIONS["fp32"],
        entry="score",
        reference=Capture(),
        oracle={"block": INSIDE},
        oracle_isolated={"block": ALONE},
        reference_incremental={},
        incremental_outputs={},
        valid={N: VALID},
        batch_size=B,
    )


def _judged(accumulated, isolated):
    return TapJudgement.of("block", "block", "Block", accumulated, isolated)


RESULTS = Results(
    untapped={}, tapped={"block": (2 * INSIDE).float()}, isolated={"block": (3 * ALONE).float()}
)


def test_the_result_that_fails_is_explained(evidence):
    assert explain_tap(evidence, RESULTS, _judged(FAIL, PASS)) == ("equals the oracle times 2",)
    assert explain_tap(evidence, RESULTS, _judged(FAIL, None)) == ("equals the oracle times 2",)
    assert explain_tap(evidence, RESULTS, _judged(FAIL, FAIL)) == ("equals the oracle times 3",)
    assert explain_tap(evidence, RESULTS, _judged(PASS, FAIL)) == ("equals the oracle times 3",)
    # The shipped model is untapped, so its output is explained.
    shipped = dataclasses.replace(RESULTS, untapped={"block": (-1 * INSIDE).float()})
    assert explain_tap(evidence, shipped, _judged(FAIL, None)) == ("equals the oracle times -1",)


def test_a_result_of_a_module_alone_is_explained(evidence):
    port = 2 * ALONE
    assert explain_alone(evidence, port, _judged(PASS, FAIL)) == ("equals the oracle times 2",)
    assert explain_alone(evidence, 2 * INSIDE, _judged(FAIL, None)) == ("equals the oracle times 2",)
    assert explain_alone(evidence, None, _judged(PASS, FAIL)) == ()


def _rerun(call):
    """An oracle that runs a call alone again."""
    return SimpleNamespace(call=call, running=[], inputs=dict, weights_exchanged=lambda path: {})


def _with_oracle(evidence, x):
    """The evidence on a block that is a gated GELU, with an oracle that can run again."""
    call = ModuleCall("block", "block", "Block", [TensorKey("x")], {"gate": TensorKey("u")}, ("block",))
    capture = Capture(calls=[call], call_inputs={"x": x, "u": GATE}, longest_sums={"block": 1})

    def call_again(present, inputs):
        assert present is call
        return {"block": F.gelu(inputs["x"]) * inputs["u"]}

    return dataclasses.replace(
        evidence, reference=capture, oracle_isolated={"block": F.gelu(x) * GATE}, rerun=_rerun(call_again)
    )


def test_a_cause_comes_first_and_needs_an_oracle_that_can_run_again(evidence):
    x = _tensor(3)
    narrow = dataclasses.replace(FAIL, limit=Distance(1e-9, 1e-9, 1e-9))
    known = _with_oracle(evidence, x)
    port = F.gelu(x, approximate="tanh") * GATE
    judged = _judged(PASS, narrow)
    assert explain_alone(known, port, judged)[0] == "fits the reference with GELU by tanh in place of erf"
    for unknown in (
        dataclasses.replace(known, rerun=None),
        # A module with another result in its second run.
        dataclasses.replace(
            known,
            rerun=_rerun(lambda call, inputs: {"block": F.gelu(inputs["x"]) * inputs["u"] + 1e-12}),
        ),
    ):
        assert not any(text.startswith("fits") for text in explain_alone(unknown, port, judged))
    noisy = F.gelu(x) * GATE + 1e-4 * _tensor(4)
    assert not any(text.startswith("fits") for text in explain_alone(known, noisy, judged))
    assert explain_alone(known, port, _judged(FAIL, PASS)) == ()
    rounded = F.gelu(x) * GATE.half().double()
    assert explain_alone(known, rounded, judged)[0] == "fits the reference with kwargs.gate as float16"


def test_a_search_that_raises_costs_the_cause_and_not_the_verdict(evidence):
    def broken(call, inputs):
        raise ValueError("28 is not in list")

    known = dataclasses.replace(_with_oracle(evidence, _tensor(3)), rerun=_rerun(broken))
    told, pattern = explain_alone(known, 2 * known.oracle_isolated["block"], _judged(PASS, FAIL))
    assert told.startswith(f"{NO_CAUSE}ValueError: 28 is not in list")
    assert pattern == "equals the oracle times 2"


def test_a_cause_leaves_out_discontinuities(evidence):
    x = _tensor(3)
    narrow = dataclasses.replace(FAIL, limit=Distance(1e-9, 1e-9, 1e-9))
    known, port = _with_oracle(evidence, x), F.gelu(x, approximate="tanh") * GATE
    port[0, 1, 2] += 1.0
    boundary = np.zeros((B, N, D), bool)
    assert not explain_alone(known, port, _judged(PASS, narrow))[0].startswith("fits")
    boundary[0, 1, 2] = True
    known = dataclasses.replace(known, boundary={"block": boundary})
    assert explain_alone(known, port, _judged(PASS, narrow))[0].startswith("fits the reference with GELU")


def test_without_tensors_or_limits_there_is_no_explanation(evidence):
    without = dataclasses.replace(RESULTS, tapped={}, isolated={})
    assert explain_tap(evidence, without, _judged(FAIL, None)) == ()
    assert explain_tap(evidence, without, _judged(PASS, FAIL)) == ()
    unknown = failure("missing", BOUND)
    assert explain_tap(evidence, RESULTS, _judged(unknown, None)) == ()
    assert explain_alone(evidence, 2 * ALONE, _judged(FAIL, PASS)) == ()
    assert explain_alone(evidence, 2 * ALONE, _judged(None, None)) == ()
    no_oracle = dataclasses.replace(evidence, oracle={})
    assert explain_tap(no_oracle, RESULTS, _judged(FAIL, None)) == ()


@pytest.mark.parametrize(("share", "is_explained"), [(0.9, True), (1.1, False)])
def test_a_pattern_explains_within_the_limit_of_the_verdict(evidence, share, is_explained):
    """Port = 2 (oracle + error), the error of one element in the norm of the largest."""
    port = INSIDE.clone() * 2
    place = (0, 0, 0)
    port[place] += share * LIMIT * 2 * float(INSIDE[torch.from_numpy(VALID)].abs().max())
    limits = Distance(np.inf, LIMIT, np.inf)
    failed = dataclasses.replace(FAIL, limit=limits)
    results = dataclasses.replace(RESULTS, tapped={"block": port})
    texts = explain_tap(evidence, results, _judged(failed, None))
    assert [text.split(", ")[-1] for text in texts] == ["which is 2 to round-off"] * is_explained


def test_axes_and_types_have_their_names(evidence):
    shifted = dataclasses.replace(RESULTS, tapped={"block": INSIDE.roll(1, 1)})
    assert explain_tap(evidence, shifted, _judged(FAIL, None)) == (
        "equals the oracle shifted by +1 along the sequence (axis 1)",
    )
    rounded = dataclasses.replace(RESULTS, tapped={"block": INSIDE.bfloat16().float()})
    exact = dataclasses.replace(FAIL, limit=Distance(1e-6, 1e-6, 1e-6))
    assert explain_tap(evidence, rounded, _judged(exact, None)) == (
        "holds only bfloat16 values: rounded to bfloat16 on the way",
    )


def test_padding_and_discontinuities_do_not_count(evidence):
    port = 2 * INSIDE
    port[~torch.from_numpy(VALID)] = 77.0
    port[0, 0, 0] = -5.0
    boundary = np.zeros((B, N, D), bool)
    boundary[0, 0, 0] = True
    evidence.boundary = {"block": boundary}
    results = dataclasses.replace(RESULTS, tapped={"block": port})
    assert explain_tap(evidence, results, _judged(FAIL, None)) == ("equals the oracle times 2",)
    evidence.oracle_isolated = {"block": INSIDE}
    for judged in (_judged(FAIL, None), _judged(PASS, FAIL)):
        assert explain_alone(evidence, port, judged) == ("equals the oracle times 2",)


@pytest.mark.parametrize(
    ("dtype", "values"),
    [(torch.uint8, [20, 30, 90]), (torch.bfloat16, [1.5, -2.0, 3.0])],
    ids=["bytes", "bfloat16"],
)
def test_every_type_is_explained_in_float64(evidence, dtype, values):
    oracle = torch.tensor(values, dtype=torch.uint8 if dtype is torch.uint8 else torch.float64)
    evidence.oracle = {"block": oracle}
    results = dataclasses.replace(RESULTS, tapped={"block": (2 * oracle.double()).to(dtype)})
    assert explain_tap(evidence, results, _judged(FAIL, None)) == ("equals the oracle times 2",)


# Padding leaks


def _leak(evidence, places, clean=None, shape=(B, N, D)):
    clean = torch.zeros(shape) if clean is None else clean
    poisoned = clean.clone()
    for place in places:
        poisoned[place] = 1.0
    results = Results(untapped={}, tapped={"block": clean}, poisoned={"block": poisoned})
    return explain_tap(evidence, results, _judged(PASS, PASS))


@pytest.mark.parametrize(
    ("places", "texts"),
    [
        (
            [(1, 2, 0), (1, 4, 0)],
            (
                "1 of 36 valid elements change, all at the batch 1; at the sequence (axis 1) 2; at axis 2 0; "
                "below the diagonal (indices of the sequence (axis 1) larger than of axis 2)",
                "no further than 1 positions from the padding",
            ),
        ),
        (
            [(1, 1), (1, 2)],
            (
                "8 of 36 valid elements change, all at the batch 1; at the sequence (axis 1) 1, 2",
                "no further than 2 positions from the padding",
            ),
        ),
        ([(1, slice(0, 1)), (1, 2)], None),
        (
            [(0, 4)],
            (
                "4 of 36 valid elements change, all at the batch 0; at the sequence (axis 1) 4",
                "no further than 1 positions from the padding",
            ),
        ),
        (
            [(1,), (2,)],
            (
                "16 of 36 valid elements change, all at the batch 1, 2; at the sequence (axis 1) 0, 1, 2",
                "every valid position of the sequences with padding: something runs over the padding",
            ),
        ),
    ],
)
def test_the_reach_of_a_leak(evidence, places, texts):
    actual = _leak(evidence, places)
    if texts is None:
        assert actual[1] == "no further than 3 positions from the padding"
    else:
        assert actual == texts


def test_a_leak_along_the_last_axis(evidence):
    """The sequence stands behind another axis."""
    assert _leak(evidence, [(1, 0, 1), (1, 3, 2)], shape=(B, 4, N))[1:] == (
        "no further than 2 positions from the padding",
    )
    # Without a padded axis nothing is at a distance from the padding.
    assert _leak(evidence, [(2, 1)], shape=(B, 2)) == (
        "1 of 6 valid elements change, all at the batch 2; at axis 1 1",
    )


def test_every_element_of_a_whole_output_counts(evidence):
    evidence.whole_outputs = {"block"}
    assert _leak(evidence, [(2, 4, 1)])[0] == (
        "1 of 60 valid elements change, all at the batch 2; at the sequence (axis 1) 4; at axis 2 1"
    )


def test_a_leak_everywhere_has_no_place(evidence):
    evidence.valid = {}
    assert _leak(evidence, [slice(None)], shape=(9, 9)) == ("81 of 81 valid elements change",)


def test_no_leak_or_no_twin_has_no_explanation(evidence):
    assert _leak(evidence, [(2, 4)]) == ()
    clean = torch.zeros(B, N, D)
    for tapped, poisoned in (
        ({}, {"block": clean}),
        ({"block": clean}, {}),
        ({"block": clean}, {"block": clean[:2]}),
    ):
        results = Results(untapped={}, tapped=tapped, poisoned=poisoned)
        assert explain_tap(evidence, results, _judged(PASS, None)) == ()
