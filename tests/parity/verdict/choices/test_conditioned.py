"""The evidence under choices that the port's integers and booleans show."""

from dataclasses import replace

import pytest
import torch

from parity.verdict.bound import bound_for
from parity.verdict.choices import conditioned
from parity.verdict.choices.conditioned import under_port_choices
from parity.verdict.evidence import Results
from tests.parity.verdict.choices.choosing import (
    BF16,
    EXPLAINED,
    OWN,
    PORT,
    SCORES,
    VALUES,
    Runs,
    evidence_of,
    lists,
    masks,
    natural,
    ranked,
    results_of,
)


def test_choices_that_rounding_explains_are_the_ports():
    runs = Runs({"": ranked})
    evidence = evidence_of(natural(), runs, ties={"other": 5})
    evidence.reference.tensors["other"] = evidence.oracle["other"] = VALUES
    own = under_port_choices(evidence, results_of())
    assert lists(own.oracle) == {"rank": EXPLAINED, "pick": [2.5, 1.5, 3.5], "other": [1.5, 2.5, 3.5]}
    assert lists(own.reference.tensors) == {
        "rank": EXPLAINED,
        "pick": [2.75, 1.75, 3.75],
        "other": [1.5, 2.5, 3.5],
    }
    assert own.ties == {"rank": 2, "other": 5}
    # For other programs: those of the verdict, and those of the port.
    assert masks(own.choices.taken, own.choices.shown) == [{0: [True, False, True]}, {0: [True] * 3}]
    assert {number: values.tolist() for number, (values, _) in own.choices.shown.items()} == {0: PORT}
    ((number, (sizes, limits)),) = own.choices.limits.items()
    assert (number, sizes.tolist()) == (0, SCORES.tolist())
    assert torch.allclose(limits, bound_for(BF16, 8).floor * SCORES)
    # Modules that ran alone have the reference's own results, arguments those of the second run.
    assert lists(own.reference_isolated) == lists(natural()) | {"other": [1.5, 2.5, 3.5]}
    assert own.reference.arguments == {"again": "received"}
    assert own.oracle_received.arguments == {"oracle": "received"}
    assert own.reference.call_inputs.keys() == {"own", "again"}
    # Modules ran alone on the first inputs.
    assert own.call_inputs is evidence.call_inputs is evidence.reference.call_inputs
    assert runs.asked == [
        ("", {}, False),
        ("", {0: [True] * 3}, True),
        ("", {0: [True, False, True]}, True),
    ]
    alone = {"rank": VALUES}
    assert (
        under_port_choices(replace(evidence, reference_isolated=alone), results_of()).reference_isolated
        is alone
    )
    again = replace(own, reference=replace(own.reference, call_inputs={}), oracle=evidence.oracle)
    assert under_port_choices(again, results_of()).call_inputs is evidence.call_inputs


def test_a_refused_choice_is_run_without_even_in_the_last_round(monkeypatch):
    monkeypatch.setattr(conditioned, "ROUNDS", 1)
    runs = Runs({"": ranked})
    own = under_port_choices(evidence_of(natural(), runs), results_of())
    assert own.oracle["rank"].tolist() == EXPLAINED
    assert [mask for _, mask, _ in runs.asked] == [{}, {0: [True] * 3}, {0: [True, False, True]}]
    assert [sampled for *_, sampled in runs.asked] == [False, True, True]
    # Each round asks again: choices behind a refused one may be others.
    monkeypatch.setattr(conditioned, "ROUNDS", 3)
    runs = Runs({"": ranked})
    under_port_choices(evidence_of(natural(), runs), results_of(best=EXPLAINED))
    assert len(runs.asked) == 2


def test_integers_of_the_reference_alone_ask_for_a_run():
    runs = Runs({"": ranked})
    evidence = evidence_of(natural(), runs)
    evidence.reference.tensors["rank"] = torch.tensor(PORT)
    own = under_port_choices(evidence, results_of(best=OWN))
    assert (own.reference.tensors["rank"].tolist(), own.ties) == (OWN, {"rank": 0})


# Results of the port that ask for no run: changes of the equal results.
EQUAL = {
    "equal": {},
    "other numbers": {"tapped": {"rank": torch.tensor(OWN), "pick": VALUES}},
    "another shape": {"tapped": {"rank": torch.tensor([2])}},
    "no results": {"tapped": {}},
    "not of the judged run": {"untapped": {"rank": torch.tensor(PORT)}},
    "an output in the run with taps": {
        "tapped": {"score.best": torch.tensor(PORT)},
        "untapped": {"score.best": torch.tensor(OWN)},
    },
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_integers_ask_for_no_run(name):
    runs = Runs({"": ranked})
    evidence = evidence_of(natural() | {"score.best": torch.tensor(OWN)}, runs)
    assert under_port_choices(evidence, results_of(best=OWN, **EQUAL[name])) is evidence
    assert runs.asked == []


def test_an_integer_output_of_the_model_asks_for_a_run():
    def model(x):
        return {"score.best": x.argmax(-1)}

    evidence = evidence_of(natural(model), Runs({"": model}))
    own = under_port_choices(evidence, results_of(tapped={}, untapped={"score.best": torch.tensor(PORT)}))
    assert own.oracle["score.best"].tolist() == EXPLAINED


def test_models_that_cannot_run_again_or_make_no_choice_have_their_own_evidence():
    assert under_port_choices(evidence := evidence_of(natural(), None), results_of()) is evidence
    for runs in (Runs({"": lambda x: {"pick": x}}), Runs({"": ranked}, lost=True)):
        evidence = evidence_of(natural(), runs)
        assert under_port_choices(evidence, results_of()) is evidence
    evidence = evidence_of(natural(), Runs({"": ranked}))
    evidence.oracle.pop("rank")
    assert under_port_choices(evidence, results_of()) is evidence


def test_constants_that_a_model_makes_in_its_first_run_are_no_choices_of_later_ones():
    kept = []

    def model(x):
        if not kept:
            kept.append((VALUES - 0.25).round())
        return ranked(x)

    evidence = evidence_of(natural(), Runs({"": model}))
    own = under_port_choices(evidence, results_of())
    assert own.oracle["rank"].tolist() == EXPLAINED
    assert len(kept) == 1


# The order of the modules, terms of the longest sum before, the second score, and whether it may be the best.
# The floor is 2 * 2**-8 of both numbers, 1.6 % together, for one module before it; 3.1 % for four.
BOUNDS = {
    "four modules before": (("a", "b", "c", "rank"), 8, 0.975, True),
    "four modules behind": (("rank", "a", "b", "c"), 8, 0.975, False),
    "one module": (("rank", "a", "b", "c"), 8, 0.99, True),
    "no arithmetic before": (("a", "b", "c", "rank"), 0, 0.999, False),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_the_bound_of_a_choice_is_that_of_its_place_in_the_model(name):
    order, before, second, explained = BOUNDS[name]
    numbers = torch.tensor([[1.0, second, 0.0]] * 3, dtype=torch.float64)
    # The module's own sums do not count inside the model.
    sums = 8 if before == 0 or order[0] == "rank" else 0
    runs = Runs({"": ranked}, numbers)
    evidence = evidence_of(natural(numbers=numbers), runs, order, sums if before else 8, before)
    own = under_port_choices(evidence, results_of(best=[1, 1, 1]))
    assert own.oracle["rank"].tolist() == ([1] * 3 if explained else [0] * 3)


ISOLATED = {"same": [2, 2, 2], "plain": OWN, "rank": OWN}
"""Results of three modules alone. The second one makes no choice."""


def alone(**isolated):
    """A port whose model has the right results, and whose modules alone have these."""
    isolated = {tap: torch.tensor(values) for tap, values in (ISOLATED | isolated).items()}
    return Results(untapped={}, tapped={}, isolated=isolated | {"pick": VALUES})


def evidence_alone(runs, sums=8, **fields):
    tensors = {tap: torch.tensor(values) for tap, values in ISOLATED.items()} | {"pick": natural()["pick"]}
    order = ("same", "plain", "pick", "rank")
    return evidence_of(tensors, runs, order, sums, oracle_isolated=dict(tensors), **fields)


@pytest.mark.parametrize(("sums", "best", "ties"), [(8, EXPLAINED, 2), (0, OWN, 0)])
def test_modules_alone_take_choices_within_their_own_bound(sums, best, ties):
    runs = Runs({"plain": lambda x: {"plain": torch.tensor(OWN)}, "rank": ranked})
    evidence = evidence_alone(runs, sums, ties_isolated={"other": 5})
    own = under_port_choices(evidence, alone(plain=PORT, rank=PORT))
    pick = VALUES[torch.tensor(best)].tolist()
    assert lists(own.oracle_isolated) == ISOLATED | {"rank": best, "pick": pick}
    assert lists(own.reference_isolated) == ISOLATED | {"rank": best, "pick": [x + 0.25 for x in pick]}
    assert own.ties_isolated == {"rank": ties, "other": 5}
    assert [tap for tap, *_ in runs.asked] == ["plain", "rank", "rank", "rank"]
    (choices,) = own.choices_isolated.values()
    assert masks(choices.shown) == [{0: [True] * 3}]
    assert masks(choices.taken) == [
        {0: [place == explained for place, explained in zip(PORT, best, strict=True)]}
    ]
    assert (list(own.choices_isolated), own.choices) == (["rank"], None)
    assert runs.inputs is evidence.reference.call_inputs
    # The run inside the model stays.
    assert (own.reference, own.oracle, own.ties) == (evidence.reference, evidence.oracle, {})


def test_integers_of_the_reference_alone_ask_for_a_run_of_the_module():
    before = {tap: torch.tensor(values) for tap, values in (ISOLATED | {"rank": PORT}).items()}
    runs = Runs({"rank": ranked})
    own = under_port_choices(evidence_alone(runs, reference_isolated=before), alone())
    assert own.reference_isolated["rank"].tolist() == OWN
    assert own.reference_isolated["same"] is before["same"]
    runs = Runs({})
    assert under_port_choices(evidence := evidence_alone(runs), alone()) is evidence


class FarReference(Runs):
    """A reference whose numbers are 4 above the oracle's, as where a scale is too small for its type."""

    def _run(self, tap, prescribed, sampled):
        replay = super()._run(tap, prescribed, sampled)
        for choice in filter(None, replay.choices.choices if sampled else []):
            choice.reference = [tensor + 4.0 for tensor in choice.numbers]
        return replay


@pytest.mark.parametrize(("step", "again"), [(1, False), (5, True)])
def test_rounded_numbers_around_the_references_are_tried_where_those_around_the_oracles_explain_nothing(
    step, again
):
    def model(x):
        codes = (100 * x).round().to(torch.int64)
        # Three times a code is read off nowhere, but found by trying.
        return {"rank": 3 * codes, "pick": x * 0.5}

    runs = FarReference({"": model})
    natural = model(SCORES)
    port = {name: tensor.clone() for name, tensor in natural.items()}
    port["rank"][0, 0] += 3 * step
    own = under_port_choices(evidence_of(natural, runs), Results(untapped={}, tapped=port))
    assert torch.equal(own.oracle["rank"], port["rank"])
    # The second search begins at the oracle's own choices, with the reference's numbers.
    assert [asked[1:] == ({}, True) for asked in runs.asked].count(True) == int(again)
