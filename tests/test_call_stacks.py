"""The quick call stacks of the tests are nvtripy's own, frame by frame, and its messages stay the same."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable

import nvtripy as tp
import pytest
from nvtripy.common.exception import search_for_missing_attr
from nvtripy.utils import stack_info

from tests.call_stacks import DEEPEST, call_stack, without_private_names


@pytest.fixture(scope="module")
def own() -> Callable[..., list]:
    """nvtripy's own function, from a second copy of its module."""
    spec = importlib.util.spec_from_file_location("own_stack_info", stack_info.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_stack_info


def frames(stack: list) -> list[dict[str, object]]:
    return [vars(frame) for frame in stack]


def test_every_frame_is_equal(own: Callable[..., list]) -> None:
    # One line in a comprehension, in a lambda and in a function, with code before and after it.
    make = lambda functions: [function() for function in functions]  # noqa: E731
    one, other = make([own, call_stack])
    assert len(one) > 20
    assert frames(one) == frames(other)


def test_a_deep_stack_ends_at_the_same_frame(own: Callable[..., list]) -> None:
    def deeper(levels: int) -> list[list]:
        return deeper(levels - 1) if levels else [function() for function in (own, call_stack)]

    one, other = deeper(DEEPEST)
    assert frames(one) == frames(other)
    assert len(other) == DEEPEST


def test_an_operation_has_the_stack_of_its_line(own: Callable[..., list], monkeypatch) -> None:
    stacks = []
    for function in (own, call_stack):
        monkeypatch.setattr(stack_info, "get_stack_info", function)
        stacks.append(frames((tp.Tensor([1.0]) + tp.Tensor([2.0])).stack_info))
    assert stacks[0] == stacks[1]
    assert any(frame["_dispatch_target"] for frame in stacks[1])


# After an error nvtripy leaves its temporary file to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_messages_are_equal(own: Callable[..., list], monkeypatch) -> None:
    messages = []
    for function in (own, call_stack):
        monkeypatch.setattr(stack_info, "get_stack_info", function)
        with pytest.raises(tp.TripyException) as error:
            (tp.ones((2, 3)) + tp.ones((4, 5))).eval()
        # Tensors are numbered through.
        messages.append(re.sub(r"%t\d+", "%t", str(error.value)))
    assert messages[0] == messages[1]
    assert "tp.ones((2, 3)) + tp.ones((4, 5))" in messages[1]


def test_a_missing_private_name_has_the_same_message() -> None:
    for name in ("__wrapped__", "_private"):
        with pytest.raises(AttributeError) as expected:
            search_for_missing_attr("nvtripy", name, [(tp, "nvtripy")])
        with pytest.raises(AttributeError) as error:
            getattr(tp, name)
        assert str(error.value) == str(expected.value)


def test_only_public_names_are_looked_for() -> None:
    names = []
    answer = without_private_names(names.append)
    with pytest.raises(AttributeError):
        answer("__wrapped__")
    answer("float64")
    assert names == ["float64"]
