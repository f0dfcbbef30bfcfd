"""The cost of quantisation is measured from the model without it; a budget names the first module beyond."""

import math

import pytest
import torch

from benchmarks import quantisation_cost as program
from benchmarks import stream_drift


def test_tables_in_8_bits_cost_and_others_do_not(capsys):
    assert program.main(["--seeds", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    rows = {tap.split("/")[-1]: float(cost) for tap, cost, _ in (line[2:-2].split(" | ") for line in lines)}
    tables = [rows[f"emb_l.{table}"] for table in range(4)]
    # A step is a 255th of a row's range, and its error is uniform in half a step.
    assert all(3e-4 < cost < 1e-2 for cost in tables[:3])
    assert tables[3] < 1e-6
    assert rows["bot_l"] < 1e-6
    assert rows["interaction"] > 1e-4


def test_the_first_module_beyond_the_budget_is_named(capsys):
    assert program.main(["--seeds", "1", "--budget", "1e-4"]) == 1
    assert "first module beyond the budget of 0.0001: emb_l.0" in capsys.readouterr().out
    assert program.main(["--seeds", "1", "--budget", "0.5"]) == 0
    assert "no module lies beyond the budget of 0.5" in capsys.readouterr().out


def test_distances_join_the_seeds_and_follow_the_order_of_returns():
    def run(error):
        truth = {"late": torch.tensor([3.0, 4.0]).double(), "early": torch.ones(2).double()}
        return truth, {tap: values * (1 + error) for tap, values in truth.items()}, dict(truth)

    rows = program.costs([run(0.0), run(0.1)])
    assert list(rows) == ["late", "early"]
    assert rows["late"] == pytest.approx((0.1 / math.sqrt(2), 0.0))


def test_what_is_no_number_is_beyond_every_budget():
    assert program.first_beyond({"a": (0.1, 0.0), "b": (math.nan, 0.0)}, 0.5) == "b"
    assert program.first_beyond({"a": (0.5, 0.0)}, 0.5) is None


def test_a_case_without_quantisation_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        program.main(["--case", "dlrm_tiny"])
    assert ended.value.code == 2
    assert "--case: dlrm_tiny quantises nothing" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("start", [program.main, stream_drift.main])
@pytest.mark.parametrize(
    ("place", "problem"),
    [(".", "is a folder; give a file"), ("none/x.json", "none is no folder; make it first")],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(start, place, problem, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        start(["--out", str(tmp_path / place)])
    assert ended.value.code == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "--out" in told
    assert problem in told
