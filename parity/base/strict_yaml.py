"""Strict YAML: mappings, lists, text, numbers, true, false and null, with the line of every error.

The text follows YAML 1.2, so that ``no`` and ``on`` are text and ``1e-6`` is a number. A date is text, too.
Keys that occur twice, tags, aliases, merges (``<<``), and keys that are lists or mappings are refused.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import AliasEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode
from ruamel.yaml.reader import ReaderError

MAX_CHARACTERS = 1 << 20
MAX_DEPTH = 50
MAX_VALUES = 10_000
_SHOWN_CHARACTERS = 40
_ESCAPE = re.compile(r"\\U([0-9A-Fa-f]{8})")


class YAMLProblem(ValueError):
    """Text that is not strict YAML. The message is ``line 3, column 5: problem``; both count from 1."""

    def __init__(self, line: int, column: int, problem: str) -> None:
        super().__init__(f"line {line}, column {column}: {problem}")


def parse_yaml(text: str) -> Any:
    """The value that a YAML text holds; None for an empty text.

    Raises:
        YAMLProblem: the text is not strict YAML, has more than ``MAX_CHARACTERS`` characters or
            ``MAX_VALUES`` keys and values, or nests more than ``MAX_DEPTH`` lists and mappings.
    """
    if len(text) > MAX_CHARACTERS:
        raise YAMLProblem(1, 1, f"the text has {len(text)} characters, more than {MAX_CHARACTERS}")
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _StrictComposer
    yaml.Constructor = _StrictConstructor
    try:
        return yaml.load(text)
    except ReaderError as error:
        raise YAMLProblem(
            *_place(text, error.position), f"the character {text[error.position]!r} is not allowed"
        ) from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(f"{error.context or ''} {error.problem or ''}".split())
        raise YAMLProblem(mark.line + 1, mark.column + 1, problem) from error
    except (OverflowError, ValueError) as error:
        # The library makes a character of any number.
        escape = next((match for match in _ESCAPE.finditer(text) if int(match[1], 16) > sys.maxunicode), None)
        if escape is None:
            raise
        raise YAMLProblem(*_place(text, escape.start()), f"{escape[0]} is no character") from error


def _place(text: str, position: int) -> tuple[int, int]:
    """Line and column of a position, both from 1."""
    before = text[:position]
    return before.count("\n") + 1, len(before) - before.rfind("\n")


class _StrictComposer(Composer):
    """Composes nodes; refuses tags, aliases, merges, depth, length, and keys that are twice or no scalars."""

    _depth = 0
    _values = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node:
        event = self.parser.peek_event()
        if isinstance(event, AliasEvent):
            raise ComposerError(
                problem=f"the alias *{event.anchor} is not allowed; write the value out",
                problem_mark=event.start_mark,
            )
        if event.tag is not None:
            raise ComposerError(
                problem=f"the tag {event.tag} is not allowed; remove it", problem_mark=event.start_mark
            )
        if self._depth > MAX_DEPTH:
            raise ComposerError(
                problem=f"lists and mappings are nested more than {MAX_DEPTH} deep",
                problem_mark=event.start_mark,
            )
        self._values += 1
        if self._values > MAX_VALUES:
            raise ComposerError(
                problem=f"there are more than {MAX_VALUES} keys and values", problem_mark=event.start_mark
            )
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, ScalarNode):
                problem = "a key is a list or a mapping; give text"
            elif key.value == "<<":
                problem = "the merge << is not allowed; write the values out"
            elif key.value in lines:
                first = lines[key.value]
                problem = f"key {_short(key)} is given twice, on lines {first} and {line}; remove one"
            else:
                lines[key.value] = line
                continue
            raise ComposerError(problem=problem, problem_mark=key.start_mark)
        return node


class _StrictConstructor(SafeConstructor):
    """Constructs values; a date is text, and a number that Python cannot hold has a line."""


def _number(construct: Callable[[SafeConstructor, ScalarNode], Any]) -> Callable[..., Any]:
    def construct_number(constructor: SafeConstructor, node: ScalarNode) -> Any:
        try:
            number = construct(constructor, node)
            # Python reads integers of any length in base 16 and cannot write them in base 10.
            str(number)
        except ValueError as error:
            raise ConstructorError(
                problem=f"{_short(node)} is no number that can be read", problem_mark=node.start_mark
            ) from error
        return number

    return construct_number


def _short(node: ScalarNode) -> str:
    text = node.value
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "...")


_StrictConstructor.add_constructor("tag:yaml.org,2002:int", _number(SafeConstructor.construct_yaml_int))
_StrictConstructor.add_constructor("tag:yaml.org,2002:float", _number(SafeConstructor.construct_yaml_float))
# Widths such as 1024-12-11 have the form of a date.
_StrictConstructor.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str)
