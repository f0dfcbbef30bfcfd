"""The search for precisions: its cost, its sensitivities, its solution, and what it says of it."""

import functools
import itertools
import json
import math

import numpy as np
import pytest
import torch

from cases.shipped import load_case
from parity.base.errors import UserError
from parity.base.precision_policy import BASE, compact
from parity.inputs.arrays import make_inputs
from parity.inputs.weights import case_weights
from parity.studies.precision_search.bench import Bench
from parity.studies.precision_search.cost import BANDWIDTH, PEAK, Operation, Work, cast_seconds, count
from parity.studies.precision_search.knapsack import Knapsack
from parity.studies.precision_search.latency import can_measure
from parity.studies.precision_search.report import search_fields
from parity.studies.precision_search.search import search
from parity.studies.precision_search.units import Sensitivity, Unit, assignment_of, measure, units_of

# One process makes the fixtures of this module.
pytestmark = pytest.mark.xdist_group("precision_search")

LOWER = ("fp16", "bf16")


@functools.cache
def setup():
    case = load_case("dlrm_tiny")
    weights = case_weights(case)[0]
    inputs = make_inputs(case).typical
    return case, inputs.arrays, weights


@pytest.fixture(scope="module")
def bench():
    return Bench(*setup())


@pytest.fixture
def coarse(bench):
    """dlrm_tiny in five units."""

    def unit(name, *tops):
        return Unit(name, tuple(path for path in bench.paths if path.split(".")[0] in tops))

    units = (
        unit("", ""),
        unit("tables", "emb_l"),
        unit("bottom", "log_counts", "bot_l"),
        unit("interaction", "interaction"),
        unit("top", "top_l"),
    )
    assert sorted(path for entry in units for path in entry.paths) == sorted(bench.paths)
    return units


def quiet(_):
    pass


def test_an_operation_takes_the_longer_of_its_bytes_and_its_products():
    assert Operation(1200, 600, 0).seconds("fp32") == 5400 / BANDWIDTH
    assert Operation(1200, 600, 0).seconds("bf16") == 3000 / BANDWIDTH
    assert Operation(1, 0, 10**9).seconds("fp16") == 10**9 / PEAK["fp16"]
    assert cast_seconds(10, "fp32", "fp16") == cast_seconds(10, "fp16", "fp32") == 60 / BANDWIDTH
    assert cast_seconds(10, "fp16", "fp16") == 0.0


def test_operations_are_counted_where_they_are_written():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(1000, 4)
            self.linear = torch.nn.Linear(4, 3)

        def forward(self, indices):
            return self.linear(self.table(indices)).float() * 2.0

    model, indices = Model().half(), torch.arange(2)
    work = count(model, lambda: model(indices))
    # Rows of the table that are looked up, what is written, and indices of 8 bytes.
    assert work.operations["table"] == [Operation(8 + 8, 2 * 8, 0)]
    assert work.operations["linear"] == [Operation(8 + 12 + 3 + 6, 0, 2 * 2 * 4 * 3)]
    # float32 stays so in every precision.
    widening, product = work.operations[""]
    assert widening == Operation(6, 6 * 4, 0)
    assert product == Operation(0, 2 * 6 * 4, 0)
    assert work.crossings == {("table", ""): 8, ("linear", ""): 8 + 6}


def test_units_are_the_same_place_in_every_block():
    kinds = {"": "M", "l.0": "Linear", "l.1": "ReLU", "l.2": "Linear", "l.0.n": "Norm", "l.2.n": "Norm"}
    assert [(unit.name, unit.paths) for unit in units_of(kinds)] == [
        ("", ("",)),
        ("l.*", ("l.0", "l.2")),
        ("l.1", ("l.1",)),
        ("l.*.n", ("l.0.n", "l.2.n")),
    ]


def test_no_two_units_have_one_name(bench):
    units = units_of(bench.kinds())
    assert len({unit.name for unit in units}) == len(units)
    assert {"bot_l.* (Linear)", "bot_l.* (ReLU)", "emb_l.*", "bot_l"} <= {unit.name for unit in units}
    assert sorted(path for unit in units for path in unit.paths) == sorted(bench.paths)


@pytest.mark.parametrize("seed", range(6))
def test_the_knapsack_is_exact(seed):
    rng = np.random.default_rng(seed)
    names = ["", "a", "b", "a.x", "b.x", "c"]
    units = [Unit(name, (name,)) for name in names]
    work = Work(
        {name: [Operation(int(rng.integers(100, 10_000)), 0, 0)] for name in names},
        {(name, name.rpartition(".")[0]): int(rng.integers(10, 1_000)) for name in names[1:]},
    )
    sensitivities = {
        (name, precision): Sensitivity(0.0, 10.0 ** rng.uniform(-5, -3), 0.0, 0.0)
        for name in names
        for precision in LOWER
    }
    sensitivities["c", "fp16"] = Sensitivity(math.inf, math.inf, math.inf, math.inf)
    knapsack = Knapsack(units, sensitivities, work, 1e-7)
    budget = 7e-4
    every = [
        dict(zip(units, combination, strict=True))
        for combination in itertools.product((BASE, *LOWER), repeat=len(units))
    ]

    def seconds(chosen):
        return work.seconds({unit.name: name for unit, name in chosen.items()})

    best = min(seconds(chosen) for chosen in every if knapsack.predicted(chosen) <= budget)
    actual = knapsack.solve(budget)
    assert knapsack.predicted(actual) <= budget * (1 + 1e-6)
    assert seconds(actual) == pytest.approx(best, rel=1e-5)
    assert best < seconds(dict.fromkeys(units, BASE))


def test_a_model_in_fp32_costs_what_its_work_costs(bench):
    base = bench.evaluate({})
    seconds = [op.seconds("fp32") for entry in bench.work.operations.values() for op in entry]
    assert base.seconds == pytest.approx(math.fsum(seconds), rel=1e-12)
    assert bench.evaluate(dict.fromkeys(bench.paths, "fp16")).seconds < base.seconds
    assert bench.evaluate({"top_l.1": "fp16"}).seconds > base.seconds  # its casts


def test_amplification_is_what_arrives_of_what_is_injected(bench):
    base, lowered = (bench.evaluate(entry, tapped=True) for entry in ({}, {"bot_l.2": "fp16"}))
    actual = measure(bench, [Unit("bot_l.2", ("bot_l.2",))])["bot_l.2", "fp16"]

    def moved(tap):
        before, after = (run.taps[tap].double() for run in (base, lowered))
        return float((after - before).norm() / before.norm())

    assert actual.injected == pytest.approx(moved("bot_l.2"))
    assert actual.amplification == pytest.approx(moved("predict.click") / moved("bot_l.2"))
    assert actual.error == lowered.error


@pytest.mark.parametrize("budget", [2e-5, 1.2e-4, 3e-4])
def test_the_search_agrees_with_trying_everything(bench, coarse, budget):
    every = [
        bench.evaluate(assignment_of(dict(zip(coarse, names, strict=True))))
        for names in itertools.product((BASE, "fp16"), repeat=len(coarse))
    ]
    actual = search(bench, budget, quiet, coarse)
    # Of several cheapest assignments it may name any.
    assert actual.best.seconds == min(run.seconds for run in every if run.error <= budget)
    assert actual.best.error <= budget


def test_the_search_keeps_its_budget_and_its_front_is_one(bench, coarse):
    actual = search(bench, 3e-4, quiet, coarse)
    assert actual.base.error < actual.best.error <= 3e-4
    assert actual.best.seconds < actual.base.seconds
    seconds, errors = zip(*((run.seconds, run.error) for run in actual.front), strict=True)
    assert list(seconds) == sorted(set(seconds))
    assert list(errors) == sorted(set(errors), reverse=True)
    assert min(run.seconds for run in actual.front if run.error <= 3e-4) == actual.best.seconds
    assert actual.front[-1].error == actual.base.error
    # What is written down is what was run.
    again = Bench(*setup()).evaluate_policy(compact(actual.best.precisions))
    assert (again.error, again.outputs, again.seconds) == (
        actual.best.error,
        actual.best.outputs,
        actual.best.seconds,
    )


def test_the_search_is_deterministic(coarse):
    actual = [search(Bench(*setup()), 1.2e-4, quiet, coarse) for _ in range(2)]
    assert actual[0] == actual[1]


def test_few_runs_are_needed():
    bench = Bench(*setup())
    actual = search(bench, 1e-3, quiet)
    assert set(actual.best.precisions.values()) == {"fp16"}
    assert not actual.fp32_units
    assert actual.evaluations < len(bench.paths) + 10


def test_a_budget_that_fp32_does_not_keep_is_refused(bench):
    with pytest.raises(UserError, match="cannot be met"):
        search(bench, 1e-9, quiet)


def test_a_module_that_is_made_sensitive_stays_in_fp32_and_is_named():
    case, arrays, weights = setup()
    weights = dict(weights)
    # Two columns that are nearly the same, and their difference a hundred times.
    first = weights["top_l.0.weight"].clone()
    first[1] = first[0] * (1.0 + 2.0**-9)
    bias = weights["top_l.0.bias"].clone()
    bias[:2] = 4.0
    second = weights["top_l.2.weight"].clone()
    second[:, 0], second[:, 1] = 100.0, -100.0
    weights |= {"top_l.0.weight": first, "top_l.0.bias": bias, "top_l.2.weight": second}
    bench = Bench(case, arrays, weights)
    actual = search(bench, 1e-3, quiet)
    assert actual.best.error <= 1e-3
    must = {entry.unit.name: entry for entry in actual.fp32_units if entry.must}
    assert {"top_l.0", "top_l.1"} <= must.keys()
    assert actual.best.precisions["top_l.0"] == actual.best.precisions["top_l.1"] == BASE
    assert actual.best.precisions["interaction"] == "fp16"
    tables = actual.sensitivities["emb_l.*", "fp16"].amplification
    assert must["top_l.0"].best.amplification > 10 * tables
    assert must["top_l.0"].error > 1e-3


def test_where_fp16_overflows_bf16_is_measured_and_taken():
    case, arrays, weights = setup()
    weights = dict(weights)
    for name, factor in (("bot_l.0.weight", 1e5), ("bot_l.0.bias", 1e5), ("bot_l.2.weight", 1e-5)):
        weights[name] = weights[name] * factor
    bench = Bench(case, arrays, weights)
    sensitive = Unit("bot_l.0", ("bot_l.0",))
    actual = measure(bench, [sensitive, Unit("emb_l.0", ("emb_l.0",))])
    assert math.isinf(actual["bot_l.0", "fp16"].error)
    assert math.isfinite(actual["bot_l.0", "bf16"].error)
    assert ("emb_l.0", "bf16") not in actual
    best = search(bench, 5e-2, quiet).best
    assert best.error <= 5e-2
    assert best.precisions["bot_l.0"] == "bf16"


def test_the_command_searches_and_judges_what_it_found(command, tmp_path, bench):
    arguments = ("--case", "dlrm_tiny", "--budget", "1.2e-4")
    ended = command("precision", *arguments, "--save", tmp_path / "found")
    assert ended.code == 0, ended
    assert "modelled, not measured" in ended.out
    report = json.loads((tmp_path / "found" / "precision.json").read_text())
    assert report["best"]["error"] <= report["budget"] == 1.2e-4
    assert report["modules"] == len(bench.paths)
    assert any(entry["must"] for entry in report["fp32_units"])
    for entry in report["fp32_units"]:
        assert entry["unit"] in ended.out

    policy = tmp_path / "found" / "policy.yaml"
    judged = command("precision", "--policy", policy, *arguments, "--save", tmp_path / "judged")
    assert judged.code == 0, judged
    again = json.loads((tmp_path / "judged" / "precision.json").read_text())
    assert again["best"] == report["best"]
    assert again["base"] == report["base"]

    options = ("--case", "dlrm_tiny", "--budget", "1e-6", "--save", tmp_path / "no")
    beyond = command("precision", "--policy", policy, *options)
    assert beyond.code == 1
    assert "BEYOND" in beyond.out


@pytest.mark.parametrize(
    ("policy", "arguments", "problem"),
    [
        ('"top_l.9": fp16', (), "top_l.9 matches no module"),
        ('"top_l": fp8', (), "fp8 is no precision"),
        ('"*": fp16', ("--budget", "0"), "is no error"),
        ('"*": fp16', ("--budget", "nan"), "is no error"),
        ('"*": fp16', ("--precision", "fp16"), "is no option"),
        ('"*": fp16', ("--case", "dlrm_tiny,hstu_tiny"), "give one --case"),
    ],
)
def test_what_cannot_be_judged_is_refused(command, tmp_path, policy, arguments, problem):
    (tmp_path / "policy.yaml").write_text(policy)
    case = () if "--case" in arguments else ("--case", "dlrm_tiny")
    ended = command("precision", "--policy", tmp_path / "policy.yaml", *case, *arguments)
    assert ended.code == 2
    assert problem in ended.err


def test_where_tensorrt_runs_the_front_is_timed(bench, coarse, monkeypatch):
    actual = search(bench, 3e-4, quiet, coarse)
    assert not can_measure()
    assert all(run.latency is None for run in search_fields(actual, bench)["front"])
    monkeypatch.setattr("parity.studies.precision_search.report.can_measure", lambda: True)
    monkeypatch.setattr("parity.studies.precision_search.latency.ROUNDS", 2)
    timed = search_fields(actual, bench)["front"]
    assert len(timed) == len(actual.front) > 1
    assert all(run.latency.runs == 2 and run.latency.median > 0.0 for run in timed)
