"""Errors that the padding carries are named at the call whose padding differs."""

import functools

import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.in_process import CleanRun
from parity.runners.torch.eager import TorchRunner
from parity.verdict.comparison import compare
from tests.parity.verdict.test_arguments import Block, Glue, Model, N


class ReadsPadding(Model):
    """Every position attends to all, padding included."""

    def mask(self, ids):
        return torch.ones(N, N, dtype=torch.bool, device=ids.device)


def judged(precision, model=ReadsPadding, **changes):
    """The comparison of a changed model; the reference is `model`."""
    run, runner = CleanRun(Glue(model), PRECISIONS[precision]), TorchRunner()
    faulty = functools.partial(type("Faulty", (model,), changes), Block)
    runner.load(Glue(faulty), run.precision, run.weights)
    return compare(run.evidence, run.results(runner))


def other_padding(self, x):
    """`Model.entering`, and other numbers in the second row behind its two items."""
    x = Model.entering(self, x)
    x[1, 4] += 9
    return x


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_argument_whose_padding_is_read_is_named(precision):
    diagnosis = judged(precision, entering=other_padding).diagnosis
    assert (diagnosis.kind, diagnosis.tap, diagnosis.code) == ("between", "block.attention", "")
    assert diagnosis.argument == "block(x)"
    assert diagnosis.text.startswith("block receives another x in its padding: ")
    assert "8 of 64 elements" in diagnosis.text
    assert "no other difference reaches block.attention; the code of forward makes" in diagnosis.text


def test_padding_that_nothing_reads_is_no_difference():
    assert judged("fp32", Model, entering=other_padding).diagnosis.kind == "none"


def test_a_wrong_argument_goes_before_its_padding():
    diagnosis = judged("fp32", entering=other_padding, mask=Model.mask).diagnosis
    assert diagnosis.argument == "block(mask)"
