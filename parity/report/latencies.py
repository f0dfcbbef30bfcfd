"""The words of a report on latencies: medians, spreads, and ratios to the least time on the GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from parity.report.schema import RunnerReport
from parity.report.schema_modules import LatencyReport


def milliseconds(latency: LatencyReport | None) -> str:
    """Median and half the interquartile range, also of replays; empty without a latency.

    The ratio to the least time on the GPU comes first, if that is known.
    """
    if latency is None:
        return ""
    shown = _median_and_spread(latency)
    if latency.replay is not None:
        shown += f", graph {_median_and_spread(latency.replay)}"
    times = times_the_roofline(latency)
    return shown if times is None else f"{_times(times)}x roofline: {shown}"


LatencyColumns = Mapping[str, Callable[[LatencyReport], str]]


def latency_columns(entries: Iterable[RunnerReport]) -> LatencyColumns:
    """Columns of latencies by heading. Replays and rooflines have columns if any entry has them."""
    latencies = [timed.latency for entry in entries for timed in (entry, *entry.modules)]
    timed = [latency for latency in latencies if latency is not None]
    columns: dict[str, Callable[[LatencyReport], str]] = {"ms": _median_and_spread}
    if any(latency.replay is not None for latency in timed):
        columns["graph ms"] = _replay
    if any(latency.roofline is not None for latency in timed):
        columns["x least"] = _of_the_roofline
    return columns


def times_the_roofline(latency: LatencyReport) -> float | None:
    """The ratio of a latency to the least time on the GPU; None if that is not known.

    Replays take precedence, since they do not wait for the host.
    """
    if latency.roofline is None:
        return None
    measured = latency if latency.replay is None else latency.replay
    return measured.median / latency.roofline.seconds


def _replay(latency: LatencyReport) -> str:
    return "" if latency.replay is None else _median_and_spread(latency.replay)


def _of_the_roofline(latency: LatencyReport) -> str:
    times = times_the_roofline(latency)
    return "" if times is None else f"{_times(times)}x"


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"


def _median_and_spread(latency: LatencyReport) -> str:
    spread = (latency.p75 - latency.p25) / 2 / latency.median
    milliseconds = latency.median * 1e3
    # Three significant digits, down to a tenth of a microsecond.
    digits = min(4, max(0, 2 - math.floor(math.log10(milliseconds))))
    return f"{milliseconds:.{digits}f} ±{spread:.0%}"
