"""A case is named by plain data, which any process can import; what it leaves out has defaults."""

import json
import sys
import textwrap

import numpy as np
import pytest

import parity
from parity.base.errors import UserError
from parity.inputs.arrays import make_inputs
from tests.parity.saved_runs import quick_runs

MODULE = """
    import numpy as np
    import nvtripy as tp
    import torch

    import parity


    class Doubling(parity.Case):
        name = "doubling"
        description = "y = Wx"

        def __init__(self, width=3):
            self.width = width

        def build_reference(self):
            return torch.nn.Sequential(torch.nn.Linear(self.width, 2))

        def build_port(self, dtype):
            return tp.Sequential(tp.Linear(self.width, 2, dtype=dtype))

        def make_inputs(self):
            rng = np.random.default_rng(self.seed)
            return {"input": rng.standard_normal((self.batch_size, self.width)).astype(np.float32)}


    instance = Doubling(5)
    number = 3
    unnamed = Doubling()
    unnamed.name = "two words"


    def widened(width, factor) -> parity.Case:
        return Doubling(width * int(factor))


    def undeclared(width):
        return Doubling(width)


    def misdeclared(width) -> "Absent":
        return Doubling(width)


    def nothing():
        return None


    def failing():
        return {}["width"]
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "doubling_cases.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(tmp_path)


def test_a_case_without_its_methods_says_which(tmp_path, monkeypatch):
    (tmp_path / "half_case.py").write_text("import parity\nclass Half(parity.Case):\n    name = 'half'\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        UserError, match=r"cannot be made \(.*build_port.*\); write the methods that it lacks"
    ):
        parity.load_case(parity.CaseReference(target="half_case:Half"))


@pytest.mark.parametrize(
    ("attribute", "values", "width"),
    [
        ("instance", {}, 5),
        ("Doubling", {}, 3),
        ("Doubling", {"width": 7}, 7),
        ("widened", {"width": 2, "factor": 4}, 8),
    ],
)
def test_an_instance_a_class_and_a_function_are_cases(attribute, values, width):
    reference = parity.CaseReference(
        target=f"doubling_cases:{attribute}", values=values, seed=4, batch_size=6
    )
    case = parity.load_case(parity.CaseReference.model_validate_json(reference.model_dump_json()))
    assert (case.name, case.seed, case.batch_size, case.width) == ("doubling", 4, 6, width)
    assert make_inputs(case).typical["input"].shape == (6, width)
    # The loaded case names itself, in JSON's types, with its overrides.
    again = parity.load_case(parity.CaseReference(**json.loads(json.dumps(case.reference.model_dump()))))
    assert (again.seed, again.batch_size, again.width) == (4, 6, width)
    assert (again.reference.name, again.reference.description) == ("doubling", "y = Wx")


def test_overrides_leave_the_module_s_own_case_alone():
    reference = parity.CaseReference(target="doubling_cases:instance")
    assert parity.load_case(reference.model_copy(update={"seed": 9})).seed == 9
    assert parity.load_case(reference).with_overrides(batch_size=2).reference.batch_size == 2
    assert (parity.load_case(reference).seed, parity.load_case(reference).batch_size) == (0, 4)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (
            {"target": "doubling_cases"},
            "is no import path; write it as package.module:attribute",
        ),
        ({"target": "..:case"}, "is no import path; write it as package.module:attribute"),
        ({"target": "no_such_module:case"}, "cannot be imported"),
        (
            {"target": "doubling_cases:absent"},
            "has no attribute 'absent'; name Doubling, ",
        ),
        ({"target": "doubling_cases:Doublin"}, "has no attribute 'Doublin'; write Doubling"),
        ({"target": "doubling_cases:number"}, "is of type int, not a parity.Case; name a Case"),
        ({"target": "doubling_cases:nothing"}, "is of type NoneType, not a parity.Case"),
        ({"target": "doubling_cases:unnamed"}, "has the name 'two words'; give it a name of letters"),
        ({"target": "doubling_cases:instance", "values": {"width": 3}}, "is a Case and takes no values"),
        ({"target": "doubling_cases:Doubling", "values": {"depth": 3}}, "cannot be made"),
        ({"target": "doubling_cases:undeclared", "values": {"width": 3}}, "annotate it with `-> Case`"),
        ({"target": "doubling_cases:misdeclared", "values": {"width": 3}}, "annotate it with `-> Case`"),
        ({"target": "doubling_cases:Doubling", "name": "tripling"}, "makes doubling, not tripling"),
        ({"target": "doubling_cases:widened", "values": {"width": 3, "factor": "x"}}, "cannot be made"),
        ({"target": "doubling_cases:Doubling", "batch_size": 0}, "batch_size: 0 is less than 1"),
        ({"target": "doubling_cases:Doubling", "seed": -1}, "seed: -1 is negative"),
    ],
)
def test_a_reference_that_is_no_case_is_refused(reference, message):
    with pytest.raises(UserError) as caught:
        parity.load_case(parity.CaseReference(**reference))
    assert message in str(caught.value)


def test_a_file_whose_name_another_module_has_is_named(monkeypatch, tmp_path):
    (tmp_path / "doubling_cases.py").write_text("mine = 1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        parity.load_case(parity.CaseReference(target="doubling_cases:mine"))
    found = sys.modules["doubling_cases"].__file__
    assert str(caught.value).endswith(f"; rename doubling_cases.py: Python finds {found} by that name")


@pytest.mark.parametrize(
    ("path", "fix"),
    [
        ("mine.py", "write mine:case"),
        ("models/mine.py", "write models.mine:case"),
        ("../mine.py", "in its folder, write mine:case"),
    ],
)
def test_a_file_in_place_of_a_module(path, fix, tmp_path, monkeypatch):
    folder = tmp_path / "here"
    (folder / "models").mkdir(parents=True)
    (folder / path).write_text("")
    monkeypatch.chdir(folder)
    with pytest.raises(UserError) as caught:
        parity.load_case(parity.CaseReference(target=f"{path}:case"))
    assert str(caught.value) == f"case: {path}:case names a file, and no module; {fix}"


def test_a_path_without_its_ending_in_place_of_a_module(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/mine.py").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        parity.load_case(parity.CaseReference(target="models/mine:case"))
    fix = "write models.mine:case"
    assert str(caught.value) == f"case: models/mine:case names a file, and no module; {fix}"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: parity.check(parity.Case), "is no parity.Case; give an instance of a subclass"),
        (lambda: parity.check("mine:Small"), "case: mine:Small is no parity.Case"),
        (lambda: parity.load_case("mine:Small"), "reference: mine:Small is no parity.CaseReference"),
    ],
    ids=["a class", "a path", "a path to load"],
)
def test_something_else_in_place_of_a_case(call, message):
    with pytest.raises(UserError) as caught:
        call()
    assert message in str(caught.value)


@pytest.mark.parametrize("target", ["sys:exit", "doubling_cases:failing"])
def test_a_function_that_fails_makes_no_case(target):
    with pytest.raises(UserError, match=r"cannot be made \((SystemExit\)|KeyError: )"):
        parity.load_case(parity.CaseReference(target=target))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "\nraise RuntimeError('no data')",
            r"\(RuntimeError: no data, .*own_case\.py:2\); correct that code",
        ),
        ("import sys\nsys.exit(0)", r"\(SystemExit: 0, .*own_case\.py:2\)"),
        ("\n\ndef (", r"\(SyntaxError: invalid syntax .*own_case\.py:3\)"),
    ],
    ids=["raises", "exits", "no Python"],
)
def test_a_module_that_fails_is_refused_with_the_line(tmp_path, source, message):
    (tmp_path / "own_case.py").write_text(source)
    with pytest.raises(UserError, match=message):
        parity.load_case(parity.CaseReference(target="own_case:case"))


@pytest.mark.parametrize(
    ("misspelt", "field", "fix"),
    [
        ("batchsize = 40", "batchsize", "batch_size"),
        ("one_side = True", "one_side", "one_sided"),
        ("def valid_row(self, arrays):\n        return {}", "valid_row", "valid_rows"),
    ],
)
def test_a_misspelt_attribute_is_named(misspelt, field, fix, tmp_path, monkeypatch):
    _module_with(tmp_path, monkeypatch, misspelt)
    with pytest.raises(UserError) as refused:
        parity.load_case(parity.CaseReference(target="spelling:Spelt"))
    assert str(refused.value) == (
        f"Spelt: {field} is no attribute of a Case; did you mean {fix!r}? "
        "Otherwise give it a name that begins with _"
    )


@pytest.mark.parametrize(
    "own",
    [
        "batch_size = 40",
        "_batchsize = 40",
        "width = 40",
        # Code of the module reads them.
        "seeds = (1, 2)\n    def make_inputs(self):\n        return self.seeds",
        "row = 3\n\n\ndef last(case):\n    return case.row",
    ],
)
def test_attributes_of_a_case_s_own_are_free(own, tmp_path, monkeypatch):
    _module_with(tmp_path, monkeypatch, own)
    assert parity.load_case(parity.CaseReference(target="spelling:Spelt")).name == "spelt"


def _module_with(tmp_path, monkeypatch, attribute):
    source = (
        "import parity\n\n\nclass Spelt(parity.Case):\n    name = 'spelt'\n"
        "    build_reference = build_port = make_inputs = lambda self: None\n"
        f"    {attribute}\n"
    )
    (tmp_path / "spelling.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "spelling", raising=False)


@pytest.mark.parametrize(
    ("target", "values"),
    [
        ("os:system", {"command": "touch ran"}),
        ("subprocess:call", {"args": "touch ran", "shell": True}),
        ("subprocess:Popen", {"args": "touch ran", "shell": True}),
        ("os:mkdir", {"path": "ran"}),
    ],
)
def test_a_reference_of_a_file_calls_nothing_else(target, values, tmp_path, monkeypatch):
    """A saved run of somebody else names the function and its arguments."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"not a parity\.Case|not declared to return a Case"):
        parity.load_case(parity.CaseReference(target=target, values=values))
    assert not (tmp_path / "ran").exists()


def test_a_case_without_a_reference_says_so():
    case = type(parity.load_case(parity.CaseReference(target="doubling_cases:Doubling")))()
    with pytest.raises(UserError, match="has no reference; load it with parity.load_case"):
        _ = case.reference


@pytest.mark.parametrize(
    ("made", "problem"),
    [({}, "has no array"), ({"x": [1.0]}, "is no NumPy array"), (parity.Batches([], "none", {}), "no batch")],
)
def test_inputs_that_are_no_arrays_are_refused(made, problem):
    case = parity.load_case(parity.CaseReference(target="doubling_cases:Doubling"))
    case.make_inputs = lambda: made
    with pytest.raises(UserError, match=problem):
        make_inputs(case)


def test_defaults_are_those_of_a_dense_model_without_padding():
    case = parity.load_case(parity.CaseReference(target="doubling_cases:Doubling"))
    inputs = make_inputs(case)
    arrays = inputs.typical
    assert (inputs.source, inputs.counts, inputs.labels) == ("synthetic, seed 0", {"rows": 4}, ())
    assert not arrays["input"].flags.writeable
    assert np.array_equal(case.rows(arrays, slice(1, 3))["input"], arrays["input"][1:3])
    assert case.rows({**arrays, "shared": np.zeros(1)}, slice(1, 3)) is None
    assert case.dynamic_sizes(arrays) == {4: 1}
    assert case.dynamic_axes(arrays) == {"input": ("batch", 1)}
    assert case.named_outputs((1, 2)) == {"forward.0": 1, "forward.1": 2}
    assert case.named_outputs({"a": 1}) == {"forward.a": 1}
    assert case.poison(arrays, 1) is None
    assert case.incremental_arguments(arrays) is None
    with pytest.raises(parity.NoForm, match="doubling has no jagged form"):
        case.form("jagged")
    with pytest.raises(UserError, match="doubling reads no data; leave --data out"):
        case.read("ratings.csv")


def test_the_command_runs_a_case_by_its_import_path(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = ("--model", "doubling_cases:Doubling", "--batch", "16", "--precision", "fp32")
    with quick_runs():
        ended = command(*named, "--runners", "tripy,torch_jagged", "--save", tmp_path / "run")
    assert ended.code == 2, ended
    assert "doubling has no jagged form" in ended.words
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["cases"][0]["case"]["batch_size"] == 16
    runners = {runner["runner"]: runner for runner in report["cases"][0]["precisions"][0]["runners"]}
    assert runners["tripy"]["verdict"] == "PASS", ended
    assert command("replay", tmp_path / "run").code == 2


def test_a_folder_that_is_taken_for_a_module_is_named(tmp_path, monkeypatch):
    """A folder of captures has the name of its case."""
    (tmp_path / "captured_case").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    problem = rf"finds the folder {tmp_path}/captured_case, which has no code of that name; call"
    with pytest.raises(UserError, match=problem):
        parity.load_case(parity.CaseReference(target="captured_case:case"))
