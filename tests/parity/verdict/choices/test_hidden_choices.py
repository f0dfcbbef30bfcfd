"""The evidence under choices of the port that no integer or boolean shows."""

from dataclasses import replace

import pytest
import torch

from parity.capture.captures import Capture
from parity.verdict.choices.conditioned import under_hidden_choices, under_port_choices
from parity.verdict.evidence import Results
from tests.parity.verdict.choices.choosing import (
    EXPLAINED,
    OWN,
    PORT,
    VALUES,
    Runs,
    call_of,
    evidence_of,
    hidden,
    lists,
    masks,
    natural,
    results_of,
    silent,
)


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
