"""The plain run asks every option, line and branch of the shipped models, but for a reviewed list."""

from __future__ import annotations

import importlib

import pytest

from cases.options import cannot_be_asked
from parity.coverage.options import options_of
from parity.coverage.places import with_probes
from parity.coverage.source import functions, source_of
from parity.report.coverage import reported
from tests.cases.asked import asked_by, default_cases, written

OF_CODE = ("module", "function", "line", "branch", "outcome")


@pytest.fixture(scope="module")
def cases():
    return default_cases()


def test_every_choice_of_every_option_is_asked(cases):
    report = reported(options_of(cases), cannot_be_asked())
    assert report.unasked == (), written(report)
    assert report.questions["option"] > 40


def test_a_choice_that_no_case_takes_is_told(cases):
    without = [case for case in cases if case.options().get("hstu.model.normalization", None) is None]
    without += [case for case in cases if case.name == "hstu_tiny"]
    report = reported(options_of(without), cannot_be_asked())
    missing = {entry.place: entry.missing for entry in report.unasked}
    assert "softmax_rel_bias" in missing["hstu.model.normalization"]


def test_every_place_of_the_reviewed_list_exists(cases):
    options = {name for case in cases for name in case.options()}
    for place in cannot_be_asked():
        module, colon, rest = place.partition(":")
        if not colon:
            assert place in options or "axis" in place or functions(place), place
            continue
        function, _, text = rest.partition(" | ")
        assert function in functions(module), place
        text = text.partition(" | ")[0]
        _, places = with_probes(source_of(module))
        lines = {line.strip() for line in source_of(module).splitlines()}
        assert not text or text in lines | {one.text for one in places}, place
        assert importlib.import_module(module)


@pytest.mark.full
def test_every_line_and_branch_is_asked(cases):
    report = asked_by(cases)
    unasked = tuple(entry for entry in report.unasked if entry.kind in OF_CODE)
    assert unasked == (), written(report.model_copy(update={"unasked": unasked}))
