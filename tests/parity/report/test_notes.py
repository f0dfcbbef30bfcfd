"""Notes at modules: an operation whose longest sum is not known is named in every form of the report."""

import io
import json
import shutil

from rich.console import Console

from parity.report import overview
from parity.report.html import render_html
from parity.report.junit import render_junit
from parity.report.markdown import render_markdown
from parity.report.outcome import outcome
from parity.report.schema_modules import RoundingReport
from parity.report.terminal import render
from parity.report.terminal_cases import MOST_BEYOND
from parity.verdict.magnitudes import BEYOND
from tests.parity.made_reports import module, port, report

PATH = "_hstu._attention_layers.0._o"
NOTE = "the longest sum of somewhere.scan is not known: 7 terms are measured"


def test_an_operation_that_is_not_known_is_named_at_its_module(saved_run, replayed, runners_of, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(saved_run.folder, folder)
    (capture,) = folder.glob("hstu_tiny/batch_0000/fp32/torch/tapped.json")
    content = json.loads(capture.read_text())
    assert content["unknown_sums"] == {}
    content["unknown_sums"] = {PATH: {"somewhere.scan": "7 terms are measured"}}
    capture.write_text(json.dumps(content))

    code, report, out = replayed(folder)
    assert code == 0
    noted = {
        module.path: module.notes for module in runners_of(report)["torch_jagged"].modules if module.notes
    }
    assert noted == {PATH: (NOTE,)}
    assert " ".join(out.split()).count(f"note: hstu_tiny: {PATH}: {NOTE}") == 1
    assert NOTE in render_html(report)
    assert NOTE in render_markdown(report)


def test_a_module_that_rounds_more_is_noted_in_every_form():
    text = "rounds 1.43 times as much as the reference (1.35 to 1.51 at 95%, 82 rows)"
    rounding = RoundingReport(factor=1.43, interval=(1.35, 1.51), rows=82, noted=True, text=text)
    quiet = RoundingReport(factor=1.0, interval=(0.9, 1.1), rows=82, noted=False, text="rounds as much")
    modules = tuple(module(f"mlp.{number}").model_copy(update={"rounding": rounding}) for number in range(5))
    noted = report((port("fp32", (module("a").model_copy(update={"rounding": quiet}), *modules)),))
    (note,) = overview.notes(noted)
    assert note.count(text) == 3
    assert note.endswith("and 2 modules more")
    assert text in render_html(noted)
    assert overview.notes(noted)[0][:20] in render_markdown(noted).replace("\\", "")
    assert render_junit(noted).count(f"note: {text}") == 5


def test_modules_that_are_right_on_the_inputs_alone_are_on_the_screen_and_counted():
    note = f"{BEYOND}with 512 times its inputs its relative error is 1, and the reference's error is 1e-07"
    paths = [f"layers.{number}" for number in range(MOST_BEYOND + 1)]
    quiet = module("head")
    noted = report((port("fp32", (*(module(path, notes=(note,)) for path in paths), quiet)),))
    console = Console(width=200, file=io.StringIO())
    console.print(render(noted, False))
    shown = [line for line in console.file.getvalue().splitlines() if BEYOND in line]
    assert [line.split(": ")[1] for line in shown] == paths[:-1]
    assert "; 5 checks would not pass beyond the inputs" in str(outcome(noted))
    assert "beyond" not in str(outcome(report((port("fp32", (quiet,)),))))
