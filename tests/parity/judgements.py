"""Judgements made by hand for tests of `parity.verdict`."""

from __future__ import annotations

import math

from parity.execution.record import RunnerRecord, Status
from parity.verdict.bound import Bound
from parity.verdict.distances import Distance
from parity.verdict.judgement import Diagnosis, ErrorMap, RunnerJudgement, TapJudgement
from parity.verdict.rule import Verdict

UNIT = 2.0**-24
BOUND = Bound(k=2.0, floor=2 * UNIT, longest_sum=27, unit_roundoff=UNIT)
# The diagonal of a mask, one padded column.
DIAGONAL = ErrorMap(axes=("batch", "position"), shape=(4, 5), cells=("9000.", "0900.", "0090.", "0009."))


def verdict(margin: float = 0.2, min_detectable_error: float = 2 * UNIT) -> Verdict:
    """A verdict whose error is `margin` times its limit."""
    limit, failed = 4 * UNIT, not margin <= 1.0
    return Verdict(
        status="FAIL" if failed else "PASS",
        reason="exceeds" if failed else "",
        reference=Distance(UNIT, UNIT, UNIT / 10),
        port=Distance(margin * limit, 0.5 * margin * limit, 0.0),
        limit=Distance(limit, limit, UNIT),
        min_detectable_error=math.nan if failed else min_detectable_error,
        checked=640,
        boundary=0,
        bound=BOUND,
        worst=(),
    )


def tap(name: str, kind: str = "Attention", **changes: object) -> TapJudgement:
    """A tap that passes; of a judgement on one batch."""
    verdicts = {"accumulated": verdict(0.25), "isolated": verdict(0.2)} | {
        key: changes.pop(key) for key in ("accumulated", "isolated") if key in changes
    }
    judged = TapJudgement.of(name, name, kind, **verdicts)
    fields = {field: getattr(judged, field) for field in TapJudgement.__slots__}
    return TapJudgement(**(fields | changes))


def runner(*taps: TapJudgement, **changes: object) -> RunnerJudgement:
    """A runner with these taps."""
    fields = {
        "record": RunnerRecord(label="tripy (portable, cpu)", seconds=[0.25]),
        "status": Status.OK,
        "reason": "",
        "verdict": "PASS",
        "diagnosis": Diagnosis(),
        "taps": taps,
        "checks": {"incremental.current": verdict()},
    }
    return RunnerJudgement(**(fields | changes))
