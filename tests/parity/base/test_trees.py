"""Trees of arguments: types, order and paths survive."""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from parity.base.trees import (
    Leaf,
    decode_tree,
    dotted,
    encode_tree,
    leaves,
    map_tree,
    plain_tree,
    with_leaves,
)

TREE = {"z": [1, (2, None)], "a": {"y": 3, "b": []}}


def test_a_mapped_tree_has_the_same_containers_in_the_same_order():
    doubled = map_tree(TREE, lambda leaf: leaf and 2 * leaf)
    assert doubled == {"z": [2, (4, None)], "a": {"y": 6, "b": []}}
    assert list(doubled) == ["z", "a"]
    assert type(doubled["z"][1]) is tuple
    assert map_tree(5, str) == "5"


def test_leaves_come_in_the_containers_order_with_their_paths():
    assert list(leaves(TREE)) == [(("z", 0), 1), (("z", 1, 0), 2), (("z", 1, 1), None), (("a", "y"), 3)]
    assert list(leaves("text")) == [((), "text")]


def test_a_path_reads_as_names_with_dots():
    assert [dotted(path) for path, _ in leaves({"lS_i": [7, 8]})] == ["lS_i.0", "lS_i.1"]
    assert dotted(()) == ""


class _Pair(NamedTuple):
    left: object
    right: object


@dataclass(frozen=True)
class _Fields:
    left: object
    right: object = field(default=None, metadata={"unit": "s"})


@dataclass(frozen=True)
class _Key(Leaf):
    name: str


class _Counts(defaultdict):
    pass


@pytest.mark.parametrize("container", [_Pair(1, [2]), _Fields(1, [2]), _Counts(int, left=1, right=[2])])
def test_containers_of_other_classes_keep_them(container):
    def encoded(leaf):
        return {"number": leaf}

    def decoded(value):
        return value["number"] if isinstance(value, dict) and "number" in value else NotImplemented

    assert [path for path, _ in leaves([container])] == [(0, "left"), (0, "right", 0)]
    doubled = map_tree(container, lambda leaf: 2 * leaf)
    assert type(doubled) is type(container)
    assert [leaf for _, leaf in leaves(doubled)] == [2, 4]
    assert type(plain_tree(container)) is dict
    assert with_leaves(container, plain_tree(doubled)) == doubled
    read = decode_tree(json.loads(json.dumps(encode_tree(container, encoded))), decoded)
    assert type(read) is type(container)
    assert [leaf for _, leaf in leaves(read)] == [1, 2]


@pytest.mark.parametrize("kind", [_Pair, _Fields])
def test_a_class_that_is_gone_leaves_its_attributes(kind):
    encoded = encode_tree(kind(1, 2), lambda leaf: leaf)
    encoded["class"][0] = "a_module_that_nobody_imported"
    read = decode_tree(encoded, lambda value: value if isinstance(value, int) else NotImplemented)
    assert (read.left, read.right) == (1, 2)
    assert not hasattr(read, "middle")


def test_a_dataclass_may_be_a_leaf():
    assert list(leaves([_Key("x")])) == [((0,), _Key("x"))]
    assert map_tree(_Key("x"), lambda leaf: leaf.name) == "x"


def test_a_leaf_is_asked_for_no_attribute():
    """Tripy's tensors search the whole stack of calls before they say that they lack one."""

    class Slow:
        def __getattr__(self, name):
            raise AssertionError(name)

    leaf = Slow()
    assert [found for _, found in leaves({"x": [leaf, (leaf,)]})] == [leaf, leaf]
    assert map_tree((leaf,), lambda found: found) == (leaf,)
