"""nvtripy's call stacks, in a fraction of the time.

nvtripy keeps the Python stack of every operation, for its error messages. For each frame it reads the columns
of all instructions of the frame's function. Under pytest's deep stack this takes most of the time of a trace.
Here the columns of a line are looked up once. `tests/test_call_stacks.py` shows that the stacks are equal.

nvtripy also reads the whole stack before it says that it lacks an attribute. pytest asks every imported
module for private names such as `__wrapped__`: a third of the collection. Here the answer comes at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType

Columns = tuple[int, int] | None
DEEPEST = 100
"""Frames that nvtripy keeps at most."""

_COLUMNS: dict[tuple[int, int], tuple[CodeType, Columns]] = {}


def columns_of(code: CodeType, line: int) -> Columns:
    """The columns of a line's instructions, where all of them have the same."""
    key = id(code), line
    if key not in _COLUMNS:
        # Python 3.10 has no columns. The code object is kept so that no other one gets its id.
        positions = code.co_positions() if hasattr(code, "co_positions") else ()
        ranges = {(a, b) for at, _, a, b in positions if at == line and a is not None and b is not None}
        _COLUMNS[key] = code, ranges.pop() if len(ranges) == 1 else None
    return _COLUMNS[key][1]


def call_stack(include_code_index: int | None = None) -> list:
    """The result of `nvtripy.utils.stack_info.get_stack_info`, called from the same line."""
    from nvtripy.utils import function_registry
    from nvtripy.utils.stack_info import SourceInfo, StackInfo

    stack = StackInfo([], include_code_index)
    frame = sys._getframe().f_back
    while frame and len(stack) < DEEPEST:
        code, line, module = frame.f_code, frame.f_lineno, frame.f_globals.get("__name__")
        dispatches = module == function_registry.__name__ and code.co_name == "wrapper"
        stack.append(
            SourceInfo(
                module=module,
                file=code.co_filename,
                line=line,
                function=code.co_name,
                code=None,
                _dispatch_target=frame.f_locals["key"] if dispatches else "",
                column_range=columns_of(code, line),
            )
        )
        frame = frame.f_back
    return stack


def without_private_names(getattribute: Callable[[str], object]) -> Callable[[str], object]:
    """A module's `__getattr__` that looks nowhere for names with an underscore in front."""

    def answer(name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(f"Module: 'nvtripy' does not have attribute: '{name}'")
        return getattribute(name)

    return answer


def pytest_collectstart() -> None:
    """Answer questions for private names quickly as soon as a test has imported nvtripy."""
    nvtripy = sys.modules.get("nvtripy")
    # The module is in the table before it is whole.
    if nvtripy is not None and vars(nvtripy).get("__getattr__", call_stack).__module__ == "nvtripy":
        nvtripy.__getattr__ = without_private_names(nvtripy.__getattr__)


def pytest_collection_finish() -> None:
    """Exchange nvtripy's own function, where a test has imported nvtripy."""
    if "nvtripy" in sys.modules:
        from nvtripy.frontend.module import parameter
        from nvtripy.utils import stack_info

        stack_info.get_stack_info = parameter.get_stack_info = call_stack
