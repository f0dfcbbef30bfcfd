"""A policy file with schemes: a whole run judges the quantised port, and the verb precision its error."""

import json

import pytest

from cases.shipped import load_case
from parity.base.errors import UserError
from parity.base.precision_policy import Policy
from parity.inputs.weights import case_weights
from parity.report.files import read_report
from parity.studies.precision_search.bench import Bench
from tests.parity.saved_runs import quick_runs


@pytest.fixture
def policy(tmp_path):
    def write(content):
        path = tmp_path / "policy.yaml"
        path.write_text(json.dumps(content))
        return path

    return write


def test_a_run_judges_the_port_that_a_policy_quantises(command, policy, tmp_path):
    path = policy({"*": "int8_channel", "emb_l.0": "int4_rows"})
    arguments = ("--case", "dlrm_tiny", "--policy", path, "--precision", "fp32", "--runners", "tripy")
    with quick_runs():
        ended = command(*arguments, "--save", tmp_path / "run")
    assert (ended.code, ended.err) == (0, "")
    runners = read_report(tmp_path / "run/report.json").cases[0].precisions[0].runners
    taps = {module.tap for runner in runners if runner.runner == "tripy" for module in runner.modules}
    assert {"bot_l.0.product.quantise_input[1]", "top_l.4.product.quantise_weight[0]"} <= taps
    assert "emb_l.0.quantise[0]" in taps
    assert "emb_l.1.quantise[0]" not in taps


@pytest.mark.parametrize(
    ("content", "case", "text"),
    [
        ({"*": "bf16"}, "dlrm_tiny", "bf16 is a precision, and a run judges all modules in one"),
        ({"tables": "int8_rows"}, "dlrm_tiny", "int8_rows covers no table"),
        ({"*": "int8_rows"}, "hstu_tiny", "int8_rows covers no table; leave the pattern out"),
        ({"*": "int8_channel"}, "dlrm_lecture_tiny", "dlrm_lecture_tiny has no quantised modules"),
    ],
)
def test_a_policy_that_does_not_fit_ends_with_2(command, policy, content, case, text):
    ended = command("--case", case, "--policy", policy(content))
    assert (ended.code, ended.out) == (2, "")
    assert text in " ".join(ended.err.split())


def test_a_policy_may_have_precisions_and_schemes():
    case = load_case("dlrm_tiny")
    bench = Bench(case, case.make_inputs().inputs[0].arrays, case_weights(case)[0])
    plain = bench.evaluate_policy(Policy((("*", "fp32"),)))
    finer = bench.evaluate_policy(Policy((("*", "fp32"), ("emb_l", "int8_rows"))))
    tables = bench.evaluate_policy(Policy((("*", "fp16"), ("emb_l", "int4_rows"))))
    # Half a step of 255, and half a step of 15.
    assert plain.error < finer.error / 100
    assert finer.error < tables.error / 4
    assert set(tables.precisions.values()) == {"fp16"}
    assert tables.schemes == {"emb_l": "int4_rows"}


def test_forms_without_quantised_products_are_refused():
    from parity.case import NoForm

    case = load_case("hstu_tiny_quantised")
    assert case.forms == ()
    with pytest.raises(NoForm, match="jagged form has no quantised product"):
        case.form("jagged")
    assert load_case("hstu_tiny").quantised({}).forms
    with pytest.raises(UserError, match="covers no product"):
        case.quantised({"_o": "int8_channel"})
