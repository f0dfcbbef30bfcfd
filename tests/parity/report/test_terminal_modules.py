"""What the terminal shows: tables that fit it, failures in full, and the verdict in one sentence."""

import io
import math

import pytest
from rich.console import Console

from parity.report.schema_modules import RooflineReport, VerdictReport
from parity.report.terminal import render, summary

ATTENTION = "_hstu._attention_layers.1._attn"
PRECISIONS = ("fp32", "fp16", "bf16")


@pytest.fixture(scope="module")
def report(report):
    """The saved run as the processor's, wherever it was made."""
    (case,) = report.cases
    (precision,) = case.precisions
    cpu = {"gpu": {}, "runners": tuple(map(_on_cpu, precision.runners))}
    changed = case.model_copy(update={"precisions": (precision.model_copy(update=cpu),)})
    return report.model_copy(update={"cases": (changed,)})


def _timed(entry, replay, roofline):
    """A runner or a module with a replay and a roofline; no change without a latency."""
    if entry.latency is None:
        return entry
    latency = entry.latency.model_copy(update={"replay": replay, "roofline": roofline})
    return entry.model_copy(update={"latency": latency})


def _on_cpu(runner):
    modules = tuple(_timed(module, None, None) for module in runner.modules)
    update = {"label": runner.label.replace("cuda", "cpu"), "modules": modules, "peak_bytes": None}
    return _timed(runner.model_copy(update=update), None, None)


def _on_gpu(runner):
    """The port on a GPU, and beside it a runner with a long name: latencies have replays and rooflines."""
    runner = _as_port(runner)
    replay = runner.latency.model_copy(update={"median": 2.26e-5, "p25": 2.24e-5, "p75": 2.28e-5})
    roofline = RooflineReport(seconds=2.26e-5 / 2938, ceiling="launch")
    modules = tuple(_timed(module, replay, roofline) for module in runner.modules)
    port = runner.runner == "tripy"
    label = "tripy (portable, cuda)" if port else "torch.compile dense (inductor, CUDA graphs, cuda)"
    update = {"label": label, "modules": modules}
    return _timed(runner.model_copy(update=update), replay, roofline if port else None)


def _shown(report, width=120):
    console = Console(width=width, highlight=False, file=io.StringIO())
    console.print(render(report, verbose=True))
    return console.file.getvalue().splitlines()


def _with_runners(report, change, precisions=("fp32",)):
    """The report with `change` made to each of its runners, its precision repeated under other names."""
    (case,) = report.cases
    (precision,) = case.precisions
    runners = tuple(change(runner) for runner in precision.runners)
    changed = tuple(
        precision.model_copy(update={"precision": name, "runners": runners}) for name in precisions
    )
    return report.model_copy(update={"cases": (case.model_copy(update={"precisions": changed}),)})


def _as_port(runner):
    """The jagged reference in the place of the port, whose modules make the table."""
    if runner.runner != "torch_jagged":
        return runner
    latency = runner.latency.model_copy(update={"median": 0.0123, "p25": 0.0120, "p75": 0.0126})
    modules = tuple(
        module.model_copy(update={"latency": latency if number % 2 else None})
        for number, module in enumerate(runner.modules)
    )
    return runner.model_copy(
        update={"runner": "tripy", "label": "tripy (portable, cpu)", "modules": modules, "latency": latency}
    )


def _failing(runner):
    """The port with one module that is wrong on its own: fifty times over its limit."""
    runner = _as_port(runner)
    if runner.runner != "tripy":
        return runner
    (module,) = (module for module in runner.modules if module.tap == ATTENTION)
    alone = module.isolated
    update = {
        "status": "FAIL",
        "reason": f"relative L2 error 0.5 exceeds {alone.limit_l2:.3g}",
        "err_port_l2": 0.5,
        "margin": 50.0,
    }
    wrong = {"status": "FAIL", "isolated": VerdictReport(**(alone.model_dump() | update))}
    modules = tuple(m.model_copy(update=wrong if m is module else {}) for m in runner.modules)
    actual = runner.diagnosis.model_copy(
        update={"kind": "module", "tap": ATTENTION, "text": f"{ATTENTION} (Kind) diverges on its own: why"}
    )
    return runner.model_copy(update={"verdict": "FAIL", "modules": modules, "diagnosis": actual})


@pytest.mark.parametrize("width", [120, 80])
@pytest.mark.parametrize("change", [_as_port, _failing], ids=["pass", "fail"])
def test_no_line_is_longer_than_the_terminal(report, runners_of, width, change):
    lines = _shown(_with_runners(report, change, PRECISIONS), width)
    assert max(len(line.rstrip()) for line in lines) <= width
    assert not any("…" in line for line in lines)
    # Side by side where there is room, else one table a precision; every number is there either way.
    rows = [line for line in lines if line.strip().startswith("tripy (portable, cpu)")]
    assert len(rows) == (1 if width == 120 else 3)
    timed = sum(m.latency is not None for m in _as_port(runners_of(report)["torch_jagged"]).modules)
    assert sum(line.count("12.3 ±2%") for line in lines) == 3 * (timed + 1)


def test_a_very_narrow_terminal_cuts_names_and_no_numbers(report):
    lines = _shown(_with_runners(report, _failing), width=44)
    assert max(map(len, lines)) <= 44
    (row,) = (line for line in lines if line.strip().startswith("tripy"))
    assert row.split()[-4:] == ["FAIL", "50.00", "12.3", "±2%"]
    # A runner's name is wrapped, a module's is cut.
    assert "…" not in row
    assert any("…" in line for line in lines)


@pytest.mark.parametrize(("width", "tables"), [(200, 1), (80, 3)])
def test_a_gpus_columns_leave_every_name_whole(report, width, tables):
    lines = _shown(_with_runners(report, _on_gpu, PRECISIONS), width)
    assert max(len(line.rstrip()) for line in lines) <= width
    assert not any("…" in line for line in lines)
    assert sum("err/limit " in line for line in lines) == tables
    (case,) = report.cases
    for module in case.precisions[0].runners[-1].modules:
        last = module.tap.split(".")[-1].split("[")[-1]
        assert any(last in line for line in lines), module.tap
    rows = [line for line in lines if line.strip().startswith("tripy (portable, cuda)")]
    cells = [entry for row in rows for entry in row.removeprefix(" tripy (portable, cuda)").split()]
    port = next(r for r in case.precisions[0].runners if r.runner == "torch_jagged")
    margin = max(module.margin for module in port.modules)
    assert cells == [f"{margin:.2f}", "12.3", "±2%", "0.0226", "±1%", "2938x"] * 3


def test_a_gpus_columns_are_there_where_they_are_filled(report):
    def headers(changed):
        (line,) = (line for line in _shown(changed) if "err/limit " in line)
        return line.split("err/limit")[1].split()

    assert headers(_with_runners(report, _as_port)) == ["error", "ms"]
    assert headers(_with_runners(report, _on_gpu)) == ["error", "ms", "ms", "least"]


def test_a_runner_that_was_not_timed_has_no_numbers_in_any_column(report):
    def unavailable(runner):
        runner = _on_gpu(runner)
        gone = {"status": "UNAVAILABLE", "verdict": "NONE", "latency": None, "modules": ()}
        return runner if runner.runner == "tripy" else runner.model_copy(update=gone)

    lines = _shown(_with_runners(report, unavailable))
    (row,) = (line for line in lines if line.strip().startswith("torch.compile"))
    assert row.split()[-2:] == ["UNAVAILABLE", "-"]


@pytest.mark.parametrize("width", [120, 80])
def test_the_numbers_of_a_failure_keep_their_columns(report, width):
    lines = [line.rstrip() for line in _shown(_with_runners(report, _failing), width)]
    start = next(number for number, line in enumerate(lines) if line.strip().startswith("worst at"))
    block = lines[start : start + 6]
    assert len({len(line) for line in block}) == 1, block


def test_a_failing_module_is_shown_in_full(report):
    failing = _with_runners(report, _failing)
    (tripy,) = (runner for _, _, runner in failing.runner_reports() if runner.runner == "tripy")
    (module,) = (module for module in tripy.modules if module.status == "FAIL")
    alone, diagnosis = module.isolated, tripy.diagnosis
    text = "\n".join(_shown(failing))
    assert f"FAIL: hstu_tiny, fp32, tripy (portable, cpu), {diagnosis.batch}: {ATTENTION} (Kind)" in text
    assert f"{ATTENTION} alone: FAIL (relative L2 error 0.5 exceeds {alone.limit_l2:.3g})" in text
    assert f"port 5.000e-01, reference {alone.err_ref_l2:.3e}, limit {alone.limit_l2:.3e}" in text
    assert (
        f"port {alone.err_port_max:.3e}, reference {alone.err_ref_max:.3e}, limit {alone.limit_max:.3e}"
        in text
    )
    assert (
        f"k = {alone.k:.3g}, floor = {alone.floor:.3g} from unit round-off 5.96e-08 and the longest sum"
        in text
    )
    assert f"{alone.checked} elements compared, 0 left out" in text
    assert len(alone.worst) == 5
    for element in alone.worst:
        values = (f"{value:.8g}" for value in (element.oracle, element.reference, element.port))
        assert [str(list(element.index)), *values] in [_columns(line) for line in text.splitlines()]
    assert "FAIL 50" in text


def _columns(line):
    """The cells of a line of worst elements: an index in brackets, then numbers."""
    index, bracket, numbers = line.strip().partition("]")
    return [index + bracket, *numbers.split()]


def test_a_module_that_fails_only_inside_the_model_shows_that_verdict(report):
    def change(runner):
        runner = _failing(runner)
        modules = tuple(
            module.model_copy(update={"accumulated": module.isolated, "isolated": module.accumulated})
            for module in runner.modules
        )
        return runner.model_copy(update={"modules": modules}) if runner.runner == "tripy" else runner

    assert any(f"{ATTENTION} in the model: FAIL" in line for line in _shown(_with_runners(report, change)))


def test_a_check_that_fails_shows_its_numbers_and_several_batches_their_name(report):
    def change(runner):
        if not runner.checks:
            return runner
        (name,) = runner.checks
        broken = runner.checks[name].model_copy(update={"status": "FAIL", "reason": "too far"})
        actual = runner.diagnosis.model_copy(
            update={"kind": "check", "tap": name, "text": f"{name}: too far", "batch": "one row"}
        )
        return runner.model_copy(
            update={"verdict": "FAIL", "diagnosis": actual, "checks": {name: broken}, "modules": ()}
        )

    several = _with_runners(report, change)
    (case,) = several.cases
    single = "\n".join(
        _shown(several.model_copy(update={"cases": (case.model_copy(update={"batches": case.batches[:1]}),)}))
    )
    assert "incremental.current: FAIL (too far)" in single
    assert "one row" not in single
    assert "FAIL: hstu_tiny, fp32, torch dense (eager, cpu), one row: " in "\n".join(_shown(several))


def test_one_sentence_for_each_way_to_end(report):
    def broken(status, **update):
        def change(runner):
            if runner.runner != "torch_jagged":
                return runner
            return runner.model_copy(
                update={"verdict": "NONE", "status": status, "reason": "why", "modules": (), **update}
            )

        return change

    passing = summary(report).plain
    assert passing.startswith("PASS: 28 module verdicts of 1 run; the closest to its limit is ")
    failing = _with_runners(report, _failing, PRECISIONS)
    assert summary(failing).plain == "FAIL: 3 of 6 runs diverge."
    crashed = _with_runners(report, broken("CRASHED"))
    assert summary(crashed).plain == ("INCOMPLETE: nothing was judged; 1 run without a verdict.")
    assert any(line.startswith("CRASHED: hstu_tiny, fp32, torch jagged") for line in _shown(crashed))
    for entry in (passing, summary(failing).plain, summary(crashed).plain):
        assert entry.count("\n") == 0
        assert entry.endswith(".")


def test_a_runner_that_nobody_asked_for_may_be_unavailable(report):
    def change(runner):
        if runner.runner == "torch":
            return runner.model_copy(
                update={"runner": "torch_compile", "verdict": "NONE", "status": "UNAVAILABLE", "modules": ()}
            )
        return runner

    unavailable = _with_runners(report, change)
    not_asked = unavailable.model_copy(update={"requested_runners": ()})
    assert summary(not_asked).plain.startswith("PASS: ")
    asked = unavailable.model_copy(update={"requested_runners": ("torch_compile",)})
    assert summary(asked).plain.startswith("INCOMPLETE: ")


def test_a_gap_is_counted_and_shown_with_its_reason(report):
    def change(runner):
        if runner.runner != "torch_jagged":
            return runner
        first, *others = _as_port(runner).modules
        gap = {"status": "GAP", "gap": "no such operation", "accumulated": None, "isolated": None}
        return _as_port(runner).model_copy(update={"modules": (first.model_copy(update=gap), *others)})

    gaps = _with_runners(report, change)
    lines = _shown(gaps)
    assert any(line.strip().startswith("_item_emb ") and " GAP " in line for line in lines)
    assert any(line.startswith("GAP: ") and line.rstrip().endswith(": no such operation") for line in lines)
    assert "27 module verdicts of 1 run" in summary(gaps).plain
    assert "; 1 gap, each with its reason" in summary(gaps).plain


def test_an_error_without_a_number_is_shown(report):
    def change(runner):
        runner = _failing(runner)
        modules = tuple(
            module.model_copy(
                update={
                    "isolated": module.isolated.model_copy(
                        update=dict.fromkeys(("margin", "err_port_l2", "err_port_max"), math.nan)
                        | {"worst": ()}
                    )
                }
            )
            if module.tap == ATTENTION
            else module
            for module in runner.modules
        )
        return runner.model_copy(update={"modules": modules}) if runner.runner == "tripy" else runner

    text = "\n".join(_shown(_with_runners(report, change)))
    assert "FAIL inf" in text
    assert "port nan" in text
    assert "worst at" not in text


def _insensitive(runner):
    """The port with one check that does not detect an error of 3 %."""
    runner = _as_port(runner)
    if runner.runner != "tripy":
        return runner
    update = {"min_detectable_error": 0.03, "status": "INSENSITIVE"}
    modules = tuple(m.model_copy(update=update if m.tap == ATTENTION else {}) for m in runner.modules)
    diagnosis = runner.diagnosis.model_copy(
        update={"kind": "insensitive", "tap": ATTENTION, "text": "1 of 40 checks do not detect"}
    )
    update = {"modules": modules, "verdict": "INSENSITIVE", "diagnosis": diagnosis}
    return runner.model_copy(update=update)


@pytest.mark.parametrize("width", [120, 80])
def test_an_insensitive_check_is_no_pass(report, width):
    insensitive = _with_runners(report, _insensitive)
    lines = [" ".join(line.split()) for line in _shown(insensitive, width)]
    assert not any("…" in line for line in lines)
    assert any(line.startswith("_attn INSENSITIVE") and "3e-02" in line for line in lines)
    (message,) = (line for line in lines if line.startswith("INSENSITIVE: hstu_tiny"))
    assert "1 of" in message
    sentence = summary(insensitive).plain
    assert sentence.startswith("INSENSITIVE: nothing diverges")
    assert "1 of these checks" in sentence


def test_each_check_shows_its_min_detectable_error(report):
    lines = [" ".join(line.split()) for line in _shown(_with_runners(report, _as_port))]
    rows = {line.split()[0]: line.split() for line in lines if line}
    assert float(rows["_ndp_module"][2]) < 1e-5
    assert rows["_item_emb@1"][1:3] == ["0.00", "all"]
