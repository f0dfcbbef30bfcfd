"""The audit of both gates: faults that only one of them sees, and its table."""

from __future__ import annotations

import pytest
import torch

from benchmarks import accuracy_gate
from benchmarks.accuracy_gate import CATALOGUES, ROOT, Audit, Service, table
from cases.shipped import load_case
from parity.runners.tripy.lean_traces import lean_traces
from parity.studies.fault_injection.handwritten import handwritten

EDITS = {edit.detail: edit for stem in CATALOGUES for edit in handwritten(ROOT / f"cases/faults/{stem}.yaml")}
NUMBERS = {"normalized entropy": 0.5, "accuracy": 0.75, "AUC by request": 0.875, "calibration error": 0.0625}
SERVED = {**NUMBERS, "missed": [], "largest_change": 0.25, "reordered": 3, "requests": 64, "named": ""}


def test_the_table_has_a_line_for_each_port():
    rows = [
        {"port": "untrained reference", **NUMBERS},
        {"port": "right port", **SERVED},
        {"port": "a_fault", **SERVED, "missed": ["accuracy"], "named": "`_attn`", "planned": "`_norm`"},
        {"port": "another", **SERVED, "planned": ""},
        {"port": "broken", "problem": "ValueError: shapes", "planned": "`_norm`"},
    ]
    assert table(rows).splitlines()[2:] == [
        "| untrained reference | 0.50000 | 0.75000 | 0.87500 |  | 0.0625 |  |  |  |  |",
        "| right port | 0.50000 | 0.75000 | 0.87500 | passes | 0.0625 | 2.5e-01 | 3 of 64 | passes |  |",
        "| a fault | 0.50000 | 0.75000 | 0.87500 | fails: accuracy | 0.0625 | 2.5e-01 | 3 of 64 | "
        "fails: `_attn` | fails: `_norm` |",
        "| another | 0.50000 | 0.75000 | 0.87500 | passes | 0.0625 | 2.5e-01 | 3 of 64 | passes | passes |",
        "| broken |  |  |  | raises |  |  |  | raises | fails: `_norm` |",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--trained", "none"), "none/best.safetensors cannot be read (No such file or directory)"),
        (("--requests", "-64"), "--requests: -64 is no multiple of the batch of 64; give one such as 64"),
        (("--requests", "63"), "--requests: 63 is no multiple of the batch of 64"),
        (
            ("--requests", "640000"),
            "--requests: 640000 is more than the 1725 requests of the data; give fewer",
        ),
        (("--batch", "0"), "--batch: 0 is no number of requests; give at least 1"),
        (("--device", "cuda"), "--device: cuda is absent: PyTorch sees no GPU; leave --device out"),
        (("--judged", "0"), "--judged: 0 is no number of the requests; give 1 to 832"),
        (("--judged", "833"), "--judged: 833 is no number of the requests; give 1 to 832"),
        (("--faults", "nothing"), "--faults: nothing is not known"),
        (("--out", "."), "--out: . cannot be written"),
        (("--out", "lines"), "--out: lines has lines that no run wrote; choose a new file"),
    ],
)
def test_bad_input_of_the_program_is_refused(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "lines").write_text("[1]\n")
    assert accuracy_gate.main(["--trained", "t", "--out", "new", *words]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert message in told
    assert [path.name for path in tmp_path.iterdir()] == ["lines"]


@pytest.fixture(scope="module")
def audit():
    with pytest.MonkeyPatch.context() as patch, lean_traces():
        # One case is enough for a fault of all cases.
        patch.setattr(accuracy_gate, "PLANNED_CASES", ("dlrmv3_tiny_plain",))
        case = load_case("dlrmv3_streaming")
        yield Audit(Service(case, None, requests=64, batch=64, judged=4, device="cpu"))


@pytest.mark.full
@pytest.mark.xdist_group("accuracy gate")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
class TestAudit:
    def test_the_right_port_passes_both_gates(self, audit):
        row = audit.row(None)
        assert (row["missed"], row["named"], row["reordered"]) == ([], "", 0)
        assert row["largest_change"] < 1e-5

    def test_a_fault_passes_the_public_gate_and_not_ours(self, audit):
        row, place = audit.row(EDITS["logits_are_three_times_too_large"]), "`_multitask_module._activation`"
        assert (row["missed"], row["named"], row["planned"]) == ([], place, place)

    def test_a_rounding_that_does_not_belong_is_named(self, audit):
        row = audit.row(EDITS["bfloat16_attention_weights"])
        assert row["named"] == row["planned"] == "`_hstu_transducer._stu_module._stu_layers.0._attn`"

    def test_a_fault_without_an_effect_on_requests_shows_in_planned_batches(self, audit):
        row = audit.row(EDITS["timestamps_are_clipped_to_32_bits"])
        assert (row["missed"], row["named"]) == ([], "")
        assert row["planned"]
