"""The exported reference: names, plain ONNX operators, dynamic sizes, and modules cut out by name."""

import numpy as np
import onnx
import pytest
import torch

pytest.importorskip("onnxruntime", reason="onnxruntime runs what is exported here: pip install onnxruntime")

import onnx_ir as ir
from onnx import checker, helper

import parity
from cases.shipped import load_case
from parity.base.errors import UserError
from parity.base.precision import PRECISIONS
from parity.capture.captures import argument_keys
from parity.capture.torch_hooks import tapped
from parity.inputs.arrays import make_inputs
from parity.runners import make_runner
from parity.runners.onnx.export import (
    NotSeparable,
    module_of,
    save_model,
    traced_batch,
)
from tests.parity.hidden_gpu import without_gpu
from tests.parity.onnx_setup import setup

# Exports are made once in a process.
pytestmark = pytest.mark.xdist_group("onnx_export")
CASES = ("dlrm_tiny", "dlrm_tiny_weighted", "dlrm_lecture_index", "hstu_tiny")


@pytest.fixture(
    params=[
        pytest.param(name, marks=() if name in ("dlrm_tiny", "hstu_tiny") else pytest.mark.full)
        for name in CASES
    ]
)
def subject(request):
    return setup(request.param)


class TestNames:
    def test_taps_are_those_of_the_reference(self, subject):
        model = subject.case.build_reference().eval()
        arguments = subject.case.entry_arguments(subject.arrays(3, 1))
        with torch.no_grad(), tapped(model) as capture:
            getattr(model, subject.case.entry)(**_tensors(arguments))
        assert subject.onnx.exported.taps == tuple(capture.tensors)
        assert subject.onnx.exported.outputs == tuple(
            f"{subject.case.entry}.{name}" for name in subject.case.outputs
        )

    def test_outputs_of_the_files_carry_them(self, subject):
        exported = subject.onnx.exported
        assert [value.name for value in exported.plain().graph.outputs] == list(exported.outputs)
        assert [value.name for value in exported.tapped().graph.outputs] == [
            *exported.taps,
            *exported.outputs,
        ]

    @pytest.mark.parametrize(
        ("case", "names"),
        [
            (
                "hstu_tiny",
                ["past_lengths", "past_ids", "past_payloads.timestamps", "past_payloads.ratings", "item_ids"],
            ),
            ("dlrm_tiny_weighted", ["counts", "lS_o.0", "lS_o.1", "lS_i.0", "lS_i.1", "lS_w.0", "lS_w.1"]),
            ("dlrm_lecture_index", ["dense_features", "sparse_features"]),
        ],
    )
    def test_inputs_are_the_entrys_arguments(self, case, names):
        assert [value.name for value in setup(case).onnx.exported.plain().graph.inputs] == names

    def test_first_axes_are_dynamic_and_each_tables_total_is_its_own(self):
        inputs = setup("dlrm_tiny_weighted").onnx.exported.plain().graph.inputs
        sizes = {value.name: str(value.shape[0]) for value in inputs}
        assert sizes.pop("counts") == "batch"
        assert sizes == {
            **{f"lS_o.{table}": "batch" for table in (0, 1)},
            **{f"lS_{kind}.{table}": f"indices_{table}" for kind in "iw" for table in (0, 1)},
        }

    def test_weights_have_the_names_of_the_state_dict(self, subject):
        names = set(subject.onnx.exported.plain().graph.initializers)
        parameters = dict(subject.case.build_reference().named_parameters())
        # Some are transposed or folded by the optimiser.
        assert len(names & set(parameters)) >= len(parameters) // 2

    def test_nodes_know_their_module(self):
        nodes = setup("dlrm_tiny").onnx.exported.plain().graph
        paths = {module_of(node) for node in nodes if node.op_type == "Gemm"}
        assert {"bot_l.0", "top_l.0"} <= paths


def _tensors(value):
    if isinstance(value, dict):
        return {key: _tensors(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_tensors(item) for item in value]
    return torch.tensor(value)


def test_the_file_is_plain_onnx(subject, tmp_path):
    save_model(subject.onnx.exported.plain(), tmp_path / "model.onnx")
    checker.check_model(tmp_path / "model.onnx", full_check=True)
    kinds = {node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node}
    assert not kinds & {"Loop", "If", "Scan", "SequenceEmpty", "ConcatFromSequence", "Identity"}


class TestDynamicSizes:
    @pytest.mark.parametrize("batch", [1, 2, 7, 40])
    def test_one_file_takes_other_batches(self, subject, batch):
        outputs = subject.assert_right(subject.arrays(batch, seed=batch))
        assert all(tensor.shape[0] == batch for tensor in outputs.values())

    @pytest.mark.parametrize("name", ["dlrm_tiny", "dlrm_tiny_weighted"])
    def test_bags_of_any_lengths(self, name):
        result = setup(name)
        for lengths in ([0, 0, 0], [0, 5, 0], [9, 0, 1], [0, 0, 64]):
            result.assert_right(_bags(result, lengths))

    def test_an_empty_bag_is_zero_and_reads_no_neighbour(self):
        result = setup("dlrm_tiny")
        taps = result.onnx.run_tapped(_bags(result, [3, 0, 2])).tensors
        assert taps["emb_l.0"][1].abs().max() == 0
        assert (taps["emb_l.0"][[0, 2]].abs().sum(dim=1) > 0).all()


def _bags(subject, lengths):
    """Inputs whose every table has bags of these lengths."""
    batch, total = len(lengths), sum(lengths)
    arrays = subject.arrays(batch, seed=3)
    rng = np.random.default_rng(total)
    for table, rows in enumerate(subject.case.model.table_rows):
        arrays[f"lS_i_{table}"] = rng.integers(0, rows, total)
        if f"lS_w_{table}" in arrays:
            arrays[f"lS_w_{table}"] = rng.uniform(0.25, 2.0, total).astype(np.float32)
    arrays["lS_o"] = np.tile(np.cumsum([0, *lengths])[:-1], (len(subject.case.model.table_rows), 1))
    return arrays


class TestModules:
    def test_every_call_of_the_reference_can_be_cut_out(self, subject):
        arrays = subject.arrays(4, 0)
        capture = subject.other("torch").record(arrays)
        calls = [call for call in capture.calls if subject.onnx.can_run(call)]
        assert calls
        for call in calls:
            keys = argument_keys(call.args, call.kwargs)
            model = subject.onnx.exported.module(call.tap, list(keys), call.outputs)
            assert [value.name for value in model.graph.outputs] == list(call.outputs)
            # Its own weights and no others.
            owners = {name.rsplit(".", 1)[0] for name in model.graph.initializers if name in subject.weights}
            assert all((owner + ".").startswith(call.path + ".") for owner in owners), (call.path, owners)

    def test_what_depends_on_more_than_its_arguments_is_said_so(self):
        exported = setup("dlrm_tiny").onnx.exported
        with pytest.raises(NotSeparable, match="depends on the values of counts, which is no argument of it"):
            exported.module("bot_l.2", [], ("bot_l.2",))

    def test_an_unknown_tap_is_said_so(self):
        exported = setup("dlrm_tiny").onnx.exported
        with pytest.raises(NotSeparable, match="has no tensor bot_l.77:args.0, bot_l.77"):
            exported.module("bot_l.77", ["args.0"], ("bot_l.77",))


def test_ir_of_the_runner_is_not_changed_by_cutting():
    exported = setup("dlrm_tiny").onnx.exported
    before = len(list(exported.graph)), [value.name for value in exported.graph.outputs]
    exported.plain()
    exported.module("bot_l.0", ["args.0"], ("bot_l.0",))
    assert before == (len(list(exported.graph)), [value.name for value in exported.graph.outputs])


def test_module_of_a_node_without_scopes_is_empty():
    assert module_of(ir.from_proto(helper.make_node("Relu", ["x"], ["y"]))) == ""


@pytest.mark.parametrize("name", ["fp32", "fp16"])
def test_small_constants_stay(name):
    """The optimizer takes 1e-8 for 0, and 1.000008 for 1."""

    class Small(torch.nn.Module):
        def forward(self, x):
            # The first one is infinite without its summand, of a row of zeros.
            return (
                1.0 / (x.float() + 1e-8),
                x.float() * (1.0 + 8e-6),
                x.float() - 1e-9,
                x.float() / (1.0 - 8e-6),
            )

    class Case(parity.Case):
        name = "small"
        batch_size = 4

        def build_reference(self):
            return Small()

        def build_port(self, dtype):
            raise NotImplementedError

        def make_inputs(self):
            return {"x": np.geomspace(1e-9, 1.0, 4 * 8).reshape(4, 8).astype(np.float32)}

    case = Case()
    x = case.make_inputs()["x"]
    # The installed runtime may have no CUDA.
    with without_gpu():
        runner = make_runner("onnxruntime")
        runner.load(case, PRECISIONS[name], {})
        results = runner.run({"x": x}).values()
    expected = Small()(torch.from_numpy(x).to(PRECISIONS[name].dtype))
    for result, right in zip(results, expected, strict=True):
        torch.testing.assert_close(result, right, rtol=1e-6, atol=0.0)


def test_a_sequence_as_long_as_the_batch_has_another_batch():
    case = load_case("hstu_tiny")
    case = case.with_sizes({"model.max_sequence_len": 32 - case.model.max_output_len})
    with pytest.raises(UserError, match="padded length: 32 is also the size of the batch"):
        make_inputs(case.with_overrides(batch_size=32))
    assert case.batch_size_of(traced_batch(case)) == 33


def test_a_case_that_no_number_of_rows_suits_refuses_in_its_own_words(monkeypatch):
    case = load_case("dlrm_tiny")

    def refuse(self, arrays):
        raise UserError("rows", self.batch_size_of(arrays), "are refused", "give none")

    monkeypatch.setattr(type(case), "validate", refuse)
    with pytest.raises(UserError, match="rows: 32 are refused"):
        traced_batch(case)
