"""The verdict on a run's k/v cache: some queries hit, and none took another history's keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from parity.studies.serving.cache import Statistics
from parity.studies.serving.judging import Accuracy, wrong_hits
from parity.studies.serving.port import GIB, ServedPort
from parity.studies.serving.requests import Requests
from parity.studies.serving.server import Log


@dataclass(frozen=True)
class CacheVerdict:
    """The verdict on a cache.

    Attributes:
        limit: Most bytes of it.
        tests: The work of the cache by test.
        requests: Requests of the accuracy run whose keys and values were in the cache.
        equal: Number of them whose predictions have the bits of a run without a cache.
        problem: The first mistake in words; empty if there is none.
    """

    limit: int
    tests: Mapping[str, Statistics]
    requests: int
    equal: int
    problem: str

    @property
    def passed(self) -> bool:
        return not self.problem

    def line(self) -> str:
        """The verdict in words."""
        if self.problem:
            return f"FAIL: {self.problem}"
        largest = max(test.largest for test in self.tests.values()) / GIB
        text = (
            f"PASS: {self.requests} requests of the accuracy run from it, {self.equal} with the bits of a run"
        )
        text += f" without it; {largest:.3g} of {self.limit / GIB:.3g} GiB"
        for name, test in self.tests.items():
            text += (
                f"; {name}: {test.hits} of {test.hits + test.misses} queries hit, {test.evictions} evicted"
            )
        return text

    def content(self) -> dict[str, object]:
        """Every number."""
        tests = {name: asdict(test) for name, test in self.tests.items()}
        numbers = {"limit": self.limit, "requests": self.requests, "equal": self.equal, "tests": tests}
        return {"verdict": self.line(), **numbers}


def cache_verdict(
    requests: Requests, port: ServedPort, accuracy: Accuracy, logs: Mapping[str, Log]
) -> CacheVerdict:
    """Judge the cache of all tests.

    Args:
        requests: The requests.
        port: The port, which runs requests from the cache again without it.
        accuracy: The verdict on the accuracy run.
        logs: By name of the test, the one of the accuracy run first.
    """
    wrong = {}
    for log in logs.values():
        wrong |= wrong_hits(requests, log.hits)
    first = next(iter(logs.values()))
    resumed = sorted({number for number, _ in first.hits})
    problem = next(iter(wrong.values()), "")
    if not resumed and not problem:
        problem = (
            "no request of the accuracy run had its keys and values there, so that nothing is proved of it"
        )
        problem += "; give more GiB (--kv-cache)"
    failing = sum(number in accuracy.wrong_predictions for number in resumed)
    if failing and not problem:
        problem = f"{failing} of {len(resumed)} requests of the accuracy run from it have wrong predictions"
    equal = sum(_is_equal(requests, port, accuracy, number) for number in resumed)
    tests = {name: log.cache for name, log in logs.items()}
    return CacheVerdict(port.kv_cache, tests, len(resumed), equal, problem)


def _is_equal(requests: Requests, port: ServedPort, accuracy: Accuracy, number: int) -> bool:
    """Whether an answer has the bits of a batch of its request alone, computed as a whole."""
    if number not in accuracy.answers:
        return False
    numbers: Sequence[int] = requests.full([number])
    output = port.start(requests.shapes[requests.width[number]], requests.staged(numbers)).result()
    values = output[0].float().numpy()[requests.counted([number])[0]]
    return np.array_equal(values, accuracy.answers[number])
