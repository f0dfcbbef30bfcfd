"""Rates that are added to a file of ceilings, with the measurement itself replaced: no GPU is needed."""

from __future__ import annotations

import json

import pytest

from parity.timing.ceilings import CeilingsError, read_ceilings
from perf_model.measure import ceilings as program
from tests.parity.timing.made_ceilings import ROUND

RATES = {"int8": 3e14, "fp8": 4e14}


@pytest.fixture
def measured(monkeypatch):
    monkeypatch.setattr(program, "this_gpu", lambda: ROUND.gpu)
    monkeypatch.setattr(program, "GraphTimer", lambda: None)
    monkeypatch.setattr(program, "matmul_rate", lambda timer, name: RATES[name])
    monkeypatch.setattr(program, "environment", lambda: {"torch": "2"})


@pytest.mark.usefixtures("measured")
def test_rates_are_added_and_all_other_numbers_stay(tmp_path, monkeypatch):
    path = tmp_path / "round.json"
    path.write_text(ROUND.model_dump_json())
    monkeypatch.setattr("sys.argv", ["ceilings", "--output", str(path), "--add", "int8", "fp8"])
    assert program.main() == 0
    actual = read_ceilings(path)
    assert actual.matmul == ROUND.matmul | RATES
    assert json.loads(actual.environment["matmul of fp8"]) == {"torch": "2"}
    changed = {"matmul", "environment"}
    assert actual.model_dump(exclude=changed) == ROUND.model_dump(exclude=changed)


@pytest.mark.usefixtures("measured")
def test_rates_of_another_gpu_are_refused(monkeypatch, capsys, tmp_path):
    other = ROUND.gpu.model_copy(update={"name": "Square"})
    with pytest.raises(CeilingsError, match="has ceilings of .*Square.*, and this is .*Round"):
        program.added(ROUND.model_copy(update={"gpu": other}), ["int8"])
    monkeypatch.setattr("sys.argv", ["ceilings", "--output", str(tmp_path / "none.json"), "--add", "int8"])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 2
    assert "holds no ceilings" in capsys.readouterr().err
