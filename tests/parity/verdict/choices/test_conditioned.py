"""The evidence under the port's choices, with stand-ins for the runs of oracle and reference."""

from dataclasses import replace

import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.capture.captures import Capture, ModuleCall
from parity.runners.oracle.choices import Choices, DifferentChoices
from parity.runners.oracle.replays import Replay
from parity.verdict.bound import bound_for
from parity.verdict.choices import conditioned
from parity.verdict.choices.conditioned import under_hidden_choices, under_port_choices
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


def two(x):
    """A model with a choice that it shows, and one that it hides: that of the rows in the other order."""
    return {"rank": x.argmax(-1), "pick": VALUES[x.flip(0).argmax(-1)]}


SHOWN = {"rank": torch.tensor(PORT), "pick": VALUES[torch.tensor([2, 1, 1])]}
"""The port's results of `two`. The middle row has no tie."""


def test_hidden_choices_inside_the_model_are_searched_beside_shown_ones():
    runs = Runs({"": two})
    evidence = evidence_of(natural(two), runs)
    own = under_hidden_choices(evidence, Results({}, SHOWN), silent(evidence), (), True)
    assert lists(own.oracle) == {"rank": EXPLAINED, "pick": [3.5, 1.5, 2.5]}
    assert lists(own.reference.tensors) == {"rank": EXPLAINED, "pick": [3.75, 1.75, 2.75]}
    assert own.ties == {"rank": 2}
    # For other programs, the search adds to the choices that results show.
    assert masks(own.choices.taken) == [{0: [True, False, True], 1: [True, False, True]}]
    assert masks(own.choices.shown) == [{0: [True] * 3, 1: [True, False, True]}]
    assert [own.choices.shown[number][0].tolist() for number in (0, 1)] == [PORT, [2, 0, 1]]
    assert own.choices.limits.keys() == {0, 1}
    # The reference runs for the shown choices and once more without the refused one, and for the hidden ones.
    assert sum(sampled for *_, sampled in runs.asked) == 3
    assert runs.asked[0] == ("", {}, False)


def test_hidden_choices_of_modules_alone_are_searched_where_they_fail():
    calls = [call_of(path) for path in ("passes", "right", "rank", "pick")]
    longest = dict.fromkeys(("passes", "right", "rank", "pick"), 8)
    recorded = Capture(calls=calls, call_inputs={"recorded": VALUES}, longest_sums=longest)
    own_pick = natural(hidden)["pick"]
    port = {"passes": SHOWN["pick"], "right": own_pick, "rank": SHOWN["rank"], "pick": SHOWN["pick"]}
    runs = Runs(
        {
            "right": lambda x: {"right": hidden(x)["pick"]},
            "rank": lambda x: {"rank": two(x)["rank"]},
            "pick": lambda x: {"pick": two(x)["pick"]},
        }
    )
    tensors = natural(two) | {"right": own_pick, "passes": own_pick}
    evidence = evidence_of(tensors, runs, oracle_isolated=dict(tensors))
    results = Results({}, isolated=port)
    shown = under_port_choices(evidence, results)
    assert shown.oracle_isolated["rank"].tolist() == EXPLAINED
    runs.asked.clear()
    natural_evidence = replace(evidence, reference=recorded)
    own = under_hidden_choices(shown, results, natural_evidence, ("right", "rank", "pick"), False)
    assert list(dict.fromkeys(tap for tap, *_ in runs.asked)) == ["right", "rank", "pick"]
    assert own.oracle_isolated["pick"].tolist() == [3.5, 1.5, 2.5]
    assert own.reference_isolated["pick"].tolist() == [3.75, 1.75, 2.75]
    # Choices that integers show are taken before, by `under_port_choices`.
    assert own.oracle_isolated["rank"] is shown.oracle_isolated["rank"]
    assert own.oracle_isolated["right"] is own_pick
    assert own.ties_isolated == {"rank": 2}
    assert (own.oracle, own.reference) == (evidence.oracle, evidence.reference)
    assert runs.inputs is recorded.call_inputs
    recorded.longest_sums["pick"] = 0
    assert under_hidden_choices(shown, results, natural_evidence, ("pick",), False) is shown


def whole(x):
    """A model whose result shows its choice as floating-point numbers."""
    return {"open": torch.where(x.argmax(-1) > 0, 1.0, 0.0).double()}


def test_floating_point_numbers_show_choices_where_a_search_has_none_left():
    runs = Runs({"": whole, "open": whole})
    evidence = evidence_of(natural(whole), runs, ("open",), oracle_isolated=natural(whole))
    results = results_of(whole, isolated=results_of(whole).tapped)
    # A result that no second run has says nothing.
    evidence.reference.tensors["beside"] = results.tapped["beside"] = VALUES
    assert under_port_choices(evidence, results) is evidence
    own = under_hidden_choices(evidence, results, silent(evidence), (), True)
    # The middle row has no tie.
    assert own.oracle["open"].tolist() == [1.0, 0.0, 1.0]
    assert results.tapped["open"].tolist() == [1.0, 1.0, 1.0]
    assert under_hidden_choices(own, results, evidence, (), True) is own
    alone = under_hidden_choices(evidence, results, evidence, ("open",), False)
    assert alone.oracle_isolated["open"].tolist() == [1.0, 0.0, 1.0]
    assert alone.oracle is evidence.oracle
    assert under_hidden_choices(alone, results, evidence, ("open",), False) is alone


def test_choices_that_are_taken_twice_count_against_the_oracles_own():
    evidence = evidence_of(natural(two), Runs({"": two}))
    results = Results({}, SHOWN)
    shown = under_port_choices(evidence, results)
    assert shown.ties == {"rank": 2}
    own = under_hidden_choices(shown, results, evidence, (), True)
    assert own.oracle["pick"].tolist() == [3.5, 1.5, 2.5]
    assert own.ties == {"rank": 2}


# Runs, the port's best items, and whether it fails inside the model.
NOTHING = {
    "no runs": (None, PORT, True),
    "no failure inside the model": (Runs({"": hidden}), PORT, False),
    "the oracle's choices": (Runs({"": hidden}), OWN, True),
    "choices beyond rounding": (Runs({"": hidden}), [0, 1, 1], True),
    "no choices": (Runs({"": lambda x: {"pick": VALUES}}), PORT, True),
    "choices that lead to others": (Runs({"": hidden}, lost=True), PORT, True),
}


@pytest.mark.parametrize("name", NOTHING)
def test_the_evidence_stays_where_no_hidden_choice_is_nearer(name):
    runs, best, whole = NOTHING[name]
    evidence = evidence_of(natural(hidden), runs)
    assert under_hidden_choices(evidence, results_of(hidden, best), silent(evidence), (), whole) is evidence


@pytest.mark.parametrize(("second", "best"), [(0.99, 1), (0.975, 0)])
def test_the_bound_of_a_hidden_choice_is_that_of_one_module(second, best):
    numbers = torch.tensor([[1.0, second, 0.0]] * 3, dtype=torch.float64)
    evidence = evidence_of(natural(hidden, numbers), Runs({"": hidden}, numbers), ("a", "b", "c", "rank"))
    own = under_hidden_choices(evidence, results_of(hidden, [1, 1, 1]), silent(evidence), (), True)
    assert own.oracle["pick"].tolist() == [float(VALUES[best])] * 3


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
