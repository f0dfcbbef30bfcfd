"""Tracing without call stacks.

nvtripy keeps the whole Python stack of every operation that it records, for the user's line in its error
messages. Stacks take nine tenths of the time of a trace. After an error, a second trace with stacks gives its
message.
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
    """Inside, nvtripy records every operation as a call from the same line. Graphs do not change.

    The replaced functions are internal to nvtripy 0.1.7. Raises `AttributeError` where they do not exist.
    """
    # nvtripy looks for the frame that converts arguments, and for its caller.
    frames = [
        _frame(module=wrappers.__name__, function=wrappers.convert_input_types.__name__),
        _frame(module="parity", function="traced"),
    ]

    def constant(include_code_index: int | None = None) -> stack_info.StackInfo:
        # The index is the first frame that a message shows; there are no frames to leave out.
        return stack_info.StackInfo(frames)

    with (
        mock.patch.object(stack_info, "get_stack_info", constant),
        mock.patch.object(parameter, "get_stack_info", constant),
    ):
        yield


def _frame(module: str, function: str) -> stack_info.SourceInfo:
    # With a range, even an empty one, nvtripy does not parse the code for columns.
    return stack_info.SourceInfo(
        module=module, file="", line=1, function=function, code="", _dispatch_target="", column_range=(0, 0)
    )
