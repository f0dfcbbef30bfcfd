"""Folders of failures of nested results: the failing tensor has the name that the run gives it."""

import runpy
import sys

import pytest

from parity.base.precision import PRECISIONS
from parity.base.sealed import read_sealed
from parity.case import CaseReference, load_case
from parity.studies.shrink import shrink, write

CODE = '''
import collections
import dataclasses
import numpy as np
import nvtripy as tp
import parity
import torch
from parity.base.trees import leaves

Pair = collections.namedtuple("Pair", "first second")

@dataclasses.dataclass
class Record:
    low: object
    high: object

def nested(a, b):
    """Results of two right tensors and one that is wrong in the port."""
    return {nesting}

def nested_in_port(a, b):
    return {port}

class Reference(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(4, 3)
        self.inner = torch.nn.Linear(4, 3)

    def forward(self, x):
        return nested(self.lin(x), self.inner(x) * 2.0)

class Port(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.lin = tp.Linear(4, 3, dtype=dtype)
        self.inner = tp.Linear(4, 3, dtype=dtype)

    def forward(self, x):
        return nested_in_port(self.lin(x), self.inner(x) * 3.0)

class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.core = Reference()

    def forward(self, x):
        return torch.cat([t for _, t in tensors(self.core(x))], -1)

class OuterPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.core = Port(dtype)

    def forward(self, x):
        return tp.concatenate([t for _, t in tensors(self.core(x))], -1)

def tensors(tree):
    return [(path, leaf) for path, leaf in leaves(tree) if leaf is not None]

class Case(parity.Case):
    name = "nested"
    batch_size = 3

    def build_reference(self):
        return Reference()

    def build_port(self, dtype):
        return Port(dtype)

    def make_inputs(self):
        rng = np.random.default_rng(self.seed)
        return {{"x": rng.standard_normal((self.batch_size, 4)).astype(np.float32)}}

class Inside(Case):
    def build_reference(self):
        return Outer()

    def build_port(self, dtype):
        return OuterPort(dtype)

X = {{"x": np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)}}
pair = parity.ModelPair(Reference, Port, X)
'''
SAME = {
    "tuple": "(a, b)",
    "dict": "{'a': a, 'b': b}",
    "dict in dict": "{'click': a, 'bid': {'q': a, 'late': b}}",
    "dict in tuple in dict": "{'click': a, 'bid': (a, {'late': b})}",
    "named tuple in tuple": "(a, Pair(a, b))",
    "dataclass in list": "[a, Record(a, b)]",
    "list in list, and nothing": "[[None, a], [b, None]]",
    "one tensor in a dict in a tuple": "({'only': b},)",
    "keys of numbers": "{0: a, 1: {2: b}}",
}
# The port names the same results otherwise.
OTHER = {
    "numbers for fields": ("Pair(a, Pair(a, b))", "(a, (a, b))"),
    "numbers for keys": ("{'a': a, 'b': b}", "(a, b)"),
}


@pytest.fixture
def own_case(tmp_path, monkeypatch):
    """Writes a case whose models nest their results so, and loads it."""

    def make(nesting, port="", attribute="Case"):
        code = CODE.format(nesting=nesting, port=port or nesting)
        (tmp_path / "nested_case.py").write_text(code)
        return load_case(CaseReference(target=f"nested_case:{attribute}"))

    monkeypatch.syspath_prepend(tmp_path)
    yield make
    sys.modules.pop("nested_case", None)


def _exit_code(folder, monkeypatch):
    """The exit code of the folder's program with the folder's own case."""
    sys.modules.pop("nested_case", None)
    # Sources of one size change within a second, which bytecode files would not tell apart.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(folder / "reproduce.py"), run_name="__main__")
    return ended.value.code


def _check_folder(failure, folder, monkeypatch, capsys):
    """The folder fails with the wrong port, and no more once its port is right."""
    write(failure, folder)
    assert _exit_code(folder, monkeypatch) == 1
    assert "within its limits" not in capsys.readouterr().out
    source = folder / "nested_case.py"
    wrong = source.read_text()
    source.write_text(wrong.replace("self.inner(x) * 3.0", "self.inner(x) * 2.0"))
    assert _exit_code(folder, monkeypatch) == 0
    # The reasons were those of the wrong port.
    *errors, told = capsys.readouterr().out.splitlines()
    assert (len(errors), told) == (4, "  within its limits")
    source.write_text(wrong.replace("self.inner(x) * 3.0", "self.inner(x) * 2.5"))
    assert _exit_code(folder, monkeypatch) == 1


@pytest.mark.parametrize("attribute", ["Case", "pair", "Inside"])
@pytest.mark.parametrize("nesting", SAME.values(), ids=SAME)
def test_a_failing_result_at_any_place(own_case, tmp_path, monkeypatch, capsys, nesting, attribute):
    failure = shrink(own_case(nesting, attribute=attribute), PRECISIONS["fp32"], lambda _: None)
    # A model's result has the name of the report's row, a module's the part of it in brackets.
    assert failure.row.tap == failure.call.path + failure.result
    _check_folder(failure, tmp_path / "small", monkeypatch, capsys)


@pytest.mark.parametrize("attribute", ["Case", "pair", "Inside"])
@pytest.mark.parametrize("nestings", OTHER.values(), ids=OTHER)
def test_the_port_has_other_names(own_case, tmp_path, monkeypatch, capsys, nestings, attribute):
    failure = shrink(own_case(*nestings, attribute=attribute), PRECISIONS["fp32"], lambda _: None)
    assert failure.row.tap != failure.call.path + failure.result
    _check_folder(failure, tmp_path / "small", monkeypatch, capsys)


def test_a_port_without_the_result_is_no_verdict(own_case, tmp_path, monkeypatch, capsys):
    failure = shrink(own_case("{'a': a, 'b': b}"), PRECISIONS["fp32"], lambda _: None)
    folder = tmp_path / "small"
    write(failure, folder)
    source = folder / "nested_case.py"
    source.write_text(source.read_text().replace("'b': b", "'c': b"))
    assert _exit_code(folder, monkeypatch) == 2
    message = "'forward.b' is none of the port's results, 'forward.a', 'forward.c'"
    assert capsys.readouterr().err == f"error: result: {message}; restore it, or shrink again\n"
    assert read_sealed(folder / "problem.json")["result"] == "forward.b"
