"""Parts of a batch: memory that runs need, cuts of the batch, and rows put together again."""

import numpy as np
import pytest
import torch

from parity.capture.arguments import Argument, Received
from parity.capture.captures import Capture, ModuleCall, TensorKey
from parity.capture.slices import (
    TEMPORARIES,
    MemoryBudget,
    Part,
    call_bytes,
    largest_tap_bytes,
    moved_bytes,
    parts,
    tapped_bytes,
    unless_leaking,
    working_bytes,
)
from parity.capture.spool import LARGE_BYTES, Spool
from parity.capture.store import open_capture, save_capture

ROWS = {"ids": np.arange(12).reshape(6, 2)}


class Rows:
    """A case whose rows are independent, unless they have more columns than `columns`."""

    def __init__(self, columns=2):
        self._columns = columns

    def batch_size_of(self, arrays):
        return len(arrays["ids"])

    def rows(self, arrays, rows):
        if arrays["ids"].shape[1] > self._columns:
            return None
        return {"ids": arrays["ids"][rows]}

    def valid_rows(self, arrays):
        return {3: arrays["valid"]}


@pytest.fixture
def reference(tmp_path):
    """A saved capture: two taps of the batch of 4 rows, one of two rows, one number; and three inputs."""
    capture = Capture(
        tensors={
            "block": torch.arange(12.0).reshape(4, 3),
            "block[1]": torch.ones(4, 1, dtype=torch.float64),
            "mask": torch.ones(2, 2),
            "scalar": torch.ones(()),
        },
        call_inputs={"a": torch.ones(5), "b": torch.ones(7), "c": torch.ones(11)},
        largest_results={"block": 100, "mask": 30},
        arguments={
            "block": Received("", 0, 0, (Argument("x", 0, tensor="a"), Argument("n", 1, constant=3))),
            "mask": Received(
                "", 0, 0, (Argument("x", 0, tensor="a"), Argument("y", 1, tensor="b", origin="block"))
            ),
        },
    )
    save_capture(capture, tmp_path / "reference")
    return open_capture(tmp_path / "reference")


CALL = ModuleCall("block", "block", "Block", [TensorKey("a")], {"y": TensorKey("c")}, ("block", "block[1]"))
TAPS = 48 + 32 + 16 + 4


def test_the_memory_of_a_run(reference):
    assert TEMPORARIES == 4
    assert working_bytes(reference) == 400
    assert [working_bytes(reference, path) for path in ("block", "mask", "other")] == [400, 120, 0]
    assert working_bytes(Capture()) == 0
    assert tapped_bytes(reference, holds_taps=False) == 400
    # The input `a` counts once; `b` is a tap already, and no call receives `c` as its own.
    assert tapped_bytes(reference, holds_taps=True) == 400 + TAPS + 20


def test_the_largest_tap(reference, tmp_path):
    assert largest_tap_bytes(reference) == 48
    save_capture(Capture(), tmp_path / "empty")
    assert largest_tap_bytes(open_capture(tmp_path / "empty")) == 0


def test_the_memory_of_a_call(reference):
    assert moved_bytes(reference, CALL) == 2 * (20 + 44) + (48 + 32)
    assert call_bytes(reference, CALL) == 400 + moved_bytes(reference, CALL)
    unknown = ModuleCall("mask", "mask", "Mask", [TensorKey("z")], {}, ("mask", "gone"))
    assert moved_bytes(reference, unknown) == 16
    assert call_bytes(reference, unknown) == 120 + 16


def test_the_budget():
    assert MemoryBudget() == MemoryBudget(LARGE_BYTES, 2**30, 3 * 2**30)


@pytest.mark.parametrize(
    ("needed", "sizes"),
    [(8, [6]), (9, [3, 3]), (16, [3, 3]), (17, [1] * 6), (32, [1] * 6), (1000, [1] * 6)],
)
def test_a_batch_is_cut_to_powers_of_two(needed, sizes):
    cut = parts(Rows(), ROWS, needed, limit=8)
    assert [len(part.arrays["ids"]) for part in cut] == sizes
    assert np.array_equal(np.concatenate([part.arrays["ids"] for part in cut]), ROWS["ids"])
    if len(sizes) == 1:
        (part,) = cut
        assert (part.arrays, part.rows, part.batch_size) == (ROWS, None, 0)
        return
    starts = np.cumsum([0, *sizes])
    assert [part.rows for part in cut] == [slice(a, b) for a, b in zip(starts, starts[1:], strict=False)]
    assert {part.batch_size for part in cut} == {6}


def test_the_last_part_ends_with_the_batch():
    cut = parts(Rows(), {"ids": np.zeros((5, 2))}, 9, limit=8)
    assert [part.rows for part in cut] == [slice(0, 2), slice(2, 4), slice(4, 5)]


@pytest.mark.parametrize(
    "arrays", [{"ids": np.zeros((6, 3))}, {"ids": np.zeros((1, 2))}], ids=["bound", "one"]
)
def test_a_batch_of_one_row_or_of_dependent_rows_is_whole(arrays):
    (part,) = parts(Rows(), arrays, 9, limit=8)
    assert part.arrays is arrays
    assert (part.rows, part.batch_size) == (None, 0)


def test_only_tensors_of_the_batch_are_cut():
    part = Part({}, slice(1, 3), 4)
    tensors = {"rows": torch.arange(8).reshape(4, 2), "other": torch.arange(5), "scalar": torch.tensor(4)}
    assert torch.equal(part.cut(tensors["rows"]), tensors["rows"][1:3])
    assert torch.equal(part.cut(torch.arange(4)), torch.tensor([1, 2]))
    assert part.cut(tensors["other"]) is tensors["other"]
    assert part.cut(tensors["scalar"]) is tensors["scalar"]
    cut = part.inputs(tensors)
    assert (list(cut), len(cut)) == (list(tensors), 3)
    assert torch.equal(cut["rows"], tensors["rows"][1:3])
    whole = Part({}, None, 4)
    assert whole.inputs(tensors) is tensors
    assert whole.cut(tensors["rows"]) is tensors["rows"]


def test_the_rows_of_the_parts_are_put_together(tmp_path, reference):
    spool = Spool(tmp_path / "tensors")
    whole = Part({}, None, 4)
    assert whole.into(spool, reference) is spool
    for rows in (slice(0, 2), slice(2, 4)):
        into = Part({}, rows, 4).into(spool, reference)
        into["block"] = reference.tensors["block"][rows]
        # A tap that the reference does not have is of the batch if it has the part's rows.
        into["extra"] = torch.full((2, 1), float(rows.start))
        into["mask"] = torch.ones(2, 2)
        into["scalar"] = torch.ones(())
        into["odd"] = torch.ones(3)
    assert list(into) == list(spool)
    assert torch.equal(spool["block"], reference.tensors["block"])
    assert spool["extra"].ravel().tolist() == [0.0, 0.0, 2.0, 2.0]
    for name, shape in {"mask": (2, 2), "scalar": (), "odd": (3,)}.items():
        assert torch.equal(spool[name], torch.ones(shape))
    for name, tensor in {"mask": torch.zeros(2, 2), "odd": torch.zeros(3), "scalar": torch.ones(1)}.items():
        message = f"^{name} has no axis of the batch and differs between rows of the batch$"
        with pytest.raises(ValueError, match=message):
            into[name] = tensor


@pytest.mark.parametrize("rows", [None, slice(0, 2)], ids=["whole", "part"])
def test_poisoned_taps_replace_clean_ones_only_where_valid_elements_differ(rows):
    valid = np.array([[True, True, False], [True, False, False]])
    case, part = Rows(), Part({"ids": np.zeros((2, 2)), "valid": valid}, rows, 4)
    clean = {name: torch.zeros(2 if rows is None else 4, 3) for name in ("padding", "leak", "type", "free")}
    if rows is not None:
        for tensor in clean.values():
            tensor[2:] = 7.0
    stored, capture = {}, Capture()
    into = unless_leaking(capture, stored, clean, case, part)
    poisoned = {name: torch.zeros(2, 3) for name in clean}
    poisoned["padding"][0, 2] = poisoned["padding"][1, 1] = 9.0
    poisoned["leak"][1, 0] = -0.0
    poisoned["type"] = poisoned["type"].double()
    for name, tensor in poisoned.items():
        into[name] = tensor
    into["extra"] = poisoned["leak"]
    assert list(stored) == ["padding", "leak", "type", "free", "extra"]
    assert capture.padded == {"padding"}
    assert torch.equal(stored["padding"], torch.zeros(2, 3))
    for name in ("leak", "type"):
        assert stored[name] is poisoned[name]
    assert stored["extra"] is poisoned["leak"]
    if rows is None:
        assert stored["padding"] is clean["padding"]
