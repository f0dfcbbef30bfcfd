"""The tables of benchmarks/results/h200/performance_model.md."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from perf_model.ceilings import Ceilings
from perf_model.errors import ErrorStatistics, bin_names
from perf_model.estimate import estimate, host_factor
from perf_model.evaluation import Prediction, predict, seed_seconds, statistics_of
from perf_model.kernels import KernelModel
from perf_model.limits import limit
from perf_model.lookup import constants
from perf_model.measured import Measured, Measurements
from perf_model.models import Model, forward, input_shapes, models
from perf_model.points import PRECISIONS
from perf_model.products import ITEM_BYTES, ProductModel
from perf_model.trace import trace
from perf_model.work import case_work

FAMILIES = ("embedding_bag", "mlp", "attention")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def _row(name: str, size: str, found: ErrorStatistics) -> list[str]:
    return [name, size, str(found.points), f"{found.gmae:.2%}", f"{found.mean:.2%}", f"{found.std:.2%}"]


_HEAD = ("what", "sizes", "points", "GMAE", "mean", "std")


def error_tables(measured: Sequence[Measured], model: KernelModel) -> Iterator[str]:
    """Errors by family and size, and those of the seed's own predictor on the lookups."""
    predictions = predict(measured, model)
    rows = []
    for family in ("all", *FAMILIES):
        own = [p for p in predictions if family in ("all", p.measured.point.family)]
        rows += [_row(family, "all", statistics_of(own)), _row(family, "big", _big(own))]
    bags = [p for p in predictions if p.measured.point.family == "embedding_bag"]
    seed = [Prediction(p.measured, seed_seconds(p.measured.point, model), p.big) for p in bags]
    rows += [
        _row("embedding_bag, the seed's predictor", "all", statistics_of(seed)),
        _row("embedding_bag, the seed's predictor", "big", _big(seed)),
    ]
    yield from _table(_HEAD, rows)


def _big(predictions: Iterable[Prediction]) -> ErrorStatistics:
    return statistics_of(p for p in predictions if p.big)


def histogram_table(measured: Sequence[Measured], model: KernelModel) -> Iterator[str]:
    """The seed's histogram, of all points and of the big ones."""
    predictions = predict(measured, model)
    everything, big = statistics_of(predictions), _big(predictions)
    shares = zip(bin_names(), everything.histogram, big.histogram, strict=True)
    yield from _table(
        ("error", "all sizes", "big ones"), ([name, f"{one:.2%}", f"{two:.2%}"] for name, one, two in shares)
    )


def lookup_table(model: KernelModel) -> Iterator[str]:
    """The fitted constants of the lookup kernel."""
    yield from _table(
        ("constant of the lookup", "value"),
        ([name, f"{value:.3g}"] for name, value in constants(model.lookups).items()),
    )


def waves_table(calibration: Sequence[Measured], ceilings: Ceilings) -> Iterator[str]:
    """Errors of each calibration product, predicted from the others, without and with waves in the law."""
    rows = []
    for batched in (False, True):
        for waves in (False, True):
            predicted: list[float] = []
            seconds: list[float] = []
            for precision in PRECISIONS:
                found = ProductModel(calibration, precision, batched, ceilings, waves).cross_validated()
                predicted += found[0]
                seconds += found[1]
            name = f"products{', batched' if batched else ''}, left out one by one"
            law = "whole waves" if waves else "FLOPs"
            rows.append(_row(name, law, ErrorStatistics.of(predicted, seconds)))
    yield from _table(("what", "law counts", *_HEAD[2:]), rows)


def model_table(path: Path, model: KernelModel) -> Iterator[str]:
    """Whole models: replays and eager forwards, predicted and measured, and the limit; milliseconds.

    The host factor is found on the smallest fp32 batch of each case, which are marked and not judged.
    """
    measured = {line["model"]: line for line in json.loads(path.read_text())["models"]}
    traces = {each.key: trace(forward(each, "meta")) for each in models()}
    plain = {each.key: estimate(traces[each.key], each.precision, model) for each in models()}
    fitted = _smallest(models())
    factor = host_factor((plain[key], measured[key]["eager"]["median"]) for key in fitted)
    rows, replays, eagers = [], [], []
    for each in models():
        found = estimate(traces[each.key], each.precision, model, factor)
        line = measured[each.key]
        replay, eager = line["replay"]["median"], line["eager"]["median"]
        replays.append((found.replay, replay))
        if each.key not in fitted:
            eagers.append((found.eager, eager))
        times = (found.replay, replay, found.eager, eager, _limit(each, model))
        rows.append(
            [
                _title(each),
                f"{len(traces[each.key].operations)} / {line['kernels']}",
                *(f"{value * 1e3:.3f}" for value in times),
                f"{replay / times[-1]:.0f}x",
                found.bound + (" (fitted)" if each.key in fitted else ""),
            ]
        )
    yield f"Host factor {factor:.2f}."
    yield ""
    head = ("model", "kernels seen / counted", "replay predicted", "measured", "eager predicted", "measured")
    yield from _table((*head, "limit", "replay / limit", "eager waits for"), rows)
    judged = (("replay", "all models", replays), ("eager", "all but the fitted", eagers))
    errors = [(name, size, ErrorStatistics.of(*zip(*pairs, strict=True))) for name, size, pairs in judged]
    yield from _table(_HEAD, (_row(*each) for each in errors))


def _limit(each: Model, model: KernelModel) -> float:
    """Seconds of the whole model's limit."""
    work = case_work(each.config(), input_shapes(each), ITEM_BYTES[each.precision])[""]
    return limit(work, each.precision, model.ceilings).seconds


def _title(each: Model) -> str:
    size = f", D {each.changes['item_embedding_dim']}, N 1011" if "item_embedding_dim" in each.changes else ""
    return f"{each.case}{size}, {each.precision}, B {each.batch}"


def _smallest(every: Sequence[Model]) -> set[str]:
    """Keys of each unchanged case's smallest batch in fp32."""
    chosen: dict[str, Model] = {}
    for each in every:
        known = chosen.get(each.case)
        if each.precision == "fp32" and (known is None or each.batch < known.batch):
            chosen[each.case] = each
    return {each.key for each in chosen.values()}


def agreement_table(one: Measurements, other: Measurements, name: str) -> Iterator[str]:
    """How far two runs of the same points are apart."""
    known = {m.point.key: m for m in other.measured}
    pairs = [(m, known[m.point.key]) for m in one.measured if m.point.key in known]
    ratios = sorted(abs(a.median - b.median) / b.median for a, b in pairs)
    spreads = sorted((m.p90 - m.p10) / m.median for m, _ in pairs)
    head = (
        "two runs",
        "points",
        "median difference",
        "90 % are within",
        "largest",
        "median p10-p90 of one run",
    )
    row = (
        f"against {name}",
        str(len(pairs)),
        f"{statistics.median(ratios):.2%}",
        f"{ratios[int(0.9 * len(ratios))]:.2%}",
        f"{ratios[-1]:.2%}",
        f"{statistics.median(spreads):.2%}",
    )
    yield from _table(head, [row])
