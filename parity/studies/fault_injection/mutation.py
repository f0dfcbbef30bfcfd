"""Faults in the port's source: every expression that has a neighbour, replaced by it.

A mutation is a place in a function and one of the replacements of its kind of expression. The tables below
know Python and Tripy, and no model.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from parity.coverage.places import only_checks
from parity.coverage.source import short_name, source_of
from parity.studies.fault_injection.faults import Fault

Replacement = tuple[str, ast.expr]
"""Name of an operator and the expression's replacement."""

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.LtE,
    ast.NotEq: ast.Eq,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
}
_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "silu": ("tp.gelu", "tp.relu", "tp.sigmoid"),
    "relu": ("tp.gelu", "tp.silu"),
    "sigmoid": ("tp.tanh", "tp.silu"),
    "sum": ("tp.mean", "tp.max"),
    "mean": ("tp.sum",),
    "maximum": ("tp.minimum",),
    "minimum": ("tp.maximum",),
    "log": ("tp.sqrt",),
    "tril": ("tp.triu",),
    "triu": ("tp.tril",),
    "scale": ("divide",),
    "divide": ("scale",),
}
_SHIFTED = frozenset({"iota"})
_NOT_DROPPED = frozenset(
    "range enumerate zip len list tuple dict set float int str bool isinstance super getattr min max".split()
)


@dataclass(frozen=True)
class Mutation(Fault):
    """A change of one expression; `target` is `module:function`, the module without its top package.

    Attributes:
        module: Import path of the port's module.
        lines: First and last line of the statement or condition around the expression.
        node: Number of the expression in the order of `ast.walk`.
        variant: Number of the replacement.
        numbers: See `mutations`.
    """

    module: str
    lines: tuple[int, int]
    node: int
    variant: int
    numbers: Mapping[str, float]

    def tree(self) -> ast.Module:
        """The module's source with the change, parsed."""
        tree = ast.parse(source_of(self.module))
        node = list(ast.walk(tree))[self.node]
        _, replacement = list(replacements(node, self.numbers))[self.variant]
        return _Replace(node, replacement).visit(tree)


class _Replace(ast.NodeTransformer):
    def __init__(self, node: ast.AST, replacement: ast.AST) -> None:
        self._node = node
        self._replacement = replacement

    def visit(self, node: ast.AST) -> ast.AST:
        if node is self._node:
            return ast.copy_location(self._replacement, node)
        return self.generic_visit(node)


def mutations(modules: Iterable[str], numbers: Mapping[str, float]) -> list[Mutation]:
    """Every mutation of every function of the port.

    Args:
        modules: Import paths of the port's modules.
        numbers: Numeric attributes of the model's modules, each with one of its values.
    """
    return [mutation for module in modules for mutation in _mutations_of(module, numbers)]


def _mutations_of(module: str, numbers: Mapping[str, float]) -> Iterator[Mutation]:
    tree = ast.parse(source_of(module))
    order = {id(node): index for index, node in enumerate(ast.walk(tree))}
    seen: dict[tuple[str, str], int] = {}
    for place in _places(tree, ""):
        for variant, (operator, replacement) in enumerate(replacements(place.node, numbers)):
            target = f"{short_name(module)}:{place.function}"
            detail = f"{_text(place.node)} -> {_text(replacement)}"
            count = seen[target, detail] = seen.get((target, detail), 0) + 1
            yield Mutation(
                operator,
                target,
                detail if count == 1 else f"{detail} ({count})",
                module,
                place.lines,
                order[id(place.node)],
                variant,
                numbers,
            )


def _text(node: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(node.test if isinstance(node, ast.If) else node))


@dataclass(frozen=True)
class _Place:
    node: ast.AST
    function: str
    lines: tuple[int, int]


def _places(owner: ast.AST, prefix: str) -> Iterator[_Place]:
    """Expressions inside the functions and methods below a node."""
    for child in ast.iter_child_nodes(owner):
        if isinstance(child, ast.ClassDef):
            yield from _places(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef):
            for statement in child.body:
                yield from _in_statement(statement, f"{prefix}{child.name}")


def _in_statement(statement: ast.stmt, function: str) -> Iterator[_Place]:
    if only_checks(statement) or _is_text(statement):
        return
    if isinstance(statement, ast.If):
        yield _Place(statement, function, _lines(statement.test))
    for name, value in ast.iter_fields(statement):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.stmt):
                yield from _in_statement(child, function)
            elif isinstance(child, ast.expr) and name != "annotation":
                compound = isinstance(statement, (ast.If, ast.For, ast.While, ast.With))
                lines = _lines(child if compound else statement)
                yield from (_Place(node, function, lines) for node in _in_expression(child))


def _lines(node: ast.stmt | ast.expr) -> tuple[int, int]:
    return node.lineno, node.end_lineno or node.lineno


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _in_expression(expression: ast.expr) -> Iterator[ast.expr]:
    for node in ast.walk(expression):
        if isinstance(node, ast.expr) and not isinstance(node, ast.JoinedStr):
            yield node


def replacements(node: ast.AST, numbers: Mapping[str, float]) -> Iterator[tuple[str, ast.AST]]:
    """Replacements of a node with the names of their operators, in a fixed order."""
    for kind, rule in _RULES.items():
        if isinstance(node, kind):
            yield from rule(node)
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr in numbers:
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            yield from _number(node, numbers[node.attr])


def _parsed(template: str, **parts: ast.AST) -> ast.expr:
    """An expression from a template in which names stand for the parts."""

    class Fill(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.AST:  # noqa: N802, a name of ast
            return copy.deepcopy(parts[name.id]) if name.id in parts else name

    return Fill().visit(ast.parse(template, mode="eval").body)


def _compare(node: ast.Compare) -> Iterator[Replacement]:
    if len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
        other = _COMPARISONS[type(node.ops[0])]()
        yield "source: comparison", ast.Compare(node.left, [other], node.comparators)


def _binary(node: ast.BinOp) -> Iterator[Replacement]:
    if type(node.op) in _ARITHMETIC:
        yield "source: arithmetic", ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
        yield "source: operand dropped", node.left
    if isinstance(node.op, (ast.Sub, ast.Div, ast.MatMult)):
        yield "source: operands swapped", ast.BinOp(node.right, node.op, node.left)
    if isinstance(node.op, ast.MatMult):
        half = "tp.cast(tp.cast(a, tp.bfloat16) @ tp.cast(b, tp.bfloat16), a.dtype)"
        yield "source: product in half", _parsed(half, a=node.left, b=node.right)
        sums = "tp.cast(tp.cast(a @ b, tp.bfloat16), a.dtype)"
        yield "source: result cast to half", _parsed(sums, a=node.left, b=node.right)


def _constant(node: ast.Constant) -> Iterator[Replacement]:
    value = node.value
    if isinstance(value, bool):
        yield "source: constant", ast.Constant(not value)
    elif isinstance(value, int):
        yield "source: integer off by one", ast.Constant(value + 1)
        yield "source: integer off by one", ast.Constant(value - 1)
    elif isinstance(value, float):
        yield "source: constant", ast.Constant(value * 1.01 if value else 1.0)


def _number(node: ast.Attribute, value: float) -> Iterator[Replacement]:
    if isinstance(value, int):
        yield "source: integer off by one", _parsed("a + 1", a=node)
        yield "source: integer off by one", _parsed("a - 1", a=node)
        yield "source: number replaced by its root", _parsed("a ** 0.5", a=node)
    else:
        yield "source: constant", _parsed("a * 10.0" if 0 < value < 1e-3 else "a * 1.01", a=node)


def _call(node: ast.Call) -> Iterator[Replacement]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    for other in _FUNCTIONS.get(name, ()):
        yield "source: function", _renamed(node, other)
    if name in _SHIFTED:
        yield "source: shifted by one", _parsed("a + 1", a=node)
    plain = not any(isinstance(argument, ast.Starred) for argument in node.args)
    if not plain or not node.args or name in _NOT_DROPPED:
        return
    yield "source: call dropped", node.args[0]
    for at in range(len(node.args) - 1):
        pair = node.args[at : at + 2]
        if not any(isinstance(argument, (ast.Constant, ast.Tuple)) for argument in pair):
            swapped = [*node.args[:at], node.args[at + 1], node.args[at], *node.args[at + 2 :]]
            yield "source: arguments swapped", ast.Call(node.func, swapped, node.keywords)
    if name == "where":
        yield "source: mask ignored", node.args[1]
    if name == "gather":
        shifted = ast.BinOp(node.args[-1], ast.Add(), ast.Constant(1))
        yield "source: shifted by one", ast.Call(node.func, [*node.args[:-1], shifted], node.keywords)
    if name == "cast":
        yield from _cast(node)


def _cast(node: ast.Call) -> Iterator[Replacement]:
    through = ast.Call(node.func, [_parsed("tp.cast(a, tp.bfloat16)", a=node.args[0]), *node.args[1:]], [])
    yield "source: cast to half too early", through
    if ast.unparse(node.args[1]) in ("tp.int32", "tp.int64"):
        up = ast.Call(node.func, [_parsed("a + 0.5", a=node.args[0]), *node.args[1:]], node.keywords)
        yield "source: rounded, not cut", up


def _renamed(node: ast.Call, name: str) -> ast.expr:
    return ast.Call(ast.parse(name, mode="eval").body, node.args, node.keywords)


def _elements(node: ast.Tuple | ast.List) -> Iterator[tuple[str, ast.AST]]:
    for at in range(len(node.elts) - 1):
        swapped = [*node.elts[:at], node.elts[at + 1], node.elts[at], *node.elts[at + 2 :]]
        yield "source: elements swapped", type(node)(swapped, node.ctx)


def _unary(node: ast.UnaryOp) -> Iterator[Replacement]:
    if isinstance(node.op, (ast.USub, ast.Not)):
        yield "source: sign or negation dropped", node.operand


def _conditional(node: ast.IfExp) -> Iterator[Replacement]:
    yield "source: condition negated", ast.IfExp(node.test, node.orelse, node.body)


def _if(node: ast.If) -> Iterator[tuple[str, ast.AST]]:
    yield "source: condition negated", ast.If(_parsed("not a", a=node.test), node.body, node.orelse)


_RULES: dict[Any, Callable[[Any], Iterator[tuple[str, ast.AST]]]] = {
    ast.Compare: _compare,
    ast.BinOp: _binary,
    ast.Constant: _constant,
    ast.Call: _call,
    (ast.Tuple, ast.List): _elements,
    ast.UnaryOp: _unary,
    ast.IfExp: _conditional,
    ast.If: _if,
}
