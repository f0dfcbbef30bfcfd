"""TensorRT accepts and refuses operations and element types as TENSORRT.md says."""

import itertools
import re
import sys
from pathlib import Path

import pytest

from tripy_portable import trt
from tripy_portable.dialect import legality
from tripy_portable.trt.network import converted_operations

PORTABLE = Path(__file__).parents[1]
sys.path.insert(0, str(PORTABLE / "tools"))

from trt_cases import cases
from trt_survey import outcome, row

DOCUMENT = (PORTABLE / "TENSORRT.md").read_text()
SURVEYED = re.search(r"takes one, for (tensorrt\S* [\d.]*\d)\.", DOCUMENT).group(1)
BY_OPERATION = {
    name: list(group) for name, group in itertools.groupby(cases(), key=lambda case: case.operation)
}

reason = trt.available()
if reason is None and trt.describe() != SURVEYED:
    reason = f"TENSORRT.md describes {SURVEYED}, installed is {trt.describe()}"


def test_every_operation_of_the_dialect_is_translated_and_surveyed():
    # There is no layer for plugins.
    expected = set(legality.OPERANDS) - {"opaque_plugin"}
    assert converted_operations() == expected
    assert set(BY_OPERATION) == expected


@pytest.mark.skipif(reason is not None, reason=reason or "")
@pytest.mark.parametrize(
    "operation",
    [
        pytest.param(name, marks=() if number % 6 == 0 else pytest.mark.full)
        for number, name in enumerate(sorted(BY_OPERATION))
    ],
)
def test_outcomes_are_the_documented_ones(operation):
    actual = row(operation, {case: outcome(case) for case in BY_OPERATION[operation]})
    documented = next(line for line in DOCUMENT.splitlines() if line.startswith(f"| {operation} |"))
    assert actual == documented, (
        "if this is TensorRT's answer: python portable/tools/trt_survey.py, and TENSORRT.md"
    )
