"""Bounded memory: captures on disk as they come, batches in slices, and no verdict that depends on either."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

import parity.execution.collect
from cases.shipped import load_case
from parity.base.precision import PRECISIONS
from parity.capture.captures import Capture
from parity.capture.names import TapName
from parity.capture.slices import MemoryBudget, Part, parts, unless_leaking
from parity.capture.spool import SMALL_TOTAL, CannotWrite, Spool
from parity.capture.store import load_capture, open_capture, save_capture
from parity.execution.commands import Commands
from parity.execution.folder import CaseFolder
from parity.execution.record import REFERENCE
from parity.inputs import weights
from parity.inputs.arrays import make_inputs
from parity.runners import make_runner
from tests.locations import ROOT
from tests.parity.case_runs import batch_reports, collected, run_command, write_case
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


@pytest.mark.parametrize("name", ["hstu_tiny", pytest.param("stu_tiny", marks=pytest.mark.full)])
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


@pytest.fixture
def captured(tmp_path):
    """`captured(name, runner, budget)`: the folder of a runner's captures, made in this process."""

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


@pytest.mark.parametrize("kind", ["tapped", "isolated"])
@pytest.mark.parametrize(
    "name", ["hstu_tiny", "hstu_tiny_rated", "hstu_tiny_combined", "stu_tiny", "stu_tiny_group"]
)
def test_rows_of_a_batch_are_independent(captured, name, kind):
    """Every tap of the oracle, put together from single rows, is what the whole batch gives."""
    sliced, whole = (
        load_capture(captured(name, "oracle", limits) / kind).tensors for limits in (SLICED, UNBOUNDED)
    )
    # Draws of rounding are for whole batches.
    taps = [tap for tap in whole if not TapName.parse(tap).samples]
    assert list(sliced) == taps
    reference = load_capture(captured(name, "oracle", UNBOUNDED).parent / "torch" / "tapped")
    longest_sum = max(reference.longest_sums.values())
    for tap in taps:
        limit = 0.0
        if whole[tap].is_floating_point():
            limit = rounding_bound(longest_sum, reference.tensors[tap], whole[tap])
        assert max_difference(sliced[tap], whole[tap]) <= limit, tap


def test_a_fault_is_as_wrong_in_slices(captured):
    """A spoilt weight moves the taps of a sliced run as it moves those of the whole one."""

    def spoil(model):
        with torch.no_grad():
            model._hstu._attention_layers[1]._uvqk[2] *= 1.5

    tap = "_hstu._attention_layers.1"
    right, wrong, sliced, exact = (
        load_capture(captured("hstu_tiny", runner, limits, how) / "isolated").tensors[tap]
        for runner, limits, how in (
            ("torch_jagged", UNBOUNDED, _left),
            ("torch_jagged", UNBOUNDED, spoil),
            ("torch_jagged", SLICED, spoil),
            ("oracle", UNBOUNDED, spoil),
        )
    )
    reference = load_capture(captured("hstu_tiny", "oracle", UNBOUNDED, spoil).parent / "torch" / "tapped")
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


@pytest.fixture
def reference(tmp_path):
    """A capture of 4 rows, saved and opened: a tap of the batch, one as long as its slices, one number."""
    tensors = {"rows": torch.arange(12.0).reshape(4, 3), "mask": torch.ones(2, 2), "scalar": torch.ones(())}
    save_capture(Capture(tensors=tensors), tmp_path / "reference")
    return open_capture(tmp_path / "reference")


def test_taps_are_put_together_from_rows_and_others_must_agree(tmp_path, reference):
    spool = Spool(tmp_path / "tensors")
    for rows in (slice(0, 2), slice(2, 4)):
        part = Part({}, rows, 4)
        taps = part.into(spool, reference)
        for name in ("rows", "mask", "scalar"):
            taps[name] = part.cut(reference.tensors[name])
    for name, tensor in reference.tensors.items():
        assert torch.equal(spool[name], tensor)
    with pytest.raises(ValueError, match="mask has no axis of the batch and differs between rows"):
        taps["mask"] = torch.zeros(2, 2)


def test_a_poisoned_tap_is_kept_only_where_a_valid_element_has_changed(tmp_path):
    case = load_case("hstu_tiny")
    inputs = make_inputs(case).typical
    part = Part(inputs.arrays, None, 0)
    (width, valid) = next(iter(case.valid_rows(inputs.arrays).items()))
    row = int(np.argmin(valid.sum(axis=1)))
    clean = {name: torch.zeros(len(valid), width, 2) for name in ("padding", "leak", "type")}
    stored = unless_leaking({}, clean, case, part)
    changed = {name: tensor.clone() for name, tensor in clean.items()}
    changed["padding"][row, -1] = float("nan")
    changed["leak"][row, 0] = -0.0
    changed["type"] = changed["type"].double()
    stored.update(changed | {"extra": torch.ones(1)})
    assert stored["padding"] is clean["padding"] or torch.equal(stored["padding"], clean["padding"])
    for name in ("leak", "type"):
        assert stored[name] is changed[name]
    assert "extra" in stored


def test_a_large_tensor_is_on_the_disk_at_once_and_there_once(tmp_path):
    spool = Spool(tmp_path, large=100)
    tensor = torch.arange(50.0)
    spool["one"] = tensor
    (file,) = tmp_path.iterdir()
    spool["other"] = tensor[::1].clone()
    spool["strided"] = torch.stack([tensor, tensor], dim=1)[:, 0]
    spool["small"] = torch.ones(3)
    assert list(tmp_path.iterdir()) == [file]
    assert list(spool) == ["one", "other", "strided", "small"]
    assert all(torch.equal(spool[name], tensor) for name in ("one", "other", "strided"))
    # Another shape or type of the same bytes is another tensor.
    spool["shape"] = tensor.reshape(5, 10)
    spool["type"] = tensor.view(torch.int32)
    assert len(list(tmp_path.iterdir())) == 3
    del spool["one"], spool["small"]
    assert list(spool) == ["other", "strided", "shape", "type"]
    assert not spool.small
    assert spool["type"].dtype is torch.int32


@pytest.mark.parametrize("rows_of_a_cut", [8, 4, 2])
def test_however_a_batch_is_cut_the_same_rows_are_the_same_files(tmp_path, rows_of_a_cut):
    # A row has 12 bytes: two rows make a large file.
    tensor = torch.arange(24.0).reshape(8, 3)
    first, second = Spool(tmp_path, large=20), Spool(tmp_path, large=20)
    first.add_rows("tap", tensor)
    for rows in tensor.split(rows_of_a_cut):
        second.add_rows("tap", rows)
    assert second.stored["tap"] == first.stored["tap"]
    assert len(list(tmp_path.iterdir())) == 4
    assert torch.equal(second["tap"], tensor)


def test_many_small_tensors_are_files_in_the_end(tmp_path):
    spool = Spool(tmp_path, large=100)
    for number in range(1000):
        spool[str(number)] = torch.full((10,), float(number))
        assert sum(tensor.nbytes for tensor in spool.small.values()) <= SMALL_TOTAL * 100
    assert len(spool.small) == 80
    assert all(torch.equal(spool[name], torch.full((10,), float(name))) for name in spool)


def test_a_spooled_capture_is_the_same_as_one_in_memory(tmp_path, tiny):
    case, model, initial = tiny
    runner = make_runner("torch")
    runner.load(case, PRECISIONS["fp32"], initial)
    inputs = make_inputs(case).typical
    in_memory = runner.record(inputs.arrays)
    spooled = Capture.spooled(tmp_path / "tapped", large=1)
    runner.record(inputs.arrays, spooled)
    save_capture(spooled, tmp_path / "tapped")
    back = open_capture(tmp_path / "tapped")
    # JSON has no tuples.
    assert [repr(call).replace("(", "[").replace(")", "]") for call in back.calls] == [
        repr(call).replace("(", "[").replace(")", "]") for call in in_memory.calls
    ]
    assert back.longest_sums == in_memory.longest_sums
    assert back.largest_results == in_memory.largest_results
    for kind in ("tensors", "call_inputs"):
        actual, expected = getattr(back, kind), getattr(in_memory, kind)
        assert list(actual) == list(expected)
        assert all(torch.equal(actual[name], expected[name]) for name in expected)


def test_what_a_module_holds_is_measured():
    case = load_case("hstu_tiny")
    runner = make_runner("torch")
    runner.load(case, PRECISIONS["fp32"], weights.case_weights(case)[0])
    inputs = make_inputs(case).typical
    capture = runner.record(inputs.arrays)
    batch, width, heads = inputs.batch_size, case.model.sequence_width, case.model.num_heads
    attention = "_hstu._attention_layers.0._attn"
    assert capture.largest_results[attention] == 4 * batch * heads * width**2
    # The projection to u, v, q, k is larger than the attention of this small model.
    projected = 2 * heads * (case.model.attention_dim + case.model.linear_dim)
    assert capture.largest_results["_hstu"] == 4 * batch * width * projected


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


def test_a_file_where_the_folder_should_be_is_a_clear_error(tmp_path):
    (tmp_path / "tensors").write_text("")
    with pytest.raises(CannotWrite, match=r"captures: .* cannot be written \(.*\); free space on that disk"):
        Spool(tmp_path / "tensors", large=1)["x"] = torch.ones(3)


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


def test_a_kill_leaves_no_half_of_a_large_tensor(tmp_path):
    code = """
import sys, torch
from pathlib import Path
from parity.capture.spool import Spool
spool = Spool(Path(sys.argv[1]), large=1)
print("writing", flush=True)
for number in range(10**6):
    spool["x"] = torch.full((4_000_000,), float(number))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    process.stdout.readline()
    while len(list(tmp_path.glob("[!.]*"))) < 2:
        assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    spool = Spool(tmp_path, large=1)
    for path in tmp_path.glob("[!.]*"):
        spool.stored["x"] = [path.stem]
        assert spool["x"].unique().numel() == 1


def test_what_takes_long_is_not_timed(tmp_path, monkeypatch):
    monkeypatch.setattr(parity.execution.collect, "LONGEST_TIMED", 0.0)
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
