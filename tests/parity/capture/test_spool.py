"""Captures on disk as they come: files once written, put together from rows, whole after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from cases.shipped import load_case
from parity.base.precision import PRECISIONS
from parity.capture.captures import Capture
from parity.capture.slices import Part, unless_leaking
from parity.capture.spool import SMALL_TOTAL, CannotWrite, Spool, content_digest
from parity.capture.store import open_capture, save_capture
from parity.inputs import weights
from parity.inputs.arrays import make_inputs
from parity.runners import make_runner
from parity.runners.oracle.choices import Choices
from tests.locations import ROOT


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
    capture = Capture()
    stored = unless_leaking(capture, {}, clean, case, part)
    changed = {name: tensor.clone() for name, tensor in clean.items()}
    changed["padding"][row, -1] = float("nan")
    changed["leak"][row, 0] = -0.0
    changed["type"] = changed["type"].double()
    stored.update(changed | {"extra": torch.ones(1)})
    assert stored["padding"] is clean["padding"] or torch.equal(stored["padding"], clean["padding"])
    for name in ("leak", "type"):
        assert stored[name] is changed[name]
    assert "extra" in stored
    assert capture.padded == {"padding"}


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
    stem = tmp_path / "runner" / "tapped"
    spooled = Capture.spooled(stem, large=1)
    runner.record(inputs.arrays, spooled)
    save_capture(spooled, stem)
    back = open_capture(stem)
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


def test_runners_with_equal_tensors_share_files(tmp_path):
    tensors = {"same": torch.arange(2.0**19), "other": torch.zeros(2**19)}
    for name in ("reference", "port"):
        tensors["other"][0] += 1
        save_capture(Capture(tensors=tensors), tmp_path / name / "tapped")
    assert len(list((tmp_path / "tensors").iterdir())) == 3
    other = [open_capture(tmp_path / name / "tapped").tensors["other"] for name in ("reference", "port")]
    assert [float(tensor[0]) for tensor in other] == [1.0, 2.0]


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


def test_a_file_where_the_folder_should_be_is_a_clear_error(tmp_path):
    (tmp_path / "tensors").write_text("")
    with pytest.raises(CannotWrite, match=r"captures: .* cannot be written \(.*\); free space on that disk"):
        Spool(tmp_path / "tensors", large=1)["x"] = torch.ones(3)


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
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        while len(list(tmp_path.glob("[!.]*"))) < 2:
            assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
    spool = Spool(tmp_path, large=1)
    for path in tmp_path.glob("[!.]*"):
        spool.stored["x"] = [path.stem]
        assert spool["x"].unique().numel() == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_digests_are_no_choice_of_a_model(dtype):
    """A batch without an index has empty tensors. What the harness does to them is no rounding."""
    with Choices() as recorded:
        content_digest(torch.empty(0, 3, dtype=dtype))
        content_digest(torch.ones(2, 3, dtype=dtype))
    assert recorded.choices == []


def test_a_small_tensor_is_read_once_and_fits_both_modes(tmp_path):
    save_capture(Capture(tensors={"small": torch.ones(3)}), tmp_path / "reference")
    saved = open_capture(tmp_path / "reference").tensors
    with torch.inference_mode():
        first = saved["small"]
    assert saved["small"] is first
    assert not first.is_inference()
