"""Tolerated errors of live models: they travel on, and nothing behind them has the blame."""

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity

ROWS = {"x": np.random.default_rng(0).standard_normal((40, 8)).astype(np.float32)}


class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(8, 6)

    def forward(self, x):
        return torch.relu(self.a(x))


class Chain(torch.nn.Module):
    def __init__(self, power):
        super().__init__()
        self.power = power
        self.inner = Inner()
        self.b = torch.nn.Linear(6, 3)

    def forward(self, x):
        return torch.exp(self.power * self.b(torch.relu(self.inner(x))))


class Scaled(tp.Linear):
    """A linear layer times a number."""

    def __init__(self, *sizes, scale, dtype):
        super().__init__(*sizes, dtype=dtype)
        self.scale = scale

    def forward(self, x):
        return super().forward(x) * self.scale


class InnerPort(tp.Module):
    def __init__(self, scale, dtype):
        super().__init__()
        self.a = Scaled(8, 6, scale=scale, dtype=dtype)

    def forward(self, x):
        return tp.relu(self.a(x))


class ChainPort(tp.Module):
    """Scales its first layer, its last layer, and the argument of the last layer."""

    def __init__(self, dtype, power, a=1.001, b=1.0, glue=1.0):
        super().__init__()
        self.power, self.glue = power, glue
        self.inner = InnerPort(a, dtype)
        self.b = Scaled(6, 3, scale=b, dtype=dtype)

    def forward(self, x):
        return tp.exp(self.power * self.b(tp.relu(self.inner(x)) * self.glue))


def chain(tolerance, power=1.0, **faults):
    def port(dtype):
        return ChainPort(dtype, power, **faults)

    return parity.compare(Chain(power), port, ROWS, ("fp32",), tolerance=tolerance)


def test_a_tolerated_error_is_carried_and_said_once():
    result = chain({"inner.a": 0.05})
    assert result.passed, result
    assert str(result).count("TOLERATED: inner.a: ") == 1
    # The module around it, the module behind it and the output have its error.
    for tap in ("inner", "b", "forward.output"):
        assert f"TOLERATED: {tap}: " in str(result)
    assert str(result).count("the case tolerates 0.05 at inner.a, from where the error comes") == 3


def test_every_form_of_the_report_shows_a_tolerated_error(tmp_path):
    result = chain({"inner.a": 0.05})
    folder = result.write(tmp_path / "out")
    text = "the case tolerates 0.05"
    assert text in (folder / "report.html").read_text()
    summary = (folder / "report.md").read_text()
    assert any("- **TOLERATED** " in line and text in line for line in summary.splitlines())
    assert f"; {text}" in (folder / "report.junit.xml").read_text()


@pytest.mark.parametrize(
    ("faults", "tap", "text"),
    [
        # A module behind it has no tolerance on its own.
        ({"b": 1.001}, "b", "b (Linear) diverges on its own"),
        # Code behind it has the same tolerance; a larger error may be either's.
        ({"glue": 1.2}, "b", "at inner.a, or the code of forward, makes the argument"),
        # A larger error than the tolerance.
        ({"a": 1.2}, "inner.a", "inner.a (Linear) diverges on its own"),
    ],
)  # fmt: skip
def test_a_tolerance_hides_no_other_fault(faults, tap, text):
    result = chain({"inner.a": 0.05}, **faults)
    assert result.report.cases[0].precisions[0].runners[1].diagnosis.tap == tap
    assert text in str(result)


def test_without_a_tolerance_the_module_has_the_blame():
    assert "FAIL at inner.a\n" in str(chain({}))


def test_an_error_that_grows_is_tolerated_by_name():
    tolerance = {"inner.a": 0.0011}
    result = chain(tolerance, power=20.0)
    assert "FAIL at" in str(result)
    assert "tolerates at inner.a" in result.report.cases[0].precisions[0].runners[1].diagnosis.text
    assert chain(tolerance | {"forward.output": 0.5}, power=20.0).passed
