"""Bounded memory: captures on disk as they come, batches in slices, and no verdict that depends on either."""

from __future__ import annotations

import functools
import subprocess
import sys

import numpy as np
import pytest
import torch

import parity.execution.collect
from cases.shipped import load_case
from parity.base.precision import PRECISIONS
from parity.capture.names import TapName
from parity.capture.slices import MemoryBudget, parts
from parity.capture.store import open_capture
from parity.execution.commands import Commands
from parity.execution.folder import CaseFolder
from parity.execution.record import REFERENCE
from parity.inputs.arrays import make_inputs
from tests.locations import ROOT
from tests.parity.case_runs import batch_reports, collected, run_command, write_case
from tests.parity.saved_runs import quick_runs
from tests.reference.rounding import max_difference, rounding_bound

UNBOUNDED = MemoryBudget(large_bytes=2**62, slice_bytes=2**62, alone_bytes=2**62)
SPOOLED = MemoryBudget(large_bytes=1, slice_bytes=2**62, alone_bytes=2**62)
SLICED = MemoryBudget(large_bytes=1, slice_bytes=1, alone_bytes=0)
SEED = 3


@functools.cache
def _judged(name, limits):
    """A case run and judged under limits, and whether tensors had files of their own."""
    case = load_case(name).with_input(seed=SEED)
    with collected(case, "fp32", ("torch", "torch_jagged", "tripy"), limits) as folder:
        return batch_reports(case, folder.precision("fp32")), any(folder.path.rglob("tensors/*"))


@pytest.mark.parametrize(
    "name", ["dlrm_tiny", *(pytest.param(name, marks=pytest.mark.full) for name in ("hstu_tiny", "stu_tiny"))]
)
def test_spooling_changes_no_number(name):
    with_spooling, has_files = _judged(name, SPOOLED)
    without, has_none = _judged(name, UNBOUNDED)
    assert has_files
    assert not has_none
    assert with_spooling == without


@pytest.mark.full
@pytest.mark.parametrize("name", ["hstu_tiny", "stu_tiny"])
def test_slices_of_the_batch_change_no_verdict(name):
    sliced, whole = _judged(name, SLICED)[0], _judged(name, UNBOUNDED)[0]
    assert sliced.keys() == whole.keys()
    for runner, report in sliced.items():
        expected = whole[runner]
        assert (report.verdict, report.diagnosis) == (expected.verdict, expected.diagnosis)
        assert [(m.tap, m.status) for m in report.modules] == [(m.tap, m.status) for m in expected.modules]
        assert report.verdict == "PASS"
    # The reference is not cut, so that only the oracle's last bits may differ.
    for module, expected in zip(sliced["torch"].modules, whole["torch"].modules, strict=True):
        verdict, other = (m.accumulated or m.isolated for m in (module, expected))
        assert verdict.err_ref_l2 == pytest.approx(other.err_ref_l2, rel=1e-5, abs=1e-14)
        assert verdict.checked == other.checked


def _left(model):
    """Leaves the model as it is."""


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """`captured(name, runner, budget)`: the folder of a runner's captures, made once in this process."""
    tmp_path = tmp_path_factory.mktemp("captured")

    @functools.cache
    def capture(name, runner, budget, spoil=_left):
        case = load_case(name).with_input(seed=SEED)
        folder = CaseFolder(tmp_path / f"{name}-{budget.slice_bytes}-{spoil.__name__}")
        if not folder.path.exists():
            write_case(case, folder)
        batch = folder.batch(0)
        reference, runners = (batch.precision("fp32").runner(entry) for entry in (REFERENCE, runner))
        for process in (REFERENCE, runner):
            commands = Commands(process)
            commands.start(1)
            commands.load(case.reference, PRECISIONS["fp32"], folder.weights)
            if process == REFERENCE:
                commands.record(batch.inputs, reference.tapped, budget)
        spoil(commands._runner.model)
        commands.run_tapped(batch.inputs, runners.tapped, budget, reference.tapped)
        assert commands.run_isolated(batch.inputs, reference.tapped, runners.isolated, budget) == {}
        return runners.path

    return capture


@pytest.mark.parametrize(
    "name",
    [
        "hstu_tiny",
        "stu_tiny",
        *(
            pytest.param(name, marks=pytest.mark.full)
            for name in ("hstu_tiny_rated", "hstu_tiny_combined", "stu_tiny_group")
        ),
    ],
)
def test_rows_of_a_batch_are_independent(captured, name):
    """Every tap of the oracle, put together from single rows, is what the whole batch gives."""
    reference = open_capture(captured(name, "oracle", UNBOUNDED).parent / "torch" / "tapped")
    longest_sum = max(reference.longest_sums.values())
    for kind in ("tapped", "isolated"):
        sliced, whole = (
            open_capture(captured(name, "oracle", limits) / kind).tensors for limits in (SLICED, UNBOUNDED)
        )
        # Rounding samples are for whole batches.
        taps = [tap for tap in whole if not TapName.parse(tap).samples]
        assert list(sliced) == taps
        for tap in taps:
            limit = 0.0
            if whole[tap].is_floating_point():
                limit = rounding_bound(longest_sum, reference.tensors[tap], whole[tap])
            assert max_difference(sliced[tap], whole[tap]) <= limit, (kind, tap)


def test_a_fault_is_as_wrong_in_slices(captured):
    """A spoilt weight moves the taps of a sliced run as it moves those of the whole one."""

    def spoil(model):
        with torch.no_grad():
            model._hstu._attention_layers[1]._uvqk[2] *= 1.5

    tap = "_hstu._attention_layers.1"
    right, wrong, sliced, exact = (
        open_capture(captured("hstu_tiny", runner, limits, how) / "isolated").tensors[tap]
        for runner, limits, how in (
            ("torch_jagged", UNBOUNDED, _left),
            ("torch_jagged", UNBOUNDED, spoil),
            ("torch_jagged", SLICED, spoil),
            ("oracle", UNBOUNDED, spoil),
        )
    )
    reference = open_capture(captured("hstu_tiny", "oracle", UNBOUNDED, spoil).parent / "torch" / "tapped")
    longest_sum = max(reference.longest_sums.values())
    assert (wrong - right).abs().max() > 1e-3
    assert max_difference(sliced, wrong) <= rounding_bound(longest_sum, wrong, exact, torch.float32)


def test_a_batch_that_cannot_be_cut_is_run_whole():
    case = load_case("dlrm_tiny")
    inputs = make_inputs(case).typical
    (part,) = parts(case, inputs.arrays, needed=100, limit=1)
    assert part.rows is None
    assert part.arrays is inputs.arrays


@pytest.mark.parametrize(("needed", "sizes"), [(10, [5]), (11, [2, 2, 1]), (1000, [1] * 5)])
def test_parts_keep_within_the_limit(needed, sizes):
    case = load_case("hstu_tiny")
    inputs = make_inputs(case).typical
    cut = parts(case, inputs.arrays, needed, limit=10)
    assert [part.arrays["past_lengths"].size for part in cut] == sizes
    joined = np.concatenate([part.arrays["past_ids"] for part in cut])
    assert np.array_equal(joined, inputs["past_ids"])
    assert all(part.arrays["item_ids"].shape[0] == 1 for part in cut)


MEASURE = """
import json, pathlib, re, sys
from parity.base.precision import PRECISIONS
from parity.capture.slices import MemoryBudget
from parity.case import CaseReference
from parity.execution.commands import Commands
from parity.execution.folder import CaseFolder
case, path, large = sys.argv[1:]
folder = CaseFolder(pathlib.Path(path))
inputs = folder.batch(0).inputs
commands = Commands("torch")
commands.start(1)
commands.load(CaseReference.model_validate_json(case), PRECISIONS["fp32"], folder.weights)
# Not getrusage's, which begins with what the parent took when it started this process.
status = pathlib.Path("/proc/self/status")
peak = lambda: 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1])
commands.run(inputs, folder.path / "plain")
before = peak()
commands.record(inputs, folder.path / large / "tapped", MemoryBudget(large_bytes=int(large)))
print(json.dumps(peak() - before))
"""


@pytest.mark.full
def test_the_memory_of_a_tapped_run_does_not_grow_with_its_captures(tmp_path):
    """A model whose captures are many times what its forward takes."""
    case = load_case("hstu_ml1m_large")
    # Of a softmax there is no incremental forward, whose cache is memory that the model itself takes.
    changes = {"num_blocks": 16, "num_items": 200, "normalization": "softmax_rel_bias"}
    case = case.with_sizes({f"model.{name}": value for name, value in changes.items()})
    case = case.with_overrides(seed=SEED, batch_size=32)
    write_case(case, CaseFolder(tmp_path))

    def growth(large):
        command = [sys.executable, "-c", MEASURE, case.reference.model_dump_json(), str(tmp_path), str(large)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return int(done.stdout)

    spooled, in_memory = growth(2**20), growth(2**62)
    captured = open_capture(tmp_path / str(2**20) / "tapped")
    total = sum(captured.tensors.sizes.values()) + sum(captured.call_inputs.sizes.values())
    assert total > 400e6
    assert in_memory > 0.9 * total
    assert spooled < 0.5 * total


def test_a_full_disk_ends_the_run_with_one_clear_error(tmp_path):
    """No file may be larger than what the system grants, which is how a full disk looks from inside."""
    command = [sys.executable, "run_parity.py", "--case", "hstu_tiny", "--precision", "fp32"]
    command += ["--runners", "torch", "--save", str(tmp_path / "run")]
    limited = f"ulimit -f 64; trap '' XFSZ; exec {' '.join(command)}"
    ended = subprocess.run(["bash", "-c", limited], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 2, ended
    assert [line for line in ended.stderr.splitlines() if "rror" in line] == ended.stderr.splitlines()[-1:]
    assert ended.stderr.splitlines()[-1].startswith("error: ")
    assert "cannot be written (" in ended.stderr
    assert "free space on that disk, or choose a folder on another one with --save" in ended.stderr
    assert not list(tmp_path.rglob("*.safetensors.*"))
    assert not (tmp_path / "run" / "report.json").exists()


@pytest.mark.full
def test_what_takes_long_is_not_timed(tmp_path, monkeypatch):
    monkeypatch.setattr(parity.execution.collect, "LONGEST_TIMED", 0.0)
    with quick_runs():
        report = run_command(
            cases="hstu_tiny",
            precision="fp32",
            runners="torch_jagged",
            save=tmp_path / "run",
        )
    assert report.exit_code == 0
    for _, _, runner in report.runner_reports():
        assert runner.latency is None
        assert runner.timing_reason.startswith("one run of the reference takes 0 s, and nothing is timed")


@pytest.mark.full
def test_what_fills_a_gpu_is_not_timed(tmp_path, monkeypatch):
    monkeypatch.setattr(parity.execution.collect, "LARGEST_TIMED", 0)
    monkeypatch.setattr(parity.execution.collect._Collection, "_has_gpu", lambda _: True)
    with quick_runs():
        report = run_command(
            cases="hstu_tiny", precision="fp32", runners="torch_jagged", save=tmp_path / "run"
        )
    assert report.exit_code == 0
    reasons = {runner.timing_reason for _, _, runner in report.runner_reports()}
    assert reasons == {
        "one run of the reference holds 0 GiB, and nothing is timed on a GPU that holds more than 0 GiB"
    }
