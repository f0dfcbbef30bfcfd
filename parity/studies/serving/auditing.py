"""The benchmark's audit: answers of a performance run beside those of the accuracy run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parity.studies.serving.judging import Accuracy, problem_of
from parity.studies.serving.loadgen import Logged
from parity.studies.serving.requests import Requests
from parity.studies.serving.server import HEADER
from parity.verdict.rows import WITHIN_LIMITS


@dataclass(frozen=True)
class Audited:
    """The verdict on an audit.

    Attributes:
        name: Name of the audit.
        logged: Number of logged answers.
        equal: Number of them with the bits of the accuracy run.
        change: Largest relative change of the audit's metric.
        tolerance: Largest change that passes.
        problem: The first mistake in words; empty if the audit passes.
    """

    name: str
    logged: int
    equal: int
    change: float
    tolerance: float
    problem: str

    @property
    def passed(self) -> bool:
        return not self.problem

    def line(self) -> str:
        """The verdict in words."""
        if self.problem:
            return f"FAIL: {self.problem}"
        return (
            f"PASS: {self.logged} answers of the performance run, {self.equal} with equal bits; the metric "
            f"changes by at most {self.change:.2g} for any labels, limit {self.tolerance:.2g}"
        )

    def text(self) -> str:
        """The file for the submission checker."""
        return f"{self.line()}\n\nTEST {'PASS' if self.passed else 'FAIL'}\n"


def audited(requests: Requests, accuracy: Accuracy, log: Sequence[Logged]) -> Audited:
    """Compare the answers that LoadGen logged in a performance run with those of the accuracy run.

    Both are within the limit, so that they differ by at most two limits; see `parity.verdict.rows`.
    """
    audit = requests.serving.audit
    equal, change, problem = 0, 0.0, ""
    for entry in log:
        number = entry.request
        text = problem_of(requests, entry)
        if text:
            problem = problem or f"request {number} {text}"
            continue
        values, before, truth = entry.values[HEADER:], accuracy.answers[number], accuracy.truths[number]
        equal += values.tobytes() == before.tobytes()
        difference = float(np.abs(values - before).max(initial=0.0))
        if not difference <= WITHIN_LIMITS * truth.bound:
            problem = problem or (
                f"request {number} differs from its answer in the accuracy run by {difference:.3g}, "
                f"more than {WITHIN_LIMITS * truth.bound:.3g}"
            )
        tasks = requests.counted([number]).shape[-1]
        change = max(change, requests.serving.change(before.reshape(-1, tasks), values.reshape(-1, tasks)))
    if not log:
        problem = "LoadGen logged no answer"
    if not problem and not change <= audit.tolerance:
        problem = f"the metric may change by {change:.2g}, more than {audit.tolerance:.2g}"
    return Audited(audit.name, len(log), equal, change, audit.tolerance, problem)
