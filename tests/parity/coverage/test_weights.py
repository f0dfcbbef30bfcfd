"""Weights that a constructor makes hide what a port leaves out, and the report says so."""

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity
from parity.coverage.questions import Kind
from parity.coverage.weights import weights_of
from parity.report.coverage import reported

WIDTH = 6


class Gated(torch.nn.Module):
    """A constant buffer, a gain and a bias as constructors make them."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.register_buffer("shift", torch.zeros(WIDTH))

    def forward(self, x):
        return self.norm(self.layer(x)) + self.shift


class Port(tp.Module):
    def __init__(self):
        super().__init__()
        self.layer = tp.Linear(WIDTH, WIDTH, bias=False)
        self.norm = tp.LayerNorm(WIDTH)
        self.shift = tp.zeros((WIDTH,))

    def forward(self, x):
        return self.norm(self.layer(x)) + self.shift


def _asked(result):
    report = result.report.coverage
    return {entry.place: entry.missing for entry in report.unasked if entry.kind == Kind.WEIGHT.value}


@pytest.mark.parametrize(
    ("initial", "expected"),
    [
        ("sensitive", {"shift": 0}),
        ("own", {"shift": 0, "norm.weight": 1, "norm.bias": 0}),
    ],
)
def test_constant_weights_are_not_asked(initial, expected):
    torch.manual_seed(0)
    result = parity.compare(Gated(), Port(), {"x": torch.randn(8, WIDTH)}, initial=initial)
    assert result.passed
    assert _asked(result) == {name: (f"an element other than {value}",) for name, value in expected.items()}
    assert f"{len(expected)} weight" in str(result)


def test_one_other_element_is_enough_and_other_types_and_unused_tensors_are_left_out():
    case = parity.ModelPair(Gated, lambda dtype: Port(), {"x": torch.zeros(2, WIDTH)}, unused=("left",))
    mixed = torch.zeros(WIDTH)
    mixed[-1] = 1.0
    tensors = {
        "mixed": mixed,
        "one": torch.ones(()),
        "half": torch.full((2,), 0.5),
        "none": torch.empty(0),
        "counts": torch.zeros(2, dtype=torch.int64),
        "left": torch.zeros(2),
    }
    coverage = weights_of(case, tensors)
    assert {question.place for question in coverage.seen} == {"mixed", "one", "half"}
    assert {question.place: missing for question, missing in coverage.missing()} == {
        "one": ("an element other than 1",)
    }
    excused = reported(coverage, {"one": "a gain that nobody trains"})
    assert (excused.unasked, [entry.reason for entry in excused.excused]) == (
        (),
        ["a gain that nobody trains"],
    )


ITEMS, CATEGORIES = 12, 4


class Categories(torch.nn.Module):
    """A row of a table for the category of each item, by a map that comes with a checkpoint."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(CATEGORIES, WIDTH)
        self.register_buffer("category", torch.arange(ITEMS) % CATEGORIES)

    def forward(self, items):
        return self.table(self.category[items])


class CategoriesPort(tp.Module):
    def __init__(self, reads):
        super().__init__()
        self.table = tp.Embedding(CATEGORIES, WIDTH)
        self.category = tp.cast(tp.iota((ITEMS,), dtype=tp.int32), tp.int64)
        self._reads = reads

    def forward(self, items):
        turn = items - items // CATEGORIES * CATEGORIES
        return self.table(tp.gather(self.category, 0, items) if self._reads else turn)


class OfCategories(parity.Case):
    name = "of_categories"
    batch_size = ITEMS
    reads = True

    def build_reference(self):
        return Categories()

    def build_port(self, dtype):
        return CategoriesPort(self.reads)

    def make_inputs(self):
        return {"items": np.arange(ITEMS)}


class Computed(OfCategories):
    reads = False


def _of_a_checkpoint(values):
    return {"initial_values": lambda self, name, made: values if name == "category" else None}


@pytest.mark.parametrize(
    ("case", "expected"), [(OfCategories, {}), (Computed, {"category": "a graph that reads it"})]
)
def test_a_tensor_that_no_graph_reads_is_not_asked(case, expected):
    result = parity.check(case(), ("fp32",))
    assert result.passed
    assert _asked(result) == {name: (answer,) for name, answer in expected.items()}


@pytest.mark.parametrize(("case", "passes"), [(OfCategories, True), (Computed, False)])
def test_a_buffer_of_a_checkpoint_is_read_by_a_right_port_alone(case, passes):
    values = torch.arange(ITEMS).flip(0) // (ITEMS // CATEGORIES)
    changed = type("Changed", (case,), _of_a_checkpoint(values))
    assert parity.check(changed(), ("fp32",)).passed is passes


@pytest.mark.parametrize("values", [torch.zeros(ITEMS), torch.zeros(3, dtype=torch.int64), [0] * ITEMS])
def test_a_buffer_of_another_shape_or_type_is_refused(values):
    case = type("Wrong", (OfCategories,), _of_a_checkpoint(values))()
    with pytest.raises(parity.UserError, match="initial_values: .*shape .12,. and type int64 for category"):
        parity.check(case, ("fp32",))
