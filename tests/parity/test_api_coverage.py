"""The result of live models tells what their inputs leave out."""

import os
import subprocess
import sys

import numpy as np
import nvtripy as tp
import torch

import parity
from parity.report.coverage import in_words
from tests.locations import ROOT
from tests.parity.coverage import mixed_models
from tests.parity.live_models import IMAGES, Net, Port


def test_branches_and_sizes_that_no_input_asks_are_in_the_result_and_on_the_page(tmp_path):
    result = parity.compare(Net(), Port, inputs=IMAGES, precisions=("fp32",))
    coverage = result.report.coverage
    missing = {(entry.kind, entry.text or entry.place): entry.missing for entry in coverage.unasked}
    assert missing == {
        ("outcome", "self.slope"): ("true",),
        ("size", "entry forward(image), axis 0"): ("1", "2"),
    }
    assert coverage.questions["line"] == coverage.asked["line"] == 8
    # The port is compiled for one size of the other axes.
    assert {entry.place[-1] for entry in coverage.excused} == {"1", "2", "3"}
    assert str(result).splitlines()[-1] == "not asked: 1 outcome, 1 size; the written report lists them"
    page = (result.write(tmp_path / "out") / "report.html").read_text()
    assert "not asked: 1 outcome, 1 size" in page
    assert "<code>self.slope</code>" in page


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x)


class SmallPort(tp.Module):
    def __init__(self, dtype=tp.float32):
        super().__init__()
        self.layer = tp.Linear(4, 3, dtype=dtype)

    def forward(self, x):
        return self.layer(x)


X = {"x": np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)}


def test_nothing_is_said_where_inputs_ask_all_of_it():
    """The sizes of a dynamic axis are the least, 2, the middle and the largest."""
    result = parity.compare(Small(), SmallPort, X, precisions=("fp32",), dynamic={"x": {0: 1}})
    assert [batch.name for batch in result.report.cases[0].batches][1:] == [
        "least sizes",
        "sizes of 2",
        "middle sizes",
    ]
    assert result.report.coverage.unasked == ()
    assert in_words(result.report.coverage).startswith("asked: all")
    assert "asked" not in str(result)


def test_a_live_tripy_model_is_asked_behind_its_construction():
    result = parity.compare(Small(), SmallPort(), X, dynamic={"x": {0: 1}})
    assert result.passed, result
    assert result.report.coverage.unasked == ()
    assert result.report.coverage.questions["line"] == 1


def test_the_reference_and_the_case_of_the_same_file_are_not_asked():
    result = parity.check(mixed_models.case, precisions=("fp32",))
    assert result.passed, result
    names = {entry.place for entry in result.report.coverage.unasked if entry.kind == "function"}
    assert names == {"in_a_table", "bound", "Port.never"}


def test_a_port_without_a_file_has_a_reason():
    namespace = {"tp": tp, "__name__": "typed_by_hand"}
    exec(  # as a session of Python without files does
        "class Typed(tp.Module):\n"
        "    def __init__(self, dtype):\n"
        "        super().__init__()\n"
        "        self.layer = tp.Linear(4, 3, dtype=dtype)\n"
        "    def forward(self, x):\n"
        "        return self.layer(x)\n",
        namespace,
    )
    result = parity.compare(Small(), namespace["Typed"], X, precisions=("fp32",), dynamic={"x": {0: 1}})
    assert result.passed, result
    assert str(result).splitlines()[-1] == "no coverage: UNAVAILABLE: no file has the code of Typed"


def test_a_debugger_keeps_its_trace_function():
    def trace(frame, event, argument):
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        parity.compare(Small(), SmallPort, X, precisions=("fp32",))
        after = sys.gettrace()
    finally:
        sys.settrace(before)
    assert after is trace


class OneLiners(tp.Module):
    # fmt: off
    def __init__(self, dtype=tp.float32): super().__init__(); self.layer = tp.Linear(4, 3, dtype=dtype)  # noqa: E701,E702
    def forward(self, x): return self.layer(x)  # noqa: E704
    # fmt: on


def test_a_function_in_one_line_is_no_branch():
    assert (
        parity.compare(Small(), OneLiners, X, ("fp32",), dynamic={"x": {0: 1}}).report.coverage.unasked == ()
    )


SCRIPT = """
import nvtripy as tp
import torch
import parity

class Reference(torch.nn.Module):
    def forward(self, x):
        return x + 1.0

class Port(tp.Module):
    def forward(self, x):
        return x + 1.0

print(parity.compare(Reference(), Port(), {"x": torch.randn(5, 3)}))

class Later(tp.Module):
    def forward(self, x):
        return tp.where(x > 9.0, x - 1.0, x + 1.0)

print(parity.compare(Reference(), Later(), {"x": torch.randn(5, 3)}))
"""


def test_a_script_defines_a_port_behind_its_first_comparison(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, tmp_path / "script.py"]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    first, second = (text for text in run.stdout.split("Reference fp32 ")[1:])
    assert "not asked: 1 size;" in first
    assert "not asked: 2 outcomes, 1 threshold, 1 size;" in second
    assert "no coverage" not in run.stdout
