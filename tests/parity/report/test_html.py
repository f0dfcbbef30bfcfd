"""The page's content: everything that a report holds, escaped, in one file."""

import math
import re
from html.parser import HTMLParser

import pytest

from parity.report.html import charts, render_html
from parity.report.html.axis import FROM, TO, ZERO_AT, Axis
from parity.report.html.heat import heat
from parity.verdict.error_map import FAILING
from tests.parity import made_reports
from tests.parity.made_reports import BLOCK, CULPRIT, DIAGONAL, HOSTILE, TAPS, module, verdict

VOID = {"meta", "link", "br", "img", "input", "hr"}
BLOCKS = {"td", "th", "p", "div", "li", "dd", "dt"}


class _Page(HTMLParser):
    """Elements with their attributes, the visible text, and whether every element is closed."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.text, self._open = [], [], []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag in BLOCKS:
            self.text.append(" ")
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if "style" not in self._open:
            self.text.append(data)

    @property
    def words(self):
        return " ".join("".join(self.text).split())

    def all(self, tag, **wanted):
        return [
            entry for name, entry in self.elements
            if name == tag and all(entry.get(key) == value for key, value in wanted.items())
        ]  # fmt: skip


@pytest.fixture(scope="module", params=["passing", "failing", "everything"])
def html(request):
    return render_html(getattr(made_reports, request.param)())


@pytest.fixture(scope="module")
def failing():
    return _Page(render_html(made_reports.failing()))


@pytest.fixture(scope="module")
def everything():
    return _Page(render_html(made_reports.everything()))


def test_one_self_contained_file(html):
    page = _Page(html)
    assert html.startswith("<!DOCTYPE html>")
    assert not page.all("script") + page.all("link") + page.all("img") + page.all("iframe")
    targets = [
        entry[key] for _, entry in page.elements for key in ("src", "href", "xlink:href") if key in entry
    ]
    assert all(target.startswith("#") for target in targets)
    assert not re.findall(r"@import|@font-face|url\((?!#)", html)
    assert set(re.findall(r"https?://[^\"\s<]+", html)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert len(html) < 3_000_000


def test_links_lead_somewhere_and_ids_are_unique(html):
    page = _Page(html)
    ids = [entry["id"] for _, entry in page.elements if "id" in entry]
    assert len(ids) == len(set(ids))
    assert {entry["href"][1:] for entry in page.all("a")} <= set(ids)
    named = {name for _, entry in page.elements for name in entry.get("aria-labelledby", "").split()}
    assert named <= set(ids)


def test_the_verdict_comes_first():
    passing = _Page(render_html(made_reports.passing()))
    assert "Parity report PASS 21 module verdicts of 3 runs; the closest to its limit is" in passing.words
    assert passing.words.index("PASS 21 module") < 200
    assert "Findings" not in passing.words
    assert "PASS: parity report of hstu_tiny" in passing.words


def test_a_failure_names_its_culprit_and_leads_to_it(failing):
    assert "FAIL 3 of 6 runs diverge." in failing.words
    assert (
        f"hstu_tiny, fp16, tripy (portable, cpu) {CULPRIT} (Attention) diverges on its own: why"
        in failing.words
    )
    # At the top, and where the modules of each of the three precisions are.
    assert failing.words.count("Explanation: equal after transposing the last two axes") == 2 * 3
    (target,) = {a["href"][1:] for a in failing.all("a") if a["href"].startswith("#case-0-fp16")}
    (line,) = failing.all("li", id=target)
    assert line["class"] == "fail"
    number = next(n for n, (_, entry) in enumerate(failing.elements) if entry.get("id") == target)
    # The culprit is open, and nothing else is.
    assert failing.elements[number + 1] == ("details", {"open": None})
    closed = [entry for entry in failing.all("details") if entry == {}]
    assert len(closed) == 3 * (len(TAPS) - 1) + 3 * 1


def test_every_module_has_its_errors_limits_bound_and_worst_elements(failing):
    for tap in TAPS:
        assert failing.words.count(f"{tap} (Attention)") >= 3
    broken = verdict("fp32", 5e4)
    for number in (broken.err_port_l2, broken.err_ref_l2, broken.limit_l2, broken.err_port_max):
        assert f"{number:.2e}" in failing.words
    assert broken.bound in failing.words
    assert "640 elements compared, 0 left out at a discontinuity" in failing.words
    assert "Worst elements, alone Index Oracle Reference Port 3, 1 1.5 1.5 1.25" in failing.words
    assert "0.0200 ±5%" in failing.words


def test_the_map_shows_the_diagonal_and_says_it(failing):
    maps = failing.all("svg", role="img")
    assert len(maps) == 6
    text = "Over the limit: 4 of 16 cells, within batch 0 to 3 and position 0 to 3."
    assert failing.words.count(text) == 6
    assert all(text in entry["aria-label"] for entry in maps)
    (outline,) = {entry["d"] for entry in failing.all("path", **{"class": "mark"}) if entry["d"] != "M0 0h1"}
    assert outline == "M0 0h1M1 1h1M2 2h1M3 3h1"


def test_charts_and_what_they_show_in_words(failing):
    assert "How the error grows through the model" in failing.words
    assert "bf16 from 3.9e-03 at _item_emb to 7.8e+02 at" in failing.words
    assert "Latency of the whole model" in failing.words
    assert "fp32 torch dense (eager, cpu) 8 ms; fp32 tripy (portable, cpu) 12 ms" in failing.words
    colours = {v for _, entry in failing.elements for k, v in entry.items() if k in ("fill", "stroke") and v}
    # Whatever is drawn takes its colours from the style sheet, which knows light, dark and print.
    assert not [colour for colour in colours if colour.startswith("#") or colour.startswith("rgb")]
    assert "var(--series-1)" in colours


def test_statuses_are_words_and_reasons_are_there(everything):
    for status in ("FAIL", "GAP", "INSENSITIVE", "PASS", "UNAVAILABLE", "BUILT", "CRASHED", "reference"):
        assert re.search(rf"\b{status}\b", everything.words), status
    for text in (
        "no compiler",
        "static: 1368 layers (30 in the engine), 2.1 MB, 0.8 s, Float/Int32",
        "No latency: too slow",
        "Garbage in the padding reaches _item_emb.",
        "changed an output by up to 1.00e-07",
        "hstu_tiny, fp32, tripy (portable, cpu), one row",
        "not run",
    ):
        assert text in everything.words, text
    assert "infinite fp32 tripy (portable, cpu) 12 640" in everything.words


def test_metrics(everything):
    words = everything.words
    assert "AUC fp32 tripy (portable, cpu) 0.512345 0.500000 FAIL -1.2e-02 -2.0e-02 to -1.0e-03 99" in words
    assert "MRR fp32 tripy (portable, cpu) 0.512345 0.500000 -1.2e-02 one row is no sample 99" in words
    assert "calibration fp32 tripy (portable, cpu) all labels are 0 99" in words


def test_hostile_names_stay_text(everything):
    assert "<script>alert('x')</script>" in everything.words
    assert not everything.all("script")
    assert HOSTILE.split("|")[0] in "".join(everything.text)


def test_a_deep_model_that_fails_everywhere_stays_below_three_megabytes():
    cells = tuple(("0123456789" * 8)[row % 10 :][:64] for row in range(32))
    noise = DIAGONAL.model_copy(update={"shape": (64, 1011), "cells": cells})
    maps = {"isolated": noise, "accumulated": noise}

    def runner(precision):
        worst = verdict().worst * 5
        modules = (
            module(
                f"{BLOCK}.{number // 7}.module_{number % 7}",
                precision,
                alone=50.0,
                inside=50.0,
                isolated=verdict(precision, 50.0, worst=worst),
                error_maps=maps if number < FAILING else {},
            )
            for number in range(24 * 7)
        )
        return made_reports.port(precision, tuple(modules), verdict="FAIL")

    html = render_html(made_reports.report(*((runner(name),) for name in made_reports.PRECISIONS)))
    assert 1_000_000 < len(html.encode()) < 3_000_000


def test_engines_that_did_not_run_come_behind_what_was_compared(everything):
    words = everything.words
    compared, engines = words.index("Latency of the whole model"), words.index("Engines Run")
    assert words.index("Not compared, or not timed") < compared < engines
    assert "Not run: no CUDA device" in words[engines:]


def test_a_report_without_a_port_shows_the_other_runners():
    jagged = made_reports.passing_port("fp32").model_copy(
        update={"runner": "torch_jagged", "label": "jagged"}
    )
    words = _Page(render_html(made_reports.report((made_reports.reference(), jagged)))).words
    assert "fp32: jagged PASS" in words
    assert f"{BLOCK}.0. _attn" in words or f"{BLOCK}.0._attn" in words


def test_a_report_that_judged_nothing():
    crashed = made_reports.without_verdict("tripy", "CRASHED", "signal 11")
    words = _Page(render_html(made_reports.report((crashed,), exit_code=1))).words
    assert "INCOMPLETE Nothing was judged" in words
    assert "fp32: no runner has modules to show." in words
    assert "How the error grows" not in words


class TestAxis:
    def test_covers_what_it_shows_and_orders_it(self):
        modules = [module("a"), module("b", alone=5e4), module("c", alone=0.0, inside=0.0)]
        axis = Axis.over(modules)
        for entry in modules:
            for track in axis.tracks(entry):
                assert track.over == (track.measure.ratio > 1)
                assert (track.port > track.limit) == track.over
                assert track.port == ZERO_AT or FROM <= track.port <= TO
        assert [text for _, text in axis.ticks()][:2] == ["0", f"1e{axis.low}"]
        places = [at for at, _ in axis.ticks()]
        assert places == sorted(places)
        assert len(places) <= 8

    def test_what_is_no_number_or_off_the_axis(self):
        axis = Axis(-8, 0)
        assert axis.at(math.nan) is None
        assert axis.at(0.0) == ZERO_AT
        assert axis.at(math.inf) == axis.at(1e9) == axis.at(1.0) == TO
        assert axis.at(1e-300) == axis.at(-1e-8) == FROM
        assert Axis.over([]) == Axis(-8, 0)

    def test_must_be_equal_has_no_limit_to_show(self):
        exact = verdict(margin=0.0, limit_l2=0.0, limit_max=0.0, limit_scale_error=0.0, scale_error_port=0.0)
        (track, _) = Axis(-8, 0).tracks(module("m", isolated=exact))
        assert track.limit is None
        assert not track.over


def test_the_words_of_a_map_without_failures_and_with_shared_cells():
    quiet = heat(DIAGONAL.model_copy(update={"cells": ("0123.", "0044.")}))
    assert quiet.text == "No element of 8 cells is over its limit."
    assert quiet.marks == ""
    assert [meaning for _, meaning in quiet.legend] == [
        "padding, or left out", "equal", "up to 0.1", "up to 0.25", "up to 0.5", "up to 1"
    ]  # fmt: skip
    changed = heat(DIAGONAL, changes=True)
    assert changed.text == "Changed: 4 of 16 cells, within batch 0 to 3 and position 0 to 3."
    assert [meaning for _, meaning in changed.legend] == ["padding, or left out", "equal", "changed"]
    shared = heat(
        DIAGONAL.model_copy(update={"shape": (8, 14), "cells": ("0005.", "00000", "00000", "00000")})
    )
    assert shared.row_axis == "batch 0 to 7, 2 a cell"
    assert shared.text == "Over the limit: 1 of 19 cells, within batch 0 to 1 and position 9 to 11."


def test_lack_of_memory_while_a_chart_is_drawn_ends_the_page(monkeypatch):
    def no_memory(spec):
        raise MemoryError

    monkeypatch.setattr(charts, "latencies", no_memory)
    with pytest.raises(MemoryError):
        render_html(made_reports.passing())
