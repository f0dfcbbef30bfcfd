"""Faults made by hand in a scratch copy of the project: the suite says so, and in the right place.

Each fault is an edit of one file, made in a copy; the run is the one that a user types.
"""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from parity.report import Report, RunnerReport, read_report

ROOT = Path(__file__).parents[2]
BLOCKS = "tripy_port/transduction_dense.py"
BIAS = "tripy_port/relative_attention_bias.py"
INPUT = "tripy_port/input_features_preprocessors.py"
RUNNER = "parity/runners/tripy_runner.py"
TENSORS = "        tensors = rounded(weights, precision.dtype)\n"
LAYER = "_hstu._attention_layers"


@dataclass(frozen=True)
class Fault:
    """One edit, the case that it is run on, and the tap that must be named."""

    name: str
    file: str
    old: str
    new: str
    named: str
    case: str = "hstu_tiny"


def _on_weights(statement: str) -> str:
    """The line that rounds the port's weights, and a change to them."""
    return f"{TENSORS}        {statement}\n"


FAULTS = [
    Fault(
        "output_projection_transposed",
        RUNNER,
        TENSORS,
        _on_weights(f'tensors["{LAYER}.1._o.weight"] = tensors["{LAYER}.1._o.weight"].T'),
        f"{LAYER}.1._o",
        # The public widths: the projection is square and its transpose fits.
        case="hstu_ml1m",
    ),
    Fault(
        "divisor_is_the_row_length",
        BLOCKS,
        "divide(silu(logits_BHMN), self._divisor)",
        "silu(logits_BHMN) / tp.unsqueeze(tp.sum(valid_attn_mask, dim=-1, keepdim=True), -3)",
        f"{LAYER}.0._attn",
    ),
    Fault(
        "mask_without_its_diagonal",
        BLOCKS,
        "(1.0 - tp.cast(attn_mask, like.dtype))",
        "tp.tril(1.0 - tp.cast(attn_mask, like.dtype), -1)",
        "_valid_attn_mask",
    ),
    Fault(
        "time_difference_to_the_same_item",
        BIAS,
        "tp.unsqueeze(next_BN, 2) - ",
        "tp.unsqueeze(all_timestamps, 2) - ",
        f"{LAYER}.0._rel_attn_bias",
    ),
    Fault(
        "eps_1e-5",
        BLOCKS,
        "layer_norm(x, self._normalized_dim, self._eps)",
        "layer_norm(x, self._normalized_dim, 1e-5)",
        f"{LAYER}.0._norm_input",
    ),
    Fault(
        "positions_shifted_by_one",
        INPUT,
        "x_BND = scale(past_embeddings, self._embedding_dim**0.5) + self._pos_emb(position)",
        "x_BND = scale(past_embeddings, self._embedding_dim**0.5) + self._pos_emb(position + 1)",
        "_input_features_preproc[1]",
    ),
    Fault(
        "one_weight_scaled",
        RUNNER,
        TENSORS,
        _on_weights(f'tensors["{LAYER}.1._o.weight"] *= 1.001'),
        f"{LAYER}.1._o",
    ),
    Fault(
        "two_blocks_swapped",
        BLOCKS,
        "enumerate(self._attention_layers)",
        "enumerate(self._attention_layers[::-1])",
        "_hstu",
    ),
    Fault(
        "weights_of_two_blocks_swapped",
        RUNNER,
        TENSORS,
        _on_weights(
            'swap = {"layers.0": "layers.1", "layers.1": "layers.0"}; import re; tensors = '
            '{re.sub(r"layers.[01]", lambda m: swap[m[0]], n): t for n, t in tensors.items()}'
        ),
        f"{LAYER}.0._rel_attn_bias",
    ),
    Fault(
        "bucket_base_off_by_one_percent",
        BIAS,
        "tp.log(magnitude) / bucket_divisor",
        "tp.log(magnitude) / (1.01 * bucket_divisor)",
        f"{LAYER}.0._rel_attn_bias",
    ),
]


def _scratch(folder: Path, file: str, old: str, new: str) -> Path:
    """A copy of what a run needs, with one edit."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("configs", "reference", "tripy_port", "parity"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    shutil.copy(ROOT / "run_parity.py", folder)
    text = (folder / file).read_text()
    assert text.count(old) == 1, f"{old!r} is not in {file} once: the fault cannot be made"
    (folder / file).write_text(text.replace(old, new))
    return folder


def _run(folder: Path, *arguments: str) -> tuple[int, Report, str]:
    command = [sys.executable, "run_parity.py", "--precision", "fp32", "--save", "saved", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
    assert (folder / "saved" / "report.json").exists(), done.stderr
    return done.returncode, read_report(folder / "saved" / "report.json"), done.stdout


def _runner(report: Report, name: str) -> RunnerReport:
    return next(entry for _, _, entry in report.runner_reports() if entry.runner == name)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_found_and_named(fault, tmp_path):
    folder = _scratch(tmp_path, fault.file, fault.old, fault.new)
    code, report, shown = _run(folder, "--case", fault.case, "--runners", "tripy")
    entry = _runner(report, "tripy")
    assert code == report.exit_code == 1
    assert entry.diagnosis.kind == "module"
    assert entry.diagnosis.tap == fault.named
    assert f"FAIL: {fault.case}, fp32" in shown
    assert fault.named.split("[")[0] in shown


def test_no_fault_no_failure(tmp_path):
    folder = _scratch(tmp_path, BLOCKS, "Turns the model's boolean mask", "Turns the boolean mask")
    code, report, _ = _run(folder, "--case", "hstu_tiny", "--runners", "tripy")
    assert code == 0
    assert _runner(report, "tripy").verdict == "PASS"


BREAKS = {
    "crash": ("import os; os.abort()", "CRASHED", "SIGABRT"),
    "hang": ("import time; time.sleep(3600)", "TIMED OUT", "within 20 s"),
    "memory": ("import numpy; numpy.ones(1 << 60, numpy.int8)", "OUT OF MEMORY", ""),
    "exception": ('raise RuntimeError("no such luck")', "ERROR", "no such luck"),
}


@pytest.mark.parametrize("kind", BREAKS)
def test_a_runner_that_breaks_is_a_row_and_the_others_finish(kind, tmp_path):
    statement, status, reason = BREAKS[kind]
    line = "        self.family = get_family(case.family)\n"
    folder = _scratch(tmp_path, RUNNER, line, f"        {statement}\n{line}")
    code, report, shown = _run(
        folder, "--case", "hstu_tiny", "--runners", "torch_jagged,tripy", "--time-limit", "20"
    )
    entry = _runner(report, "tripy")
    assert code == 1
    assert (entry.status, entry.verdict) == (status, "NONE")
    assert reason in entry.reason
    assert status in shown
    assert _runner(report, "torch_jagged").verdict == "PASS"
