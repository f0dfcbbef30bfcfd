"""The short report on a terminal: a screen for a pass; the culprit and the tree around it for a failure."""

import io

import pytest
from rich.console import Console

from parity.report import terminal_cases
from parity.report.schema_modules import RooflineReport
from parity.report.terminal import SCREEN, render
from tests.parity import made_reports
from tests.parity.made_reports import CULPRIT, PRECISIONS


def _shown(report, width=80, verbose=False):
    console = Console(width=width, highlight=False, file=io.StringIO())
    console.print(render(report, verbose))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def _cases(report, number):
    """The report with its case this many times, under names of their own."""
    (case,) = report.cases
    cases = tuple(
        case.model_copy(update={"case": case.case.model_copy(update={"name": f"case_{n}"})})
        for n in range(number)
    )
    return report.model_copy(update={"cases": cases})


def _with_label(entry, name, label):
    replay = made_reports.latency(2e-4, 2e-4, 2e-4)
    roofline = RooflineReport(seconds=1e-6, ceiling="launch")
    latency = made_reports.latency(2e-3, 2e-3, 2e-3, replay=replay, roofline=roofline)
    return entry.model_copy(update={"runner": name, "label": label, "latency": latency})


def _on_gpu():
    """All runners of a GPU, in four precisions."""
    labels = {
        "tripy": "tripy (portable, cuda)",
        "torch_jagged": "torch jagged (eager, cuda)",
        "torch_compile": "torch.compile dense (inductor, cuda)",
        "torch_compile_graphs": "torch.compile dense (inductor, CUDA graphs, cuda)",
        "torch_fused": "torch fused (Triton, cuda)",
        "tripy_jagged": "tripy (portable, cuda) jagged, Triton",
    }
    by_precision = [
        (
            _with_label(made_reports.reference(), "torch", "torch dense (eager, cuda)"),
            *(
                _with_label(made_reports.passing_port(name), runner, label)
                for runner, label in labels.items()
            ),
        )
        for name in (*PRECISIONS, "fp32")
    ]
    report = made_reports.report(*by_precision[:3])
    (case,) = report.cases
    fourth = case.precisions[0].model_copy(update={"precision": "tf32"})
    case = case.model_copy(update={"precisions": (*case.precisions, fourth)})
    return report.model_copy(update={"cases": (case,)})


@pytest.mark.parametrize(
    ("seconds", "shown"), [((0.4712, 0.12), "120-470"), ((1.3e-5,), "0.013"), ((2.0,), "2000"), ((), "")]
)
def test_times_in_ms_have_two_digits_and_no_power_of_ten(seconds, shown):
    assert terminal_cases._range(seconds) == shown


@pytest.mark.parametrize("width", [80, 120])
def test_a_pass_of_many_cases_is_one_screen(width):
    for report in (_cases(made_reports.passing(), 21), _cases(_on_gpu(), 21)):
        lines = _shown(report, width)
        assert len(lines) < SCREEN, "\n".join(lines)
        assert max(map(len, lines)) <= width
        for case in report.cases:
            (line,) = (line for line in lines if line.split()[:1] == [case.case.name])
            assert line.split()[1] == "PASS"
        assert any("PASS: " in line for line in lines)


def test_cases_that_a_screen_has_no_room_for_share_a_line():
    """The closest ones to their limits keep theirs."""
    report = _cases(made_reports.passing(), 60)
    (case, *others) = report.cases
    precision = case.precisions[0]
    reference, port = precision.runners
    close = made_reports.module(CULPRIT, precision.precision, alone=0.97)
    modules = tuple(close if module.tap == CULPRIT else module for module in port.modules)
    runners = (reference, port.model_copy(update={"modules": modules}))
    changed = (precision.model_copy(update={"runners": runners}), *case.precisions[1:])
    case = case.model_copy(update={"precisions": changed})
    lines = _shown(report.model_copy(update={"cases": (*others, case)}), 80)
    assert len(lines) == SCREEN - 1
    shown = [line for line in lines if line.startswith("case_")]
    assert shown[-1].split()[:4] == [case.case.name, "PASS", shown[-1].split()[2], "0.97"]
    (joined,) = (line for line in lines if " others " in line)
    assert joined.split()[:3] == [str(60 - len(shown)), "others", "PASS"]
    assert joined.split()[3] == str((60 - len(shown)) * int(shown[0].split()[2]))


def test_a_full_screen_counts_runners_without_a_verdict_below_the_tables():
    gone = made_reports.without_verdict("tensorrt", "BUILT", "no CUDA device")
    report = made_reports.report(
        *((made_reports.reference(), made_reports.passing_port(name), gone) for name in PRECISIONS)
    )
    few, many = _shown(report, 80), _shown(_cases(report, 30), 80)
    assert sum(line.startswith("tensorrt label") for line in few) == 1
    assert not any(line.startswith("tensorrt label") for line in many)
    for lines, count in ((few, 3), (many, 90)):
        assert any(line.startswith(f"BUILT: {count} runs of tensorrt label: no CUDA") for line in lines)


def test_a_case_line_has_the_worst_check_and_the_least_detected_error():
    report = made_reports.passing()
    (case,) = report.cases
    precisions = list(case.precisions)
    port = precisions[1].runners[1]
    worst = made_reports.module(CULPRIT, "fp16", alone=0.93, min_detectable_error=0.004)
    modules = tuple(worst if module.tap == CULPRIT else module for module in port.modules)
    changed = port.model_copy(update={"modules": modules})
    precisions[1] = precisions[1].model_copy(update={"runners": (precisions[1].runners[0], changed)})
    case = case.model_copy(update={"precisions": tuple(precisions)})
    many = _cases(report.model_copy(update={"cases": (case,)}), 21)
    line = next(line for line in _shown(many, 120) if line.startswith("case_0 "))
    name, verdict, checks, margin, precision, tap, detected, *latencies = line.split()
    assert (verdict, checks, margin, precision, tap) == ("PASS", "21", "0.93", "fp16", CULPRIT)
    # bfloat16 detects less than the changed module.
    assert detected == "8e-03"
    assert latencies == ["8", "12"]
    short = _shown(report.model_copy(update={"cases": (case,)}))
    (line,) = (line for line in short if line.startswith("hstu_tiny fp16"))
    assert "0.93" in line
    assert "4e-03" in line


def test_few_cases_have_a_line_for_each_precision_and_replays_have_lines():
    lines = _shown(_on_gpu())
    for name in (*PRECISIONS, "tf32"):
        assert any(line.startswith(f"hstu_tiny {name} ") for line in lines)
    assert sum(line.startswith("  as a CUDA graph") for line in lines) == 7


def test_the_portable_runtime_is_named_beside_its_latency():
    (line,) = (line for line in _shown(made_reports.passing()) if line.startswith("tripy "))
    assert line.split() == ["tripy", "(portable,", "cpu)", "3", "PASS", "12", "12", "12"]


def test_a_runner_without_results_is_counted_once_with_its_reason():
    gone = made_reports.without_verdict("torch_compile", "CRASHED", "signal 11")
    report = made_reports.report(
        *((made_reports.reference(), made_reports.passing_port(name), gone) for name in PRECISIONS)
    )
    lines = _shown(report)
    assert "CRASHED: 3 runs of torch_compile label: signal 11" in lines
    assert sum(line.startswith("hstu_tiny") and line.split()[2] == "CRASHED" for line in lines) == 3
    one = made_reports.report((made_reports.reference(), made_reports.passing_port("fp32"), gone))
    assert "CRASHED: hstu_tiny, fp32, torch_compile label: signal 11" in _shown(one)


def test_a_missing_runner_that_was_asked_for_is_no_pass_of_its_case():
    gone = made_reports.without_verdict("torch_compile", "UNAVAILABLE", "no compiler")
    report = made_reports.report((made_reports.reference(), made_reports.passing_port("fp32"), gone))
    for asked, word in (((), "PASS"), (("torch_compile",), "UNAVAILABLE")):
        lines = _shown(report.model_copy(update={"requested_runners": asked}))
        (line,) = (line for line in lines if line.startswith("hstu_tiny "))
        assert line.split()[2] == word


def test_a_failure_shows_its_culprit_once_and_the_tree_around_it():
    lines = _shown(made_reports.failing())
    text = "\n".join(lines)
    assert text.count("diverges on its own") == 1
    assert "  source: port/attention.py:7" in lines
    assert "  explanation: equal after transposing the last two axes" in lines
    assert "  the same fails in tripy (portable, cpu): fp16, bf16" in lines
    start = next(n for n, line in enumerate(lines) if line.strip() == "_hstu")
    around, culprit = lines[start + 1 : start + 3]
    assert around.split() == [
        "_attention_layers.0", *"FAIL 5e+04 times its limit in the model, downstream".split()
    ]  # fmt: skip
    assert culprit.split() == ["_attn", *"FAIL 5e+04 times its limit alone <- culprit".split()]
    # Modules of other blocks are left out.
    assert not any("_attention_layers.1" in line for line in lines[start:])
    assert max(map(len, lines)) <= 80


def test_only_a_verbose_report_has_every_module():
    report = made_reports.passing()
    assert not any("_mask" in line for line in _shown(report))
    assert any("_mask" in line for line in _shown(report, verbose=True))
