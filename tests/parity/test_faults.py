"""Faults made by hand in a scratch copy of the project: the suite says so, and in the right place.

Each fault is an edit of one file, made in a copy; the run is the one that a user types.
"""

import pytest

from tests.parity.fault_runs import (
    RUNNER,
    TENSORS,
    Fault,
    assert_found_and_named,
    on_weights,
    run,
    runner,
    scratch,
)

BLOCKS = "tripy_port/transduction_dense.py"
BIAS = "tripy_port/relative_attention_bias.py"
INPUT = "tripy_port/input_features_preprocessors.py"
LAYER = "_hstu._attention_layers"


FAULTS = [
    Fault(
        "output_projection_transposed",
        RUNNER,
        TENSORS,
        on_weights(f'tensors["{LAYER}.1._o.weight"] = tensors["{LAYER}.1._o.weight"].T'),
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
        on_weights(f'tensors["{LAYER}.1._o.weight"] *= 1.001'),
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
        on_weights(
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


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_found_and_named(fault, tmp_path):
    assert_found_and_named(fault, tmp_path)


def test_no_fault_no_failure(tmp_path):
    folder = scratch(tmp_path, BLOCKS, "Turns the model's boolean mask", "Turns the boolean mask")
    code, report, _ = run(folder, "--case", "hstu_tiny", "--runners", "tripy")
    assert code == 0
    assert runner(report, "tripy").verdict == "PASS"


BREAKS = {
    "crash": ('__import__("os").abort()', "CRASHED", "SIGABRT"),
    "hang": ("import time; time.sleep(3600)", "TIMED OUT", "within 20 s"),
    "memory": ("import numpy; numpy.ones(1 << 60, numpy.int8)", "OUT OF MEMORY", ""),
    "exception": ('raise RuntimeError("no such luck")', "ERROR", "no such luck"),
}


@pytest.mark.parametrize("kind", BREAKS)
def test_a_runner_that_breaks_is_a_row_and_the_others_finish(kind, tmp_path):
    statement, status, reason = BREAKS[kind]
    line = "        self.family = get_family(case.family)\n"
    folder = scratch(tmp_path, RUNNER, line, f"        {statement}\n{line}")
    code, report, shown = run(
        folder, "--case", "hstu_tiny", "--runners", "torch_jagged,tripy", "--time-limit", "20"
    )
    entry = runner(report, "tripy")
    assert code == 1
    assert (entry.status, entry.verdict) == (status, "NONE")
    assert reason in entry.reason
    assert status in shown
    assert runner(report, "torch_jagged").verdict == "PASS"
