"""Modules of PyTorch that the port does not have: sequences, lists, dictionaries of modules, and others."""

import contextlib
import sys

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity
from parity.base.errors import UserError
from parity.base.precision import PRECISIONS
from parity.case import CaseReference, load_case
from parity.case.pairing import ABSENT
from parity.in_process import CleanRun
from parity.runners.tripy.runner import TripyRunner
from parity.studies.fault_injection.batch import BatchBench
from parity.studies.shrink import shrink

FACTORS = {"first": 1.0, "second": 1.0}
"""Factors of the port's two layers; another one is a fault."""


class Chain(torch.nn.Module):
    """Layers that a module of its own class calls in order."""

    def __init__(self, *layers):
        super().__init__()
        for number, layer in enumerate(layers):
            self.add_module(str(number), layer)

    def forward(self, x):
        for layer in self.children():
            x = layer(x)
        return x


class Indexed(torch.nn.ModuleList):
    def __init__(self, *layers):
        super().__init__(layers)

    def forward(self, x):
        return self[1](self[0](x))


def _model(container, call):
    class Reference(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = container(torch.nn.Linear(4, 5), torch.nn.Linear(5, 3))

        def forward(self, x):
            return call(self.trunk, x)

    return Reference


class Layer(tp.Module):
    def __init__(self, inputs, outputs, dtype, factor):
        super().__init__()
        self.weight, self.bias = tp.ones((outputs, inputs), dtype=dtype), tp.ones((outputs,), dtype=dtype)
        self.factor = factor

    def forward(self, x):
        return (x @ tp.transpose(self.weight, 0, 1) + self.bias) * self.factor


class Listed(tp.Module):
    def __init__(self, dtype, names=None):
        super().__init__()
        first, second = Layer(4, 5, dtype, FACTORS["first"]), Layer(5, 3, dtype, FACTORS["second"])
        self.trunk = [first, second] if names is None else dict(zip(names, (first, second), strict=True))

    def forward(self, x):
        for layer in self.trunk.values() if isinstance(self.trunk, dict) else self.trunk:
            x = layer(x)
        return x


def _keyed(dtype):
    return Listed(dtype, names=("a", "b"))


def _as_dict(first, second):
    return torch.nn.ModuleDict({"a": first, "b": second})


IN_ORDER = lambda trunk, x: trunk(x)  # noqa: E731
FORMS = {
    "Sequential": (_model(torch.nn.Sequential, IN_ORDER), Listed),
    "ModuleList": (_model(lambda *own: torch.nn.ModuleList(own), lambda own, x: own[1](own[0](x))), Listed),
    "ModuleDict": (_model(_as_dict, lambda own, x: own["b"](own["a"](x))), _keyed),
    "own class": (_model(Chain, IN_ORDER), Listed),
    "own list": (_model(Indexed, IN_ORDER), Listed),
}
CONTAINERS = ["Sequential", "ModuleList", "ModuleDict"]
X = {"x": np.random.default_rng(0).standard_normal((48, 4)).astype(np.float32)}


def _case(form, **attributes):
    reference, port = FORMS[form]
    methods = {
        "name": "absent",
        "batch_size": 48,
        "build_reference": lambda self: reference(),
        "build_port": lambda self, dtype: port(dtype),
        "make_inputs": lambda self: {"x": X["x"][: self.batch_size]},
    }
    return type("Absent", (parity.Case,), methods | attributes)()


def _status(result):
    """Verdict and modules by tap of the only case, precision and port."""
    ((precision,),) = (case.precisions for case in result.report.cases)
    (port,) = (runner for runner in precision.runners if runner.runner == "tripy")
    modules = {module.tap: (module.status, module.gap) for module in port.modules}
    return port.verdict, port.diagnosis.tap, modules


@pytest.mark.parametrize("wrong", [None, "first", "second"])
@pytest.mark.parametrize("form", CONTAINERS)
def test_a_case_and_a_comparison_judge_a_container_alike(monkeypatch, form, wrong):
    if wrong is not None:
        monkeypatch.setitem(FACTORS, wrong, 1.1)
    reference, port = FORMS[form]
    torch.manual_seed(0)
    strict = _status(parity.check(_case(form), ("fp32",)))
    pair = _status(parity.compare(reference(), port, X, ("fp32",), name="absent"))
    assert strict == pair
    verdict, named, modules = strict
    assert verdict == ("PASS" if wrong is None else "FAIL")
    if wrong is not None:
        parts = [tap for tap, (status, _) in modules.items() if tap.startswith("trunk.") and status != "GAP"]
        assert named == parts[wrong == "second"]
    if form == "Sequential":
        words = "it only calls its modules, and those that the port has are judged"
        assert modules["trunk"] == ("GAP", words)


@pytest.mark.parametrize("form", ["own class", "own list"])
def test_another_module_without_a_counterpart_fails_with_both_remedies(form):
    result = parity.check(_case(form), ("fp32",))
    assert _status(result)[:2] == ("FAIL", "trunk")
    assert ABSENT in " ".join(str(result).split())
    assert "`functional`" in ABSENT
    assert "`one_sided = True`" in ABSENT
    for remedy in ({"one_sided": True}, {"functional": ("trunk",)}):
        assert _status(parity.check(_case(form, **remedy), ("fp32",)))[0] == "PASS"


def test_a_sequence_that_the_port_computes_otherwise_fails_at_its_modules():
    """Its modules are asked for, each by itself."""

    class Joined(tp.Module):
        def __init__(self, dtype):
            super().__init__()
            self.weight = tp.ones((3, 4), dtype=dtype)

        def forward(self, x):
            return x @ tp.transpose(self.weight, 0, 1)

    reference = _model(lambda first, second: torch.nn.Sequential(torch.nn.Linear(4, 3, bias=False)), IN_ORDER)
    weights = {"weight": "trunk.0.weight"}
    case = _case(
        "Sequential",
        weights=weights,
        build_reference=lambda self: reference(),
        build_port=lambda self, dtype: Joined(dtype),
    )
    assert _status(parity.check(case, ("fp32",)))[:2] == ("FAIL", "trunk.0")


def test_shrink_takes_the_wrong_module_behind_an_absent_one(monkeypatch):
    monkeypatch.setitem(FACTORS, "second", 1.1)
    monkeypatch.setattr(sys.modules[__name__], "absent_case", _case("own class"), raising=False)
    case = load_case(CaseReference(target=f"{__name__}:absent_case"))
    failure = shrink(case, PRECISIONS["fp32"], lambda _: None)
    assert (failure.call.path, failure.row.tap) == ("trunk.1", "trunk.1")


def test_shrink_of_a_right_port_without_a_module_names_the_module():
    with pytest.raises(UserError) as refusal:
        shrink(_case("own class"), PRECISIONS["fp32"], lambda _: None)
    assert "fails without a wrong number, which needs no smaller case (trunk (Chain)" in str(refusal.value)
    assert ABSENT in str(refusal.value)


def test_a_module_that_cannot_run_alone_fails_in_this_process_as_in_a_run():
    comparison = CleanRun(_case("own class"), PRECISIONS["fp32"]).judge("tripy")
    assert (comparison.diagnosis.tap, comparison.passed) == ("trunk", False)
    assert ABSENT in comparison.diagnosis.text
    assert CleanRun(_case("Sequential"), PRECISIONS["fp32"]).judge("tripy").passed


@pytest.mark.parametrize(("form", "attributes"), [("Sequential", {}), ("own class", {"one_sided": True})])
def test_a_self_test_measures_a_port_without_a_module(form, attributes):
    case, port = _case(form, **attributes), TripyRunner()
    run = CleanRun(case, PRECISIONS["bf16"])
    port.load(case, run.precision, run.weights)
    bench = BatchBench(
        case, run.precision, "typical", run.arrays, run.weights, port, contextlib.nullcontext()
    )
    alone = {tap for is_alone, tap in bench.clean_errors_in_widest if is_alone}
    assert alone == {"trunk.0", "trunk.1"}


def test_a_self_test_of_a_port_that_lacks_a_module_is_refused():
    case, port = _case("own class"), TripyRunner()
    run = CleanRun(case, PRECISIONS["fp32"])
    port.load(case, run.precision, run.weights)
    with pytest.raises(UserError, match="fails without a fault in batch 'typical' .trunk") as refusal:
        BatchBench(case, run.precision, "typical", run.arrays, run.weights, port, contextlib.nullcontext())
    assert ABSENT in str(refusal.value)


class Swapped(Listed):
    def forward(self, x):
        x = self.trunk[0](tp.flip(x, 1))
        return self.trunk[1](x)


@pytest.mark.parametrize("form", ["Sequential", "own class"])
def test_a_wrong_argument_inside_an_absent_module_is_of_the_code_around_it(form):
    """The port calls the layers in its own forward, and has no code of the trunk."""
    result = parity.compare(FORMS[form][0](), Swapped, X, ("fp32",))
    text = " ".join(str(result).split())
    assert "trunk.0 receives another input" in text
    assert "the code of forward makes the argument" in text
    assert "the code of trunk" not in text
