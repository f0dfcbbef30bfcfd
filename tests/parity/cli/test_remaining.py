"""What a verb leaves if Ctrl-C ends it while it prints."""

import contextlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from parity import pipeline
from parity.cli import reports, runs, serving, studies
from parity.studies import shrink
from parity.studies.fault_injection import command as fault_command
from parity.studies.movement import command as movement_command
from parity.studies.precision_search import command as search_command
from parity.studies.serving import command as serving_command
from tests.parity import made_reports

TINY = ("--case", "hstu_tiny")
RESULT = SimpleNamespace(exit_code=0, report="", changes="", describe=lambda case: "", lines=lambda: [])


@pytest.mark.parametrize(
    ("words", "verb", "told"),
    [
        (("replay", "old"), runs, r"report.json is the report"),
        (("shrink", "small", *TINY, "--precision", "fp32"), studies, "small holds the failure"),
        (("precision", *TINY, "--save", "out"), studies, "out holds the result"),
        (("self-test", *TINY, "--save", "out"), studies, "out holds all findings"),
        (("serve", *TINY, "--save", "out"), serving, "out holds LoadGen's logs"),
        (("compare", "a", "b"), reports, "parity_reports/it holds the result"),
    ],
)
def test_a_verb_tells_what_remains(command, monkeypatch, tmp_path, words, verb, told):
    monkeypatch.chdir(tmp_path)
    for module, names in (
        (shrink, ("shrink", "write")),
        (search_command, ("run", "write", "render")),
        (fault_command, ("self_test", "render_self_test")),
        (movement_command, ("compare",)),
        (serving_command, ("serve",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, lambda *_: RESULT)
    monkeypatch.setattr(pipeline, "replay", lambda *_: made_reports.passing())
    monkeypatch.setattr(movement_command, "write", lambda *_: Path("parity_reports/it"))
    monkeypatch.setattr("parity.studies.movement.runs.is_saved_run", lambda _: True)
    monkeypatch.setattr("parity.studies.movement.terminal.render", lambda _: "")
    monkeypatch.setattr("parity.report.terminal_differences.render_changes", lambda _: "")
    texts = []
    monkeypatch.setattr(verb, "remaining", lambda text: texts.append(text) or contextlib.nullcontext())
    ended = command(*words)
    assert ended.err == "", ended
    assert len(texts) == 1
    assert texts[0].endswith(told)
