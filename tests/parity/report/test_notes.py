"""Notes at modules: an operation whose longest sum is not known is named in every form of the report."""

import json
import shutil

from parity.report.html import render_html
from parity.report.markdown import render_markdown

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
