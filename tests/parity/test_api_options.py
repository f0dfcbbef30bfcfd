"""Options of live models: each one works, and each bad value names its field."""

import io

import numpy as np
import nvtripy as tp
import pytest
import torch
from rich.console import Console

import parity
from parity import From
from parity.report.terminal import render
from tests.parity.live_models import modules

RNG = np.random.default_rng(0)


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 4)
        self.skip = torch.nn.Identity()
        self.gate = torch.nn.Sigmoid()
        self.second = torch.nn.Linear(4, 3)
        self.second.weight.data.fill_(0.0)
        self.register_buffer("table", torch.arange(5.0))

    def forward(self, x):
        return self.second(self.gate(self.skip(self.first(x))))

    def score(self, x):
        return {"half": 0.5 * self.forward(x)}


class TwoPort(tp.Module):
    """Other names, and weights in the order (in, out)."""

    def __init__(self, dtype):
        super().__init__()
        self.layers = [Transposed(6, 4, dtype), Transposed(4, 3, dtype)]

    def forward(self, x):
        return self.layers[1](tp.sigmoid(self.layers[0](x)))

    def score(self, x):
        return {"half": 0.5 * self.forward(x)}


class WrongScore(TwoPort):
    """Only the other method is wrong."""

    def score(self, x):
        return {"half": 0.25 * self.forward(x)}


class Transposed(tp.Module):
    def __init__(self, width, out, dtype):
        super().__init__()
        self.weight = tp.zeros((width, out), dtype=dtype)
        self.bias = tp.zeros((out,), dtype=dtype)

    def forward(self, x):
        return x @ self.weight + self.bias


ROWS = {"x": RNG.standard_normal((32, 6)).astype(np.float32)}
NAMES = {"layers.0": "first", "layers.1": "second"}
WEIGHTS = {
    "layers.0.weight": From("first.weight", transpose=True),
    "layers.1.weight": From("second.weight", transpose=(1, 0)),
}


def two(precisions=("fp32",), **options):
    options = {"names": NAMES, "weights": WEIGHTS, "unused": ("table",)} | options
    return parity.compare(Two(), TwoPort, ROWS, precisions, **options)


def test_names_and_transposed_weights():
    result = two()
    assert result.passed, result
    judged = {tap: module.status for tap, module in modules(result).items()}
    assert judged == {
        "first": "PASS",
        "skip": "GAP",
        "gate": "GAP",
        "second": "PASS",
        "forward.output": "PASS",
    }


def test_modules_of_one_side_have_their_reasons():
    gaps = {tap: module.gap for tap, module in modules(two(functional=("Sigmoid",))).items() if module.gap}
    assert gaps == {
        "skip": "returns its input in evaluation",
        "gate": "the port computes it by a function",
    }
    # The gate is a sigmoid.
    assert modules(two(inert=("gate",)))["gate"].gap.startswith("is named in inert, and changes its input;")
    assert modules(two())["gate"].gap == "the port has no module of this path"


def test_the_entry_is_another_method():
    result = two(entry="score")
    assert result.passed, result
    assert "score.output" in modules(result)


@pytest.mark.parametrize("entry", ["score", "forward"])
def test_the_entry_alone_is_judged(entry):
    options = {"names": NAMES, "weights": WEIGHTS, "unused": ("table",), "entry": entry}
    result = parity.compare(Two(), WrongScore, ROWS, ("fp32",), **options)
    assert result.passed == (entry == "forward"), result


def test_the_model_s_own_weights():
    drawn, own = (modules(two(initial=initial))["second"].accumulated for initial in ("sensitive", "own"))
    assert two(initial="own").report.cases[0].weights_source == "the model's own"
    assert any(element.oracle for element in drawn.worst)
    # Weights of zero leave the bias, the same in all rows.
    assert len({element.oracle for element in own.worst}) <= 3


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(40, 16)
        self.head = torch.nn.Linear(16, 40, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(self.table(ids))


class TiedPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.table = tp.Embedding(40, 16, dtype=dtype)

    def forward(self, ids):
        return self.table(ids) @ tp.transpose(self.table.weight, 0, 1)


def test_a_tied_tensor_is_not_left_over():
    ids = {"ids": RNG.integers(0, 40, (16, 5))}
    result = parity.compare(Tied(), TiedPort, ids, ("fp32",))
    assert result.passed, result


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unused": ()}, "weights: table is left over: no tensor of the port takes it; name it in weights"),
        (
            {"unused": ("table", "first.bias")},
            "unused: first.bias is taken by the port",
        ),
        ({"unused": ("table", "first.*")}, "unused: first.weight, first.bias are taken by the port"),
        ({"names": {}}, "weights: layers.*.bias (2 tensors) are 2 of 4 tensors of the port alone"),
        ({"names": {}}, "write names={'layers.*': ...}"),
        ({"names": NAMES | {"layer.2": "third"}}, "names: layer.2 matches no module of the port"),
        ({"names": {"layers.*": "first"}}, "names: first is the path of both layers.0 and layers.1"),
        ({"names": {"layers.0": "first.*"}}, "names['layers.0']: first.* has more stars than its pattern"),
        ({"weights": {}}, "is not the port's shape (6, 4); write From(name, transpose=True)"),
        (
            {"weights": WEIGHTS | {"layers.2.bias": "b"}},
            "weights: layers.2.bias matches no tensor of the port",
        ),
        (
            {"weights": WEIGHTS | {"layers.0.bias": "b"}},
            "weights: layers.0.bias needs 'b', which the reference lacks",
        ),
        (
            {"weights": WEIGHTS | {"layers.1.bias": From("first.bias", split=(0, 2))}},
            "is not the port's shape (3,)",
        ),
        ({"weights": WEIGHTS | {"layers.1.bias": From("first.bias", split=(0, 3))}}, "has no 3 equal parts"),
        ({"weights": WEIGHTS | {"layers.1.bias": None}}, "weights: second.bias is left over"),
        (
            {"weights": {"layers.*.bias": None} | WEIGHTS | {"layers.1.bias": From("first.bias")}},
            "weights: layers.1.bias decides nothing: 'layers.*.bias' above it has layers.1.bias; write",
        ),
        ({"weights": {"layers.0.weight": 3}}, "weights['layers.0.weight']: 3 is no name"),
        ({"initial": "random"}, "initial: random is not known; use 'sensitive' or 'own'"),
        ({"inert": "Sigmoid"}, "inert: Sigmoid is a text; give a sequence, such as ('Sigmoid',)"),
        ({"names": ["a"]}, "names: ['a'] is no dictionary; write {port's name: reference's name}"),
        ({"weights": ["a"]}, "weights: ['a'] is no dictionary"),
        ({"precisions": ()}, "precisions: () names none; leave it out, or give a tuple of names"),
        ({"precisions": (None,)}, "precisions: None is no name; use fp32"),
        ({"runners": (["tripy"],)}, "runners: ['tripy'] is no name; use torch"),
        ({"precisions": ("fp32", "fp16", "fp32")}, "precisions: fp32 is named twice; name it once"),
        ({"entry": 3}, "entry: 3 is no method of the PyTorch model; name one of its methods"),
        ({"mask": lambda arrays: arrays["x"] != arrays["x"]}, "masks every position; give True where"),
        (
            {"tolerance": {"fist": 0.1}},
            "tolerance: fist matches no module; did you mean 'first'? known: first",
        ),
        ({"unused": ("table", "*.layer.*")}, "unused: *.layer.* matches no tensor of the reference"),
        (
            {"unused": ("table", "*bias")},
            "unused: *bias has a star for one part of the path alone; write **bias",
        ),
        ({"inert": ("zz",)}, "inert: zz matches no module; use names such as first, skip, gate"),
        ({"functional": ("GELU",)}, "functional: GELU matches no module"),
        ({"unused": ("tables",)}, "unused: tables matches no tensor of the reference; did you mean 'table'?"),
        (
            {"names": NAMES | {"layers.1": "oo"}, "weights": {}},
            "names maps 'layers.1' to 'oo', which the reference lacks",
        ),
        ({"mask": "y"}, "mask: y is not known; use x"),
        ({"mask": 3}, "mask: 3 is no name and no function"),
        ({"mask": lambda arrays: arrays["x"]}, "mask: (32, 6) is no (B, N) mask of the batch"),
        ({"mask": lambda arrays: arrays["x"] == arrays["x"]}, "masks nothing"),
        ({"poison": ("x",)}, "poison: ('x',) needs a mask"),
        ({"poison": "x"}, "poison: x is a text; give a sequence"),
        ({"dynamic": {"x": 1}}, "has no axes by input; write {input: {axis: least size}}"),
        ({"dynamic": {"y": {0: 1}}}, "dynamic: y is not known; use x"),
        ({"dynamic": {"x": {2: 1}}}, "dynamic['x']: 2 is no axis of (32, 6); use 0 to 1"),
        ({"dynamic": {"x": {0: 33}}}, "dynamic['x'][0]: 33 is no least size; give 1 to 32"),
    ],
)
def test_a_bad_option_names_the_field_and_the_fix(options, message):
    with pytest.raises(parity.UserError) as caught:
        two(**options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: From(), "From: () names no tensor"),
        (lambda: From("a", split=(3, 3)), "From.split: (3, 3) is no part of a tensor; give (part, parts)"),
        (lambda: From("a", transpose=(0, 2)), "From.transpose: (0, 2) is no order of axes"),
    ],
)
def test_a_source_that_makes_no_sense(make, message):
    with pytest.raises(parity.UserError) as caught:
        make()
    assert message in str(caught.value)


class Flat(TwoPort):
    """Drops the leading axis of 1, inside and in its result."""

    def forward(self, x):
        return super().forward(tp.squeeze(x, 0))


def test_leading_axes_of_one_do_not_count():
    rows = {"x": ROWS["x"][None]}
    options = {"names": NAMES, "weights": WEIGHTS, "unused": ("table",)}
    result = parity.compare(Two(), Flat, rows, ("fp32",), squeeze=True, **options)
    assert result.passed, result
    assert modules(result)["second"].isolated.status == "PASS"
    failed = parity.compare(Two(), Flat, rows, ("fp32",), **options)
    assert "shape" in str(failed), failed
    with pytest.raises(parity.UserError, match="squeeze: 3 is not known; use True or False"):
        two(squeeze=3)


class Scaled(TwoPort):
    def forward(self, x):
        return 1.001 * super().forward(x)


def test_a_tolerance_passes_and_is_red_in_the_report(tmp_path):
    options = {"names": NAMES, "weights": WEIGHTS, "unused": ("table",)}
    assert not parity.compare(Two(), Scaled, ROWS, ("fp32",), **options).passed
    for allowed, passes in ((0.0005, False), (0.002, True)):
        result = parity.compare(Two(), Scaled, ROWS, ("fp32",), tolerance={"forward.*": allowed}, **options)
        assert result.passed is passes, result
    assert "TOLERATED: forward.output: relative L2 error 0.001" in str(result)
    assert "the case tolerates 0.002" in str(result)
    page = (result.write(tmp_path / "out") / "report.html").read_text()
    assert '<li class="finding">Two, fp32' in page
    with Console(record=True, width=200, file=io.StringIO()) as console:
        console.print(render(result.report))
    assert "\x1b[1;31mTOLERATED" in console.export_text(styles=True)


@pytest.mark.parametrize(
    ("tolerance", "message"),
    [
        (0.1, "tolerance: 0.1 is for no module; write {path: relative error}"),
        ({"first": 1.5}, "tolerance['first']: 1.5 is no relative error; give more than 0 and less than 1"),
    ],
)
def test_a_tolerance_that_makes_no_sense(tolerance, message):
    with pytest.raises(parity.UserError) as caught:
        two(tolerance=tolerance)
    assert message in str(caught.value)


def test_a_parametrized_weight_is_made_plain_first():
    class Plain(tp.Module):
        def __init__(self, dtype):
            super().__init__()
            self.linear = tp.Linear(6, 4, dtype=dtype)

        def forward(self, x):
            return self.linear(x)

    class Normed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(6, 4))

        def forward(self, x):
            return self.linear(x)

    reference = Normed()
    with pytest.raises(parity.UserError, match=r"remove_parametrizations\(module, 'weight'\) on linear"):
        parity.compare(reference, Plain, ROWS, ("fp32",))
    torch.nn.utils.parametrize.remove_parametrizations(reference.linear, "weight")
    assert parity.compare(reference, Plain, ROWS, ("fp32",)).passed


class Joined(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(6, 12)

    def forward(self, x):
        return torch.add(*self.qkv(x).chunk(3, -1)[:2])


class Apart(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.q, self.k, self.v = (tp.Linear(6, 4, dtype=dtype) for _ in range(3))

    def forward(self, x):
        return self.q(x) + self.k(x)


def test_parts_of_a_joined_tensor_have_their_rule():
    with pytest.raises(parity.UserError) as caught:
        parity.compare(Joined(), Apart, ROWS, ("fp32",))
    assert "'q.weight': parity.From('qkv.weight', split=(0, 3))" in str(caught.value)


class Attending(torch.nn.Module):
    """Attention whose projections are one tensor, twice."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.MultiheadAttention(6, 2) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, x, x)[0]
        return x


class AttendingApart(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.layers = [Projections(dtype), Projections(dtype)]

    def forward(self, x):
        return x


class Projections(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.q, self.k, self.v, self.out_proj = (tp.Linear(6, 6, dtype=dtype) for _ in range(4))


def test_parts_of_a_joined_parameter_of_repeated_modules_have_one_rule():
    with pytest.raises(parity.UserError) as caught:
        parity.compare(Attending(), AttendingApart, ROWS, ("fp32",))
    source = "parity.From('layers.*.in_proj_weight', split="
    rules = ", ".join(f"'layers.*.{name}.weight': {source}({part}, 3))" for part, name in enumerate("qkv"))
    assert f"write weights={{{rules}}} in the reference's order" in str(caught.value)


def test_nan_in_the_inputs_is_a_mistake_of_the_inputs():
    rows = {"x": np.full((32, 6), np.nan, np.float32)}
    with pytest.raises(
        parity.UserError, match=r"inputs.x\[0, 0\]: nan makes forward.output of the reference"
    ):
        parity.compare(Two(), TwoPort, rows, ("fp32",), names=NAMES, weights=WEIGHTS, unused=("table",))


def test_nan_in_the_weights_blames_nobody():
    model = Two()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    options = {"names": NAMES, "weights": WEIGHTS, "unused": ("table",), "initial": "own"}
    result = parity.compare(model, TwoPort, ROWS, ("fp32",), **options)
    assert "cannot be judged: NaN or Inf" in str(result)
    assert "no verdict is possible: look for them in the inputs and weights" in str(result)
    assert "diverges" not in str(result)


def test_a_wrong_module_that_names_pairs_has_its_name_in_the_port():
    class Rows(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fields = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.fields(x)

    class RowsPort(tp.Module):
        def __init__(self, dtype, name):
            super().__init__()
            setattr(self, name, tp.Linear(4, 4, dtype=dtype))
            self._name = name

        def forward(self, x):
            return getattr(self, self._name)(x) * 1.0

    class Wrong(tp.Linear):
        def forward(self, x):
            return super().forward(x) * 1.01

    def told(name, **options):
        def build(dtype):
            port = RowsPort(dtype, name)
            setattr(port, name, Wrong(4, 4, dtype=dtype))
            return port

        result = parity.compare(Rows(), build, {"x": torch.randn(8, 4)}, ("fp32",), **options)
        return result.report.cases[0].precisions[0].runners[1].diagnosis

    text = "names pairs it with rows of the port"
    other = told("rows", names={"rows": "fields"})
    assert (other.tap, other.explanation[-1]) == ("fields", text)
    assert text not in told("fields").explanation


def raising(*_):
    raise KeyError("lost")


def ending(*_):
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: parity.compare(raising, TwoPort, ROWS),
            "torch_model: raising cannot be built (KeyError: 'lost'",
        ),
        (lambda: parity.compare(ending, TwoPort, ROWS), "torch_model: ending cannot be built (SystemExit: 0"),
        (lambda: parity.compare(lambda size: Two(), TwoPort, ROWS), "torch_model: "),
        (lambda: parity.compare(Two(), lambda dtype: raising(), ROWS), "port: "),
        (lambda: parity.compare(Two(), lambda: ending(), ROWS), "port: "),
        (lambda: parity.compare(Two(), dict, ROWS), "port: <class 'dict'> has no parameters"),
        (
            lambda: parity.compare(Two(), TwoPort, {0: ROWS["x"]}),
            "inputs: 0 is no name of an argument; give arguments by name",
        ),
        (lambda: parity.compare(Two(), TwoPort, {**ROWS, 1: 2}), "inputs: 1 is no name of an argument"),
        *(
            (
                lambda field=field, value=value: two(**{field: value}),
                f"{field}: {told} is no name; give names of",
            )
            for field, value, told in (
                ("names", {1: "first"}, 1),
                ("weights", {None: "first.weight"}, None),
                ("tolerance", {2: 0.1}, 2),
                ("unused", (3,), 3),
                ("functional", [None], None),
                ("inert", {4}, 4),
            )
        ),
        (lambda: two(unused=5), "unused: 5 is no sequence of names; give a tuple of names"),
        (lambda: two(functional=iter("a")), "functional: "),
        (lambda: two(dynamic={"x": {"0": 1}}), "dynamic['x']: '0' is no axis of (32, 6); use 0 to 1"),
        (lambda: two(dynamic={"x": {0: True}}), "dynamic['x'][0]: True is no least size; give 1 to 32"),
        (lambda: two(dynamic={"x": {0: 1.5}}), "dynamic['x'][0]: 1.5 is no least size"),
        (lambda: From(3), "From: 3 is no name; give the names of tensors of the reference"),
        (lambda: From("a", split="ab"), "From.split: ab is no part of a tensor; give (part, parts)"),
        (
            lambda: From("a", transpose=3),
            "From.transpose: 3 is no order of axes; give True, or each axis once",
        ),
        (lambda: From("a", axis="0"), "From.axis: '0' is no axis; give its number, such as 0"),
        (
            lambda: two(precisions=(name for name in ["fp32"])),
            "precisions: <generator",
        ),
        # The remedy is a name that is known, whatever was given.
        (
            lambda: two(precisions="fp16"),
            "precisions: fp16 is no sequence of names; give a tuple, such as ('fp16',)",
        ),
        (
            lambda: two(precisions="fp23"),
            "precisions: fp23 is no sequence of names; give a tuple, such as ('fp32',)",
        ),
        (
            lambda: two(precisions=torch.float32),
            "precisions: torch.float32 is no sequence of names; give a tuple, such as ('fp32',)",
        ),
        (lambda: two(precisions={"fp32": 1}), "precisions: {'fp32': 1} is no sequence of names"),
        (lambda: two(runners=3), "runners: 3 is no sequence of names; give a tuple, such as ('torch',)"),
        (lambda: From("a", axis=1), "From.axis: 1 has no effect: nothing is joined or split; name the"),
        (
            lambda: parity.compare(lambda x: x, TwoPort, ROWS),
            "torch_model: <lambda>.<locals>.<lambda> is no torch.nn.Module, and needs x; give the",
        ),
    ],
)
def test_a_wrong_type_of_an_argument_is_bad_input(call, message):
    with pytest.raises(parity.UserError) as caught:
        call()
    assert str(caught.value).startswith(message)
    assert "\\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (
            torch.eye(3).to_sparse(),
            "inputs['x']: Tensor is no dense tensor of numbers that NumPy has (TypeError",
        ),
        (torch.ones(3, 6, device="meta"), "inputs['x']: Tensor is no dense tensor of numbers"),
        (torch.ones(3, 6).to(torch.float8_e4m3fn), "inputs['x']: Tensor is no dense tensor of numbers"),
        (
            torch.nested.as_nested_tensor([torch.ones(3), torch.ones(2)]),
            "inputs['x']: Tensor is no dense tensor",
        ),
        (
            np.ma.array(ROWS["x"], mask=ROWS["x"] > 0.0),
            "inputs.x: MaskedArray is no NumPy array of numbers in Two",
        ),
        (
            ROWS["x"].astype(np.longdouble),
            f"inputs.x: an array of {np.dtype(np.longdouble)} is no NumPy array",
        ),
    ],
    ids=["sparse", "meta", "float8", "nested", "masked", "long"],
)
def test_an_input_that_no_array_holds_is_refused(x, message):
    with pytest.raises(parity.UserError) as caught:
        parity.compare(Two(), TwoPort, {"x": x}, names=NAMES, weights=WEIGHTS, unused=("table",))
    assert str(caught.value).startswith(message)
