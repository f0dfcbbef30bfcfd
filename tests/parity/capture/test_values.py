"""Values that are no tensors, from and to JSON."""

from __future__ import annotations

import enum
import json
import sys
import types
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from parity.base.errors import UserError
from parity.base.trees import decode_tree, encode_tree
from parity.capture.captures import Capture, ModuleCall
from parity.capture.store import open_capture, save_capture
from parity.capture.values import Absent, Opaque, decode_value, encode_value, storable, text_of


class Mode(enum.Enum):
    SUM = "sum"
    MEAN = "mean"


class Text(str, enum.Enum):
    A = "a"


class Size(tuple, enum.Enum):
    """Members that are tuples too."""

    SMALL = (1, 2)


class Bits(enum.Flag):
    ONE = 1
    TWO = 2


class Pair(NamedTuple):
    left: Any
    right: Any


VALUES = [
    True,
    3,
    -0.0,
    float("inf"),
    "text",
    None,
    Mode.MEAN,
    Text.A,
    Size.SMALL,
    Bits.TWO,
    torch.bfloat16,
    torch.channels_last,
    torch.strided,
    torch.device("cuda:1"),
    torch.Size((2, 3)),
    slice(1, None, -2),
    range(7, 1, -2),
    1 - 2j,
    b"\x00\xff",
    {1, "two", (3, Mode.SUM)},
    frozenset({None}),
    ...,
    np.float32(0.1),
    np.bool_(True),
    np.dtype("int16"),
    (1, [2, (3,)]),
    Pair(1, {"class": 1, "parts": 2}),
    {"tensor": 1},
    {"value": [1]},
    {},
    {1: "int", "1": "text", Mode.SUM: 2, (1, 2): 3},
]


def again(value: Any) -> Any:
    return decode_tree(json.loads(json.dumps(encode_tree(value, encode_value))), decode_value)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_comes_back_of_its_own_type(value):
    assert (
        storable(value) is value or not isinstance(storable(value), Opaque) or isinstance(value, tuple | dict)
    )
    read = again(value)
    assert read == value
    assert type(read) is type(value)
    if isinstance(value, enum.Enum):
        assert read is value


def test_parts_of_containers_keep_their_types():
    read = again([{"a": (1, 1.0, True)}, Pair(torch.Size((1,)), {2: None})])
    assert [type(item) for item in read[0]["a"]] == [int, float, bool]
    assert isinstance(read[1], Pair)
    assert type(read[1].left) is torch.Size


def _local() -> enum.Enum:
    class Hidden(enum.Enum):
        A = 1

    return Hidden.A


@pytest.mark.parametrize(
    "value",
    [object(), print, lambda: 0, int, Mode, {object()}, slice(object()), _local(), Bits.ONE | Bits.TWO],
)
def test_a_value_without_a_form_is_its_class_alone(value):
    stored = storable(value)
    assert stored == Opaque(type(value).__name__)
    assert again(stored) == stored


def test_a_member_of_a_class_that_is_gone_is_stored_again_as_it_was(monkeypatch):
    module = types.ModuleType("a_models_code")
    monkeypatch.setitem(sys.modules, "a_models_code", module)
    module.Mode = enum.Enum("Mode", ["SUM"], module="a_models_code")
    written = encode_value(module.Mode.SUM)
    monkeypatch.delitem(sys.modules, "a_models_code")
    gone = decode_value(written)
    assert gone == Absent("Mode", "a_models_code", "SUM")
    assert encode_value(gone) == written
    assert ModuleCall("a", "a", "A", [gone], {"how": Opaque("Scale")}, ()).opaque == {
        "args.0": "Mode",
        "kwargs.how": "Scale",
    }


@pytest.mark.parametrize("name", ["system", "path", "environ"])
def test_a_forged_capture_calls_nothing(name, tmp_path):
    read = decode_tree({"class": ["os", name, []], "parts": ["exit 3"]}, decode_value)
    assert read == ("exit 3",)
    assert decode_tree({"class": ["os", name, []], "parts": {"a": 1}}, decode_value) == {"a": 1}
    assert decode_value({"value": ["enum", "os", name, "A"]}) == Absent(name, "os", "A")


@pytest.mark.parametrize(
    "value",
    [
        {"value": ["unknown"]},
        {"value": []},
        {"value": 3},
        {"value": ["torch", "save"]},
        {"class": ["a"]},
        {"a": 1},
    ],
)
def test_a_damaged_value_is_an_error_of_the_file(value, tmp_path):
    call = ModuleCall("a", "a", "A", [1], {}, ())
    save_capture(Capture(calls=[call]), tmp_path / "capture")
    path = tmp_path / "capture.json"
    description = json.loads(path.read_text())
    description["calls"][0]["args"] = [value]
    path.write_text(json.dumps(description))
    with pytest.raises(UserError, match="is missing or damaged"):
        open_capture(tmp_path / "capture")


def test_a_type_has_one_text_on_both_sides():
    import nvtripy as tp

    assert text_of(torch.float16) == text_of(tp.float16) == "float16"
    assert text_of(Mode.SUM) == "SUM"
    assert text_of(object()) is None
    assert text_of(int) is None
