"""Comparisons, clamps and conditions in the port's source, and the source with a probe in each of them.

A probe receives the operands, computes the result of the source, and records both (`parity.coverage.probes`).
The functions below know Python and Tripy, and no model. Statements that only check a user's value are left
out: their other outcome is an error.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

PROBE = "__parity_probe__"
"""Name of the probes in the namespace of a module."""
_COMPARISONS = {
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.Eq: "eq",
    ast.NotEq: "ne",
}
_CLAMPS = frozenset({"maximum", "minimum", "max", "min"})
_RECTIFIERS = frozenset({"relu"})


class Form(str, Enum):
    """Forms of places; the value is the name of the probe's method."""

    COMPARISON = "compare"
    CONDITION = "condition"
    CLAMP = "clamp"
    SELECTION = "select"
    RECTIFIER = "rectify"


@dataclass(frozen=True)
class Place:
    """One place of a module.

    Attributes:
        function: Qualified name of the function.
        line: Number of its line.
        text: The expression.
        form: See `Form`.
        operator: Name of a comparison in `operator`; empty for other forms.
        branches: Whether the line branches by the outcome, which is then asked as a branch.
    """

    function: str
    line: int
    text: str
    form: Form
    operator: str = ""
    branches: bool = False


def only_checks(statement: ast.stmt) -> bool:
    """Whether a statement only checks a user's value: it raises, or it calls a `require` function."""
    if isinstance(statement, (ast.Raise, ast.Assert)):
        return True
    if isinstance(statement, ast.If):
        return all(isinstance(line, ast.Raise) for line in statement.body)
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and "require" in call.func.id


def with_probes(source: str) -> tuple[ast.Module, list[Place]]:
    """A module's source with a probe in each place, parsed, and the places in the order of their numbers."""
    tree = ast.parse(source)
    functions = _Functions()
    functions.visit(tree)
    return ast.fix_missing_locations(tree), functions.places


class _Functions(ast.NodeTransformer):
    """Puts probes into the functions of a module."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self._prefix = ""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:  # noqa: N802, a name of ast
        before, self._prefix = self._prefix, f"{self._prefix}{node.name}."
        node.body = [self.visit(statement) for statement in node.body]
        self._prefix = before
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:  # noqa: N802, a name of ast
        probes = _Probes(f"{self._prefix}{node.name}", self.places)
        node.body = [probes.visit(statement) for statement in node.body]
        return node


class _Probes(ast.NodeTransformer):
    """Puts probes into one function; `places` receives its places."""

    def __init__(self, function: str, places: list[Place]) -> None:
        self._function = function
        self._places = places
        self._tests: set[ast.expr] = set()

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.stmt) and only_checks(node):
            return node
        if isinstance(node, (ast.If, ast.While)):
            self._tests.add(node.test)
        return super().visit(node)

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:  # noqa: N802, a name of ast
        node.value = self.visit(node.value) if node.value is not None else None
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:  # noqa: N802, a name of ast
        text, branches = ast.unparse(node), node in self._tests
        operator = _COMPARISONS.get(type(node.ops[0])) if len(node.ops) == 1 else None
        self.generic_visit(node)
        if operator is not None:
            place = Place(self._function, node.lineno, text, Form.COMPARISON, operator, branches)
            return self._probe(node, place, [node.left, node.comparators[0]])
        return node if branches else self._condition(node, text)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:  # noqa: N802, a name of ast
        node.test = self._tested(node.test)
        node.body, node.orelse = self.visit(node.body), self.visit(node.orelse)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:  # noqa: N802, a name of ast
        node.values = [self._tested(value) for value in node.values]
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        node.ifs = [self._tested(condition) for condition in node.ifs]
        node.iter = self.visit(node.iter)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:  # noqa: N802, a name of ast
        text = ast.unparse(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        plain = not node.keywords and not any(isinstance(value, ast.Starred) for value in node.args)
        self.generic_visit(node)
        forms = {
            Form.CLAMP: name in _CLAMPS and len(node.args) == 2,
            Form.SELECTION: name == "where" and len(node.args) == 3,
            Form.RECTIFIER: name in _RECTIFIERS and len(node.args) == 1,
        }
        for form, fits in forms.items():
            if fits and plain:
                place = Place(self._function, node.lineno, text, form)
                return self._probe(node, place, [node.func, *node.args])
        return node

    def _tested(self, node: ast.expr) -> ast.expr:
        """A condition whose outcome no branch shows."""
        if isinstance(node, (ast.Compare, ast.BoolOp)):
            return self.visit(node)
        text = ast.unparse(node)
        return self._condition(self.visit(node), text)

    def _condition(self, node: ast.expr, text: str) -> ast.expr:
        return self._probe(node, Place(self._function, node.lineno, text, Form.CONDITION), [node])

    def _probe(self, node: ast.expr, place: Place, operands: Sequence[ast.expr]) -> ast.expr:
        number = ast.Constant(len(self._places))
        self._places.append(place)
        method = ast.Attribute(ast.Name(PROBE, ast.Load()), place.form.value, ast.Load())
        call = ast.copy_location(ast.Call(method, [number, *operands], []), node)
        return ast.copy_location(call, node)
