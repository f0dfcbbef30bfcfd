"""Progress off a terminal: a line a step, and no long silence."""

from __future__ import annotations

import re
import time

from parity.cli import progress


def test_a_log_has_a_line_for_each_step(capfd):
    with progress.steps() as advance:
        advance("hstu_tiny fp32: torch")
        advance("a [bold]name[/bold]")
    said = capfd.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert [re.sub(r"^ *\d+\.\d s  ", "", line) for line in lines] == [
        "hstu_tiny fp32: torch",
        "a [bold]name[/bold]",
    ]


def test_a_log_has_the_counts(capfd):
    with progress.counted() as advance:
        advance(3, 10, "dlrm_tiny fp16")
    assert capfd.readouterr().err.endswith(" s  3/10 dlrm_tiny fp16\n")


def test_no_log_is_silent_for_long(capfd, monkeypatch):
    assert progress.LONGEST_SILENCE < 10
    monkeypatch.setattr(progress, "LONGEST_SILENCE", 0.05)
    with progress.steps() as advance:
        time.sleep(0.3)
        advance("one step")
        time.sleep(0.3)
    before, after = capfd.readouterr().err.split("one step", 1)
    assert before.count("s  working\n") >= 2
    assert after.count("s  working, after: one step\n") >= 2


def test_bad_input_ends_the_watch(capfd):
    try:
        with progress.steps():
            raise KeyError
    except KeyError:
        pass
    assert capfd.readouterr().err == ""


def test_a_terminal_has_one_moving_line(capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with progress.counted() as advance:
        advance(3, 10, "dlrm_tiny fp16")
    said = capfd.readouterr().err
    assert "3/10" in said
    assert " s  3/10" not in said
