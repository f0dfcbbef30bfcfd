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

    def printed(line):
        """Wait for a line twice."""
        text, latest = "", time.monotonic() + 300
        while text.count(line) < 2:
            assert time.monotonic() < latest, text
            time.sleep(0.01)
            text += capfd.readouterr().err

    with progress.steps() as advance:
        printed("s  working\n")
        advance("one step")
        printed("s  working, after: one step\n")


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
