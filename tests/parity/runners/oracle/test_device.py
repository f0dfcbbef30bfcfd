"""The oracle's device: the CPU, and a GPU for batches whose rows are costly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cases.shipped import load_case
from parity.base.precision import PRECISIONS
from parity.case import Case
from parity.coverage.source import swapped
from parity.in_process import CleanRun
from parity.inputs.arrays import make_inputs
from parity.inputs.weights import case_weights
from parity.runners.oracle import float64
from parity.runners.oracle.float64 import OracleRunner, device_of
from parity.runners.tripy.runner import TripyRunner
from parity.studies.fault_injection.handwritten import handwritten
from parity.verdict.comparison import compare
from tests.locations import ROOT


def shaped(name, users, history):
    """Arrays of these sizes, whose content nobody reads."""
    case = load_case(name)
    model = case.model
    shapes = {
        "uih_lengths": (users,),
        "num_candidates": (users,),
        "uih_timestamps": (users, history),
        "query_times": (users, model.max_num_candidates),
    }
    return case, {key: np.broadcast_to(np.int64(1), shape) for key, shape in shapes.items()}


@pytest.fixture
def with_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.mark.parametrize(
    ("name", "history", "device"),
    [("dlrmv3", 16_384, "cuda"), ("dlrmv3", 8_192, "cuda"), ("dlrmv3_streaming", 100, "cpu")],
)
@pytest.mark.parametrize("users", [1, 300])
def test_costly_rows_go_to_the_gpu_however_many_there_are(with_gpu, name, history, device, users):
    assert device_of(*shaped(name, users, history)).type == device


def test_without_a_gpu_every_batch_is_the_cpu_s(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of(*shaped("dlrmv3", 1, 16_384)).type == "cpu"


def test_small_cases_stay_on_the_cpu(with_gpu):
    case = load_case("dlrmv3_tiny")
    assert device_of(case, make_inputs(case).typical.arrays).type == "cpu"


def test_a_case_without_counts_stays_on_the_cpu(with_gpu, monkeypatch):
    case, arrays = shaped("dlrmv3", 1, 16_384)
    monkeypatch.setattr(type(case), "work", Case.work)
    assert device_of(case, arrays).type == "cpu"


def test_a_batch_moves_the_model_and_the_label_and_samples_stay_on_the_cpu(monkeypatch):
    """The device "meta" stands for the GPU: no number is computed there."""
    case = load_case("dlrmv3_tiny")
    arrays = make_inputs(case).typical.arrays
    runner = OracleRunner()
    runner.load(case, PRECISIONS["fp32"], case_weights(case)[0])
    assert runner.label() == "oracle (float64, cpu)"
    monkeypatch.setattr(float64, "device_of", lambda *_: torch.device("meta"))
    with runner._sampling():
        assert runner._arguments(arrays)["uih_lengths"].device.type == "cpu"
    assert not runner.place(arrays)
    assert runner.label() == "oracle (float64, meta)"
    assert {parameter.device.type for parameter in runner.model.parameters()} == {"meta"}
    assert runner._arguments(arrays)["uih_lengths"].device.type == "meta"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the oracle runs on a GPU; PyTorch finds none here")
@pytest.mark.parametrize("name", ["position_is_off_by_one", "gate_without_the_norm"])
def test_a_failure_is_explained_on_a_gpu_as_on_the_cpu(monkeypatch, name):
    """The search for choices that explain a failure repeats the GPU's choices on the CPU."""
    catalogues = (ROOT / f"cases/faults/{stem}_dlrmv3.yaml" for stem in ("accuracy_gate", "independent"))
    fault = next(edit for path in catalogues for edit in handwritten(path) if edit.detail == name)
    case, found = load_case("dlrmv3_tiny"), []
    for flops in (float("inf"), 0.0):
        monkeypatch.setattr(float64, "GPU_FLOPS", flops)
        clean = CleanRun(case, PRECISIONS["fp32"])
        assert device_of(case, clean.arrays).type == ("cpu" if flops else "cuda")
        with swapped(fault.module, fault.tree()):
            port = TripyRunner()
            port.load(case, PRECISIONS["fp32"], clean.weights)
            diagnosis = compare(clean.evidence, clean.results(port)).diagnosis
        found.append((diagnosis.kind, diagnosis.tap))
    assert found[0] == found[1]
    assert found[0][0] != "none"
