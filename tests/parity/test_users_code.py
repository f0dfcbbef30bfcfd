"""Mistakes in a user's own case: bad input with the line, whichever method fails."""

import subprocess
import sys

import pytest

from parity.base.errors import UserError
from parity.base.precision import PRECISIONS
from parity.case import CaseReference, load_case
from parity.inputs.weights import case_weights
from parity.runners import make_runner
from tests.locations import ROOT
from tests.selection import first_in_test

SOURCE = (ROOT / "parity/cli/new_case.py").read_text()
REFERENCE, PORT = "return Reference()", "return Port(dtype)"
INPUTS = "return {"
MISTAKES = {
    "build_reference raises": (REFERENCE, "raise KeyError('boom')", "build_reference fails (KeyError: 'boom"),
    "build_reference ends all": (REFERENCE, "raise SystemExit(0)", "build_reference fails (SystemExit: 0"),
    "build_reference interrupts": (
        REFERENCE,
        "raise KeyboardInterrupt",
        "build_reference fails (KeyboardInterrupt, ",
    ),
    "__init__ ends a generator": (
        "super().__init__()",
        "super().__init__(); raise GeneratorExit",
        "build_reference fails (GeneratorExit, ",
    ),
    "make_inputs has an own kind": (
        INPUTS,
        "raise type('Own', (BaseException,), {})('x'); return {",
        "make_inputs fails (Own: x",
    ),
    "plan interrupts": (
        "    def make_in",
        "    def plan(self): raise KeyboardInterrupt\n\n    def make_in",
        "plan fails (KeyboardInterrupt, ",
    ),
    "the import interrupts": (
        "import numpy",
        "raise KeyboardInterrupt\nimport numpy",
        "cannot be imported (KeyboardInterrupt, ",
    ),
    "the import ends a generator": (
        "import numpy",
        "raise GeneratorExit\nimport numpy",
        "cannot be imported (GeneratorExit, ",
    ),
    "a kind of error of another module": (
        "import numpy",
        "import builtins\nraise type('E', (BaseException,), {'__module__': 'else'})('x')\nimport numpy",
        "cannot be imported (E: x, ",
    ),
    "the case's __init__ exits": (
        'name = "mine"',
        'name = "mine"\n\n    def __init__(self): raise SystemExit(0)',
        "cannot be imported (SystemExit: 0, ",
    ),
    "the name cannot be read": (
        'name = "mine"',
        "name = property(lambda self: {}['x'])",
        "case: KeyError: 'x', ",
    ),
    "the module has a __getattr__ that raises": (
        "\ncase = ",
        "\ndef __getattr__(name): raise RuntimeError(name)\n\n\nother = ",
        "case: RuntimeError: case, ",
    ),
    "no model": (REFERENCE, "return None", "build_reference returns None; return the"),
    "a class": (REFERENCE, "return Reference", "returns the class Reference; return an"),
    "make_inputs raises": (INPUTS, "1 / 0; return {", "make_inputs fails (ZeroDivisionError: div"),
    "no inputs": (INPUTS, "return None and {", "has inputs of type NoneType; return NumPy arrays by name"),
    "an input that the entry does not take": (
        INPUTS,
        "return {'other': np.zeros((self.batch_size, 2), np.float32), ",
        "do not fit forward(",
    ),
    "an entry that is no method": (
        'name = "mine"',
        'name = "mine"\n    entry = "score"',
        "entry: score is no method of the PyTorch model",
    ),
    "objects": (INPUTS, "return {'x': np.array([None]), ", "inputs.x: an array of object is no NumPy"),
    "texts": (INPUTS, "return {'x': np.array(['a']), ", "inputs.x: an array of <U1 is no NumPy"),
    "plan raises": ("    def make_in", "    def plan(self): 1 / 0\n\n    def make_in", "plan fails (Zero"),
    "a batch of text": ("batch_size = 40", "batch_size = '40'", "has the batch_size '40'; give it a"),
    "a batch of none": ("batch_size = 40", "batch_size = 0", "has the batch_size 0; give it a"),
    "a negative seed": ("batch_size = 40", "batch_size, seed = 40, -1", "has the seed -1; give it a"),
    "an own kind of error": (
        "import numpy",
        "class E(BaseException): pass\nraise E('x\\n' * 9)\nimport numpy",
        "cannot be imported (E: x, ",
    ),
    "a library that is not there": (
        "import numpy",
        "import no_such_library\nimport numpy",
        "(No module named 'no_such_library'); install no_such_library, which its code imports",
    ),
    # Versions of Python raise exceptions of different kinds.
    "zeros in the source": ("import numpy", "\0import numpy", "source code string cannot contain null bytes"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_refused_with_its_line(refused, tmp_path, monkeypatch, request, old, new, message):
    # A module of this name is imported once in a process.
    name = f"mine_{list(MISTAKES).index(request.node.callspec.id)}"
    text = SOURCE.replace('name = "new_case"', 'name = "mine"')
    assert old in text
    (tmp_path / f"{name}.py").write_text(text.replace(old, new, 1))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    monkeypatch.setattr("parity.base.interruption._is_ours", True)
    told = refused("run", "--model", f"{name}:case", "--precision", "fp32", "--runners", "torch,tripy")
    assert message in told
    if "fails" in message:
        assert f"{name}.py:" in told
        assert told.endswith("; correct that code")


def test_a_port_that_is_no_module_of_tripy_is_refused(tmp_path, monkeypatch):
    (tmp_path / "torch_port.py").write_text(SOURCE.replace(PORT, REFERENCE, 1))
    monkeypatch.syspath_prepend(tmp_path)
    case = load_case(CaseReference(target="torch_port:case"))
    message = "has no port: build_port returns the PyTorch model Reference; return the nvtripy.Module"
    with pytest.raises(UserError, match=message):
        make_runner("tripy").load(case, PRECISIONS["fp32"], case_weights(case)[0])


LEAVES = {
    "os": ("__import__('os')._exit(0)", "_exit(0)"),
    "posix": ("__import__('posix')._exit(0)", "_exit(0)"),
    "exec": ("__import__('os').execv('/bin/true', ['true'])", "execv('/bin/true', ['true'])"),
    "C, at once": ("__import__('ctypes').CDLL(None)._exit(0)", ""),
    "C": ("__import__('ctypes').CDLL(None).exit(0)", ""),
}
"""Calls that end a process with 0, and their words in a message; none where Python does not see the end."""
SILENT = "case: its code ends the program with exit code 0 and without a verdict; "
PLACES = {"import": ("import nvtripy", 2), "reference": (REFERENCE, 2), "module": ("super().__init__()", 2)}
PLACES["inputs"] = INPUTS, 2
PLACES["forward"] = "return ", 1


def assert_told(err, words):
    assert (f"SystemExit: {words}" if words else SILENT) in err
    assert words == "" or "leaves.py:" in err


@pytest.mark.full
@pytest.mark.sampled
@pytest.mark.parametrize(("call", "words"), LEAVES.values(), ids=LEAVES)
@pytest.mark.parametrize(("place", "code"), PLACES.values(), ids=PLACES)
def test_a_case_that_ends_its_process_with_0_does_not_pass(tmp_path, place, code, call, words):
    """The forward is that of the reference, in the process of a runner."""
    assert place in SOURCE
    (tmp_path / "leaves.py").write_text(SOURCE.replace(place, f"{call}; {place}", 1))
    ended = subprocess.run(
        [sys.executable, str(ROOT / "run_parity.py"), "run", "--model", "leaves:case", "--precision", "fp32"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == code, ended
    if code == 2:
        assert_told(ended.stderr, words)


@pytest.mark.parametrize("leave", first_in_test(LEAVES))
def test_a_forward_in_the_program_itself_does_not_pass_either(tmp_path, leave):
    call, words = LEAVES[leave]
    text = SOURCE.replace("return self.second", f"{call}; return self.second", 1)
    (tmp_path / "leaves.py").write_text(text)
    options = ("--model", "leaves:case", "--batch", "4")
    ended = subprocess.run(
        [sys.executable, str(ROOT / "run_parity.py"), "precision", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2, ended
    assert_told(ended.stderr, words)


def test_what_the_machine_lacks_is_no_mistake_of_the_case(refused, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    text = SOURCE.replace(INPUTS, "raise OSError(28, 'No space left on device')\n        return {", 1)
    (tmp_path / "full_disk.py").write_text(text)
    assert refused("run", "--model", "full_disk:case").startswith(
        "machine: a file or process is refused (No space"
    )


def test_an_own_kind_of_error_is_a_mistake_in_somebody_else_s_process_too(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    (tmp_path / "own_kind_of_error.py").write_text("class E(BaseException): pass\nraise E('x')\n")
    with pytest.raises(UserError, match=r"cannot be imported \(E: x, .*own_kind_of_error.py:2\)"):
        load_case(CaseReference(target="own_kind_of_error:case"))
