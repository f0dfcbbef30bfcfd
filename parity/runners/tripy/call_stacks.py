"""Tracing without call stacks.

nvtripy keeps the whole Python stack of every operation that it records, to point at the user's line in its
error messages: some nine tenths of the time of a trace. Whoever traces without them traces again with them
after an error, whose message needs them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from nvtripy.frontend import wrappers
from nvtripy.frontend.module import parameter
from nvtripy.utils import stack_info


@contextlib.contextmanager
def no_call_stacks() -> Iterator[None]:
    """Inside, every operation is recorded as if called from the same line. Graphs are the same.

    What is exchanged is internal to nvtripy 0.1.7. Raises `AttributeError` where it is not as it was there.
    """
    # nvtripy looks for the frame that converts arguments, and for the one that called it.
    frames = [
        _frame(module=wrappers.__name__, function=wrappers.convert_input_types.__name__),
        _frame(module="parity", function="traced"),
    ]

    def constant(include_code_index: int | None = None) -> stack_info.StackInfo:
        # The index says from which frame on code is shown; there are no frames to leave out.
        return stack_info.StackInfo(frames)

    with (
        mock.patch.object(stack_info, "get_stack_info", constant),
        mock.patch.object(parameter, "get_stack_info", constant),
    ):
        yield


def _frame(module: str, function: str) -> stack_info.SourceInfo:
    return stack_info.SourceInfo(
        module=module, file="", line=1, function=function, code="", _dispatch_target="", column_range=None
    )
