"""The documents stay true: every operation has a row and a kernel, and every test that is named exists."""

import ast
import re
from pathlib import Path

from tripy_portable.dialect.inference import _INFER
from tripy_portable.dialect.legality import OPERANDS
from tripy_portable.kernels.registry import _LOWERINGS

ROOT = Path(__file__).parents[1]
SEMANTICS = (ROOT / "SEMANTICS.md").read_text()
WITHOUT_KERNEL = {"constant"}


def test_every_operation_has_a_row_an_inference_and_a_kernel():
    for name in set(OPERANDS) - WITHOUT_KERNEL:
        assert f"`{name}`" in SEMANTICS
        assert name in _INFER
        assert name in _LOWERINGS


def test_every_kernel_is_of_a_checked_operation():
    assert set(_LOWERINGS) <= set(OPERANDS)


def test_every_test_that_the_semantics_name_exists():
    names = {
        node.name
        for path in (ROOT / "tests").glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    mentioned = re.findall(r"`(test_\w+)(\.py|\.\.\.|)`", SEMANTICS)
    assert len(mentioned) > 40
    for name, ending in mentioned:
        if ending == ".py":
            assert (ROOT / "tests" / f"{name}.py").exists(), name
        else:
            assert any(test == name or (ending and test.startswith(name)) for test in names), name
