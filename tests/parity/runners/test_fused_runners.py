"""The runners of fused attention: their rows, what they have no module for, and where they cannot run."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from tripy_portable import trt

import kernels.plugins.hstu_attention
import kernels.plugins.stu_attention
import kernels.plugins.stu_layer  # noqa: F401  (importing registers the plugins)
from cases.fused import FusedForm
from cases.shipped import load_case
from cases.stu.fused import STUWholeLayers
from parity.base.precision import PRECISIONS
from parity.base.trees import map_tree
from parity.inputs.arrays import make_inputs
from parity.inputs.weights import case_weights
from parity.runners import default_runners, make_runner
from parity.runners.base import Unavailable
from parity.runners.forms import FORMS, appends_alone, form_of
from parity.runners.oracle.float64 import OracleRunner
from parity.runners.tripy.compiled import to_device, to_host
from parity.verdict.rule import judge
from tests.parity.case_runs import run_case, run_command, tapped_paths

FUSED_RUNNERS = tuple(name for name, form in FORMS.items() if form == "fused")
LAYERS_RUNNERS = tuple(name for name, form in FORMS.items() if form == "whole_layers")
FUSED = FusedForm.computed_inside

# Of each case the blocks, and the modules that the kernel computes.
HSTU_BLOCKS = ("_hstu._attention_layers.0", "_hstu._attention_layers.1")
STU_LAYERS = ("_stu_module._stu_layers.0", "_stu_module._stu_layers.1")
DLRMV3_LAYERS = tuple(f"_hstu_transducer.{path}" for path in STU_LAYERS)
CASES = {
    "hstu_tiny": (
        HSTU_BLOCKS,
        {"_valid_attn_mask", *(f"{path}._rel_attn_bias" for path in HSTU_BLOCKS)},
    ),
    "stu_tiny": (STU_LAYERS, {"_stu_module._valid_attn_mask"}),
    "stu_tiny_group": (STU_LAYERS, {"_stu_module._valid_attn_mask"}),
    "dlrmv3_tiny": (DLRMV3_LAYERS, {"_hstu_transducer._stu_module._valid_attn_mask"}),
}
# One case a mask in `make test`, where DLRMv3 has half types.
IN_FULL = dict.fromkeys(("stu_tiny_group", "dlrmv3_tiny"), (pytest.mark.full,))
BOTH = [
    pytest.param(
        *(case, name),
        id=f"{case}-{name}",
        marks=(pytest.mark.xdist_group(f"fused-{case}"), *IN_FULL.get(case, ())),
    )
    for case in CASES
    for name in FUSED_RUNNERS
]


HALF_IN_MAKE_TEST = (("stu_tiny", "bf16"),)

# Layer norm in one case, group norm in the other.
LAYERS = [
    pytest.param(
        *(case, name),
        id=f"{case}-{name}",
        marks=(pytest.mark.xdist_group(f"fused-{case}"), *IN_FULL.get(case, ())),
    )
    for case in ("stu_tiny", "stu_tiny_group", "dlrmv3_tiny")
    for name in LAYERS_RUNNERS
]


@pytest.fixture(scope="module")
def ran():
    """`ran(case)`: the runners of a case in fp32, by name; run once."""

    @functools.cache
    def run_once(case):
        names = ",".join((*FUSED_RUNNERS, *(LAYERS_RUNNERS if not case.startswith("hstu") else ())))
        report = run_command(cases=case, precision="fp32", runners=names)
        assert report.exit_code == 0, [entry.reason for _, _, entry in report.runner_reports()]
        return {entry.runner: entry for _, _, entry in report.runner_reports()}

    return run_once


@pytest.mark.parametrize(("case", "name"), BOTH)
def test_every_module_is_compared_and_the_fused_ones_are_gaps(ran, case, name):
    layers, fused = CASES[case]
    entry = ran(case)[name]
    assert entry.verdict == "PASS"
    statuses = {module.tap: module.status for module in entry.modules}
    kinds = {module.tap: module.kind for module in entry.modules}
    gaps = {tap for tap, status in statuses.items() if status == "GAP"}
    appends = case.startswith("dlrmv3") and name == "tripy_jagged"
    assert gaps == fused | ({f"append:{path}@1" for path in fused} if appends else set())
    assert {kinds[tap] for tap in gaps} <= set(FUSED)
    assert set(statuses.values()) == {"PASS", "GAP"}
    rows = {module.tap: module for module in entry.modules}
    for layer in layers:
        attention = rows[f"{layer}._attn"]
        # The worst batch of each may be another one.
        assert min(attention.accumulated.checked, attention.isolated.checked) > 0
        if appends:
            assert rows[f"append:{layer}._attn@1"].isolated.checked > 0
    dense = {module.tap for module in ran(case)["torch"].modules}
    assert set(statuses) == {tap for tap in dense if appends or not tap.startswith("append:")}


@pytest.mark.parametrize(("case", "name"), LAYERS)
def test_every_module_of_whole_layers_is_compared(ran, case, name):
    layers, fused = CASES[case]
    entry = ran(case)[name]
    assert entry.verdict == "PASS"
    assert "whole layers" in entry.label
    rows = {module.tap: module for module in entry.modules}
    gaps = {tap for tap, module in rows.items() if module.status == "GAP"}
    inside = fused | {f"{layer}._output_norm" for layer in layers}
    appends = case.startswith("dlrmv3") and name == "tripy_layers"
    assert gaps == inside | ({f"append:{path}@1" for path in inside} if appends else set())
    assert {rows[tap].kind for tap in gaps} <= set(STUWholeLayers.computed_inside)
    assert {module.status for module in rows.values()} == {"PASS", "GAP"}
    for layer in layers:
        for tap in (layer, f"{layer}._input_norm", f"{layer}._attn"):
            assert min(rows[tap].accumulated.checked, rows[tap].isolated.checked) > 0, tap


@pytest.mark.parametrize(("case", "name"), BOTH)
def test_a_row_says_which_form_of_the_kernel_ran(ran, case, name):
    expected = "Triton kernel" if torch.cuda.is_available() else "the kernel's plain PyTorch form"
    assert expected in ran(case)[name].label


@pytest.mark.parametrize(("case", "name"), BOTH)
def test_attention_is_timed_alone(ran, case, name):
    rows = {module.tap: module for module in ran(case)[name].modules}
    assert rows[f"{CASES[case][0][0]}._attn"].latency.median > 0


@pytest.mark.parametrize(
    ("case", "precision"),
    [
        pytest.param(*pair, marks=() if pair in HALF_IN_MAKE_TEST else pytest.mark.full)
        for pair in itertools.product(("stu_tiny", "stu_tiny_group", "dlrmv3_tiny"), ("fp16", "bf16"))
    ],
)
def test_half_types_pass_module_by_module(case, precision):
    names = (*FUSED_RUNNERS, *LAYERS_RUNNERS)
    reports = run_case(case, precision, 0, names)
    for name in names:
        entry = reports[name]
        assert (entry.status, entry.verdict, entry.padding_leak) == ("OK", "PASS", ""), entry.diagnosis
        assert {module.path for module in entry.modules} >= set(tapped_paths(load_case(case)))


@pytest.mark.parametrize("on_gpu", [False, True])
def test_fused_runners_run_by_name_only_where_their_kernels_are_not_plain(on_gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
    assert set(FUSED_RUNNERS) & set(default_runners()) == (set() if on_gpu else set(FUSED_RUNNERS))


@pytest.mark.parametrize("name", LAYERS_RUNNERS)
def test_whole_layers_are_run_by_name_only_and_are_the_production_models(name):
    assert name not in default_runners()
    with pytest.raises(Unavailable, match="hstu_tiny has no whole_layers form"):
        make_runner(name).load(load_case("hstu_tiny"), PRECISIONS["fp32"], {})


@pytest.mark.parametrize(("case", "alone"), [("dlrmv3_tiny", True), ("hstu_tiny", False)])
def test_modules_of_an_append_run_alone_in_a_form_that_has_their_calls(case, alone):
    assert {appends_alone(load_case(case), name) for name in FUSED_RUNNERS} == {alone}
    assert appends_alone(load_case(case), "tripy")


@pytest.mark.parametrize("name", FUSED_RUNNERS)
@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("dlrm_tiny", "dlrm_tiny has no fused form"),
        ("hstu_tiny_combined", "normalization='softmax_rel_bias': fused attention computes rel_bias"),
    ],
)
def test_what_the_kernel_does_not_compute_is_unavailable(name, case, reason):
    with pytest.raises(Unavailable, match=reason):
        make_runner(name).load(load_case(case), PRECISIONS["fp32"], {})


def test_a_positional_bias_alone_is_unavailable():
    case = load_case("hstu_tiny")
    case = case.with_sizes({"model.relative_attention_bias": "positional"})
    with pytest.raises(Unavailable, match="computes 'bucketed_time_and_position'"):
        form_of(case, "torch_fused")


@pytest.mark.parametrize(
    ("case", "field"),
    [("stu_tiny", "hidden_dim"), ("stu_tiny", "attention_dim"), ("hstu_tiny", "linear_dim")],
)
def test_heads_that_the_kernel_does_not_take_are_unavailable(case, field):
    wide = load_case(case).with_sizes({f"model.{field}": 257})
    with pytest.raises(Unavailable, match=f"{field}=257: fused attention takes heads of at most 256"):
        form_of(wide, "torch_fused")


@pytest.mark.parametrize("case", ["stu_tiny", "stu_tiny_group"])
def test_one_graph_of_the_port_serves_fewer_users_and_rows(case):
    """The number of valid rows is a dimension of the graph, and so is the number of users."""
    case = load_case(case)
    fused = case.form("fused")
    weights, _ = case_weights(fused)
    port, reference = (make_runner(name) for name in ("tripy_jagged", "torch_fused"))
    oracle = OracleRunner()
    oracle.load(case, PRECISIONS["fp32"], weights)
    for runner in (port, reference):
        runner.load(case, PRECISIONS["fp32"], weights)
    arrays = make_inputs(case).typical.arrays
    arguments = map_tree(case.form("fused").entry_arguments(arrays), port._host)
    compiled = port._compiled("_entry", port._entry, arguments, case.form("fused").dynamic_sizes(arrays))
    for users in (slice(0, 5), slice(1, 2), slice(2, 5)):
        some = case.form("fused").rows(arrays, users)
        values = map_tree(map_tree(case.form("fused").entry_arguments(some), port._host), to_device)
        actual = {name: to_host(out) for name, out in compiled(values).items()}
        (name,) = actual
        verdict = judge(
            oracle.run(some)[name],
            reference.run(some)[name],
            actual[name],
            PRECISIONS["fp32"],
            case.model.padded_length,
        )
        assert verdict.passed, (users, verdict.reason)


def test_valid_rows_are_those_of_the_lengths():
    case = load_case("hstu_tiny_rated")
    arrays = make_inputs(case).typical.arrays
    rows = case.form("fused").entry_arguments(arrays)["past_payloads"]["valid_rows"]
    width = arrays["timestamps"].shape[1]
    factor = width // arrays["past_ids"].shape[1]
    expected = [
        b * width + n for b, length in enumerate(arrays["past_lengths"]) for n in range(length * factor)
    ]
    assert rows.tolist() == expected
    assert case.form("fused").dynamic_sizes(arrays)[len(expected)] == 1


def test_valid_rows_of_requests_are_those_of_the_lengths():
    case = load_case("stu_tiny")
    arrays = make_inputs(case).typical.arrays
    rows = case.form("fused").entry_arguments(arrays)["valid_rows"]
    width = case.model.padded_length
    expected = [b * width + n for b, length in enumerate(arrays["seq_lengths"]) for n in range(length)]
    assert rows.tolist() == expected
    assert case.form("fused").dynamic_sizes(arrays)[len(expected)] == 1


@pytest.mark.skipif(trt.available() is not None, reason=trt.available() or "TensorRT is there")
@pytest.mark.parametrize(
    ("case", "plugin"),
    [("hstu_tiny", "hstu::research_attention"), ("stu_tiny", "hstu::production_attention")],
)
def test_tensorrt_has_no_layer_for_the_plugin(case, plugin, tmp_path):
    case = load_case(case).form("fused")
    weights, _ = case_weights(case)
    runner = make_runner("tensorrt")
    runner.load(case, PRECISIONS["fp32"], weights)
    arrays = make_inputs(case).typical.arrays
    with pytest.raises(Unavailable, match=rf"has no layer: {plugin} \(2 times\)"):
        runner.build(arrays, tmp_path)


def test_the_kinds_that_are_fused_exist():
    kinds = set()
    for case in map(load_case, CASES):
        model = case.form("fused").build_reference()
        kinds |= {type(module).__name__ for module in model.modules()}
    assert kinds >= set(FUSED)
    assert all(FUSED.values())
