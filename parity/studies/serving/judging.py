"""Verdicts on LoadGen's log: every logged prediction beside the float64 oracle's, by the verdict rule.

The reference and the oracle run on the requests with zeros in the padding, each at its own width. The answers
come from LoadGen's log. Answers that are not of their query's request, or have another number of predictions,
fail at once. The others of one width are judged together as one output of the model.

Legend: B requests.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch

from parity.base.errors import UserError
from parity.base.precision import Precision
from parity.case import Arrays
from parity.in_process import CleanRun
from parity.studies.serving.loadgen import Logged
from parity.studies.serving.port import ServedPort
from parity.studies.serving.requests import Requests
from parity.studies.serving.server import HEADER, row_of
from parity.verdict.comparison import compare
from parity.verdict.evidence import Evidence, Results
from parity.verdict.flips import rows_left_out
from parity.verdict.judgement import TapJudgement
from parity.verdict.sensitivity import INSENSITIVE_ABOVE, why_by_nature
from parity.verdict.standards import nothing_left

Verdict = Literal["PASS", "INSENSITIVE", "FAIL"]

MOST_EXPLAINED = 3
"""Wrong requests that are explained."""
NOT_FINITE = "has predictions that are not finite"
"""The reason against an answer whose predictions are no numbers, in words."""
_TOKENS = 1 << 14
"""Tokens that are judged together, or one request."""
_SIZES_TRIED = 16
"""Numbers of rows that are tried: a case may refuse one that equals another axis."""


@dataclass(frozen=True)
class Truth:
    """The truth of one request.

    Attributes:
        values: The oracle's predictions, float64.
        bound: Largest absolute error of a right prediction.
    """

    values: np.ndarray
    bound: float

    def fits(self, values: np.ndarray) -> bool:
        """Whether predictions may be right results of this request."""
        return values.shape == self.values.shape and self.error(values) <= self.bound

    def begins(self, values: np.ndarray) -> bool:
        """Whether predictions begin as right results of this request do, which may have another number."""
        count = min(values.size, self.values.size)
        return count > 0 and Truth(self.values[:count], self.bound).fits(values[:count])

    def error(self, values: np.ndarray) -> float:
        """Largest absolute error; infinite for a prediction that is no number."""
        error = np.abs(values.astype(np.float64) - self.values)
        return float(np.nan_to_num(error, nan=math.inf).max(initial=0.0))


@dataclass
class Accuracy:
    """The verdict on an accuracy run.

    Attributes:
        requests: Number of requests.
        predictions: Number of judged predictions.
        margin: Largest error over its limit.
        detectable: Largest of the relative errors that the verdicts just detect; NaN in a failure.
        by_nature: The reason why no number of requests detects `INSENSITIVE_ABOVE`; empty if enough do.
        problems: By number of the request, the mistake in words.
        wrong_predictions: The problems that are wrong predictions.
        truths: By number of the request.
        answers: Logged predictions by number of the request, where they are of that request.
    """

    requests: int
    predictions: int = 0
    margin: float = 0.0
    detectable: float = 0.0
    by_nature: str = ""
    problems: dict[int, str] = field(default_factory=dict)
    wrong_predictions: dict[int, str] = field(default_factory=dict)
    truths: dict[int, Truth] = field(default_factory=dict)
    answers: dict[int, np.ndarray] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether no prediction is wrong."""
        return not self.problems

    @property
    def verdict(self) -> Verdict:
        if not self.passed:
            return "FAIL"
        return "PASS" if self.detectable <= INSENSITIVE_ABOVE else "INSENSITIVE"

    def line(self) -> str:
        """The verdict in words."""
        if self.passed:
            text = f"{self.verdict}: {self.predictions} predictions of {self.requests} requests, err/limit "
            text += f"{self.margin:.2f}; an error of {self.detectable:.2g} is detected"
            return text if self.verdict == "PASS" else f"{text}, and none below: {self._advice()}"
        first = next(iter(self.problems.values()))
        others = len(self.problems) - 1
        more = f" ({others} more requests are wrong)" if others else ""
        return f"FAIL: {first}{more}"

    def _advice(self) -> str:
        if self.by_nature:
            nature = f"no number of requests detects {INSENSITIVE_ABOVE:.0%}, since {self.by_nature}"
            return f"{nature}; give a finer precision"
        return "give more requests (--samples), or a finer precision"


class Judge:
    """Judges the answers of the server to the requests.

    Args:
        requests: The requests.
        precision: The tested precision.
        weights: Float32 weights.
        port: The port, which runs wrong requests again.
    """

    def __init__(
        self,
        requests: Requests,
        precision: Precision,
        weights: Mapping[str, torch.Tensor],
        port: ServedPort,
    ) -> None:
        self._requests, self._precision, self._weights, self._port = requests, precision, weights, port

    def accuracy(
        self,
        log: Sequence[Logged],
        batches: Sequence[Sequence[int]],
        hits: Sequence[tuple[int, int]] = (),
    ) -> Accuracy:
        """The verdict on the log of an accuracy run.

        Args:
            log: All logged answers.
            batches: Numbers of the requests of each batch, in the order of its rows.
            hits: See `Log.hits`.
        """
        judged = Accuracy(len(self._requests))
        judged.answers, judged.problems = answers(self._requests, log)
        for number in range(len(self._requests)):
            if number not in judged.answers and number not in judged.problems:
                judged.problems[number] = f"request {number} is missing from LoadGen's log"
        wrong: dict[int, str] = {}
        for numbers in self._groups():
            wrong |= self._judge(judged, numbers)
        origins = dict(hits)
        for number, reason in list(wrong.items())[:MOST_EXPLAINED]:
            wrong[number] = f"{reason}: {self._explain(judged, number, batches, number in origins)}"
        for number in wrong.keys() & origins.keys():
            wrong[number] += f"; its keys and values came from the cache, kept from request {origins[number]}"
        not_finite = (number for number, text in judged.problems.items() if text.endswith(NOT_FINITE))
        for number in list(itertools.islice(not_finite, MOST_EXPLAINED)):
            cause = self._alone(judged.truths[number], number, number in origins)
            judged.problems[number] += f": {cause}"
        judged.wrong_predictions = wrong
        judged.problems |= wrong | wrong_hits(self._requests, hits)
        return judged

    def _groups(self) -> Iterator[list[int]]:
        """Numbers of requests that are judged together, all of one width."""
        for width in self._requests.shapes:
            numbers, rows = self._requests.of_width(width), max(1, _TOKENS // width)
            for start in range(0, len(numbers), rows):
                yield numbers[start : start + rows]

    def _judge(self, judged: Accuracy, numbers: list[int]) -> dict[int, str]:
        """Add the truth of some requests of one width. Returns wrong ones with the reason."""
        case = self._requests.case
        rows, arrays = self._batch(numbers)
        run = CleanRun(case, self._precision, arrays, self._weights, isolated=False, outputs_alone=True)
        evidence = run.evidence
        (tap,) = (name for name in evidence.reference.tensors if name not in evidence.kinds)
        counted = self._requests.counted(rows)
        served = evidence.reference.tensors[tap].clone()
        for row, number in enumerate(rows):
            if number in judged.answers:
                values = torch.from_numpy(judged.answers[number].copy()).to(served.dtype)
                served[row][torch.from_numpy(counted[row])] = values
        results = Results(untapped={tap: served}, taps_modules=False, appends=False)
        (judgement,) = compare(evidence, results).taps
        left_out: list[int] = []
        if not judgement.passed and evidence.boundary:
            # Where the port alone takes a discontinuity otherwise, the truth judges no later element.
            results.tapped = self._port.run_tapped(arrays).tensors
            (judgement,) = compare(evidence, results).taps
            behind = rows_left_out(evidence, results.tapped)
            if behind is not None:
                left_out = [number for row, number in enumerate(numbers) if behind[row].any()]
        verdict = judgement.accumulated or nothing_left(evidence.precision)
        judgement = replace(judgement, accumulated=verdict)
        bound = self._bound(evidence, judgement, counted)
        oracle = evidence.oracle[tap].double().numpy()
        for row, number in enumerate(numbers):
            judged.truths[number] = Truth(oracle[row][counted[row]], bound)
            judged.predictions += int(counted[row].sum())
        judged.margin = max(judged.margin, verdict.margin)
        if verdict.min_detectable_error >= judged.detectable:
            judged.detectable = verdict.min_detectable_error
            judged.by_nature = why_by_nature(judgement.lasting_limit, judgement.rows)
        if verdict.passed:
            return self._other_than_port(judged, left_out)
        own = [number for number in numbers if number in judged.answers]
        errors = {number: judged.truths[number].error(judged.answers[number]) for number in own}
        wrong = [number for number in own if not errors[number] <= bound]
        # The norm of all errors, or the scale, may be the only excess.
        worst = wrong or [max(own, key=lambda number: errors[number])]
        return {
            number: f"request {number}: {verdict.reason}; its largest error is {errors[number]:.3g}"
            for number in worst
        }

    def _other_than_port(self, judged: Accuracy, numbers: list[int]) -> dict[int, str]:
        """Wrong ones of the requests that the truth does not judge, with the reason.

        The port alone takes a discontinuity as it did in the server. Its result and a right answer are both
        within the bound of one truth, which is not known.
        """
        wrong = {}
        for number in filter(judged.answers.__contains__, numbers):
            values, truth = judged.answers[number], judged.truths[number]
            alone = self._run(number, self._requests.clean(self._requests.full([number])))
            own = Truth(alone.astype(np.float64), 2.0 * truth.bound)
            if not truth.fits(values) and not own.fits(values):
                wrong[number] = (
                    f"request {number} depends on a discontinuity that the port takes otherwise than the "
                    f"reference; it differs from the port's own result by {own.error(values):.3g}"
                )
        return wrong

    def _bound(self, evidence: Evidence, judgement: TapJudgement, counted: np.ndarray) -> float:
        """Largest absolute error of a right prediction."""
        assert judgement.accumulated is not None
        largest = np.abs(evidence.oracle[judgement.tap].double().numpy()[counted]).max(initial=0.0)
        return float(judgement.accumulated.limit.largest * largest)

    def _batch(self, numbers: list[int]) -> tuple[list[int], Arrays]:
        """The requests as a batch that can be judged: some come again behind the last one."""
        for size in range(len(numbers), len(numbers) + _SIZES_TRIED):
            rows = [numbers[place % len(numbers)] for place in range(size)]
            arrays = self._requests.clean(rows)
            try:
                self._requests.case.validate(arrays)
            except UserError as error:
                refused = error
                continue
            return rows, arrays
        raise refused

    def _explain(self, judged: Accuracy, number: int, batches: Sequence[Sequence[int]], is_hit: bool) -> str:
        """The probable mistake behind wrong predictions of a request, whose rows may be from the cache."""
        values = judged.answers[number]
        own = row_of(batches, number)
        others = (other for other, truth in judged.truths.items() if other != number and truth.begins(values))
        for other in others:
            place = row_of(batches, other)
            holds = f"its answer has the predictions of request {other}"
            if own is not None and place is not None and own[0] == place[0]:
                return f"{holds}; rows {own[1]} and {place[1]} of batch {own[0]} are swapped"
            if own is not None and place is not None and place[0] < own[0]:
                return f"{holds}; they are stale, from batch {place[0]}"
            return f"{holds}, which is in another batch"
        return self._alone(judged.truths[number], number, is_hit)

    def _alone(self, truth: Truth, number: int, is_hit: bool) -> str:
        """The mistake, from runs of the port on the request alone."""
        name = self._requests.has_other_rows(number)
        if name:
            return f"the rows of {name} that the tables give are not the reference's"
        rows = self._requests.full([number])
        clean, served = (
            self._run(number, arrays) for arrays in (self._requests.clean(rows), self._requests.served(rows))
        )
        if not truth.fits(clean):
            return f"the port alone is wrong on it, too: `run --case {self._requests.case.name}`"
        if not truth.fits(served):
            return "padding leaks: the port alone is right with zeros in the padding, and wrong with garbage"
        if is_hit:
            return "the port alone is right on it as a whole: its cached form or the server's batch is wrong"
        return "the port alone is right on it, so the server's batch is wrong"

    def _run(self, number: int, arrays: Arrays) -> np.ndarray:
        shape = self._requests.shapes[self._requests.width[number]]
        output = self._port.start(shape, arrays).result()
        return output[0].float().numpy()[self._requests.counted([number])[0]]


def wrong_hits(requests: Requests, hits: Iterable[tuple[int, int]]) -> dict[int, str]:
    """Mistakes in words by request: keys and values that were kept from a request with another history."""
    problems = {}
    for number, origin in sorted(set(hits)):
        name = requests.has_other_history(number, origin)
        if name:
            holds = f"request {number} took keys and values from the cache that are not its own"
            problems[number] = f"{holds}: they were kept from request {origin}, which has other {name}"
    return problems


def answers(requests: Requests, log: Sequence[Logged]) -> tuple[dict[int, np.ndarray], dict[int, str]]:
    """Logged predictions and mistakes in words, by request. The first answer of a request counts."""
    right: dict[int, np.ndarray] = {}
    problems: dict[int, str] = {}
    for entry in log:
        number = entry.request
        problem = problem_of(requests, entry)
        if problem:
            problems.setdefault(number, f"request {number} {problem}")
        else:
            right.setdefault(number, entry.values[HEADER:])
    return {number: values for number, values in right.items() if number not in problems}, problems


def problem_of(requests: Requests, entry: Logged) -> str:
    """The reason why an answer cannot be right; empty if its predictions decide."""
    if entry.values.size < HEADER:
        return "has no answer: the server dropped its query"
    number = int(entry.values[1])
    if number != entry.request:
        return f"has the answer of request {number}: the response went to the wrong query"
    count, wanted = entry.values.size - HEADER, int(requests.counted([entry.request]).sum())
    if count != wanted:
        mistake = "padding is answered, too" if count > wanted else "some are left out"
        return f"has {count} predictions, not {wanted}: {mistake}"
    if not np.isfinite(entry.values).all():
        return NOT_FINITE
    return ""
