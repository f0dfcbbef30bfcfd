"""The charts of a report page, drawn by Vega-Lite as SVG.

Colours are CSS variables of the page, so that one drawing suits light, dark and print. Text shrinks with a
drawing, so each chart has two drawings, for wide and for narrow pages.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from parity.base.memory import address_space_left, data_left
from parity.report.overview import printable
from parity.report.schema import CaseReport, RunnerReport
from parity.report.schema_modules import ModuleReport

WIDE, NARROW = 1060, 370
SERIES = {
    "fp32": ("1", "circle"),
    "tf32": ("2", "diamond"),
    "fp16": ("3", "square"),
    "bf16": ("4", "triangle-up"),
}
"""Number of the CSS colour, and shape of the points, of each precision."""
_LABEL = 19
_ADDRESS_SPACE = 66 * 2**30
"""Address space that the drawing library reserves, in bytes; it takes a small part as memory."""
_DATA = 2**30
"""Data that it may take for a moment, in bytes."""
_LONGEST_REASON = 200


@dataclass(frozen=True)
class Chart:
    """A chart for both widths, and its content in words."""

    title: str
    text: str
    wide: Markup
    narrow: Markup


def growth(case: CaseReport, runner: str) -> Chart | None:
    """A runner's error inside the model, module by module, a line for each precision; None without errors."""
    points: list[dict[str, Any]] = []
    order: dict[str, int] = {}
    texts = []
    for precision in case.precisions:
        entry = next((entry for entry in precision.runners if entry.runner == runner), None)
        errors = _errors(entry) if entry is not None else []
        for module, error, limit in errors:
            x = order.setdefault(module.tap, len(order))
            points.append({"x": x, "precision": precision.precision, "error": error, "limit": limit})
        if errors:
            (first, low, _), (last, high, _) = errors[0], max(errors, key=lambda item: item[1])
            texts.append(f"{precision.precision} from {low:.1e} at {first.tap} to {high:.1e} at {last.tap}")
    if not points:
        return None
    return Chart(
        title="How the error grows through the model",
        text=f"Relative L2 error of the port inside the model: {'; '.join(texts)}. Dashed: the limits.",
        wide=_draw(_growth_spec(points, list(order), WIDE)),
        narrow=_draw(_growth_spec(points, list(order), NARROW)),
    )


def _errors(entry: RunnerReport) -> list[tuple[ModuleReport, float, float | None]]:
    """Modules with a finite error above 0, in the order in which they finish, and their limit."""
    return [
        (module, v.err_port_l2, v.limit_l2 if 0 < v.limit_l2 < math.inf else None)
        for module in entry.modules
        if (v := module.accumulated) is not None and 0 < v.err_port_l2 < math.inf
    ]


def _growth_spec(points: list[dict[str, Any]], taps: list[str], width: int) -> dict[str, Any]:
    names = [p for p in SERIES if any(point["precision"] == p for point in points)]
    colour = {
        "field": "precision",
        "scale": {"domain": names, "range": [f"var(--series-{SERIES[p][0]})" for p in names]},
        "legend": {"title": None, "orient": "top", "symbolSize": 60},
    }
    shape = {
        "field": "precision",
        "scale": {"domain": names, "range": [SERIES[p][1] for p in names]},
        "legend": {"title": None, "orient": "top"},
    }
    # Only names that fit are shown. The table below has every number.
    step = math.ceil(len(taps) / (width / 26))
    x = {
        "field": "x",
        "type": "quantitative",
        "scale": {"domain": [-0.5, len(taps) - 0.5], "nice": False},
        "axis": {
            "title": None,
            "values": list(range(0, len(taps), step)),
            "labelExpr": f"{json.dumps([_short(tap) for tap in taps])}[datum.value]",
            "labelAngle": -50,
            "labelAlign": "right",
            "labelOverlap": False,
            "grid": False,
        },
    }
    y = {
        "type": "quantitative",
        "scale": {"type": "log"},
        "axis": {"format": ".0e", "title": "relative L2 error", "values": _decades(points)},
    }
    return {
        "width": width - 90,
        "height": 230,
        "data": {"values": points},
        "encoding": {"x": x, "color": colour},
        "layer": [
            {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"y": y | {"field": "error"}}},
            {
                "mark": {"type": "point", "filled": True, "size": 45, "opacity": 1},
                "encoding": {"y": y | {"field": "error"}, "shape": shape},
            },
            {
                "transform": [{"filter": "isValid(datum.limit)"}],
                "mark": {"type": "line", "strokeDash": [3, 4], "strokeWidth": 1.5, "interpolate": "step"},
                "encoding": {"y": y | {"field": "limit"}},
            },
        ],
    }


def _decades(points: list[dict[str, Any]]) -> list[float]:
    """Powers of ten around all errors and limits, about eight at most."""
    numbers = [number for point in points for number in (point["error"], point["limit"]) if number]
    low, high = math.floor(math.log10(min(numbers))), math.ceil(math.log10(max(numbers)))
    return [10.0**decade for decade in range(low, high + 1, math.ceil((high - low + 1) / 8))]


def _short(tap: str) -> str:
    """The module's own name, cut to the room of an axis; an index keeps the name of its list."""
    *above, name = printable(tap).split(".")
    if name[:1].isdigit() and above:
        name = f"{above[-1]}.{name}"
    return name if len(name) <= _LABEL else f"\N{HORIZONTAL ELLIPSIS}{name[1 - _LABEL :]}"


def latencies(case: CaseReport) -> Chart | None:
    """Median latencies of whole models with quartiles, runner by runner; None without latencies."""
    bars = [
        {
            "precision": precision.precision,
            "runner": printable(entry.label),
            "median": entry.latency.median * 1e3,
            "p25": entry.latency.p25 * 1e3,
            "p75": entry.latency.p75 * 1e3,
        }
        for precision in case.precisions
        for entry in precision.runners
        if entry.latency is not None
    ]
    if not bars:
        return None
    texts = (f"{b['precision']} {b['runner']} {b['median']:.3g} ms" for b in bars)
    return Chart(
        title="Latency of the whole model",
        text=f"Median with quartiles: {'; '.join(texts)}.",
        wide=_draw(_latency_spec(bars, WIDE)),
        narrow=_draw(_latency_spec(bars, NARROW)),
    )


def _latency_spec(bars: list[dict[str, Any]], width: int) -> dict[str, Any]:
    tick_count = 4 if width == NARROW else 8
    # A runner's name stands above its bar, where it has the whole width.
    y = {"field": "runner", "type": "nominal", "sort": None, "title": None, "axis": None}
    x = {"type": "quantitative", "title": "ms, with quartiles", "axis": {"tickCount": tick_count}}
    name = {"type": "text", "align": "left", "baseline": "bottom", "dy": -9, "color": "var(--muted)"}
    return {
        "data": {"values": bars},
        "facet": {
            "row": {
                "field": "precision",
                "sort": list(dict.fromkeys(bar["precision"] for bar in bars)),
                "title": None,
                "header": {"labelOrient": "top", "labelAnchor": "start", "labelFontWeight": "bold"},
            }
        },
        "spacing": 8,
        "resolve": {"scale": {"y": "independent"}},
        "spec": {
            "width": width - 25,
            "height": {"step": 34},
            "encoding": {"y": y},
            "layer": [
                {
                    "mark": {"type": "bar", "color": "var(--bar)", "height": 11},
                    "encoding": {"x": x | {"field": "median"}},
                },
                {
                    "mark": {"type": "rule", "color": "var(--fg)", "strokeWidth": 1.5},
                    "encoding": {"x": x | {"field": "p25"}, "x2": {"field": "p75"}},
                },
                *(
                    {
                        "mark": {"type": "tick", "color": "var(--fg)", "thickness": 1.5, "height": 8},
                        "encoding": {"x": x | {"field": end}},
                    }
                    for end in ("p25", "p75")
                ),
                {"mark": name, "encoding": {"x": {"value": 0}, "text": {"field": "runner"}}},
            ],
        },
    }


_CONFIG = {
    "background": None,
    # The layout uses the letter widths of these fonts.
    "font": "Arial, Liberation Sans, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--muted)",
        "titleColor": "var(--muted)",
        "titleFontWeight": "normal",
        "labelFontSize": 11,
        "titleFontSize": 11,
        "gridColor": "var(--line)",
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
    },
    "legend": {"labelColor": "var(--fg)", "labelFontSize": 12},
    "header": {"labelColor": "var(--fg)", "labelFontSize": 12},
}


def _draw(spec: dict[str, Any]) -> Markup:
    """A specification as SVG. Screen readers skip it, since the figure has the content in words.

    A picture that cannot be drawn is the reason in its place.
    """
    if address_space_left() < _ADDRESS_SPACE:
        # The library would end the process.
        return _not_drawn(f"the limit of address space leaves less than {_ADDRESS_SPACE / 2**30:.0f} GiB")
    if data_left() < _DATA:
        return _not_drawn(f"the limit of data leaves less than {_DATA / 2**30:.0f} GiB")
    import vl_convert

    try:
        svg = vl_convert.vegalite_to_svg(spec | {"config": _CONFIG})
    except (ValueError, MemoryError) as error:
        return _not_drawn(str(error) or "memory")
    svg = re.sub(r' (?:role|aria-[a-z]+)="[^"]*"', "", svg)
    return Markup(svg.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1))


def _not_drawn(reason: str) -> Markup:
    return Markup("<p>not drawn: {}</p>").format(printable(reason)[:_LONGEST_REASON])
