"""Sizes of the axes of modules' arguments: 1, 2 and more.

The axes of the entry's arguments are questions. An axis inside the model is a question where its size varies
between the batches of a case: all others are sizes of the model.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from parity.base.trees import TreePath, dotted, leaves
from parity.capture.captures import Capture, ModuleCall, TensorKey
from parity.case import Case
from parity.coverage.questions import Coverage, Kind, Question

SIZES = ("1", "2", "many")
VARIES = "varies"
_ENTRY = "entry"
_OF = " of "


def sizes_of(
    case: Case, arrays: Mapping[str, Any], recorded: Capture, modules: Mapping[str, Any]
) -> Coverage:
    """The exact sizes of all axes in one batch, as answers to no question yet; see `asked_sizes`.

    Args:
        case: The case.
        arrays: The batch.
        recorded: The calls of the reference, which are those of the port.
        modules: Modules of the port by path.
    """
    coverage = Coverage()
    for path, array in leaves(case.entry_arguments(arrays)):
        if not hasattr(array, "shape"):
            # A constant, or an object, has no sizes.
            continue
        _add(coverage, f"{_ENTRY} {case.entry}({_name(path)})", array.shape)
    for call in recorded.calls:
        # A form may have no incremental forward.
        if hasattr(modules.get(call.path), call.method):
            for name, key in _tensors(call, modules[call.path]):
                shape = tuple(recorded.call_inputs[key].shape)
                argument = f"{type(modules[call.path]).__name__}.{call.method}({name})"
                _add(coverage, f"{call.tap}{_OF}{argument}", shape)
    return coverage


def _tensors(call: ModuleCall, module: Any) -> Iterator[tuple[str, str]]:
    """Names and keys of the tensors that a call receives."""
    names = list(inspect.signature(getattr(type(module), call.method)).parameters)[1:]
    arguments = dict(zip(names, call.args, strict=False)) | call.kwargs
    for path, leaf in leaves(arguments):
        if isinstance(leaf, TensorKey):
            yield _name(path), leaf.key


def _name(path: TreePath) -> str:
    """The name of an argument. All elements of a list have one."""
    return dotted(tuple("*" if isinstance(step, int) else step for step in path))


def _add(coverage: Coverage, argument: str, shape: tuple[int, ...]) -> None:
    for axis, size in enumerate(shape):
        question = Question(kind=Kind.SIZE, place=f"{argument}, axis {axis}", answers=SIZES)
        coverage.add(question, [str(size)])


def asked_sizes(case: Coverage) -> Coverage:
    """The sizes over all batches of one case as answers."""
    asked = Coverage()
    for question, seen in case.seen.items():
        if question.kind is not Kind.SIZE:
            asked.add(question, seen)
            continue
        # A class may have modules of several sizes in one model: each call varies by itself.
        varies = len(seen) > 1 or question.place.startswith(_ENTRY)
        answers = {size if size in SIZES else "many" for size in seen if size != "0"}
        merged = question.model_copy(update={"place": question.place.rpartition(_OF)[2]})
        asked.add(merged, answers | ({VARIES} if varies else set()))
    return asked
