"""Choices of the port: right ones pass under rounding, wrong ones fail where they are made."""

import pytest
import torch

import parity
from tests.parity.choosing_ports import MODELS

SEED = 2
FAULTS = [(name, fault) for name, model in MODELS.items() for fault in model.faults]


def compared(name: str, precision: str, fault: str = ""):
    """The report of the port of one model."""
    model = MODELS[name]
    torch.manual_seed(SEED)
    result = parity.compare(
        model.reference(),
        lambda dtype: model.port(dtype, fault),
        inputs=model.inputs(SEED),
        precisions=(precision,),
    )
    return next(runner for *_, runner in result.report.runner_reports() if runner.runner == "tripy")


@pytest.mark.parametrize("name", MODELS)
def test_a_correct_port_passes_with_choices_of_its_own(name):
    runner = compared(name, "bf16")
    assert runner.verdict == "PASS", runner.diagnosis
    verdicts = [verdict for module in runner.modules for verdict in module.verdicts.values()]
    ties = sum(verdict.ties for verdict in verdicts)
    noted = any("other choices" in note for module in runner.modules for note in module.notes)
    assert noted == bool(ties)
    # A rank among few numbers needs more rows than these models have.
    assert ties or name in ("greedy", "quantizer")


@pytest.mark.parametrize(
    ("name", "fault"), [next(pair for pair in FAULTS if pair[0] == name) for name in MODELS]
)
def test_a_wrong_choice_fails_in_every_precision(name, fault):
    for precision in ("fp32", "bf16"):
        runner = compared(name, precision, fault)
        assert (runner.verdict, runner.diagnosis.tap) == ("FAIL", MODELS[name].faults[fault])


@pytest.mark.full
@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_every_wrong_choice_fails_where_it_is_made(name, fault):
    runner = compared(name, "fp32", fault)
    assert (runner.verdict, runner.diagnosis.tap) == ("FAIL", MODELS[name].faults[fault])
