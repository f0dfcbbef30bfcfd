"""Polygraphy's own command continues from a saved run, by exact names, and detects changes."""

import functools
import json
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch

pytest.importorskip("polygraphy", reason="the files are Polygraphy's: pip install polygraphy")
pytest.importorskip("onnxruntime", reason="polygraphy runs the model on onnxruntime: pip install onnxruntime")

from polygraphy.comparator import IterationResult, RunResults
from polygraphy.json import load_json

from cases.shipped import load_case
from parity.base.precision import PRECISIONS
from parity.execution.folder import CaseFolder
from parity.execution.record import RunnerFailure, Status
from parity.execution.scheduler import Scheduler, Worker
from parity.report import polygraphy
from parity.runners import Unavailable
from tests.parity.hidden_gpu import without_gpu

# One saved run serves all tests here.
pytestmark = pytest.mark.xdist_group("polygraphy")
POLYGRAPHY = [sys.executable, "-c", "import sys; from polygraphy.tools import main; sys.exit(main())"]
CASES = ("dlrm_tiny", pytest.param("hstu_tiny", marks=pytest.mark.full))


@pytest.fixture(scope="module")
def saved(command, tmp_path_factory):
    """`saved(case)`: a case on reference and port, saved once."""

    @functools.cache
    def run_once(case):
        folder = tmp_path_factory.mktemp("polygraphy") / "run"
        ended = command("--case", case, "--precision", "fp32", "--runners", "torch,tripy", "--save", folder)
        assert ended.code == 0, ended
        return folder

    return run_once


@pytest.fixture(scope="module")
def saved_bf16(command, tmp_path_factory):
    """One case in bfloat16, which ONNX Runtime does not have on the CPU."""
    folder = tmp_path_factory.mktemp("bf16") / "run"
    with without_gpu():
        ended = command(
            *("--case", "dlrm_tiny", "--precision", "bf16", "--runners", "torch,onnxruntime"),
            *("--save", folder),
        )
    assert ended.code == 2, ended
    return folder


def files(saved, case, precision="fp32"):
    return saved / case / "batch_0000" / precision / "polygraphy"


def run_readme(folder, *more):
    """The command that the README gives, as a user pastes it."""
    text = (folder / "README.txt").read_text()
    line = re.search(r"^    (polygraphy run (?:.*\\\n)*.*)", text, flags=re.MULTILINE)[1].replace("\\\n", " ")
    arguments = shlex.split(line)[1:]
    done = subprocess.run(
        [*POLYGRAPHY, *arguments, *more], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_polygraphy_run_goes_on_from_here(saved, case):
    folder = files(saved(case), case)
    code, said = run_readme(folder)
    assert code == 0, said
    names = list(load_json(str(folder / "outputs_torch.json"))[0][1][0].keys())
    for name in names:
        assert f"Comparing Output: '{name}'" in said
    assert re.search(rf"PASSED \|.* All outputs matched \| Outputs: {re.escape(str(names))}", said), said
    assert "Pass Rate: 100.00%" in said


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_polygraphy_sees_an_output_that_was_changed(saved, case, tmp_path):
    shutil.copytree(saved(case) / case, tmp_path / case)
    folder = tmp_path / case / "batch_0000" / "fp32" / "polygraphy"
    (label, (result,)) = RunResults.load(str(folder / "outputs_torch.json"))[0]
    outputs = dict(result.items())
    changed = list(outputs)[-1]
    outputs[changed] = outputs[changed].copy()
    outputs[changed].flat[0] += 1e-3
    RunResults([(label, [IterationResult(outputs, runner_name=label)])]).save(
        str(folder / "outputs_torch.json")
    )
    code, said = run_readme(folder)
    assert code == 1
    assert f"Mismatched outputs: ['{changed}']" in said


@pytest.mark.parametrize("case", CASES)
def test_names_and_types_match_exactly(saved, case):
    folder = files(saved(case), case)
    model = onnx.load(saved(case) / case / "onnx" / "fp32" / "model.onnx")
    (feed,) = load_json(str(folder / "inputs.json"))
    assert list(feed) == [value.name for value in model.graph.input]
    for value in model.graph.input:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        assert feed[value.name].dtype == dtype
    for runner in ("torch", "tripy"):
        ((label, (result,)),) = RunResults.load(str(folder / f"outputs_{runner}.json"))
        assert list(result) == [value.name for value in model.graph.output]
        assert label == result.runner_name
        assert label in (folder / "README.txt").read_text()


@pytest.mark.full
def test_what_did_not_answer_has_no_outputs_and_the_readme_says_why(saved_bf16):
    folder = files(saved_bf16, "dlrm_tiny", "bf16")
    assert sorted(path.name for path in folder.iterdir()) == [
        *("README.txt", "inputs.json", "outputs_torch.json")
    ]
    said = " ".join((folder / "README.txt").read_text().split())
    assert "no outputs of onnxruntime" in said
    assert "cannot run bf16" in said
    assert "--onnxrt" not in said


@pytest.mark.full
def test_bfloat16_is_stored_as_torchs(saved_bf16):
    folder = files(saved_bf16, "dlrm_tiny", "bf16")
    ((_, (result,)),) = RunResults.load(str(folder / "outputs_torch.json"))
    assert {tensor.dtype for tensor in result.values()} == {torch.bfloat16}
    assert "The files hold bfloat16 tensors of PyTorch" in (folder / "README.txt").read_text()
    (feed,) = load_json(str(folder / "inputs.json"))
    assert {array.dtype for array in feed.values()} == {np.dtype(np.int64)}


def test_without_polygraphy_the_run_is_saved_and_says_what_to_install(monkeypatch, tmp_path):
    class Process:
        def request(self, *_):
            raise RunnerFailure(Status.UNAVAILABLE, "No module named 'polygraphy'; `pip install polygraphy`")

    class Here:
        def get(self, *_):
            return Process()

    case = load_case("dlrm_tiny")
    worker = Worker(Here(), Scheduler())
    polygraphy.write_polygraphy(case, PRECISIONS["fp32"], CaseFolder(tmp_path), worker)
    assert "`pip install polygraphy`" in (tmp_path / "onnx" / "fp32" / "README.txt").read_text()


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "polygraphy.comparator", None)
    case = load_case("dlrm_tiny")
    with pytest.raises(Unavailable, match="`pip install polygraphy onnx onnxscript`"):
        polygraphy.write(case.reference, PRECISIONS["fp32"], CaseFolder(tmp_path))


def test_the_saved_json_is_polygraphys(saved):
    text = (files(saved("dlrm_tiny"), "dlrm_tiny") / "outputs_torch.json").read_text()
    assert json.loads(text)["polygraphy_class"] == "RunResults"
