"""The exit code and the first sentence of a report, over every combination of runners that matters."""

import itertools

import pytest

from parity.execution.case_files import BatchDescription, CaseDescription
from parity.execution.record import ORACLE, REFERENCE, RunnerRecord, Status
from parity.report.assemble import assemble
from parity.report.outcome import outcome
from parity.report.schema import BatchReport, CaseReport, StreamReport
from parity.verdict.judgement import Diagnosis, RunnerJudgement
from parity.verdict.judging import PrecisionJudgement
from tests.parity import made_reports
from tests.parity.judgements import runner, tap, verdict
from tests.parity.made_reports import module, port, reference, without_verdict

REF = runner(tap("block"))
PASS = runner(tap("block"))
FAIL = runner(tap("block", isolated=verdict(2.0)), verdict="FAIL", diagnosis=Diagnosis("module", "block"))
INSENSITIVE = runner(tap("block", insensitive=True), verdict="INSENSITIVE")


def _without(status: Status, verdict="NONE") -> RunnerJudgement:
    return RunnerJudgement(RunnerRecord(), status, "a reason", verdict)


BUILT, UNAVAILABLE = _without(Status.BUILT), _without(Status.UNAVAILABLE)
BROKEN = [
    _without(status) for status in Status if status not in (Status.OK, Status.BUILT, Status.UNAVAILABLE)
]


def _judged(runners, second=None):
    """One case and its judgements in fp32; with `second`, in fp16 as well."""
    case = made_reports.load_case("hstu_tiny").reference
    description = CaseDescription(
        case=case,
        precisions=("fp32",),
        source="synthetic, seed 0",
        weights_source="initial, seed 1",
        weights_digest="d" * 64,
        batches=(
            BatchDescription(
                name="typical", purpose="timed", digest="e" * 64, precisions=("fp32", "fp16"), further=0
            ),
        ),
        counts={"users": 5},
        labels_digests=("f" * 64,),
    )
    judgements = [PrecisionJudgement("fp32", {REFERENCE: REF} | runners, {"clock": "1 GHz"}, None, None)]
    if second is not None:
        judgements.append(PrecisionJudgement("fp16", {REFERENCE: REF} | second, {}, None, None))
    return description, judgements


def _assembled(runners, asked=(), second=None, streams=()):
    """The report on one case."""
    return assemble([_judged(runners, second)], "run_parity.py --precision fp32", asked, [streams])


def _code(runners, asked=(), second=None):
    return _assembled(runners, asked, second).exit_code


def test_a_stream_that_fails_fails_the_run():
    for failed, code in (("", 0), ("k of layer 0", 1)):
        report = _assembled({"tripy": PASS}, streams=[_stream(failed)])
        assert (report.exit_code, report.cases[0].streams) == (code, (_stream(failed),))


def test_a_case_without_streams_has_none():
    cases = [_judged({"tripy": PASS})] * 2
    assert [case.streams for case in assemble(cases, "run", ()).cases] == [(), ()]
    first_alone = assemble(cases, "run", (), [[_stream("")]])
    assert [case.streams for case in first_alone.cases] == [(_stream(""),), ()]


def test_a_report_tells_why_coverage_is_not_measured_and_the_options_of_its_cases():
    unmeasured = RunnerJudgement(RunnerRecord(coverage_reason="no source"), Status.OK, "", "PASS")
    coverage = _assembled({"tripy": unmeasured}).coverage
    assert coverage.reasons == ("no source",)
    assert coverage.questions["option"] > 0


def _stream(failed):
    numbers = {"steps": 3, "items": 9, "cache_margin": 0.1, "output_margin": 0.1}
    return StreamReport(precision="fp32", side="PyTorch", failed=failed, **numbers)


def test_a_report_holds_the_facts_of_its_run():
    report = _assembled({"tripy": PASS}, ["tripy"])
    assert (report.command, report.requested_runners) == ("run_parity.py --precision fp32", ("tripy",))
    assert report.coverage is None
    assert report.created.endswith("+00:00")
    assert report.environment["python"]
    (case,) = report.cases
    assert case == CaseReport(
        case=made_reports.load_case("hstu_tiny").reference,
        source="synthetic, seed 0",
        weights_source="initial, seed 1",
        weights_digest="d" * 64,
        labels_digests=("f" * 64,),
        batches=(BatchReport(name="typical", purpose="timed", digest="e" * 64, precisions=("fp32", "fp16")),),
        counts={"users": 5},
        precisions=case.precisions,
    )
    assert [(p.precision, p.gpu) for p in case.precisions] == [("fp32", {"clock": "1 GHz"})]
    assert [entry.runner for entry in case.precisions[0].runners] == [REFERENCE, "tripy"]


def test_0_if_all_pass():
    assert _code({"tripy": PASS}) == 0
    assert _code({"tripy": PASS, "onnx": PASS}, ["tripy", "onnx"], second={"tripy": PASS}) == 0


@pytest.mark.parametrize("bad", [FAIL, INSENSITIVE, *BROKEN, _without(Status.REFUSED, "FAIL")])
def test_1_if_one_runner_in_one_precision_does_not_pass(bad):
    for order in itertools.permutations([("tripy", PASS), ("onnx", bad), ("trt", PASS)]):
        assert _code(dict(order)) == 1
    assert _code({"tripy": bad}) == 1
    assert _code({"tripy": PASS}, second={"tripy": bad}) == 1
    assert _code({"tripy": bad}, second={"tripy": PASS}) == 1
    # A failure is the code of a run in which another runner cannot run.
    assert _code({"tripy": bad, "onnx": UNAVAILABLE}, ["tripy", "onnx"]) == 1


@pytest.mark.parametrize("bad", [FAIL, *BROKEN])
def test_1_if_the_reference_or_the_oracle_does_not_run(bad):
    assert _code({REFERENCE: bad, "tripy": PASS}) == 1
    assert _code({ORACLE: bad, "tripy": PASS}) == 1


def test_2_if_a_runner_that_the_user_named_cannot_run():
    assert _code({"tripy": UNAVAILABLE}, ["tripy"]) == 2
    assert _code({"onnx": PASS, "tripy": UNAVAILABLE}, ["onnx", "tripy"]) == 2
    assert _code({"tripy": PASS, "onnx": UNAVAILABLE}, ["onnx"]) == 2
    assert _code({"tripy": PASS, "onnx": UNAVAILABLE}) == 0
    assert _code({"tripy": PASS, "onnx": UNAVAILABLE}, ["tripy"]) == 0


@pytest.mark.parametrize("name", [REFERENCE, ORACLE])
def test_2_if_the_basis_of_all_verdicts_cannot_run(name):
    assert _code({name: UNAVAILABLE, "tripy": PASS}) == 2
    assert _code({name: UNAVAILABLE, "tripy": PASS}, ["tripy"]) == 2


def test_1_if_nothing_was_judged():
    assert _code({}) == 1
    assert _code({"onnx": UNAVAILABLE}) == 1
    assert _code({"tripy": _without(Status.OK)}) == 1
    assert assemble([], "", ()).exit_code == 1


def test_2_if_the_port_cannot_run_named_or_not():
    for asked in ((), ("tripy",)):
        assert _code({"tripy": UNAVAILABLE, "torch_jagged": PASS}, asked) == 2
    # A run that leaves the port out does not need it.
    assert _code({"torch_jagged": PASS, "tripy_jagged": UNAVAILABLE}) == 0


def test_0_if_engines_were_only_built():
    assert _code({"tensorrt": BUILT}, ["tensorrt"]) == 0
    assert _code({"tensorrt": BUILT, "tripy": PASS}) == 0
    assert _code({"tensorrt": BUILT, "tripy": FAIL}) == 1


# The first sentence


def _sentence(*runners, asked=()):
    report = made_reports.report((reference(), *runners))
    return str(outcome(report.model_copy(update={"requested_runners": asked})))


BUILDS = made_reports.everything().cases[0].precisions[0].runners


def _built(count):
    build = next(entry for entry in BUILDS if entry.builds).builds[0]
    return without_verdict("tensorrt", "BUILT", "no GPU", builds=(build,) * count)


GAP = module("cast", status="GAP", gap="no such operation", isolated=None, accumulated=None)
GOOD = port("fp32", (module("first", alone=0.3, inside=0.4), module("second", alone=0.5, inside=0.1)))
BAD = port("fp32", (module("first"), module("second", alone=2.0)), verdict="FAIL")
DULL = port(
    "fp32",
    (module("first", status="INSENSITIVE"), module("second"), module("third", status="INSENSITIVE")),
    verdict="INSENSITIVE",
)
ABSENT = without_verdict("onnx", "UNAVAILABLE", "no such library")
CRASHED = without_verdict("onnx", "CRASHED", "signal 11")


@pytest.mark.parametrize(
    ("runners", "sentence"),
    [
        ((GOOD,), "PASS: 2 module verdicts of 1 run; the closest to its limit is second at 0.50."),
        (
            (port("fp32", (module("first"), GAP)), GOOD),
            "PASS: 3 module verdicts of 2 runs; the closest to its limit is second at 0.50; 1 gap, each with "
            "its reason.",
        ),
        (
            (GOOD, _built(1), ABSENT),
            "PASS: 2 module verdicts of 1 run; the closest to its limit is second at 0.50; 1 engine built "
            "and not run; 1 run without a verdict.",
        ),
        (
            (port("fp32", (module("first", alone=0.3, by_nature=True), module("second", by_nature=True))),),
            "PASS: 2 module verdicts of 1 run; the closest to its limit is first at 0.30; 2 checks cannot "
            "detect 1 % in any batch of a run.",
        ),
        ((BAD,), "FAIL: 1 of 2 runs diverges."),
        (
            (BAD, GOOD, BAD, ABSENT, CRASHED, _built(2)),
            "FAIL: 2 of 4 runs diverge; 2 engines built and not run; 2 runs without a verdict.",
        ),
        ((BAD, DULL), "FAIL: 1 of 3 runs diverges."),
        ((_built(2),), "BUILT: every graph; nothing was compared; 2 engines built and not run."),
        (
            (_built(1), ABSENT),
            "BUILT: every graph; nothing was compared; 1 engine built and not run; 1 run without a verdict.",
        ),
        (
            (_built(1), CRASHED),
            "INCOMPLETE: nothing was judged; 1 engine built and not run; 1 run without a verdict.",
        ),
        ((), "INCOMPLETE: nothing was judged."),
        (
            (ABSENT,),
            "INCOMPLETE: nothing was judged; 1 run without a verdict.",
        ),
        (
            (GOOD, DULL, CRASHED),
            "INCOMPLETE: all that ran passes, 5 module verdicts of 2 runs; 1 run without a verdict.",
        ),
        (
            (GOOD, DULL),
            "INSENSITIVE: nothing diverges, 5 module verdicts of 2 runs, but 2 of these checks do not detect "
            "an error of 1%.",
        ),
    ],
)
def test_the_first_sentence(runners, sentence):
    assert _sentence(*runners) == sentence


def test_a_runner_that_the_user_named_or_the_port_leaves_a_run_incomplete_where_it_cannot_run():
    text = "all that ran passes, 2 module verdicts of 1 run; 1 run without a verdict."
    assert _sentence(GOOD, ABSENT, asked=("onnx",)) == f"INCOMPLETE: {text}"
    assert _sentence(GOOD, ABSENT, asked=("tripy",)).startswith("PASS: ")
    without_port = without_verdict("tripy", "UNAVAILABLE", "no such library")
    assert _sentence(GOOD, without_port) == f"INCOMPLETE: {text}"
    built = _sentence(_built(1), ABSENT, asked=("onnx",))
    assert built.startswith("INCOMPLETE: nothing was judged")


def test_captures_of_other_code_are_told():
    report = made_reports.report((reference(), GOOD)).model_copy(
        update={"changed_code": ("parity", "a case")}
    )
    assert str(outcome(report)).endswith("; the captures are of other code than today's parity, a case.")
