"""A report as JUnit XML: a suite for each run of a runner, a test case for each of its modules and checks."""

from __future__ import annotations

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from parity.execution.record import REFERENCE, Status
from parity.report import overview
from parity.report.causes import downstream
from parity.report.schema import CaseReport, PrecisionReport, Report, RunnerReport
from parity.report.schema_modules import LatencyReport, ModuleReport, VerdictReport
from parity.report.streams import stream_text
from parity.verdict.sensitivity import error_text


def render_junit(report: Report) -> str:
    """The report as JUnit XML."""
    xml = JUnitXml("parity")
    for case, precision, entry in report.runner_reports():
        if entry.runner != REFERENCE or entry.verdict != "PASS":
            xml.add_testsuite(_suite(report, case, precision, entry))
    for case in report.cases:
        if case.streams:
            xml.add_testsuite(_streams(report, case))
    xml.update_statistics()
    return xml.tostring().decode() + "\n"


def _suite(report: Report, case: CaseReport, precision: PrecisionReport, entry: RunnerReport) -> TestSuite:
    suite = TestSuite(overview.printable(overview.place(case, precision, entry)))
    suite.timestamp = report.created
    suite.hostname = "localhost"
    suite.add_property("weights", case.weights_digest)
    for batch in case.batches:
        suite.add_property(f"inputs.{overview.printable(batch.name)}", batch.digest)
    classname = overview.printable(f"{case.case.name}.{precision.precision}.{entry.runner}")
    origins = downstream(entry)
    tests = {"": _whole(report, entry, classname)}
    tests |= {module.tap: _module(module, classname) for module in entry.modules}
    tests |= {name: _check(name, verdict, classname) for name, verdict in entry.checks.items()}
    root = entry.diagnosis.tap if entry.diagnosis is not None else ""
    if root in tests.keys() - origins.keys() and _fails(tests[root]) and root:
        # The root cause alone is a failure, with the diagnosis of the whole model. Code between modules has
        # no test case, so that the whole model is the failure.
        (failure,), (diagnosed,) = tests[root].result, tests[""].result
        failure.text = f"{diagnosed.text}\n{failure.text}"
        origins = {**origins, "": root}
    for name, origin in origins.items():
        if _fails(tests[name]):
            tests[name].result = [Skipped(overview.printable(f"downstream of {origin}"))]
    for test in tests.values():
        suite.add_testcase(test)
    return suite


def _streams(report: Report, case: CaseReport) -> TestSuite:
    """A test case for each stream of a case."""
    suite = TestSuite(overview.printable(f"{case.case.name}, streams"))
    suite.timestamp = report.created
    suite.hostname = "localhost"
    for stream in case.streams:
        test = TestCase(overview.printable(stream.side), f"{case.case.name}.{stream.precision}.streams")
        if stream.failed:
            text = stream_text(case, stream)
            test.result = [_failure(f"{stream.failed}: {stream.reason}", "stream", text)]
        suite.add_testcase(test)
    return suite


def _fails(test: TestCase) -> bool:
    return any(isinstance(result, Failure) for result in test.result)


def _check(name: str, verdict: VerdictReport, classname: str) -> TestCase:
    test = TestCase(overview.printable(name), classname)
    if verdict.status == "FAIL":
        test.result = [_failure(verdict.reason, "check", overview.verdict_lines(name, verdict))]
    return test


def _whole(report: Report, entry: RunnerReport, classname: str) -> TestCase:
    """The runner as a whole: its end and its diagnosis."""
    test = TestCase("whole model", classname, _seconds(entry.latency))
    diagnosis = entry.diagnosis
    if entry.verdict in ("FAIL", "INSENSITIVE"):
        message = diagnosis.text if diagnosis is not None else entry.reason
        patterns = diagnosis.explanation if diagnosis is not None else ()
        kind = diagnosis.kind if diagnosis is not None else entry.status
        source = [f"source: {diagnosis.source}"] if diagnosis is not None and diagnosis.source else []
        text = "\n".join([message, *source, *(f"explanation: {pattern}" for pattern in patterns)])
        test.result = [_failure(message, kind, text)]
    elif entry.verdict == "NONE":
        is_needed = entry.runner in report.needed_runners
        harmless = entry.status == Status.BUILT or (entry.status == Status.UNAVAILABLE and not is_needed)
        message = overview.printable(f"{entry.status}: {entry.reason}")
        test.result = [Skipped(message) if harmless else Error(message, entry.status)]
    return test


def _module(module: ModuleReport, classname: str) -> TestCase:
    test = TestCase(overview.printable(module.tap), classname, _seconds(module.latency))
    notes = [*module.notes, *([module.rounding.text] if module.rounding and module.rounding.noted else [])]
    lines = [f"TOLERATED: {verdict.tolerated}" for verdict in module.verdicts.values() if verdict.tolerated]
    lines += [f"note: {note}" for note in notes]
    if lines:
        test.system_out = overview.printable("\n".join(lines))
    if module.status == "GAP":
        test.result = [Skipped(overview.printable(f"GAP: {module.gap}"))]
    elif module.status == "INSENSITIVE":
        message = f"detects no error below {error_text(module.min_detectable_error, 2)}"
        test.result = [_failure(message, "INSENSITIVE", f"{module.path} ({module.kind}) {message}")]
    elif module.status == "FAIL":
        failing = {name: verdict for name, verdict in module.verdicts.items() if verdict.status == "FAIL"}
        text = "\n".join(overview.verdict_lines(f"{module.path} {name}", v) for name, v in failing.items())
        message = "; ".join(f"{name}: {verdict.reason}" for name, verdict in failing.items())
        test.result = [_failure(message, "module", f"{module.path} ({module.kind})\n{text}")]
    return test


def _failure(message: str, kind: str, text: str) -> Failure:
    failure = Failure(overview.printable(message), kind)
    failure.text = overview.printable(text)
    return failure


def _seconds(latency: LatencyReport | None) -> float | None:
    return latency.median if latency is not None else None
