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
from parity.studies.precision_search.schemes import BUDGETS, search_schemes, seconds

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


def test_a_product_of_few_rows_is_bound_by_its_weights():
    matrix = Matrix(rows=1, inputs=1024, outputs=1024)
    whole = seconds(matrix, None)
    assert seconds(matrix, SCHEMES["int8_weights_tensor"]) == pytest.approx(whole / 4, rel=0.01)
    # Half a byte, and a scale for 32 weights.
    blocks = seconds(matrix, SCHEMES["int4_weights_blocks"])
    assert blocks == pytest.approx(whole * (0.5 + 4 / 32) / 4, rel=0.02)
    assert seconds(matrix, SCHEMES["int8_tensor"]) == seconds(matrix, SCHEMES["int8_weights_tensor"])


def test_a_product_of_many_rows_is_bound_by_its_peak():
    matrix = Matrix(rows=1 << 16, inputs=1 << 12, outputs=1 << 12)
    whole = seconds(matrix, None)
    assert seconds(matrix, SCHEMES["int8_weights_tensor"]) == whole
    assert whole / seconds(matrix, SCHEMES["fp8_tensor"]) == pytest.approx(1979 / 67)


def test_a_row_has_its_codes_with_scale_and_bias():
    table = Matrix(rows=100, inputs=1, outputs=17, is_table=True)
    whole, eight, four = (
        seconds(table, scheme) for scheme in (None, SCHEMES["int8_rows"], SCHEMES["int4_rows"])
    )
    assert eight / whole == pytest.approx((17 + 8) / (4 * 17))
    assert four / whole == pytest.approx((9 + 4) / (4 * 17))


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


def test_each_unit_is_tried_in_each_scheme_that_fits(result):
    assert len(result.sensitivities) == 2 * 9 + 2
    alone = {key: effect.error for key, effect in result.sensitivities.items()}
    assert alone["emb_l.*", "int8_rows"] < alone["emb_l.*", "int4_rows"]
    assert alone["top_l.*", "int8_weights_channel"] < alone["top_l.*", "int4_weights_blocks"]
    assert all(error > result.base.error for error in alone.values())


def test_the_best_runs_again_with_the_same_error(bench, result):
    again = bench.evaluate_policy(Policy(tuple(result.best.schemes.items())))
    assert again.error == result.best.error


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
    assert "of products and tables alone" in " ".join(ended.out.split())


def test_what_cannot_be_searched_is_refused(command, tmp_path):
    with pytest.raises(UserError, match="error without quantisation is"):
        search_schemes(bench_of("hstu_tiny"), 1e-12, lambda step: None)
    ended = command("precision", "--quantise", "--case", "dlrm_lecture_tiny")
    assert (ended.code, ended.out) == (2, "")
    assert "has no product or table to quantise" in ended.err
    ended = command("precision", "--quantise", "--case", "dlrm_tiny", "--policy", tmp_path / "policy.yaml")
    assert ended.code == 2
    assert "is judged without a search" in ended.err
