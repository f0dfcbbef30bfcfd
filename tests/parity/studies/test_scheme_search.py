"""The search over schemes of quantisation: what it costs, what it tries, and what it returns."""

from __future__ import annotations

import pytest

from cases.shipped import load_case
from parity.base.errors import UserError
from parity.base.files import parse_json
from parity.base.precision_policy import Policy, read_policy
from parity.base.quantisation import SCHEMES
from parity.case import Matrix
from parity.inputs.weights import case_weights
from parity.studies.precision_search.bench import Bench
from parity.studies.precision_search.report import policy_fields
from parity.studies.precision_search.schemes import BUDGETS, CEILINGS, SchemeWork, search_schemes
from parity.timing.ceilings import read_ceilings
from perf_model.work.quantised import product

BUDGET = 1e-2


def bench_of(name):
    case = load_case(name)
    return Bench(case, case.make_inputs().inputs[0].arrays, case_weights(case)[0])


@pytest.fixture(scope="module")
def bench():
    return bench_of("dlrm_tiny")


@pytest.fixture(scope="module")
def result(bench):
    return search_schemes(bench, BUDGET, lambda step: None)


@pytest.fixture(scope="module")
def work(bench):
    return SchemeWork.of(bench.case, bench.arrays)


def made(rows, inputs, outputs, name=""):
    """The modelled seconds of a product in a scheme."""
    works = {"product": {name: product(rows, inputs, outputs, 4, SCHEMES.get(name))}}
    return SchemeWork(works, {}, read_ceilings(CEILINGS)).own_seconds("product", name or "fp32")


def test_a_product_of_few_rows_is_bound_by_its_weights():
    sizes = (1, 1024, 1024)
    whole = made(*sizes)
    assert made(*sizes, "int8_weights_tensor") == pytest.approx(whole / 4, rel=0.01)
    # Half a byte, and a scale for 32 weights.
    assert made(*sizes, "int4_weights_blocks") == pytest.approx(whole * (0.5 + 4 / 32) / 4, rel=0.02)
    assert made(*sizes, "int8_tensor") == pytest.approx(made(*sizes, "int8_weights_tensor"), rel=1e-5)


def test_a_product_of_many_rows_is_bound_by_the_measured_rate_of_what_it_multiplies():
    sizes = (1 << 16, 1 << 12, 1 << 12)
    rates = read_ceilings(CEILINGS).matmul
    whole = made(*sizes)
    assert made(*sizes, "int8_weights_tensor") == whole
    assert whole / made(*sizes, "fp8_tensor") == pytest.approx(rates["fp8"] / rates["fp32"])
    assert whole / made(*sizes, "int8_channel") == pytest.approx(rates["int8"] / rates["fp32"])


def test_the_work_is_that_of_the_performance_model(bench, work):
    """A table's work without a scheme, and with one, and all modules once."""
    plain = bench.case.work(bench.arrays, 4)
    eight = bench.case.quantised({"emb_l": "int8_rows"}).work(bench.arrays, 4)
    assert work.matrices["emb_l.0"][""] == plain["emb_l.0"]
    assert work.matrices["emb_l.0"]["int8_rows"] == eight["emb_l.0"]
    assert work.matrices["emb_l.0"]["int8_rows"].bytes < plain["emb_l.0"].bytes
    products = {path: works[""].flops for path, works in work.matrices.items()}
    assert products["bot_l.0"] == plain["bot_l.0"].flops > 0
    rest = sum(module.flops for module in work.rest.values())
    assert sum(products.values()) + rest == plain[""].flops
    assert not set(work.rest) & {"", "bot_l", "top_l", "emb_l", *work.matrices}
    assert {"log_counts", "interaction", "bot_l.1"} <= set(work.rest)


@pytest.mark.parametrize("name", ["hstu_tiny", "stu_tiny"])
def test_products_inside_a_block_and_its_other_modules_make_the_whole(name):
    case = load_case(name)
    arrays = case.make_inputs().inputs[0].arrays
    work = SchemeWork.of(case, arrays)
    flops = [works[""].flops for works in work.matrices.values()]
    flops += [module.flops for module in work.rest.values()]
    assert sum(flops) == case.work(arrays, 4)[""].flops
    assert work.rest_seconds > 0.0
    assert work.launch_seconds > 0.0


@pytest.mark.full
def test_the_cost_of_a_call_has_what_no_scheme_changes(work, result):
    """Also if everything is quantised, the rest stays."""
    whole = sum(work.own_seconds(path, "fp32") for path in work.matrices) + work.rest_seconds
    assert result.base.seconds == pytest.approx(whole)
    assert min(run.seconds for run in result.front) > work.rest_seconds > 0.0


@pytest.mark.parametrize(
    ("name", "path", "expected"),
    [
        ("dlrm_tiny", "bot_l.0", Matrix(8, 13, 11)),
        ("hstu_tiny", "_hstu._attention_layers.1._uvqk", Matrix(5 * 27, 16, 64)),
        ("stu_tiny", "_stu_module._stu_layers.0._output_weight", Matrix(5 * 31, 60, 16)),
    ],
)
def test_products_have_the_sizes_of_a_run(name, path, expected):
    case = load_case(name)
    matrices = case.matrices(case.make_inputs().inputs[0].arrays)
    assert tuple(matrices) == (*case.model.products(), *case.model.tables())
    assert matrices[path] == expected


@pytest.mark.full
def test_the_front_falls_from_cheap_to_exact_and_holds_the_best(result):
    costs = [run.seconds for run in result.front]
    errors = [run.error for run in result.front]
    assert len(result.front) > 2
    assert costs == sorted(costs)
    assert errors == sorted(errors, reverse=True)
    assert result.front[-1].error <= result.base.error
    assert result.best.error <= BUDGET
    assert result.best.seconds < result.base.seconds
    assert any(run.seconds == result.best.seconds for run in result.front)
    # A larger budget than the best's own would be cheaper.
    assert all(run.error > BUDGET for run in result.front if run.seconds < result.best.seconds)


@pytest.mark.full
def test_each_unit_is_tried_in_each_scheme_that_fits(result):
    assert len(result.sensitivities) == 2 * 9 + 2
    alone = {key: effect.error for key, effect in result.sensitivities.items()}
    assert alone["emb_l.*", "int8_rows"] < alone["emb_l.*", "int4_rows"]
    assert alone["top_l.*", "int8_weights_channel"] < alone["top_l.*", "int4_weights_blocks"]
    assert all(error > result.base.error for error in alone.values())


@pytest.mark.full
def test_the_best_runs_again_with_the_same_error(bench, result):
    again = bench.evaluate_policy(Policy(tuple(result.best.schemes.items())))
    assert again.error == result.best.error


@pytest.mark.full
def test_the_verb_writes_a_policy_that_a_run_takes(command, tmp_path):
    ended = command("precision", "--quantise", "--case", "dlrm_tiny", "--budget", "0.01", "--save", tmp_path)
    assert ended.code == 0
    report = parse_json((tmp_path / "precision.json").read_bytes())
    policy = read_policy(tmp_path / "policy.yaml")
    assert not policy.precisions
    assert policy.schemes == report["best"]["policy"]
    assert report["evaluations"] == 1 + 20 + len(BUDGETS)
    assert report["front"][0]["cost"] < report["best"]["cost"] + 1e-12 < 1.0
    assert "error against cost" in ended.out
    cost = report["cost_model"]["schemes"]
    assert 0.0 < cost["quantisable"] < cost["whole"] < cost["launches"]
    assert "of them in products and tables; launches of the modules take" in " ".join(ended.out.split())


def judged(bench, policy):
    fields = policy_fields(Policy(tuple(policy.items())), bench)
    return fields["best"].cost


@pytest.mark.full
def test_a_judged_policy_has_the_cost_of_the_search(bench, result):
    for run in result.front:
        cost = judged(bench, run.schemes or {"*": "fp32"})
        assert cost == pytest.approx(run.seconds / result.base.seconds)


def test_a_precision_beside_a_scheme_saves_its_own_part(bench, work):
    eight = judged(bench, {"bot_l": "int8_weights_channel"})
    both = judged(bench, {"bot_l": "bf16+int8_weights_channel"})
    half = judged(bench, {"bot_l": "bf16", "top_l.0": "int8_weights_channel"})
    only = judged(bench, {"top_l.0": "int8_weights_channel"})
    assert both < eight < 1.0
    # Numbers of two bytes in the bottom MLP, whatever the scheme of another product.
    assert half < only < 1.0


def test_what_cannot_be_searched_is_refused(command, tmp_path):
    with pytest.raises(UserError, match="error without quantisation is"):
        search_schemes(bench_of("hstu_tiny"), 1e-12, lambda step: None)
    ended = command("precision", "--quantise", "--case", "dlrm_lecture_tiny")
    assert (ended.code, ended.out) == (2, "")
    assert "has no product or table to quantise" in ended.err
    ended = command("precision", "--quantise", "--case", "dlrm_tiny", "--policy", tmp_path / "policy.yaml")
    assert ended.code == 2
    assert "is judged without a search" in ended.err
