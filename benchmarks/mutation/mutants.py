"""Mutants of the functions of a file, as mutmut makes them, and functions that say when they run."""

from __future__ import annotations

import ast
import builtins
import contextlib
import hashlib
import importlib
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Mutant:
    """One changed expression of a function.

    Attributes:
        name: As mutmut's: module and mangled function, with a number.
        digest: Digest of the function's text and of the mutant's.
        change: Lines that differ, for people.
    """

    name: str
    digest: str
    change: str
    live: types.FunctionType
    changed: types.FunctionType


def plain(thing: Any) -> types.FunctionType:
    """The function below decorators: properties, methods of the class, commands, caches."""
    while not isinstance(thing, types.FunctionType) or hasattr(thing, "__wrapped__"):
        inner = [
            getattr(thing, name, None) for name in ("__wrapped__", "__func__", "fget", "func", "callback")
        ]
        thing = next(part for part in inner if part is not None)
    return thing


def exchange(live: types.FunctionType, other: types.FunctionType) -> None:
    """Give a function the body and the changed default values of another one."""
    names: dict[str, Any] = {
        "co_name": live.__name__,
        "co_filename": live.__code__.co_filename,
        # A change that removes `super()` removes the class from the variables, which the function still has.
        "co_freevars": other.__code__.co_freevars or live.__code__.co_freevars,
    }
    if sys.version_info >= (3, 11):
        names["co_qualname"] = live.__qualname__
    live.__code__ = other.__code__.replace(**names)
    if repr(live.__defaults__) != repr(other.__defaults__):
        live.__defaults__ = other.__defaults__
    if repr(live.__kwdefaults__) != repr(other.__kwdefaults__):
        live.__kwdefaults__ = other.__kwdefaults__


def run_source(module: types.ModuleType, source: str) -> dict[str, Any]:
    """The names that a changed source of a module defines; the module itself stays as it is."""
    names = {"__name__": module.__name__, "__package__": module.__package__, "__file__": module.__file__}
    exec(compile(source, f"<mutants of {module.__name__}>", "exec", dont_inherit=True), names)  # noqa: S102
    return names


def functions_of(tree: ast.Module) -> Iterator[tuple[str, str, str | None, ast.FunctionDef]]:
    """Mangled name, name, class and node of each function of a module, as mutmut mangles them."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield f"x_{node.name}", node.name, None, node
        elif isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.FunctionDef):
                    yield f"xǁ{node.name}ǁ{part.name}", part.name, node.name, part


def member(names: dict[str, Any], name: str, owner: str | None) -> types.FunctionType:
    """A function of a module's names, or of a class of them."""
    return plain(names[name] if owner is None else vars(names[owner])[name])


def mutants_of(path: Path) -> list[Mutant]:
    """All mutants of a file."""
    from mutmut.mutation import file_mutation, trampoline

    trampoline.wrap_in_trampoline = lambda *_, **__: lambda function: function
    visitor = file_mutation.MutationVisitor
    skips = visitor._skip_node_and_children

    def skips_less(self: Any, node: Any) -> bool:
        """Mutate decorated functions as well; `skips` sees them without decorators."""
        cst = file_mutation.cst
        if isinstance(node, cst.FunctionDef) and node.decorators:
            return node.name.value in file_mutation.NEVER_MUTATE_FUNCTION_NAMES
        return skips(self, node)

    visitor._skip_node_and_children = skips_less
    try:
        source = path.read_text()
        mutated = file_mutation.mutate_file_contents(str(path), source)
    finally:
        visitor._skip_node_and_children = skips
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    names = run_source(module, mutated.code)
    lines = mutated.code.splitlines()
    texts = {
        name: "\n".join(lines[span.start - 1 : span.end])
        for name, span in mutated.line_span_by_function_name.items()
    }
    mutants = []
    for mangled, name, owner, _ in functions_of(ast.parse(source)):
        copies = names.get(f"mutants_{mangled}__mutmut", {})
        original = texts.get(f"{mangled}__mutmut_orig", "")
        for key, thing in copies.items():
            if key == "_mutmut_orig":
                continue
            change = difference(original, texts[key].replace(key, f"{mangled}__mutmut_orig"))
            digest = hashlib.sha256((original + change).encode()).hexdigest()[:16]
            live = member(vars(module), name, owner)
            mutants.append(Mutant(f"{module.__name__}.{key}", digest, change, live, plain(thing)))
    return mutants


def difference(before: str, after: str) -> str:
    """The lines of two texts that differ."""
    pairs = (before.splitlines(), after.splitlines())
    gone = [f"- {line.strip()}" for line in pairs[0] if line not in pairs[1]]
    return "\n".join(gone + [f"+ {line.strip()}" for line in pairs[1] if line not in pairs[0]])


@contextlib.contextmanager
def watched(paths: Sequence[Path], entered: set[str]) -> Iterator[None]:
    """In the body, the functions of files add their names to `entered` when they run."""
    builtins.__mutation_entered__ = entered.add
    bodies_before = []
    for path in paths:
        module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        tree = ast.parse(path.read_text())
        functions = list(functions_of(tree))
        for mangled, _, _, node in functions:
            call = ast.parse(f"__mutation_entered__({f'{module.__name__}.{mangled}'!r})").body[0]
            node.body.insert(0, call)
        names = run_source(module, ast.unparse(tree))
        for _, name, owner, _ in functions:
            live = member(vars(module), name, owner)
            bodies_before.append((live, live.__code__))
            exchange(live, member(names, name, owner))
    yield
    for live, code in bodies_before:
        live.__code__ = code
