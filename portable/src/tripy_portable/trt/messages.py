"""TensorRT's messages, with the operation and the user's line of each.

The recorded operations carry nvtripy's locations: `loc(fused<"<TraceOp: ..., Stack Info: --> file:line in
function() --> ... >, ">["inputs;;<out>;;outputs"])`. A program from a file has the innermost line only.
"""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

from tripy_portable.program import Node

_FRAME = re.compile(r"--> (.+?):(\d+) in ([^\s()]+)")
_TRACE_OPERATION = re.compile(r"<TraceOp: (.*?), Stack Info:", re.DOTALL)
_OUT = ";;<out>;;"
_KEPT = ("INTERNAL_ERROR", "ERROR", "WARNING")


@dataclass(frozen=True)
class Message:
    """One of TensorRT's messages.

    `operation` is its dialect operation with Tripy's names of the results, `user_line` the user's line
    (`file:line in function`), `traced` Tripy's own operation; each is empty if unknown.
    """

    severity: str
    text: str
    operation: str = ""
    user_line: str = ""
    traced: str = ""

    @property
    def is_error(self) -> bool:
        return self.severity.endswith("ERROR")

    def __str__(self) -> str:
        where = f" [{self.operation}]" if self.operation else ""
        line = f" at {self.user_line}" if self.user_line else ""
        return f"{self.severity}{where}{line}: {self.text}"


class Refused(ValueError):
    """TensorRT refuses the graph. `messages` holds its messages; the error's text has the user's line."""

    def __init__(self, problem: str, messages: tuple[Message, ...]):
        errors = [message for message in messages if message.is_error]
        located = next((message for message in errors if message.operation), None)
        lines = [problem]
        if located is not None:
            lines[0] += f" in tensorrt.{located.operation}"
            if located.user_line:
                lines.append(f"  your line: {located.user_line}")
            if located.traced:
                lines.append(f"  Tripy's operation: {located.traced}")
        # Messages without an operation follow from the first error.
        told = [message for message in errors if message.operation] or errors
        lines += [f"  TensorRT: {message.text}" for message in told]
        super().__init__("\n".join(lines))
        self.messages = messages
        self.located = located


def result_names(node: Node) -> str:
    """Tripy's names of a node's results; a program from a file has value numbers only."""
    label = "" if node.location is None else node.location.label
    return label.partition(_OUT)[2] or ", ".join(f"v{value}" for value in node.outputs)


@lru_cache(maxsize=1)
def _nvtripy_folders() -> tuple[str, ...]:
    """Prefixes of the paths of nvtripy's own files."""
    spec = importlib.util.find_spec("nvtripy")
    locations = spec.submodule_search_locations if spec is not None else None
    return tuple(os.path.join(folder, "") for folder in locations or ())


def user_frame(node: Node) -> tuple[str, int, str] | None:
    """File, line and function of the innermost frame outside of nvtripy, where one is known."""
    text = f"--> {node.origin}" if node.location is None else str(node.location)
    for file, line, function in _FRAME.findall(text):
        if not file.startswith(_nvtripy_folders()):
            return file, int(line), function
    return None


def about(node: Node, severity: str, text: str) -> Message:
    """A message about a node."""
    frame = user_frame(node)
    traced = _TRACE_OPERATION.search(str(node.location or ""))
    return Message(
        severity,
        text,
        f"{node.op} ({result_names(node)})",
        "" if frame is None else f"{frame[0]}:{frame[1]} in {frame[2]}",
        "" if traced is None else traced.group(1),
    )


class Recorder:
    """Collects TensorRT's messages. `logger` is the logger for TensorRT.

    An error belongs to the node `current`. If that is None, it belongs to the node of the layer in the text.
    """

    def __init__(self, library: ModuleType):
        self.logger = _make_logger(library, self._log)
        self.current: Node | None = None
        self.nodes_by_layer: dict[str, Node] = {}
        self.verbose: list[str] = []
        self._messages: list[Message] = []

    @property
    def messages(self) -> tuple[Message, ...]:
        """Errors and warnings in order."""
        return tuple(self._messages)

    @property
    def has_error(self) -> bool:
        return any(message.is_error for message in self._messages)

    def _log(self, severity: str, text: str) -> None:
        if severity not in _KEPT:
            self.verbose.append(text)
            return
        node = self.current or self._named_in(text)
        message = Message(severity, text) if node is None else about(node, severity, text)
        # TensorRT repeats itself, once a pass over the network.
        if message not in self._messages:
            self._messages.append(message)

    def _named_in(self, text: str) -> Node | None:
        """The node of the longest layer name in a text: shorter names may be parts of longer ones."""
        named = [name for name in self.nodes_by_layer if name in text]
        return self.nodes_by_layer[max(named, key=len)] if named else None


def _make_logger(library: ModuleType, log: Any) -> Any:
    class Logger(library.ILogger):  # type: ignore[name-defined]  # a module that is found at run time
        def __init__(self) -> None:
            library.ILogger.__init__(self)

        def log(self, severity: Any, text: str) -> None:
            log(severity.name, text)

    return Logger()
