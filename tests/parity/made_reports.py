"""Reports made by hand for tests of their forms: every status and finding, hostile names."""

from __future__ import annotations

import math

from cases.shipped import load_case
from parity.execution.record import BuildRecord
from parity.report.schema import (
    BatchReport,
    CaseReport,
    PrecisionReport,
    Report,
    RunnerReport,
)
from parity.report.schema_modules import (
    DiagnosisReport,
    ElementReport,
    ErrorMapReport,
    LatencyReport,
    MetricReport,
    ModuleReport,
    RooflineReport,
    VerdictReport,
)

PRECISIONS = ("fp32", "fp16", "bf16")
UNIT = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
BLOCK = "_hstu._attention_layers"
TAPS = (
    "_item_emb",
    "_mask",
    f"{BLOCK}.0._attn",
    f"{BLOCK}.0",
    f"{BLOCK}.1._attn",
    f"{BLOCK}.1",
    "score.current",
)
CULPRIT = f"{BLOCK}.0._attn"
HOSTILE = "<script>alert('x')</script> & \"q\" | `a``b` *b* [l](javascript:x) \x1b[31m\x00 </details> ]]>"
# The diagonal of a mask, one padded column.
DIAGONAL = ErrorMapReport(
    axes=("batch", "position"), shape=(4, 5), cells=("9000.", "0900.", "0090.", "0009.")
)


def latency(median: float, p25: float, p75: float, runs: int = 15, **changes: object) -> LatencyReport:
    """Times whose deciles are their quartiles."""
    return LatencyReport(median=median, p10=p25, p25=p25, p75=p75, p90=p75, runs=runs, **changes)


def verdict(precision: str = "fp32", margin: float = 0.2, **changes: object) -> VerdictReport:
    """A verdict whose errors are `margin` times their limits."""
    unit = UNIT[precision]
    limit, failed = 4 * unit, not margin <= 1.0
    fields = {
        "status": "FAIL" if failed else "PASS",
        "reason": f"relative L2 error {margin * limit:.3g} exceeds {limit:.3g}" if failed else "",
        "err_ref_l2": unit,
        "err_port_l2": margin * limit,
        "limit_l2": limit,
        "err_ref_max": unit,
        "err_port_max": 0.5 * margin * limit,
        "limit_max": limit,
        "scale_error_ref": unit / 10,
        "scale_error_port": -0.5 * margin * unit,
        "limit_scale_error": unit,
        "margin": margin,
        "min_detectable_error": math.nan if failed else 2 * unit,
        "checked": 640,
        "boundary": 0,
        "k": 2.0,
        "floor": 2 * unit,
        "longest_sum": 27,
        "bound": f"k = 2, floor = {2 * unit:.3g} from the longest sum, 27 terms",
        "worst": (ElementReport(index=(3, 1), oracle=1.5, reference=1.5, port=1.25),),
    }
    return VerdictReport(**(fields | changes))


def module(tap: str, precision: str = "fp32", alone: float = 0.2, inside: float = 0.25, **changes: object):
    """A module with these margins."""
    failed = max(alone, inside) > 1.0
    fields = {
        "tap": tap,
        "path": tap,
        "kind": "Attention",
        "status": "FAIL" if failed else "PASS",
        "gap": "",
        "isolated": None if tap.startswith("score.") else verdict(precision, alone),
        "accumulated": verdict(precision, inside),
        "min_detectable_error": math.nan if failed else 2 * UNIT[precision],
        "worst_batch": "typical",
        "latency": latency(2e-5, 1.9e-5, 2.1e-5, 7),
    }
    return ModuleReport(**(fields | changes))


def port(precision: str, modules: tuple[ModuleReport, ...], **changes: object) -> RunnerReport:
    fields = {
        "runner": "tripy",
        "label": "tripy (portable, cpu)",
        "status": "OK",
        "reason": "",
        "verdict": "PASS",
        "diagnosis": DiagnosisReport(kind="none", tap="", text="", amplification=None, batch="typical"),
        "modules": modules,
        "checks": {"incremental.current": verdict(precision)},
        "latency": latency(0.012, 0.0118, 0.0125),
    }
    return RunnerReport(**(fields | changes))


def reference() -> RunnerReport:
    return RunnerReport(
        runner="torch",
        label="torch dense (eager, cpu)",
        status="OK",
        reason="",
        verdict="PASS",
        latency=latency(0.008, 0.0079, 0.0082),
    )


def passing_port(precision: str) -> RunnerReport:
    return port(precision, tuple(module(tap, precision) for tap in TAPS))


def failing_port(precision: str) -> RunnerReport:
    """A block's attention is wrong on its own, and what follows it inside the model."""
    first = TAPS.index(CULPRIT)
    modules = tuple(
        module(tap, precision)
        if number < first
        else module(
            tap,
            precision,
            alone=5e4 if tap == CULPRIT else 0.2,
            inside=5e4,
            error_maps={"isolated": DIAGONAL, "accumulated": DIAGONAL} if tap == CULPRIT else {},
        )
        for number, tap in enumerate(TAPS)
    )
    text = f"{CULPRIT} (Attention) diverges on its own: why"
    explanation = ("equal after transposing the last two axes",)
    actual = DiagnosisReport(
        kind="module",
        tap=CULPRIT,
        text=text,
        amplification=None,
        batch="typical",
        explanation=explanation,
        source="port/attention.py:7",
    )
    return port(precision, modules, verdict="FAIL", diagnosis=actual)


def without_verdict(runner: str, status: str, reason: str, **changes: object) -> RunnerReport:
    fields = {
        "runner": runner,
        "label": f"{runner} label",
        "status": status,
        "reason": reason,
        "verdict": "NONE",
    }
    return RunnerReport(**(fields | changes))


BATCHES = (
    BatchReport(name="typical", purpose="compiled for and timed", digest="e" * 64),
    BatchReport(name="one row", purpose="one row, another seed", digest="f" * 64),
)


def report(*by_precision: tuple[RunnerReport, ...], exit_code: int = 0, **case_changes: object) -> Report:
    """One case, with these runners in fp32, fp16 and so on."""
    fields = {
        "case": load_case("hstu_tiny").reference,
        "source": "synthetic, seed 0",
        "weights_source": "initial, seed 0",
        "weights_digest": "d" * 64,
        "batches": BATCHES[:1],
        "counts": {"users": 5, "history": 82},
        "precisions": tuple(
            PrecisionReport(precision=name, runners=runners)
            for name, runners in zip(PRECISIONS, by_precision, strict=False)
        ),
    }
    return Report(
        created="2026-01-02T03:04:05+00:00",
        command="run_parity.py --case hstu_tiny",
        environment={"python": "3.11.7", "torch": "2.13.0", "processor": "a processor", "cores": "2"},
        requested_runners=(),
        cases=(CaseReport(**(fields | case_changes)),),
        exit_code=exit_code,
    )


def passing() -> Report:
    return report(*((reference(), passing_port(name)) for name in PRECISIONS))


def failing() -> Report:
    return report(*((reference(), failing_port(name)) for name in PRECISIONS), exit_code=1)


def on_gpu() -> Report:
    """Latencies with replays and rooflines, and the longest name that a runner has."""

    def on_gpu(median: float, graph: float, least: float) -> LatencyReport:
        replay = latency(graph, graph, graph, 20)
        roofline = RooflineReport(seconds=least, ceiling="launch")
        return latency(median, median, 1.2 * median, 40, replay=replay, roofline=roofline)

    modules = tuple(module(tap, "fp32", latency=on_gpu(8.95e-5, 1.07e-5, 1.35e-6)) for tap in TAPS)
    whole = on_gpu(2.19e-3, 2.67e-4, 2.22e-6)
    label = "torch.compile dense (inductor, CUDA graphs, cuda)"
    runners = (
        reference().model_copy(update={"latency": whole, "label": "torch dense (eager, cuda)"}),
        port("fp32", modules, runner="torch_compile_graphs", label=label),
        port("fp32", modules, label="tripy (portable, cuda)", latency=whole),
    )
    return report(runners, exit_code=0)


def everything() -> Report:
    """Every status side by side, and hostile names."""
    build = BuildRecord(
        shape="static",
        library="tensorrt_rtx 1.7.1",
        layers=1368,
        engine_layers=30,
        bytes=2_100_000,
        seconds=0.8,
        dtypes=("Float", "Int32"),
        key="key",
    )
    numbers = {"oracle": 0.51, "reference": 0.512345, "port": 0.5, "k": 2.0, "floor": 1e-4, "limit": 1e-4}
    metrics = (
        MetricReport(
            name="AUC", rows=99, **numbers, difference=-0.012345, interval=(-0.02, -0.001), flagged=True
        ),
        MetricReport(
            name="MRR", rows=99, **numbers, difference=-0.012345, no_interval="one row is no sample"
        ),
        MetricReport(name="calibration", rows=99, reason="all labels are 0"),
    )
    broken = port("fp32", (), metrics=metrics).model_copy(
        update={
            "modules": (
                module(HOSTILE, kind=HOSTILE),
                module("gap", status="GAP", gap=HOSTILE, kind="Jagged", isolated=None, accumulated=None),
                module("insensitive", status="INSENSITIVE", min_detectable_error=0.5),
                module("exact", alone=0.0, inside=0.0, min_detectable_error=0.0, latency=None),
                module(
                    "no_number",
                    status="FAIL",
                    isolated=verdict(margin=math.nan, err_port_l2=math.nan, err_port_max=math.nan, worst=()),
                ),
                module("infinite", inside=math.inf, accumulated=verdict(margin=math.inf, boundary=12)),
            ),
            "verdict": "FAIL",
            "padding_leak": "_item_emb",
            "observer_difference": 1e-7,
            "diagnosis": DiagnosisReport(
                kind="module", tap="no_number", text=HOSTILE, amplification=None, batch="one row"
            ),
        }
    )
    others = (
        without_verdict("torch_compile", "UNAVAILABLE", "no compiler"),
        without_verdict("tensorrt", "BUILT", "no CUDA device", builds=(build,)),
        without_verdict("torch_jagged", "CRASHED", HOSTILE),
        port("fp32", (module("_o"),), runner="onnxruntime", label="onnxruntime", timing_reason="too slow"),
    )
    return report((reference(), broken, *others), (reference(),), exit_code=1, batches=BATCHES)
