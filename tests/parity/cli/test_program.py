"""The program as the whole of a process: its help, its widths, its ends."""

import os
import sys

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from parity.base.errors import UserError
from parity.case import Registry
from parity.cli import program as module
from parity.cli.program import as_process, program

NOTHING = Registry(cases=lambda: [], load=None)


def test_help_starts_with_the_call_and_what_it_does():
    shown = CliRunner().invoke(program(NOTHING), ["--help"]).stdout.splitlines()
    assert shown[0] == "Usage: parity [OPTIONS] [VERB] [ARGS]..."
    assert shown[2] == "  Compare a Tripy port with its PyTorch reference, module by module."


def test_help_of_a_verb_has_the_names_above_it():
    shown = CliRunner().invoke(program(NOTHING), ["replay", "--help"]).stdout
    assert shown.startswith("Usage: parity replay ")


def test_words_behind_an_unknown_verb_are_completed_as_verbs():
    group = program(NOTHING)
    shell = ShellComplete(group, {}, "parity", "_PARITY_COMPLETE")
    assert [item.value for item in shell.get_completions(["nothing"], "")] == list(group.commands)


@pytest.fixture
def ended(monkeypatch):
    """`ended(work, temporaries)`: the exit code of a process whose program does some work."""
    monkeypatch.setattr(module, "leave_out_of_collections", lambda: None)
    monkeypatch.setattr(module, "require_output", lambda: None)

    def run(work, temporaries=lambda: None):
        monkeypatch.setattr(module, "own_temporaries", temporaries)
        with pytest.raises(SystemExit) as exited:
            as_process(work)
        return exited.value.code

    return run


@pytest.mark.parametrize(
    ("columns", "kept"),
    [
        ("0", None),
        ("1", "1"),
        ("100000", "100000"),
        ("100001", None),
        ("-3", None),
        ("wide", None),
        ("", None),
    ],
)
def test_a_width_that_no_page_has_is_forgotten(monkeypatch, ended, columns, kept):
    monkeypatch.setenv("COLUMNS", columns)
    seen = []
    assert ended(lambda: seen.append(os.environ.get("COLUMNS")) or sys.exit(1)) == 1
    assert seen == [kept]


def test_a_process_needs_no_width(monkeypatch, ended):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert ended(lambda: sys.exit(0)) == 0


def test_a_process_without_temporary_files_ends_with_2(ended, capsys):
    def temporaries():
        raise UserError("TMPDIR", "/none", "cannot be written", "give another folder")

    assert ended(lambda: sys.exit(0), temporaries) == 2
    assert capsys.readouterr().err == "error: TMPDIR: /none cannot be written; give another folder\n"


def test_arguments_and_a_folder_that_are_no_text_end_with_2(monkeypatch, ended, capsys):
    """Each is told by its name, the first argument, too."""
    bad = "a\udcff"
    for arguments, folder, field in ((["p", bad], "/", "arguments"), (["p", "run"], bad, "present folder")):
        monkeypatch.setattr(sys, "argv", arguments)
        monkeypatch.setattr(os, "getcwd", lambda folder=folder: folder)
        assert ended(lambda: sys.exit(0)) == 2
        assert capsys.readouterr().err.startswith(f"error: {field}: 'a\\udcff' has bytes that are no text")
