"""Taps, calls and longest sums of a small PyTorch model, saved and read back."""

import json
from dataclasses import replace

import pytest
import torch

from cases.shipped import load_case
from parity.base.errors import UserError
from parity.base.precision import PRECISIONS
from parity.capture.captures import Capture, ModuleCall, TensorKey, tensor_leaves
from parity.capture.spool import content_digest
from parity.capture.store import load_longest_sum, open_capture, open_recorded, save_capture
from parity.capture.torch_hooks import tapped
from parity.inputs.arrays import make_inputs
from parity.inputs.weights import case_weights
from parity.runners import make_runner


class Pair(torch.nn.Module):
    def forward(self, x, scale=1.0):
        return x * scale, None, {"sum": x.sum(dim=-1)}


class Lookup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(7, 4)

    def forward(self, ids):
        return self.table(ids).reshape(-1, 4)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lookup = Lookup()
        self.mix = torch.nn.Linear(4, 3)
        self.pair = Pair()

    def forward(self, ids):
        x = self.mix(self.lookup(ids))
        self.pair(x, scale=2.0)
        return self.pair(x)[0]


@pytest.fixture
def capture():
    torch.manual_seed(0)
    model = Model()
    with torch.inference_mode(), tapped(model, record_calls=True) as capture:
        model(torch.tensor([[1, 2], [3, 6]]))
    return capture


def test_taps_are_named_by_path_call_and_position(capture):
    assert list(capture.tensors) == [
        "lookup.table",
        "lookup",
        "mix",
        "pair[0]",
        "pair[2][sum]",
        "pair@1[0]",
        "pair@1[2][sum]",
    ]
    assert torch.equal(capture.tensors["pair[0]"], 2 * capture.tensors["pair@1[0]"])


def test_calls_keep_arguments_and_share_equal_tensors(capture):
    pair, again = (call for call in capture.calls if call.path == "pair")
    assert pair.kwargs == {"scale": 2.0}
    assert isinstance(pair.args[0], TensorKey)
    assert pair.args == again.args
    assert torch.equal(capture.call_inputs[pair.args[0].key], capture.tensors["mix"])
    assert pair.kind == "Pair"
    assert again.outputs == ("pair@1[0]", "pair@1[2][sum]")


def test_longest_sums_are_observed(capture):
    # Linear adds a bias to sums of 4; a lookup and a reshape do no arithmetic; the sum has 3 terms.
    assert capture.longest_sums == {"": 5, "lookup": 0, "lookup.table": 0, "mix": 5, "pair": 3}
    assert capture.longest_sums_before["lookup"] == 0
    assert capture.longest_sums_before["pair[0]"] == 5


@pytest.mark.parametrize(
    ("function", "terms"),
    [
        (lambda x: torch.nn.functional.layer_norm(x, [6]), 6),
        (lambda x: x.softmax(dim=0), 5),
        (lambda x: torch.linalg.norm(x, dim=-1), 6),
        (lambda x: x.mean(), 30),
        (lambda x: x @ x.T, 6),
        (lambda x: torch.relu(x), 1),
        (lambda x: torch.cat([x, x])[2:].transpose(0, 1).contiguous(), 0),
        (lambda x: torch.einsum("ij,kj->ik", x, x), 6),
        (lambda x: (x > 0).sum(), 0),
    ],
    ids=["layer_norm", "softmax", "norm", "mean", "matmul", "relu", "moves", "einsum", "integers"],
)
def test_longest_sum_of_an_operation(function, terms):
    module = torch.nn.Module()
    module.forward = function
    holder = torch.nn.Module()
    holder.inner = module
    x = torch.randn(5, 6)
    with tapped(holder, record_calls=True) as capture:
        holder.inner(x)
    assert capture.longest_sums == {"": terms, "inner": terms}


def test_the_sums_outside_of_all_modules_are_those_of_the_whole():
    holder = torch.nn.Module()
    holder.inner = torch.nn.Linear(6, 2)
    x = torch.randn(5, 6)
    with tapped(holder, record_calls=True) as capture:
        holder.inner(x) + x.mean()
    assert capture.longest_sums == {"": 30, "inner": 7}


def test_inputs_are_recorded_before_the_module_changes_them():
    class InPlace(torch.nn.Module):
        def forward(self, x):
            return x.add_(1)

    holder = torch.nn.Module()
    holder.inner = InPlace()
    with tapped(holder, record_calls=True) as capture:
        holder.inner(torch.zeros(3))
    (call,) = capture.calls
    assert torch.equal(capture.call_inputs[call.args[0].key], torch.zeros(3))
    assert torch.equal(capture.tensors["inner"], torch.ones(3))


def test_hooks_are_removed(capture):
    model = Model()
    with tapped(model):
        pass
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_saved_captures_come_back_bit_for_bit(tmp_path, capture):
    capture.tensors["half"] = torch.tensor([1.5, -0.0, float("nan")]).bfloat16()
    capture.tensors["mask"] = torch.tensor([True, False])
    save_capture(capture, tmp_path / "deep" / "capture")
    back = open_capture(tmp_path / "deep" / "capture")
    assert list(back.tensors) == list(capture.tensors)
    assert back.calls == capture.calls
    assert back.longest_sums == capture.longest_sums
    assert back.longest_sums_before == capture.longest_sums_before
    for name, tensor in capture.tensors.items():
        assert back.tensors[name].dtype == tensor.dtype
        assert torch.equal(
            back.tensors[name].contiguous().view(torch.uint8), tensor.contiguous().view(torch.uint8)
        )


@pytest.mark.parametrize("depth", [50, 950, 2000, 100_000])
def test_a_capture_with_deep_facts_is_refused(tmp_path, capture, depth):
    save_capture(capture, tmp_path / "capture")
    (tmp_path / "capture.json").write_text('{"order":' * depth + "1" + "}" * depth)
    with pytest.raises(UserError, match="capture: .* is missing or damaged"):
        open_capture(tmp_path / "capture")


@pytest.mark.parametrize(
    ("part", "value"),
    [
        (("taps", "order", 0), True),
        (("taps", "order"), []),
        (("taps", "shapes"), {}),
        (("taps", "sizes", "mix"), True),
        (("inputs", "stored"), {"absent": ["0"]}),
        (("longest_sums",), {"mix": None}),
        (("longest_sums",), {"mix": -1}),
        (("longest_sums_before", "mix"), 10**400),
        (("taps", "shapes", "mix", 0), -1),
        (("calls", 0, "outputs", 0), 1),
        (("calls", 0, "more"), 1),
        (("arguments",), {"mix": {}}),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, tuple) else None,
)
def test_a_capture_whose_facts_have_other_types_is_refused(tmp_path, capture, part, value):
    save_capture(capture, tmp_path / "capture")
    path = tmp_path / "capture.json"
    document = json.loads(path.read_text())
    place = document
    for key in part[:-1]:
        place = place[key]
    place[part[-1]] = value
    path.write_text(json.dumps(document))
    with pytest.raises(
        UserError,
        match=r"is missing or damaged \((.+ has another type or size|its lists .* differ)\)",
    ):
        open_capture(tmp_path / "capture")


@pytest.mark.parametrize("sums", ["longest_sums", "longest_sums_before"])
def test_calls_of_the_reference_have_longest_sums(tmp_path, capture, sums):
    save_capture(capture, tmp_path / "capture")
    assert open_recorded(tmp_path / "capture").calls == capture.calls
    save_capture(replace(capture, **{sums: {"18446744073709551616": 0}}), tmp_path / "capture")
    with pytest.raises(UserError, match="is missing or damaged .it has no longest sum of "):
        open_recorded(tmp_path / "capture")


def test_values_beside_tensors_are_no_results_and_equal_tensors_are_one():
    assert list(tensor_leaves(["text", 2, None, torch.float32, object()], torch.is_tensor)) == []
    capture = Capture()
    assert capture.intern(torch.zeros(2)) == capture.intern(torch.zeros(2))
    assert capture.intern(torch.zeros(2)) != capture.intern(torch.zeros(1, 2))


def test_filling_a_cache_and_appending_to_it_are_recorded_as_calls_of_their_own(tiny):
    case, model, _ = tiny
    runner = make_runner("torch")
    runner.load(case, PRECISIONS["fp32"], case_weights(case)[0])
    inputs = make_inputs(case).typical
    capture = runner.record(inputs.arrays)
    appending = {call.tap: call for call in capture.calls if call.appends}
    # First the history without its last item, whose results hold the cache: v, q, k, outputs of both blocks.
    assert len(appending["append:_hstu"].outputs) == 1 + 2 * 4
    # Then the blocks compute one row; what is called as before is not kept twice.
    assert len(appending["append:_hstu@1"].outputs) == 1
    assert "append:_embedding_module@1" not in appending
    # An append between others returns the cache, too. Only what has this form alone is kept.
    new = ("_hstu", "_hstu._attention_layers.0", "_hstu._attention_layers.1")
    assert {tap for tap in appending if "@2" in tap} == {f"append:{path}@2" for path in new}
    assert len(appending["append:_hstu@2"].outputs) == 1 + 2 * 4
    for call in appending.values():
        outputs = runner.run_call(call, capture.call_inputs, inputs.arrays)
        assert outputs.keys() == set(call.outputs)
        for name, tensor in outputs.items():
            assert torch.equal(tensor, capture.tensors[name])


def test_a_method_that_is_a_call_is_recorded_under_its_name():
    case = load_case("stu_tiny")
    runner = make_runner("torch")
    runner.load(case, PRECISIONS["fp32"], case_weights(case)[0])
    inputs = make_inputs(case).typical
    capture = runner.record(inputs.arrays)
    methods = {call.tap: call for call in capture.calls if call.method != "forward"}
    assert "append:_stu_module@1" in methods
    for call in methods.values():
        for name, tensor in runner.run_call(call, capture.call_inputs, inputs.arrays).items():
            assert torch.equal(tensor, capture.tensors[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_empty_tensors_have_digests(dtype):
    assert content_digest(torch.zeros(0, dtype=dtype)) != content_digest(torch.zeros(0, 2, dtype=dtype))


def test_the_longest_sum_of_a_module_is_that_of_the_forward_or_of_the_appends():
    forward = Capture(longest_sums={"a": 3, "b": 8}, largest_results={"a": 1})
    forward.add_appending(Capture(longest_sums={"a": 5, "b": 2, "c": 4}, largest_results={"a": 7}))
    assert forward.longest_sums == {"a": 5, "b": 8, "c": 4}
    assert forward.largest_results == {"a": 7}


def test_the_longest_sum_of_a_saved_model_is_that_of_its_modules(tmp_path):
    save_capture(Capture(longest_sums={"a": 3, "b": 8, "c": 5}), tmp_path / "tapped")
    assert load_longest_sum(tmp_path / "tapped") == 8


def test_constants_of_saved_calls_keep_their_types(tmp_path):
    constants = [1, 0, True, False, 1.0, None, "1"]
    call = ModuleCall("a", "a", "A", constants, {"one": 1}, ("a",))
    save_capture(Capture(calls=[call]), tmp_path / "tapped")
    (back,) = open_capture(tmp_path / "tapped").calls
    assert repr(back.args) == repr(constants)
    assert repr(back.kwargs) == repr({"one": 1})
