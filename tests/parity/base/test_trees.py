"""Trees of arguments: types, order and paths survive."""

from parity.base.trees import dotted, leaves, map_tree

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
