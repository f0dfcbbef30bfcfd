"""Lists nvtripy's public API with the number of tests that use each name; fails where one has none.

    python tools/list_public_api.py

A test is a test function of this package, or a docstring example, which runs as a test. The source shows the
uses: `tp.name`, an operator, or a method's name after a dot of any object.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS))

import nvtripy as tp
from docstrings import examples
from nvtripy.export import PUBLIC_APIS

_BINARY = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
    ast.BitOr: "or",
}
_COMPARE = {
    ast.Eq: "__eq__",
    ast.NotEq: "__ne__",
    ast.Lt: "__lt__",
    ast.LtE: "__le__",
    ast.Gt: "__gt__",
    ast.GtE: "__ge__",
}
_UNARY = {ast.USub: "__neg__", ast.Invert: "__invert__"}
_BUILTINS = {
    "abs": "__abs__",
    "bool": "__bool__",
    "hash": "__hash__",
    "iter": "__iter__",
    "int": "__int__",
    "len": "__len__",
    "print": "__str__",
    "repr": "__repr__",
    "str": "__str__",
}


def public_names() -> list[str]:
    """Every name of the public API, with the documented methods and properties of its classes."""
    names = dict.fromkeys(api.qualname.removeprefix("nvtripy.") for api in PUBLIC_APIS)
    for api in PUBLIC_APIS:
        if not inspect.isclass(api.obj) or isinstance(api.obj, type(tp.float32)):
            continue
        owner = api.qualname.removeprefix("nvtripy.")
        for name, member in vars(api.obj).items():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            is_documented = (inspect.isfunction(function) or isinstance(member, property)) and inspect.getdoc(
                function
            )
            if is_documented and (not name.startswith("_") or name.startswith("__")) and name != "__init__":
                names[f"{owner}.{name}"] = None
    return list(names)


def uses(tree: ast.AST) -> set[str]:
    """Names that a test uses: dotted ones under `tp`, and bare ones of methods and operators."""
    used: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            used.add(node.attr)
            used.add(_dotted(node))
        elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            name = _BINARY[type(node.op)]
            used |= {f"__{name}__", f"__r{name}__"} if _is_number(node.left) else {f"__{name}__"}
        elif isinstance(node, ast.UnaryOp):
            used.add(_UNARY.get(type(node.op), ""))
        elif isinstance(node, ast.Compare):
            used |= {_COMPARE.get(type(op), "") for op in node.ops}
        elif isinstance(node, ast.Subscript):
            used.add("__getitem__")
        elif isinstance(node, ast.Call):
            used.add("__call__")
            if isinstance(node.func, ast.Name):
                used.add(_BUILTINS.get(node.func.id, ""))
    return used


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))


def _dotted(node: ast.Attribute) -> str:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    is_tripy = isinstance(node, ast.Name) and node.id == "tp"
    return ".".join(reversed(parts)) if is_tripy else ""


def tests_of_this_package() -> list[ast.AST]:
    """The test functions and the models that they share."""
    trees: list[ast.AST] = []
    for path in [*sorted(TESTS.glob("test_*.py")), TESTS.parent / "benchmarks" / "dense_hstu.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                trees.append(node)
    return trees


def counts() -> Counter[str]:
    """The number of tests of each public name."""
    used = [uses(tree) for tree in tests_of_this_package()]
    used += [uses(ast.parse(example.code)) for example in examples()]
    total: Counter[str] = Counter()
    for name in public_names():
        # A class counts where it or anything below it is named; a method where its name is.
        owner, _, member = name.rpartition(".")
        needle = member if owner and inspect.isclass(getattr(tp, owner, None)) else name
        total[name] = sum(any(use == needle or use.startswith(needle + ".") for use in test) for test in used)
    return total


def main() -> int:
    """Prints the list; returns 1 where a name has no test."""
    total = counts()
    width = max(map(len, total))
    for name, number in total.items():
        print(f"{name:<{width}} {number}")
    missing = [name for name, number in total.items() if number == 0]
    print(
        f"{len(total)} names, {len(missing)} without a test" + (f": {', '.join(missing)}" if missing else "")
    )
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
