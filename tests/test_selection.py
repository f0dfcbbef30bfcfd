"""`make test` and `make test-full` together run every test once, and sampling leaves no value out."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.locations import ROOT
from tests.selection import covering

pytest_plugins = ["pytester"]

SUITE = """
import pytest

def test_plain(): pass

@pytest.mark.full
def test_long(): pass

@pytest.mark.sampled
def test_without_parameters(): pass

@pytest.mark.sampled
@pytest.mark.parametrize("a", [1, 2, 3, pytest.param(4, marks=pytest.mark.skip)])
@pytest.mark.parametrize("b", "xy")
class TestOfAClass:
    @pytest.mark.parametrize(("c", "d"), [(0, 0), (0, 1)])
    def test_sampled(self, a, b, c, d): pass
"""


def selected(pytester: pytest.Pytester, expression: str) -> list[str]:
    """Names of the tests that an expression of marks selects, in order."""
    done = pytester.runpytest_inprocess("-p", "tests.selection", "--co", "-q", "-m", expression)
    return [line.partition("::")[2] for line in done.outlines if "::" in line]


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """A folder with a small suite."""
    pytester.makeini("[pytest]\nmarkers =\n    full\n    sampled\n")
    pytester.makepyfile(SUITE)
    return pytester


def test_the_two_selections_partition_a_suite(suite: pytest.Pytester) -> None:
    quick, full = selected(suite, "not full"), selected(suite, "full")
    assert len(set(quick + full)) == len(quick) + len(full) == 3 + 4 * 2 * 2
    assert "test_long" in full
    assert {"test_plain", "test_without_parameters"} <= set(quick)


def test_a_sample_shows_every_value_of_every_parameter(suite: pytest.Pytester) -> None:
    sample = [name for name in selected(suite, "not full") if "test_sampled" in name]
    shown = [re.search(r"\[(\d)-(\d)-(\w)-(\d)\]", name).groups() for name in sample]
    values = [set(column) for column in zip(*shown, strict=True)]
    assert values == [{"0"}, {"0", "1"}, {"x", "y"}, {"1", "2", "3", "4"}]
    # Four values of `a` need four combinations; the skipped one shows nothing else.
    assert len(sample) == 4
    running = [entry for entry in shown if entry[3] != "4"]
    assert [set(column) for column in zip(*running, strict=True)][:3] == values[:3]


def test_tests_of_a_group_share_a_process(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os, pathlib, pytest

        @pytest.mark.parametrize("number", [
            pytest.param(number, marks=pytest.mark.xdist_group("ab"[number % 2])) for number in range(8)
        ])
        def test_in_a_group(number):
            with open(f"group{number % 2}", "a") as file:
                print(os.environ["PYTEST_XDIST_WORKER"], file=file)
        """
    )
    done = pytester.runpytest_subprocess("-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder")
    done.assert_outcomes(passed=8)
    processes = [(pytester.path / name).read_text().split() for name in ("group0", "group1")]
    assert [len(names) for names in processes] == [4, 4]
    assert [len(set(names)) for names in processes] == [1, 1]


def test_a_cover_prefers_combinations_that_run() -> None:
    combinations = [frozenset("ab"), frozenset("a"), frozenset("b"), frozenset("c")]
    assert covering(combinations, [True] * 4) == {0, 3}
    assert covering(combinations, [False, True, True, False]) == {1, 2, 3}
    assert covering([frozenset("a"), frozenset("a")], [True, True]) == {0}


def test_a_cover_takes_values_about_equally_often() -> None:
    combinations = [
        frozenset({("name", name), ("type", kind), ("way", way)})
        for name in range(12)
        for kind in range(3)
        for way in range(2)
    ]
    chosen = [dict(combinations[position]) for position in covering(combinations, [True] * len(combinations))]
    assert len(chosen) == 12
    for parameter, values in (("type", 3), ("way", 2)):
        counts = [sum(entry[parameter] == value for entry in chosen) for value in range(values)]
        assert max(counts) - min(counts) <= 1
    assert len({(entry["type"], entry["way"]) for entry in chosen}) == 6


def collected(expression: str) -> tuple[set[str], int]:
    """Tests of this project that an expression of marks selects, and the number of all tests."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--co", "-q", "-m", expression],
        cwd=ROOT,
        # Options of this process, such as -v, would change the lines.
        env=os.environ | {"PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    *lines, summary = done.stdout.splitlines()
    names = [line for line in lines if "::" in line]
    assert len(set(names)) == len(names)
    selected, total = re.search(r"(\d+)/(\d+) tests collected", summary).groups()
    assert int(selected) == len(names)
    assert max(map(len, names)) < 1000
    return set(names), int(total)


@pytest.mark.full
def test_the_two_selections_partition_this_suite() -> None:
    (quick, total), (full, total_of_full) = collected("not full"), collected("full")
    assert quick
    assert full
    assert not quick & full
    assert len(quick) + len(full) == total == total_of_full
