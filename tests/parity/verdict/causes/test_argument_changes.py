"""All changes of a call's arguments that are tried: their words and their tensors."""

import torch

from parity.verdict.causes.argument_changes import MOST_ARGUMENTS, changed_arguments

MASK = torch.rand(4, 6, generator=torch.Generator().manual_seed(2)) < 0.5


def tried(**arguments):
    """Each change in words, with the changed tensors as lists."""
    return {
        text: {name: tensor.tolist() for name, tensor in changed.items()}
        for text, changed in changed_arguments(arguments)
    }


def test_integers_are_shifted_down_to_0_and_rounded_by_types_that_do_not_hold_them():
    assert tried(ids=torch.tensor([0, 2049, 7])) == {
        "with ids shifted by +1": {"ids": [1, 2050, 8]},
        "with ids shifted by -1": {"ids": [0, 2048, 6]},
        "with ids as float16": {"ids": [0, 2048, 7]},
        "with ids as bfloat16": {"ids": [0, 2048, 7]},
    }


def test_small_integers_are_shifted_alone():
    assert list(tried(ids=torch.tensor([0, 5, 7]))) == ["with ids shifted by +1", "with ids shifted by -1"]


def test_integers_keep_their_type():
    for dtype in (torch.int64, torch.int32):
        changes = list(changed_arguments({"ids": torch.tensor([0, 2**24 + 1, 7], dtype=dtype)}))
        assert {changed["ids"].dtype for _, changed in changes} == {dtype}


def test_both_ends_of_edges_are_exchanged():
    changes = tried(edges=torch.tensor([[0, 5, 7], [3, 1, 2]]))
    assert changes["with both parts of edges along axis 0 exchanged"] == {"edges": [[3, 1, 2], [0, 5, 7]]}


def test_two_coordinates_are_exchanged():
    changes = tried(motion=torch.tensor([[0.5], [2.0]]))
    assert changes["with both parts of motion along axis 0 exchanged"] == {"motion": [[2.0], [0.5]]}


def test_equal_parts_are_not_exchanged():
    for dtype in (torch.int64, torch.float32):
        assert not any("both parts" in text for text in tried(x=torch.tensor([[2, 3, 4]] * 2, dtype=dtype)))


def test_a_mask_is_shifted_both_ways_along_each_axis_and_inverted():
    assert tried(mask=torch.tensor([[True, False, False], [False, False, False]])) == {
        "with mask shifted by +1 along axis 0": {"mask": [[False] * 3, [True, False, False]]},
        "with mask shifted by -1 along axis 0": {"mask": [[False] * 3, [True, False, False]]},
        "with mask shifted by +1 along axis 1": {"mask": [[False, True, False], [False] * 3]},
        "with mask shifted by -1 along axis 1": {"mask": [[False, False, True], [False] * 3]},
        "with mask inverted": {"mask": [[False, True, True], [True] * 3]},
    }


def test_numbers_are_rounded_by_coarser_types():
    third = torch.tensor([1 / 3], dtype=torch.float64)
    assert tried(x=third) == {
        "with x as float32": {"x": third.float().tolist()},
        "with x as float16": {"x": third.half().tolist()},
        "with x as bfloat16": {"x": third.bfloat16().tolist()},
        "with x as int64": {"x": [0.0]},
    }
    assert tried(x=torch.tensor([0.5], dtype=torch.float64)) == {"with x as int64": {"x": [0.0]}}


def test_pairs_of_the_first_arguments_are_exchanged():
    names = [f"x{place}" for place in range(MOST_ARGUMENTS + 1)]
    changes = tried(**{name: torch.tensor([float(place)]) for place, name in enumerate(names)})
    assert changes["with x0 and x1 exchanged"] == {"x0": [1.0], "x1": [0.0]}
    assert changes["with x0 in place of x1"] == {"x1": [0.0]}
    assert changes["with x1 in place of x0"] == {"x0": [1.0]}
    assert f"with x0 and {names[-2]} exchanged" in changes
    assert f"with x0 and {names[-1]} exchanged" not in changes


def test_axes_of_a_mask_whose_exchange_changes_nothing_or_its_shape_stay():
    square = MASK[:, :4]
    for mask, is_tried in ((square, True), (square | square.mT, False), (MASK, False)):
        texts = [text for text, _ in changed_arguments({"mask": mask})]
        assert ("with axes 0 and 1 of mask exchanged" in texts) is is_tried
