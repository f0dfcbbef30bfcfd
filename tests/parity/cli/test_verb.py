"""A verb by itself: the words of a refusal, modules of the present folder, the program's name in help."""

import errno
import os
import subprocess
import sys

import click
import pytest
import torch
from click.testing import CliRunner

import parity
from parity.base.errors import UserError
from parity.cli import options, verb
from parity.cli.program import program
from parity.cli.registered import REGISTERED
from parity.cli.verb import BAD_INPUT, Refused, Verb, _no_number
from parity.cli.verb import refusing as boundary
from tests.locations import ROOT


def invoked(callback, *arguments, name="parity", **settings):
    """The end of a call of the verb `mine`, which has one option."""
    group = program(REGISTERED)
    group.add_command(Verb(name="mine", callback=callback, params=[click.Option(["--mine"])], **settings))
    return CliRunner().invoke(group, ["mine", *arguments], prog_name=name)


def refusing(problem):
    def refuse(mine):
        raise UserError("field", "value", problem, "mend it")

    return refuse


def test_a_refusal_is_one_line_as_it_is():
    """Neither folded, nor read as markup."""
    problem = f"is [red]{'very ' * 60}long[/] with 3 'words'"
    ended = invoked(refusing(problem))
    assert (ended.exit_code, ended.stdout) == (BAD_INPUT, "") == (2, "")
    assert ended.stderr == f"error: field: value {problem}; mend it\n"


def test_a_refusal_is_red_on_a_terminal(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    ended = invoked(refusing("is 3 'words'"))
    assert ended.stderr == "\x1b[1;31merror: field: value is 3 'words'; mend it\x1b[0m\n"


@pytest.mark.parametrize("code", [0, 1, 7])
def test_the_callback_returns_the_exit_code(code):
    assert invoked(lambda mine: code).exit_code == code


@pytest.mark.parametrize("code", [0, 1])
def test_the_exit_code_is_no_error_of_a_user_wherever_click_is_installed(monkeypatch, code):
    monkeypatch.setattr(verb, "is_users", lambda error: True)
    assert invoked(lambda mine: code).exit_code == code


def raise_in(file, error):
    """Raise an error as code of that file."""
    exec(compile("raise error", file, "exec"), {"error": error})


@pytest.mark.parametrize("error", [KeyError("ours"), ValueError("DefaultCPUAllocator is no name")])
def test_an_error_of_our_own_is_no_refusal(error):
    """It keeps its traceback, whatever its words: only some types say that the machine lacks something."""

    def fail(mine):
        raise_in(parity.__file__, error)

    assert invoked(fail).exception is error


@pytest.mark.parametrize("library", [None, os.__file__, torch.__file__])
def test_an_error_of_a_users_code_at_any_place_is_a_refusal_with_its_line(library):
    """The user's code may raise it in a call of a library."""

    def fail(mine):
        raise_in(library or __file__, KeyError("theirs"))

    ended = invoked(fail)
    assert (ended.exit_code, ended.stdout) == (BAD_INPUT, "")
    place = f"{__file__}:{raise_in.__code__.co_firstlineno + 2 if library else 1}"
    assert ended.stderr == f"error: case: KeyError: 'theirs', {place} is raised; correct that code\n"


def test_modules_of_the_present_folder_can_be_imported_and_hide_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text("raise RuntimeError")
    (tmp_path / "my_own_case_module.py").write_text("VALUE = 5")
    before, seen = list(sys.path), []

    def look(mine):
        import my_own_case_module

        seen.append((my_own_case_module.VALUE, list(sys.path)))
        return 0

    for callback in (look, refusing("is bad")):
        invoked(callback)
        assert sys.path == before
    assert seen == [(5, [*before, os.getcwd()])]


@pytest.mark.parametrize(("name", "words"), [("parity", "parity"), ("run_parity.py", "python run_parity.py")])
def test_help_has_the_words_that_start_the_program(name, words):
    text = invoked(None, "--help", name=name, example="--mine 5", exit_codes=("good", "bad", "wrong")).stdout
    assert f"\nExample:\n  {words} mine --mine 5\n" in text
    assert text.endswith("\nExit codes:\n  0  good\n  1  bad\n  2  wrong\n")
    without = invoked(None, "--help", name=name).stdout
    assert f"\nExample:\n  {words} mine\n" in without
    assert "every verdict passes" in without


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (("--replay",), "use the verb: `python run_parity.py replay`"),
        (("--case", "tiny"), "leave it out; it belongs to run, shrink, precision, self-test, stream, serve"),
        (("--mime", "5"), "did you mean --mine?"),
        (("--zzzz",), "`python run_parity.py mine --help` lists the options"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_fix(arguments, fix):
    ended = invoked(lambda mine: 0, *arguments, name="run_parity.py")
    assert ended.exit_code == BAD_INPUT
    assert ended.stderr == f"error: mine: {arguments[0]} is no option of this verb; {fix}\n"


def test_a_missing_or_wrong_argument_is_bad_input():
    verb = Verb(
        name="mine", callback=lambda folder: 0, params=[click.Argument(["folder"], type=options.PATH)]
    )
    group = program(REGISTERED)
    group.add_command(verb)
    assert CliRunner().invoke(group, ["mine"]).exit_code == BAD_INPUT
    assert CliRunner().invoke(group, ["mine", "here"]).exit_code == 0


def test_a_text_in_place_of_a_number_is_refused_as_it_is():
    def refusal(param, text):
        return _no_number(click.BadParameter(f"{text!r} is not a valid number.", param=param))

    whole, number, word = (click.Option(["--value"], type=kind) for kind in (int, float, click.Choice(["a"])))
    text = "--value: '4 is 5' is not a valid number; give a"
    assert str(refusal(whole, "4 is 5")) == f"{text} whole number such as 8"
    assert str(refusal(number, "4 is 5")) == f"{text} number such as 2.5"
    assert refusal(whole, "4 is 5").value == "'4 is 5'"
    assert refusal(word, "b") is None
    assert refusal(None, "b") is None


def test_the_installed_program_has_the_verbs():
    text = "from parity.__main__ import installed; installed()"
    ended = subprocess.run(
        [sys.executable, "-c", text, "list"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "fp32" in ended.stdout


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "/full/x"),
            "machine: /full/x is refused (No space left",
        ),
        (
            OSError(errno.ENAMETOOLONG, "File name too long", "aaa"),
            "(File name too long); give a shorter path",
        ),
        (OSError(errno.EMFILE, "Too many open files"), "raise the limit of open files (ulimit -n)"),
        (
            MemoryError("Unable to allocate 8 GiB"),
            "memory: Unable to allocate 8 GiB is more than there is; give",
        ),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory"), "is more than there is"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "is more than there is"),
        (
            RuntimeError("can't start new thread"),
            "of processes (ulimit -u) or of memory (ulimit -v)",
        ),
        (
            RuntimeError("can't start new thread\nand more"),
            "machine: a thread is refused (can't start new thread); ",
        ),
        (OSError(errno.EMFILE, "Too many"), "machine: a file or process is refused (Too many); raise"),
        (MemoryError(), "memory: an allocation is more than there is; give smaller sizes, free memory"),
    ],
)
def test_what_the_machine_lacks_is_one_message(error, message):
    with pytest.raises(Refused) as refusal, boundary():
        raise error
    assert message in refusal.value.message
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize(
    "error",
    [KeyError("x"), ImportError("no module"), RuntimeError("size mismatch"), FileNotFoundError(2, "none")],
)
def test_a_mistake_of_the_program_stays_one(error):
    with pytest.raises(type(error)), boundary():
        raise_in(parity.__file__, error)


class Own(BaseException):
    """A kind of error of a user's module."""


ENDS = (SystemExit(0), KeyboardInterrupt(), GeneratorExit(), Own("x"))


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
def test_a_users_code_does_not_end_the_program(error, monkeypatch):
    monkeypatch.setattr("parity.base.interruption._is_ours", True)

    def end(mine):
        raise error

    ended = invoked(end)
    assert (ended.exit_code, ended.stdout) == (BAD_INPUT, "")
    assert ended.stderr.startswith(f"error: case: {type(error).__name__}")
    assert f"{__file__}:{end.__code__.co_firstlineno + 1}" in ended.stderr
    assert ended.stderr.endswith(" ends the program; correct that code\n")


def test_ctrl_c_of_another_process_goes_on_to_it():
    with pytest.raises(KeyboardInterrupt), boundary():
        raise KeyboardInterrupt


@pytest.mark.parametrize("columns", ["0", "", "1", "many"])
def test_a_terminal_of_any_width_shows_a_refusal(columns):
    ended = subprocess.run(
        [sys.executable, str(ROOT / "run_parity.py"), "new", "class"],
        env={**os.environ, "COLUMNS": columns},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert "class is no module's name" in " ".join(ended.stderr.split())


def test_a_long_value_of_an_option_is_shortened(command):
    ended = command("run", "--batch", "9" * 5000)
    assert ended.code == 2
    assert len(ended.err) < 1200


@pytest.mark.parametrize(("columns", "width"), [("", 80), ("0", 80), ("101", 101), ("9" * 20, 80)])
def test_a_page_through_a_pipe_has_the_width_of_columns_or_80(columns, width):
    """`list` has descriptions that are longer than any of these."""
    ended = subprocess.run(
        [sys.executable, str(ROOT / "run_parity.py"), "list"],
        env={**os.environ, "COLUMNS": columns},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert width - 8 < max(map(len, ended.stdout.splitlines())) <= width
