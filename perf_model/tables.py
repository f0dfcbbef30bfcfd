"""The Markdown tables of `python -m perf_model`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from parity.timing.ceilings import MATMUL_PRECISIONS, Ceilings
from parity.timing.least_time import roofline
from perf_model.errors import ErrorStatistics, bin_names
from perf_model.estimate import estimate, host_factor
from perf_model.evaluation import Prediction, notebook_seconds, predict, statistics_of
from perf_model.kernels import KernelModel
from perf_model.lookup import constants
from perf_model.measured import Measured, Measurements
from perf_model.models import Model, input_shapes, models, traced
from perf_model.products import ITEM_BYTES, ProductModel
from perf_model.work.model import case_work

FAMILIES = ("embedding_bag", "mlp", "attention")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def _row(name: str, size: str, errors: ErrorStatistics) -> list[str]:
    return [name, size, str(errors.points), f"{errors.gmae:.2%}", f"{errors.mean:.2%}", f"{errors.std:.2%}"]


_HEAD = ("predicted", "sizes", "points", "GMAE", "mean", "std")


def error_tables(measured: Sequence[Measured], model: KernelModel) -> Iterator[str]:
    """Errors by family and size, and errors of the notebook's own predictor on the lookups."""
    predictions = predict(measured, model)
    rows = []
    for family in ("all", *FAMILIES):
        own = [p for p in predictions if family in ("all", p.measured.point.family)]
        rows += [_row(family, "all", statistics_of(own)), _row(family, "big", _big(own))]
    bags = [p for p in predictions if p.measured.point.family == "embedding_bag"]
    notebook = [Prediction(p.measured, notebook_seconds(p.measured.point, model), p.big) for p in bags]
    rows += [
        _row("embedding_bag, the notebook's predictor", "all", statistics_of(notebook)),
        _row("embedding_bag, the notebook's predictor", "big", _big(notebook)),
    ]
    yield from _table(_HEAD, rows)


def _big(predictions: Iterable[Prediction]) -> ErrorStatistics:
    return statistics_of(p for p in predictions if p.big)


def histogram_table(measured: Sequence[Measured], model: KernelModel) -> Iterator[str]:
    """The notebook's histogram, of all points and of the big ones."""
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
            for precision in MATMUL_PRECISIONS:
                products = ProductModel(calibration, precision, batched, ceilings, waves)
                estimates, times = products.cross_validated()
                predicted += estimates
                seconds += times
            name = f"products{', batched' if batched else ''}, left out one by one"
            law = "whole waves" if waves else "FLOPs"
            rows.append(_row(name, law, ErrorStatistics.of(predicted, seconds)))
    yield from _table(("predicted", "law counts", *_HEAD[2:]), rows)


def model_table(path: Path, model: KernelModel) -> Iterator[str]:
    """Whole models: replays and eager forwards, predicted and measured, and the roofline; milliseconds.

    The host factor is fitted on the smallest fp32 batch of each case, which the errors leave out.
    """
    measured = {line["model"]: line for line in json.loads(path.read_text())["models"]}
    traces = {case.key: traced(case) for case in models()}
    plain = {case.key: estimate(traces[case.key], case.precision, model) for case in models()}
    fitted = _smallest(models())
    factor = host_factor((plain[key], measured[key]["eager"]["median"]) for key in fitted)
    rows, replays, eagers = [], [], []
    for case in models():
        predicted = estimate(traces[case.key], case.precision, model, factor)
        line = measured[case.key]
        replay, eager = line["replay"]["median"], line["eager"]["median"]
        replays.append((predicted.replay, replay))
        if case.key not in fitted:
            eagers.append((predicted.eager, eager))
        times = (predicted.replay, replay, predicted.eager, eager, _limit(case, model))
        rows.append(
            [
                _title(case),
                f"{len(traces[case.key].operations)} / {line['kernels']}",
                *(f"{value * 1e3:.3f}" for value in times),
                f"{replay / times[-1]:.0f}x",
                predicted.bound + (" (fitted)" if case.key in fitted else ""),
            ]
        )
    yield f"Host factor {factor:.2f}."
    yield ""
    head = ("model", "kernels seen / counted", "replay predicted", "measured", "eager predicted", "measured")
    yield from _table((*head, "roofline", "replay / roofline", "eager waits for"), rows)
    judged = (("replay", "all models", replays), ("eager", "all but the fitted", eagers))
    errors = [(name, size, ErrorStatistics.of(*zip(*pairs, strict=True))) for name, size, pairs in judged]
    yield from _table(_HEAD, (_row(*row) for row in errors))


def _limit(case: Model, model: KernelModel) -> float:
    """Seconds of the whole model's roofline."""
    work = case_work(case.config(), input_shapes(case), ITEM_BYTES[case.precision])[""]
    return roofline(work, case.precision, model.ceilings).seconds


def _title(case: Model) -> str:
    size = f", D {case.changes['item_embedding_dim']}, N 1011" if "item_embedding_dim" in case.changes else ""
    return f"{case.case}{size}, {case.precision}, B {case.batch}"


def _smallest(cases: Sequence[Model]) -> set[str]:
    """Keys of each unchanged case's smallest batch in fp32."""
    smallest: dict[str, Model] = {}
    for case in cases:
        known = smallest.get(case.case)
        if case.precision == "fp32" and (known is None or case.batch < known.batch):
            smallest[case.case] = case
    return {case.key for case in smallest.values()}


def agreement_table(one: Measurements, other: Measurements, name: str) -> Iterator[str]:
    """Differences of two runs of the same points."""
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
