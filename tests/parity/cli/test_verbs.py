"""The verbs: each has help, an example that parses and its exit codes, and refuses options of others."""

from __future__ import annotations

import shlex
import subprocess
import sys
from importlib.metadata import EntryPoint

import click
import pytest
from click.testing import CliRunner

import run_parity
from parity.case import Registry
from parity.cli import registered
from parity.cli.program import VERBS, program
from tests.locations import ROOT
from tests.parity.cli.completions import bash_completions

NAMES = [verb.name for verb in VERBS]
NOTHING = Registry(cases=lambda: [], load=registered.REGISTERED.load)


def test_help_lists_the_verbs_in_order(command):
    ended = command("--help")
    listed = [line.split()[0] for line in ended.out.partition("Commands:\n")[2].splitlines()]
    assert ended.code == 0
    assert listed == NAMES == [*run_parity.main.commands]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_a_verb_has_help_an_example_and_exit_codes(command, verb):
    ended = command(verb.name, "-h")
    assert ended.code == 0
    assert verb.callback.__doc__.split(".")[0].split(":")[0] in " ".join(ended.out.split())
    assert f"Example:\n  parity {verb.name} {verb.example}".rstrip() in ended.out
    lines = ended.out.partition("Exit codes:\n")[2].splitlines()
    assert [line[:5] for line in lines if line[:5].strip()] == ["  0  ", "  1  ", "  2  "]
    root = run_parity.main.make_context("parity", [])
    assert verb.make_context(verb.name, shlex.split(verb.example), parent=root)


@pytest.mark.parametrize(
    ("verb", "default"),
    [("run", "see list"), ("stream", "see list"), ("serve", "fp32"), ("shrink", None)],
)
def test_help_has_the_default_precision_of_the_verb(command, verb, default):
    own = command(verb, "--help").out.partition("--precision")[2].partition(" --")[0]
    assert ("default" in own) is (default is not None)
    assert default is None or f"[default: {default}]" in own


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lst",), "verb: lst is not known; did you mean 'list'? known: run, list, replay"),
        (("--compare",), "run: --compare is no option of this verb; use the verb: `parity compare`"),
        (("--replay", "out"), "run: --replay is no option of this verb; use the verb: `parity replay`"),
        (("--search-precision",), "use the verb: `parity precision`"),
        (
            ("stream", "--batch", "2"),
            "stream: --batch is no option of this verb; leave it out; it belongs to",
        ),
        (
            ("replay", "out", "--precision", "fp16"),
            "replay: --precision is no option of this verb; leave it out",
        ),
        (("resume", "out", "--case", "hstu_tiny"), "resume: --case is no option of this verb; leave it out"),
        (("run", "--sead", "1"), "run: --sead is no option of this verb; did you mean --se"),
        (("compare", "--zzzz", "a", "b"), "`parity compare --help` lists the options"),
        (("new", "My-Model"), "new: My-Model is no module's name; give lower case"),
        (("new", "class"), "new: class is no module's name"),
        (("new", "torch"), "new: torch is the name of an installed module; choose another name"),
    ],
)
def test_a_wrong_verb_or_option_is_refused_with_a_fix(refused, arguments, message):
    assert message in refused(*arguments)


def test_a_program_without_cases_asks_for_one(tmp_path):
    ended = CliRunner().invoke(program(NOTHING), [])
    assert ended.exit_code == 2
    assert "no case is a default one; name yours with --model" in ended.stderr
    ended = CliRunner().invoke(program(NOTHING), ["--case", "mine"])
    assert "no installed package registers a case; name yours with --model" in ended.stderr


def test_installed_packages_register_cases(monkeypatch):
    points = [EntryPoint("tiny", "cases.shipped:from_values", "parity.cases")]
    monkeypatch.setattr(registered, "entry_points", lambda group: [p for p in points if p.group == group])
    assert [case.name for case in registered.REGISTERED.cases()] == ["tiny"]
    ended = CliRunner().invoke(program(registered.REGISTERED), ["run", "--case", "tinny"])
    assert "tinny is not known; did you mean 'tiny'? known: tiny" in ended.stderr


def completed(monkeypatch, words, number):
    """The words that a shell offers."""
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(number))
    ended = CliRunner().invoke(run_parity.main, env={"_PARITY_COMPLETE": "bash_complete"}, prog_name="parity")
    return [line.partition(",")[2] for line in ended.output.splitlines()]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("parity ", NAMES),
        ("parity re", ["replay", "resume"]),
        ("parity --ca", ["--case"]),
        ("parity -h", ["-h"]),
        ("parity --case hstu_tiny_ra", ["hstu_tiny_rated"]),
        ("parity run --case dlrm_tiny,stu_tiny_gr", ["dlrm_tiny,stu_tiny_group"]),
        ("parity stream --case hstu_tiny_ra", ["hstu_tiny_rated"]),
        ("parity run --case ./configs/hs", ["./configs/hs"]),
        ("parity run --runners torch,tripy", ["torch,tripy", "torch,tripy_jagged", "torch,tripy_layers"]),
    ],
)
def test_a_shell_completes(monkeypatch, words, expected):
    assert completed(monkeypatch, words, len(words.split(" ")) - 1) == expected


def test_bash_completes_after_the_line_of_the_documentation():
    offered = bash_completions("./run_parity.py", ROOT)
    assert offered("re") == ["replay", "resume"]
    assert offered("run", "--case", "dlrm_tiny,stu_tiny_gr") == ["dlrm_tiny,stu_tiny_group"]
    assert offered("run", "--runners", "torch,tripy_j") == ["torch,tripy_jagged"]


def test_completion_and_help_import_no_engine():
    script = "import sys, run_parity; run_parity.main(['self-test', '-h'], standalone_mode=False); "
    script += "sys.exit(bool({'torch', 'scipy', 'nvtripy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0


@pytest.mark.full
def test_a_new_case_runs_at_once(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = command("new", "my_model")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[-1] == "parity run --model my_model:case"
    ended = command("run", "--model", "my_model:case", "--precision", "fp32", "--save", "out")
    assert ended.code == 0, ended
    assert "my_model" in ended.out
    assert command("replay", "out").code == 0
    again = command("new", "my_model")
    assert again.code == 2
    assert "my_model.py cannot be written (File exists)" in again.err


def test_a_new_case_does_not_replace_a_link(refused, tmp_path):
    (tmp_path / "linked.py").symlink_to(tmp_path / "nothing")
    assert "linked.py cannot be written (File exists)" in refused("new", "linked")


def test_a_new_case_is_a_case(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    (tmp_path / f".other_model.py.{killed.pid}.1").write_text("impo")
    assert command("new", "other_model").code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["other_model.py"]
    values: dict[str, object] = {"__name__": "other_model"}
    exec(compile((tmp_path / "other_model.py").read_text(), "other_model.py", "exec"), values)
    assert values["case"].name == "other_model"
    assert "new_case" not in (tmp_path / "other_model.py").read_text()


def test_a_verb_ends_with_its_callback_s_code():
    group = program(NOTHING)
    verb = type(VERBS[0])(name="seven", callback=lambda: 7)
    group.add_command(verb)
    assert CliRunner().invoke(group, ["seven"]).exit_code == 7
    assert isinstance(verb, click.Command)
