"""Casts between modules of different precisions: the types that every module receives and returns."""

import itertools

import nvtripy as tp
import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.base.trees import leaves
from parity.runners.tripy.casts import DTYPES, casting, load_parameters
from tripy_port.parameters import parameter


class Inner(tp.Module):
    def __init__(self):
        super().__init__()
        self.received = ()

    def forward(self, x, others, *, scale, ids):
        self.received = (x, *others, scale["of"], ids)
        return {"sum": x + scale["of"], "ids": ids}


class Outer(tp.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.received = ()

    def forward(self, x, ids):
        results = self.inner(x, [x, x], scale={"of": x}, ids=ids)
        self.received = (x, results["sum"], results["ids"])
        return results["sum"]


class Model(tp.Module):
    def __init__(self):
        super().__init__()
        self.outer = Outer()
        self.received = ()

    def forward(self, x, ids):
        result = self.outer(x, ids=ids)
        self.received = (x, result, ids)
        return result


PATHS = ("", "outer", "outer.inner")


@pytest.mark.parametrize("names", list(itertools.product(DTYPES, repeat=len(PATHS))), ids="-".join)
def test_a_module_receives_all_its_tensors_in_its_own_precision(names):
    model = Model()
    modules = {"": model, "outer": model.outer, "outer.inner": model.outer.inner}
    with casting(model, dict(zip(PATHS, names, strict=True))) as at_entry:
        result = at_entry(model)(tp.ones((2,), dtype=tp.float32), tp.ones((2,), dtype=tp.int32))
    assert result.dtype == DTYPES[names[0]]
    for path, name in zip(PATHS, names, strict=True):
        *floating, ids = modules[path].received
        assert {tensor.dtype for _, tensor in leaves(floating)} == {DTYPES[name]}, path
        assert ids.dtype == tp.int32


class Leaf(tp.Module):
    def __init__(self):
        super().__init__()
        self.weight = parameter((2,), tp.float32)
        self.ids = parameter((2,), tp.int64)


class Branch(Leaf):
    def __init__(self):
        super().__init__()
        self.leaf = Leaf()


class Tree(Leaf):
    def __init__(self):
        super().__init__()
        self.branch = Branch()


@pytest.mark.parametrize("names", [("fp32", "fp16", "bf16"), ("bf16", "fp32", "fp16")], ids="-".join)
def test_each_parameter_has_the_precision_of_the_module_that_owns_it(names):
    model = Tree()
    prefixes = {"": "", "branch": "branch.", "branch.leaf": "branch.leaf."}
    precisions = dict(zip(prefixes, names, strict=True))
    weights = {}
    for place, prefix in enumerate(prefixes.values()):
        weights[f"{prefix}weight"] = torch.tensor([place + 1.0 / 3.0, -place])
        weights[f"{prefix}ids"] = torch.tensor([place, 2**40])
    load_parameters(model, weights, precisions)
    state = {name: torch.from_dlpack(tensor) for name, tensor in model.state_dict().items()}
    for path, prefix in prefixes.items():
        expected = weights[f"{prefix}weight"].to(PRECISIONS[precisions[path]].dtype)
        assert state[f"{prefix}weight"].dtype == expected.dtype
        assert torch.equal(state[f"{prefix}weight"], expected)
        assert torch.equal(state[f"{prefix}ids"], weights[f"{prefix}ids"])
