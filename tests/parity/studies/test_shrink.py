"""Failing modules as folders of their own: small, and failing without the harness."""

import shutil
import subprocess
import sys

import pytest

from cases.shipped import load_case
from parity.base.errors import UserError
from parity.base.precision import PRECISIONS
from parity.base.sealed import read_sealed
from parity.coverage.source import swapped
from parity.runners.tripy.runner import TripyRunner
from parity.studies.fault_injection.handwritten import handwritten
from parity.studies.shrink import shrink, write
from tests.parity.fault_runs import HANDWRITTEN

EDITS = {edit.detail: edit for edit in handwritten(HANDWRITTEN)}
FAULTS = (
    "offsets_off_by_one",
    # Between the modules, each of which is right on its own: the whole model is reproduced.
    "sigmoid_twice_in_the_model",
    "time_difference_to_the_same_item",
    "eps_1e-5",
    "positions_shifted_by_one",
    "pairs_of_the_upper_triangle",
)


def _alone(folder):
    """The script as somebody runs it who has no part of this project."""
    return subprocess.run(
        [sys.executable, "-I", folder / "reproduce.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.full
@pytest.mark.parametrize("name", FAULTS)
def test_the_folder_of_a_fault_fails_alone(name, tmp_path):
    edit = EDITS[name]
    original = load_case(edit.case)
    with swapped(edit.module, edit.tree()):
        failure = shrink(original, PRECISIONS["fp32"], progress=lambda _: None)
    assert failure.row.tap == edit.named
    assert failure.case.input.batch_size < original.input.batch_size
    folder = tmp_path / "small"
    write(failure, folder)
    # The port as it stands, which has no fault, passes: what fails below is the fault.
    clean = _alone(folder)
    assert clean.returncode == 0, clean.stdout + clean.stderr
    source = folder / f"{edit.module.replace('.', '/')}.py"
    source.write_text(source.read_text().replace(edit.old, edit.new))
    faulty = _alone(folder)
    assert faulty.returncode == 1, faulty.stdout + faulty.stderr
    assert (failure.call.path or "the whole model") in faulty.stdout
    for reason in read_sealed(folder / "problem.json")["explanation"]:
        assert reason in faulty.stdout


def test_a_case_without_a_failure_is_refused():
    with pytest.raises(UserError, match="passes: no module and no output fails"):
        shrink(load_case("dlrm_tiny"), PRECISIONS["fp32"], progress=lambda _: None)


@pytest.mark.full
def test_what_only_several_runs_show_is_refused_in_words(monkeypatch):
    """A model that is right, but for an item that is appended."""

    def appended(runner, arrays):
        return {tap: 1.5 * tensor for tap, tensor in run_incremental(runner, arrays).items()}

    run_incremental = TripyRunner.run_incremental
    monkeypatch.setattr(TripyRunner, "run_incremental", appended)
    with pytest.raises(UserError, match=r"in no output, .* \(incremental.current: .*; read the report of"):
        shrink(load_case("hstu_tiny"), PRECISIONS["fp32"], progress=lambda _: None)


def test_a_model_that_raises_is_refused_in_words(monkeypatch):
    def raises(runner, arrays):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(TripyRunner, "run", raises)
    with pytest.raises(UserError, match=r"raises as a whole, .* \(RuntimeError: no such kernel \("):
        shrink(load_case("dlrm_tiny"), PRECISIONS["fp32"], progress=lambda _: None)


def test_one_case_and_one_precision(refused, tmp_path):
    message = refused("shrink", tmp_path / "small", "--case", "dlrm_tiny,hstu_tiny", "--precision", "fp32")
    assert "one --case and one --precision" in message


def test_a_folder_that_exists_is_left_alone(tmp_path):
    edit = EDITS["pairs_of_the_upper_triangle"]
    with swapped(edit.module, edit.tree()):
        failure = shrink(load_case(edit.case), PRECISIONS["fp32"], progress=lambda _: None)
    (tmp_path / "kept").mkdir()
    with pytest.raises(UserError, match="give a folder that does not exist"):
        write(failure, tmp_path / "kept")
    shutil.rmtree(tmp_path / "kept")
