"""Taps that threads judge side by side have the verdicts of one thread, in the same order."""

from __future__ import annotations

import threading

from cases.shipped import load_case
from parity.base.precision import PRECISIONS
from parity.in_process import CleanRun
from parity.verdict import comparison


def test_threads_change_no_verdict(monkeypatch):
    run = CleanRun(load_case("dlrm_tiny"), PRECISIONS["fp32"])
    results = run.reference_results()
    alone = comparison.compare(run.evidence, results)
    used, judge = set(), comparison._judge_tap

    def judged(*arguments):
        used.add(threading.get_ident())
        return judge(*arguments)

    monkeypatch.setattr(comparison, "_judge_tap", judged)
    run.evidence.threads = 3
    assert repr(comparison.compare(run.evidence, results).taps) == repr(alone.taps)
    assert used == {threading.get_ident()}, "small taps need no threads"
    monkeypatch.setattr(comparison, "LARGE", 0)
    assert repr(comparison.compare(run.evidence, results).taps) == repr(alone.taps)
    assert len(used) > 1
