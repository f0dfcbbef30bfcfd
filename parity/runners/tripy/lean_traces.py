"""Traces without the work that only nvtripy's error messages need, and without repeated look-ups.

nvtripy keeps the whole Python stack of every operation that it records, for the user's line in its error
messages. Stacks take nine tenths of the time of a trace, most of it for columns of lines. After an error, a
second trace with stacks, which searches the columns of a line once, gives its message. For every operation
nvtripy also searches the same requirements, compares the same types with the same signature, and derives the
same types of arguments. The functions that derive them refer to themselves, so that only a collection of
garbage frees the arguments. It parses the source of every converted argument, and opens two files for the
messages of every compilation. For the type of each tensor it makes all types. Most constants of a trace are
the same few integers of shapes, and each one gets memory of its own.

The replaced functions are internal to nvtripy 0.1.6 and 0.1.7. Importing this module raises `AttributeError`
or `ImportError` where they do not exist.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, BinaryIO, TypeVar

import nvtripy as tp
from mlir_tensorrt.compiler import ir
from nvtripy.backend.mlir import compiler
from nvtripy.backend.mlir import utils as mlir_utils
from nvtripy.frontend import tensor, wrappers
from nvtripy.frontend.constraints.base import Constraints
from nvtripy.frontend.constraints.fetcher import GetDataType
from nvtripy.frontend.module import parameter
from nvtripy.trace import trace
from nvtripy.trace.ops.base import TraceOp
from nvtripy.trace.ops.constant import Constant
from nvtripy.utils import function_registry, stack_info
from nvtripy.utils.function_registry import FuncOverload

from parity.base.process import no_collections
from parity.capture.sources import calling_line
from parity.case import NoForm

Result = TypeVar("Result")
MOST_SHARED = 16
"""Largest number of integers in one constant whose memory other constants share: shapes and indices."""

_find, _matches = Constraints.find, FuncOverload.matches_arg_types
_derive, _dtype_of = wrappers._find_known_datatypes, GetDataType.__call__
_make_constant = Constant.__init__
# Requirements and signatures are objects of modules, and live as long as the process.
_requirements: dict[Any, tuple[Constraints, list[Constraints]]] = {}
_signatures: dict[Any, Any] = {}
_derived: dict[Any, tuple[Constraints, Mapping[str, Any]]] = {}
# Memory of integers on the host, by their values; see `MOST_SHARED`. No graph writes to its constants.
_integers: dict[Any, Any] = {}


def lean_traces() -> contextlib.AbstractContextManager[None]:
    """Inside, nvtripy records every operation as a call from the same line. Graphs do not change."""
    return _in_place(_LEAN)


@contextlib.contextmanager
def _in_place(others: list[tuple[Any, str, Callable]]) -> Iterator[None]:
    """Inside, functions of nvtripy are replaced, each by its owner and name."""
    replaced = [(owner, name, getattr(owner, name)) for owner, name, _ in others]
    for owner, name, other in others:
        setattr(owner, name, other)
    try:
        yield
    finally:
        for owner, name, before in replaced:
            setattr(owner, name, before)


def leanly(function: Callable[[], Result]) -> Result:
    """The result of a function that builds or traces a model.

    Most of the many objects of a trace live to its end: no garbage is collected. A function that fails runs
    once more with call stacks, so that the message points at the user's line.
    """
    try:
        with lean_traces(), no_collections():
            return function()
    except (MemoryError, NoForm):
        raise
    except Exception:  # noqa: BLE001, the second run raises it again
        with _in_place(_WITH_STACKS):
            return function()


def _nothing(*arguments: Any, **keywords: Any) -> None:
    """Columns of an argument's source, which only messages show."""


def _no_text(*arguments: Any, **keywords: Any) -> str:
    """The text of an operation or its location, which only messages show."""
    return ""


def _running_line(stack: stack_info.StackInfo) -> str:
    """The place of a warning, which is the user's line that is running."""
    return calling_line()


def _one_frame(include_code_index: int | None = None) -> stack_info.StackInfo:
    # The index is the first frame that a message shows; there are no frames to leave out.
    return _STACK


def _stack_by_lines(include_code_index: int | None = None) -> stack_info.StackInfo:
    """`get_stack_info`, which searches the columns of a line once."""
    found = stack_info.StackInfo([], include_code_index)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < _DEEPEST:
        code, module = frame.f_code, frame.f_globals.get("__name__")
        is_dispatch = (module, code.co_name) == (function_registry.__name__, "wrapper")
        found.append(
            stack_info.SourceInfo(
                module=module,
                file=code.co_filename,
                line=frame.f_lineno,
                function=code.co_name,
                code=None,
                _dispatch_target=frame.f_locals["key"] if is_dispatch else "",
                column_range=_columns(code, frame.f_lineno),
            )
        )
        frame = frame.f_back
    return found


@functools.lru_cache(maxsize=4096)
def _columns(code: CodeType, line: int) -> tuple[int, int] | None:
    """The columns of a line that runs; None if they are not the same for all of its operations."""
    if sys.version_info < (3, 11):
        return None
    positions = (position for position in code.co_positions() if position[0] == line)
    ranges = {(start, end) for *_, start, end in positions if start is not None and end is not None}
    return ranges.pop() if len(ranges) == 1 else None


_DEEPEST = 100
"""Largest number of frames in a stack of nvtripy's."""


@contextlib.contextmanager
def _into_one_file() -> Iterator[BinaryIO]:
    """`redirect_stderr`, which takes the process's stderr into a file of its own, with one file for all."""
    messages = _file_of(os.getpid())
    messages.truncate(0)
    messages.seek(0)
    sys.stderr.flush()
    stderr = os.dup(2)
    os.dup2(messages.fileno(), 2)
    try:
        yield messages
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


@functools.cache
def _file_of(process: int) -> BinaryIO:
    return tempfile.TemporaryFile(buffering=0)


# With a range, even an empty one, nvtripy does not parse the code for columns.
_FRAME = stack_info.SourceInfo(
    module="parity", file="", line=1, function="traced", code="", _dispatch_target="", column_range=(0, 0)
)
_STACK = stack_info.StackInfo([_FRAME])
"""The stack of every operation."""


def _find_once(self: Constraints, pattern: Any, skip_within: type | None = None) -> list[Constraints]:
    """`Constraints.find`, which searches the same requirements once for a pattern."""
    key = id(self), _content(pattern), skip_within
    if key not in _requirements:
        _requirements[key] = self, _find(self, pattern, skip_within)
    return _requirements[key][1]


def _content(pattern: Any) -> Any:
    if isinstance(pattern, Constraints):
        return type(pattern), *map(_content, vars(pattern).values())
    return tuple(map(_content, pattern)) if isinstance(pattern, (list, tuple)) else pattern


def _match_once(self: FuncOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`FuncOverload.matches_arg_types`, which compares the same types with a signature once.

    A mismatch is compared again: its result holds the message.
    """
    try:
        named = tuple((name, _types(value)) for name, value in kwargs.items())
        key = self, tuple(map(_types, args)), named
    except _UnknownMembers:
        return _matches(self, args, kwargs)
    if key in _signatures:
        return _signatures[key]
    result = _matches(self, args, kwargs)
    if result:
        _signatures[key] = result
    return result


def _derive_once(arguments: list[tuple[str, Any]], requirements: Constraints) -> Mapping[str, Any]:
    """`_find_known_datatypes`, which derives the types of arguments of the same types once."""
    try:
        key = id(requirements), *((name, _dtype(value)) for name, value in arguments)
    except _UnknownMembers:
        return _derive(arguments, requirements)
    if key not in _derived:
        _derived[key] = requirements, _derive(arguments, requirements)
    return _derived[key][1]


def _dtype(value: Any) -> Any:
    """The facts about an argument that its type in a graph follows from."""
    kind = type(value)
    if issubclass(kind, tp.Tensor):
        return tp.Tensor, value.dtype
    if kind is int:
        return kind, -(2**31) <= value < 2**31
    if value is None or kind is bool or kind is float or kind is str:
        return kind
    if kind is list or kind is tuple:
        return kind, *map(_dtype, value)
    if isinstance(value, tp.dtype):
        return value
    raise _UnknownMembers


def _dtype_at_once(self: GetDataType, args: Any, returns: Any = None) -> Any:
    """`GetDataType.__call__`, which asks a tensor directly."""
    value = self.value_fetcher(args, returns)
    return value.dtype if isinstance(value, tp.Tensor) else _dtype_of(self, args, returns)


def _one_element_type(dtype: tp.dtype) -> Any:
    """`get_mlir_dtype`, which makes the asked type and no other."""
    return _ELEMENT_TYPES[dtype.name]()


_ELEMENT_TYPES: dict[str, Callable[[], Any]] = {
    "float32": ir.F32Type.get,
    "float16": ir.F16Type.get,
    "float8": ir.Float8E4M3FNType.get,
    "bfloat16": ir.BF16Type.get,
    **{
        name: functools.partial(ir.IntegerType.get_signless, bits)
        for name, bits in (("int4", 4), ("int8", 8), ("int32", 32), ("int64", 64), ("bool", 1))
    },
}
"""MLIR's types by the name of Tripy's. Each belongs to the context in which it is made."""


def _constant_in_shared_memory(self: Constant, data: Any, device: Any = None, dtype: Any = None) -> None:
    """`Constant.__init__`, which gives a few integers on the host the memory of the same ones before."""
    key = _integer_key(data) if device is None and dtype is None else None
    memory = _integers.get(key)
    _make_constant(self, data if memory is None else memory, device, dtype)
    if key is not None and memory is None:
        _integers[key] = self.data


def _integer_key(data: Any) -> Any:
    """A key of an integer, or of a flat list of a few; None for other data."""
    kind = type(data)
    if kind is int:
        return data
    if (kind is list or kind is tuple) and 0 < len(data) <= MOST_SHARED:
        return tuple(data) if all(type(item) is int for item in data) else None
    return None


class _UnknownMembers(Exception):
    """An argument whose types do not follow from its own type."""


def _types(value: Any) -> Any:
    """The types in an argument, the only facts about it that a signature asks for."""
    kind = type(value)
    if kind is list or kind is tuple:
        return kind, *map(_types, value)
    if kind is dict:
        return kind, *((_types(key), _types(item)) for key, item in value.items())
    if _is_container(kind):
        raise _UnknownMembers
    return kind


@functools.cache
def _is_container(kind: type) -> bool:
    return issubclass(kind, (Sequence, Mapping)) and not issubclass(kind, (str, bytes))


_FASTER: list[tuple[Any, str, Callable]] = [
    (Constraints, "find", _find_once),
    (FuncOverload, "matches_arg_types", _match_once),
    (wrappers, "_find_known_datatypes", _derive_once),
    (GetDataType, "__call__", _dtype_at_once),
    (mlir_utils, "get_mlir_dtype", _one_element_type),
    (Constant, "__init__", _constant_in_shared_memory),
]
"""Functions of nvtripy by their owner and name, and their lean forms."""
_LEAN = [
    *_FASTER,
    (stack_info, "get_stack_info", _one_frame),
    (parameter, "get_stack_info", _one_frame),
    (trace, "str_from_stack_info", _no_text),
    (tensor, "str_from_stack_info", _running_line),
    (TraceOp, "__str__", _no_text),
    (wrappers, "_add_column_info", _nothing),
    (trace, "redirect_stderr", _into_one_file),
    (compiler, "redirect_stderr", _into_one_file),
]
"""Likewise, with forms that leave messages out."""
_WITH_STACKS = [
    *_FASTER,
    (stack_info, "get_stack_info", _stack_by_lines),
    (parameter, "get_stack_info", _stack_by_lines),
]
"""Likewise, for a trace after an error, whose messages show the user's line."""
