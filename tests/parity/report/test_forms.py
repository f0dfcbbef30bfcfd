"""JUnit XML and Markdown have the report's content; all forms are written beside it, whole or not at all."""

import math
import re
import xml.etree.ElementTree as ElementTree

import pytest
import vl_convert
from junitparser import JUnitXml

from parity.base.errors import UserError
from parity.execution.folder import RunFolder
from parity.report import html
from parity.report.files import forms, read_report, write_outputs
from parity.report.html import charts
from parity.report.junit import render_junit
from parity.report.markdown import render_markdown
from tests.parity import made_reports
from tests.parity.made_reports import CULPRIT, HOSTILE, PRECISIONS, TAPS, verdict


def _suites(report):
    return {suite.name: suite for suite in JUnitXml.fromstring(render_junit(report).encode())}


def _results(suite):
    """Kind of result, message and text by test."""
    return {
        test.name: (type(test.result[0]).__name__, test.result[0].message, test.result[0].text)
        if test.result
        else ("passed", "", "")
        for test in suite
    }


class TestJUnit:
    def test_a_test_for_each_module_in_each_precision(self):
        suites = _suites(made_reports.passing())
        assert list(suites) == [f"hstu_tiny, {name}, tripy (portable, cpu)" for name in PRECISIONS]
        for name, suite in zip(PRECISIONS, suites.values(), strict=True):
            assert [test.name for test in suite] == ["whole model", *TAPS, "incremental.current"]
            assert {test.classname for test in suite} == {f"hstu_tiny.{name}.tripy"}
            assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (len(TAPS) + 2, 0, 0, 0)
        (whole, module, *_) = suite
        assert (whole.time, module.time) == (0.012, 2e-5)

    def test_a_failure_has_path_errors_and_bound(self):
        (suite, *_) = _suites(made_reports.failing()).values()
        results = _results(suite)
        kind, message, text = results[CULPRIT]
        assert kind == "Failure"
        assert text.startswith(
            f"{CULPRIT} (Attention) diverges on its own: why\nsource: port/attention.py:7\n"
        )
        assert "\nexplanation: equal after transposing the last two axes\n" in text
        assert message.startswith("alone: relative L2 error 0.0119 exceeds 2.38e-07; in the model: relative")
        broken = verdict("fp32", 5e4)
        numbers = (
            broken.err_port_l2,
            broken.err_ref_l2,
            broken.limit_l2,
            broken.err_port_max,
            broken.limit_scale_error,
        )
        for expected in (f"{CULPRIT} (Attention)", broken.bound, *(f"{number:.3e}" for number in numbers)):
            assert expected in text
        assert results["_mask"][0] == "passed"

    def test_only_the_root_cause_is_a_failure(self):
        for name, suite in _suites(made_reports.failing()).items():
            results = _results(suite)
            failing = [test for test, (kind, *_) in results.items() if kind == "Failure"]
            assert failing == [CULPRIT], name
            behind = TAPS[TAPS.index(CULPRIT) + 1 :]
            for test in ("whole model", *behind):
                assert results[test][:2] == ("Skipped", f"downstream of {CULPRIT}")
            skipped = len(behind) + 1
            assert (suite.tests, suite.failures, suite.skipped) == (len(TAPS) + 2, 1, skipped)
        xml = JUnitXml.fromstring(render_junit(made_reports.failing()).encode())
        assert (xml.tests, xml.failures, xml.errors, xml.skipped) == (3 * (len(TAPS) + 2), 3, 0, 3 * skipped)

    def test_a_second_fault_is_a_failure_of_its_own(self):
        port = made_reports.failing_port("fp32")
        second = "_hstu._attention_layers.1._attn"
        modules = tuple(
            made_reports.module(module.tap, alone=7.0, inside=5e4) if module.tap == second else module
            for module in port.modules
        )
        report = made_reports.report((port.model_copy(update={"modules": modules}),))
        results = _results(next(iter(_suites(report).values())))
        assert [name for name, (kind, *_) in results.items() if kind == "Failure"] == [CULPRIT, second]

    @pytest.mark.parametrize("tap", ["_mask", CULPRIT])
    def test_code_between_modules_is_a_failure_of_the_whole_model(self, tap):
        port = made_reports.failing_port("fp32")
        update = {"kind": "between", "tap": tap, "code": "", "text": f"{tap} receives another length"}
        good = made_reports.module(CULPRIT, alone=0.2, inside=5e4)
        modules = tuple(good if module.tap == CULPRIT else module for module in port.modules)
        diagnosis = port.diagnosis.model_copy(update=update)
        port = port.model_copy(update={"diagnosis": diagnosis, "modules": modules})
        results = _results(next(iter(_suites(made_reports.report((port,))).values())))
        assert [name for name, (kind, *_) in results.items() if kind == "Failure"] == ["whole model"]
        assert results[CULPRIT][:2] == ("Skipped", "downstream of the code of the entry")

    def test_every_status(self):
        suites = _suites(made_reports.everything())
        whole = {name.split(", ")[2]: _results(suite)["whole model"] for name, suite in suites.items()}
        assert whole["torch_compile label"][:2] == ("Skipped", "UNAVAILABLE: no compiler")
        assert whole["tensorrt label"][:2] == ("Skipped", "BUILT: no CUDA device")
        kind, message, _ = whole["torch_jagged label"]
        assert kind == "Error"
        assert message.startswith("CRASHED: <script>alert('x')</script> & \"q\"")
        port = _results(next(suite for name, suite in suites.items() if "tripy" in name))
        assert port["gap"][0] == "Skipped"
        assert port["insensitive"][:2] == ("Failure", "detects no error below 0.5")
        assert port["exact"][0] == "passed"
        assert "nan" in port["no_number"][2]

    def test_unavailable_is_an_error_where_it_was_asked_for(self):
        asked = made_reports.everything().model_copy(update={"requested_runners": ("torch_compile",)})
        (suite,) = (suite for name, suite in _suites(asked).items() if "torch_compile" in name)
        assert _results(suite)["whole model"][0] == "Error"

    def test_a_reference_that_fails_is_not_left_out(self):
        broken = made_reports.reference().model_copy(update={"verdict": "NONE", "status": "CRASHED"})
        (suite,) = _suites(made_reports.report((broken,), exit_code=1)).values()
        assert _results(suite)["whole model"][0] == "Error"

    def test_what_xml_cannot_hold_is_replaced(self):
        text = render_junit(made_reports.everything())
        ElementTree.fromstring(text)
        assert "\x1b" not in text
        assert "\N{REPLACEMENT CHARACTER}[31m" in text


def _markdown(report):
    """The Markdown, without the padding of its tables."""
    return re.sub(" +", " ", render_markdown(report))


class TestMarkdown:
    def test_passing_is_short(self):
        text = _markdown(made_reports.passing())
        assert text.startswith("### Parity: PASS\n\n21 module verdicts of 3 runs; the closest to its limit")
        assert re.search(r"\| runner \| fp32 \| fp16 \| bf16 \|\n(\|-+){4}\|\n", text)
        assert "| tripy (portable, cpu) | **PASS** 0.25<br>12.0 ±3% ms | **PASS** 0.25" in text
        assert "| torch dense (eager, cpu) | reference<br>8.00 ±2% ms |" in text
        assert text.count("<details>") == text.count("</details>") == 1
        assert len(text) < 1500

    def test_failing_names_the_culprit_and_holds_its_numbers(self):
        text = render_markdown(made_reports.failing())
        assert text.startswith("### Parity: FAIL\n\n3 of 6 runs diverge.")
        actual = f"- **FAIL** hstu\\_tiny, fp16, tripy (portable, cpu): `{CULPRIT}`: "
        assert actual in text
        assert text.count("\n  - explanation: equal after transposing the last two axes\n") == 3
        assert "<details><summary>Modules that fail</summary>\n\n```text\n" in text
        assert verdict("fp32", 5e4).bound in text
        assert "more in report.html" not in text
        behind = len(TAPS) - TAPS.index(CULPRIT) - 1
        assert text.count(f"\n  - {behind} failures follow from it\n") == 3
        assert text.count("\n  - source: `port/attention.py:7`\n") == 3
        assert len(text) < 65_536

    def test_every_status(self):
        text = _markdown(made_reports.everything())
        for expected in (
            "| torch\\_compile label | UNAVAILABLE | not run |",
            "| tensorrt label | BUILT | not run |",
            "- **UNAVAILABLE** hstu\\_tiny, fp32, torch\\_compile label: no compiler",
            "- **CRASHED** hstu\\_tiny, fp32, torch\\_jagged label: \\<script\\>",
            "- `Jagged`: \\<script\\>",
            "| hstu\\_tiny | fp32 | tripy (portable, cpu) | AUC | 0.512345 | 0.500000 "
            "| **FAIL** -1.2e-02 (-2.0e-02 to -1.0e-03) | 99 |",
            "| calibration | all labels are 0 | - | - | 99 |",
        ):
            assert expected in text

    def test_names_cannot_leave_their_place(self):
        text = render_markdown(made_reports.everything())
        outside = re.sub(r"(`{3,})text\n.*?\n\1", "", text, flags=re.DOTALL)
        assert "<script" not in outside.replace("\\<script", "")
        tags = set(re.findall(r"(?<!\\)<[^>]*>", re.sub(r"(`+)[^`].*?\1", "", outside)))
        assert tags <= {"<br>", "<details>", "</details>", "<summary>", "</summary>"}
        rows = [line for line in outside.splitlines() if line.startswith("|")]
        cells = {len(re.findall(r"(?<!\\)\|", row)) for row in rows}
        assert cells == {4, 9}


FILES = {"report.json", "report.html", "report.md", "report.junit.xml"}


class TestOutputs:
    def test_a_run_writes_every_form(self, saved_run, report):
        names = {path.name for path in saved_run.folder.glob("report.*")}
        assert names == FILES
        for path, render in forms(RunFolder(saved_run.folder)).items():
            assert path.read_text(encoding="utf-8") == render(report)

    def test_a_replay_writes_every_form(self, saved_run, command, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert command("replay", saved_run.folder).code == 0
        (folder,) = (tmp_path / "parity_reports").iterdir()
        assert {path.name for path in folder.iterdir()} == FILES

    def test_nothing_is_written_over(self, tmp_path):
        write_outputs(made_reports.passing(), tmp_path)
        write_outputs(made_reports.passing(), tmp_path)
        with pytest.raises(UserError, match="exists with other content"):
            write_outputs(made_reports.failing(), tmp_path)
        assert read_report(tmp_path / "report.json") == made_reports.passing()

    def test_the_report_is_written_first_and_costs_no_other_form(self, tmp_path, monkeypatch):
        def exhausted(report):
            assert (tmp_path / "report.json").exists()
            raise MemoryError

        monkeypatch.setattr(html, "render_html", exhausted)
        (problem,) = write_outputs(made_reports.passing(), tmp_path)
        assert problem == f"{tmp_path / 'report.html'} is not written: memory does not suffice for it"
        assert {path.name for path in tmp_path.iterdir()} == FILES - {"report.html"}

    @pytest.mark.parametrize(
        ("space", "data", "reason"),
        [
            (2**30, math.inf, "the limit of address space leaves less than 66 GiB"),
            (math.inf, 2**20, "the limit of data leaves less than 1 GiB"),
            (math.inf, math.inf, "no fonts"),
        ],
        ids=["space", "data", "fonts"],
    )
    def test_a_picture_that_cannot_be_drawn_costs_nothing_else(
        self, tmp_path, monkeypatch, space, data, reason
    ):
        def fail(spec):
            raise ValueError("no fonts")

        monkeypatch.setattr(charts, "address_space_left", lambda: space)
        monkeypatch.setattr(charts, "data_left", lambda: data)
        monkeypatch.setattr(vl_convert, "vegalite_to_svg", fail)
        assert write_outputs(made_reports.passing(), tmp_path) == ()
        text = (tmp_path / "report.html").read_text(encoding="utf-8")
        assert f"<p>not drawn: {reason}</p>" in text
        assert "How the error grows through the model" in text

    def test_a_report_survives_its_file(self, tmp_path):
        write_outputs(made_reports.everything(), tmp_path)
        again = read_report(tmp_path / "report.json")
        assert again.model_dump_json() == made_reports.everything().model_dump_json()
        # HTML replaces characters that it cannot show; the JSON keeps them.
        assert HOSTILE in {module.tap for _, _, entry in again.runner_reports() for module in entry.modules}
