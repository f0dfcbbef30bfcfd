"""The runners of fused attention: their rows, what they have no module for, and where they cannot run."""

from __future__ import annotations

import pytest
import torch
from tripy_portable import trt

import kernels.plugins.hstu_attention  # noqa: F401  (importing registers the plugin)
from configs import load_case
from parity.families.hstu_fused import HSTU_FUSED_FAMILY
from parity.precision import PRECISIONS
from parity.report import read_report
from parity.runners import default_runners, make_runner
from parity.runners.base import Unavailable
from parity.runners.fused import FUSED, FUSED_RUNNERS, as_fused
from parity.weights import initial_weights

LAYERS = ("_hstu._attention_layers.0", "_hstu._attention_layers.1")


@pytest.fixture(scope="module")
def ran(command, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fused") / "saved"
    names = ",".join(FUSED_RUNNERS)
    ended = command("--case", "hstu_tiny", "--precision", "fp32", "--runners", names, "--save", folder)
    assert ended.code == 0, ended.out
    return {entry.runner: entry for _, _, entry in read_report(folder / "report.json").runner_reports()}


@pytest.mark.parametrize("name", FUSED_RUNNERS)
def test_every_module_is_compared_and_the_fused_ones_are_gaps(ran, name):
    entry = ran[name]
    assert entry.verdict == "PASS"
    statuses = {module.tap: module.status for module in entry.modules}
    kinds = {module.tap: module.kind for module in entry.modules}
    gaps = {tap for tap, status in statuses.items() if status == "GAP"}
    assert {kinds[tap] for tap in gaps} == set(FUSED)
    assert gaps >= {f"{layer}._rel_attn_bias" for layer in LAYERS}
    assert set(statuses.values()) == {"PASS", "GAP"}
    rows = {module.tap: module for module in entry.modules}
    for layer in LAYERS:
        attention = rows[f"{layer}._attn"]
        assert attention.accumulated.checked == attention.isolated.checked > 0
    dense = {module.tap for module in ran["torch"].modules if not module.tap.startswith("append:")}
    assert set(statuses) == dense


@pytest.mark.parametrize("name", FUSED_RUNNERS)
def test_a_row_says_which_form_of_the_kernel_ran(ran, name):
    expected = "Triton kernel" if torch.cuda.is_available() else "the kernel's plain PyTorch form"
    assert expected in ran[name].label


@pytest.mark.parametrize("name", FUSED_RUNNERS)
def test_attention_is_timed_alone(ran, name):
    rows = {module.tap: module for module in ran[name].modules}
    assert rows[f"{LAYERS[0]}._attn"].latency.median > 0


def test_fused_runners_run_by_name_only():
    assert not set(FUSED_RUNNERS) & set(default_runners())


@pytest.mark.parametrize("name", FUSED_RUNNERS)
@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("stu_tiny", "stu_tiny is a case of stu"),
        ("dlrm_tiny", "dlrm_tiny is a case of dlrm"),
        ("hstu_tiny_combined", "normalization='softmax_rel_bias': fused attention computes rel_bias"),
    ],
)
def test_what_the_kernel_does_not_compute_is_unavailable(name, case, reason):
    with pytest.raises(Unavailable, match=reason):
        make_runner(name).load(load_case(case), PRECISIONS["fp32"], {})


def test_a_positional_bias_alone_is_unavailable():
    case = load_case("hstu_tiny")
    model = case.model.model_copy(update={"relative_attention_bias": "positional"})
    with pytest.raises(Unavailable, match="computes 'bucketed_time_and_position'"):
        as_fused(case.model_copy(update={"model": model}))


def test_valid_rows_are_those_of_the_lengths():
    case = load_case("hstu_tiny_rated")
    arrays = HSTU_FUSED_FAMILY.synthetic(case).inputs[0].arrays
    rows = HSTU_FUSED_FAMILY.entry_arguments(arrays)["past_payloads"]["valid_rows"]
    width = arrays["timestamps"].shape[1]
    factor = width // arrays["past_ids"].shape[1]
    expected = [
        b * width + n for b, length in enumerate(arrays["past_lengths"]) for n in range(length * factor)
    ]
    assert rows.tolist() == expected
    assert HSTU_FUSED_FAMILY.dynamic_sizes(arrays)[len(expected)] == 1


@pytest.mark.skipif(trt.available() is not None, reason=trt.available() or "TensorRT is there")
def test_tensorrt_has_no_layer_for_the_plugin(tmp_path):
    case = load_case("hstu_tiny")
    weights = initial_weights(HSTU_FUSED_FAMILY.build_reference(case.model, "jagged"), 0)
    runner = make_runner("tensorrt")
    runner.load(as_fused(case), PRECISIONS["fp32"], weights)
    arrays = HSTU_FUSED_FAMILY.synthetic(case).inputs[0].arrays
    with pytest.raises(Unavailable, match=r"has no layer: hstu::research_attention \(2 times\)"):
        runner.build(arrays, tmp_path)


def test_the_kinds_that_are_fused_exist():
    model = HSTU_FUSED_FAMILY.build_reference(load_case("hstu_tiny").model, "jagged")
    assert {type(module).__name__ for module in model.modules()} >= set(FUSED)
    assert all(FUSED.values())
