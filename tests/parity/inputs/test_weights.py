"""Initial weights make every module count; files of weights are read strictly and never in part."""

import json
import os
import pickle
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F

import configs
from cases.hstu.synthetic import synthetic
from cases.hstu.weight_scales import weight_scale
from parity.base.errors import UserError
from parity.inputs import weights
from reference.build import build_hstu

CASES = [name for name in configs.list_cases() if configs.load_case(name).family == "hstu"]
#: The most rows of positions in a batch; a case with more of them is looked at with fewer users.
_MOST_ROWS = 2**11


def _small(name):
    """A case cut down in what has no part in the test and takes the time.

    The item table's size has none: a row's scale does not depend on it. Nor has the number of users, who are
    independent: every number here is a mean over all valid rows. The length has one, since a bias that
    differs from key to key averages out over them, and stays what it is.
    """
    case = configs.load_case(name)
    users = max(1, min(case.input.batch_size, _MOST_ROWS // case.model.max_sequence_len))
    return case.model_copy(
        update={
            "model": case.model.model_copy(update={"num_items": 200}),
            "input": case.input.model_copy(update={"batch_size": users}),
        }
    )


def _model(case):
    model = build_hstu(case.model)
    model.load_state_dict(weights.initial_weights(model, case.input.seed, weight_scale), strict=True)
    return model


def _score(model, inputs):
    arrays = {name: torch.tensor(array) for name, array in inputs.arrays.items()}
    payloads = {"timestamps": arrays["timestamps"], "ratings": arrays["ratings"]}
    with torch.no_grad():
        return model.score(arrays["past_lengths"], arrays["past_ids"], payloads, arrays["item_ids"])


@pytest.fixture
def observed():
    """Runs a case and returns, by block, the valid rows of what went in and out of the parts named."""

    def observe(name):
        case = _small(name)
        model, inputs = _model(case), synthetic(case)
        mask = torch.tensor(inputs.position_mask())
        seen = {"block": [], "without bias": [], "epsilon": []}

        def on_block(_, args, kwargs, output):
            x = (args[0] if args else kwargs["x"])[mask]
            seen["block"].append(((output[0][mask] - x).norm() / x.norm()).item())

        def on_attention(module, args, kwargs, output):
            named = dict(zip(("q", "k", "v", "attn_bias", "valid_attn_mask"), args, strict=False)) | kwargs
            if named["attn_bias"] is not None:
                named["attn_bias"] = torch.zeros_like(named["attn_bias"])
                seen["without bias"].append(_distance(module.forward(**named)[mask], output[mask]))

        def on_norm(_, args, kwargs, output):
            x = (args[0] if args else kwargs["x"])[mask]
            seen["epsilon"].append(_distance(F.layer_norm(x, x.shape[-1:], eps=1e-5), output[mask]))

        for layer in model._hstu._attention_layers:
            layer.register_forward_hook(on_block, with_kwargs=True)
            layer._attn.register_forward_hook(on_attention, with_kwargs=True)
            layer._norm_input.register_forward_hook(on_norm, with_kwargs=True)
            layer._norm_attn_output.register_forward_hook(on_norm, with_kwargs=True)
        _score(model, inputs)
        assert len(seen["block"]) == case.model.num_blocks
        return seen

    return observe


def _distance(changed, original):
    return ((changed - original).norm() / original.norm()).item()


@pytest.mark.parametrize("name", CASES)
def test_initial_weights_make_every_block_bias_and_epsilon_count(observed, name):
    seen = observed(name)
    assert all(0.3 < ratio < 3.0 for ratio in seen["block"]), seen["block"]
    assert all(change > 0.1 for change in seen["without bias"]), seen["without bias"]
    # Ten times what float32 rounds off.
    assert all(change > 10 * torch.finfo(torch.float32).eps for change in seen["epsilon"]), seen["epsilon"]


@pytest.mark.parametrize("name", ["hstu_tiny", "hstu_tiny_rated", "hstu_tiny_combined"])
def test_every_parameter_changes_the_scores(name):
    case = configs.load_case(name)
    inputs = synthetic(case)
    model = _model(case)
    encoded, _, scores = _score(model, inputs)
    mask = torch.tensor(inputs.position_mask())
    for key, parameter in model.named_parameters():
        before = parameter.detach().clone()
        with torch.no_grad():
            parameter.mul_(1.001)
        changed, _, changed_scores = _score(model, inputs)
        # A thousandth of one tensor, in float32, clear of round-off: a hundred times eps.
        assert _distance(changed[mask], encoded[mask]) > 100 * torch.finfo(torch.float32).eps, key
        assert not torch.equal(changed_scores, scores), key
        with torch.no_grad():
            parameter.copy_(before)


def test_initial_weights_are_a_whole_state_dict_of_the_seed():
    case = configs.load_case("hstu_tiny_combined")
    model = build_hstu(case.model)
    first, again, other = (weights.initial_weights(model, seed, weight_scale) for seed in (0, 0, 1))
    assert list(first) == list(model.state_dict())
    assert all(first[name].dtype == torch.float32 for name, _ in model.named_parameters())
    for name, buffer in model.named_buffers():
        assert torch.equal(first[name], buffer)
    assert weights.digest(first) == weights.digest(again) != weights.digest(other)
    assert (first["_embedding_module._item_emb.weight"][0] != 0).all()


def test_a_deeper_model_keeps_the_values_of_the_common_layers():
    case = configs.load_case("hstu_tiny")
    deeper = case.model.model_copy(update={"num_blocks": 5})
    shallow = weights.initial_weights(build_hstu(case.model), 0, weight_scale)
    deep = weights.initial_weights(build_hstu(deeper), 0, weight_scale)
    assert all(torch.equal(tensor, deep[name]) for name, tensor in shallow.items())


def test_a_parameter_without_an_override_has_the_scale_of_its_role():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(5000, 16)
            self.layer = torch.nn.Linear(400, 300)
            self.norm = torch.nn.LayerNorm(4000)
            self.own = torch.nn.Parameter(torch.empty(300, 20, 20))
            self.gate = torch.nn.Parameter(torch.empty(4000))
            self.scale = torch.nn.Parameter(torch.tensor(1.0))

    tensors = weights.initial_weights(Model(), 0)
    assert tensors.pop("scale").shape == ()
    expected = {
        "table.weight": 0.5,
        "layer.weight": 0.05,
        "layer.bias": 0.3,
        "norm.weight": 1.0,
        "norm.bias": 0.3,
        "own": 0.05,
        "gate": 0.3,
    }
    assert {
        name: pytest.approx(float(tensor.std()), rel=0.15) for name, tensor in tensors.items()
    } == expected


def test_rounding_touches_floats_only():
    values = {"w": torch.tensor([1.0, 1.0 + 2**-12]), "n": torch.tensor([7]), "b": torch.tensor([True])}
    half = weights.rounded(values, torch.bfloat16)
    assert [half[name].dtype for name in values] == [torch.bfloat16, torch.int64, torch.bool]
    wide = weights.rounded(half, torch.float64)
    assert wide["w"].tolist() == [1.0, 1.0]
    assert wide["w"].dtype == torch.float64


@pytest.fixture
def tiny():
    case = configs.load_case("hstu_tiny")
    return weights.initial_weights(build_hstu(case.model), 0, weight_scale)


def test_an_export_comes_back_and_says_what_it_is(tiny, tmp_path):
    folder = tmp_path / "a" / "weights"
    weights.export(tiny, folder)
    weights.export(tiny, folder)
    assert sorted(os.listdir(folder)) == ["manifest.json", "weights.safetensors"]
    back = weights.load_export(folder)
    assert weights.digest(back) == weights.digest(tiny)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["schema"] == "parity.weights/1"
    assert manifest["transforms"] == []
    entry = next(entry for entry in manifest["tensors"] if entry["name"] == "_attn_mask")
    assert (entry["shape"], entry["dtype"], len(entry["sha256"])) == ([27, 27], "bool", 64)


def test_an_export_never_replaces_another(tiny, tmp_path):
    weights.export(tiny, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UserError, match="exists with other content; remove it, or choose another folder"):
        weights.export({**tiny, "_attn_mask": ~tiny["_attn_mask"]}, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def _edit_manifest(folder, **changes):
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json cannot be read"),
        (lambda folder: (folder / "weights.safetensors").unlink(), "weights.safetensors cannot be read"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json is not JSON"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "has schema None, not parity.weights/1"),
        (
            lambda folder: _edit_manifest(folder, schema="parity.weights/9"),
            "has schema parity.weights/9, not",
        ),
        (
            lambda folder: _edit_manifest(folder, transforms=["transpose"]),
            "declares transforms .'transpose'.",
        ),
        (lambda folder: _edit_manifest(folder, tensors=[]), "differs from its manifest in 13 tensors"),
        (lambda folder: os.truncate(folder / "weights.safetensors", 5000), "is cut short or not safetensors"),
    ],
)
def test_a_damaged_export_is_refused(tiny, tmp_path, damage, message):
    weights.export(tiny, tmp_path)
    damage(tmp_path)
    with pytest.raises(UserError, match=message):
        weights.load_export(tmp_path)


def test_a_changed_value_in_an_export_is_found(tiny, tmp_path):
    weights.export(tiny, tmp_path)
    path = tmp_path / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-4] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="differs from its manifest in 1 tensors"):
        weights.load_export(tmp_path)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: OrderedDict(state),
        lambda state: {
            "epoch": 3,
            "model_state_dict": OrderedDict(state),
            "optimizer_state_dict": {"lr": 1e-3},
        },
        lambda state: {"epoch": 3, "model_state_dict": {f"module.{name}": t for name, t in state.items()}},
    ],
)
@pytest.mark.parametrize("legacy", [False, True])
def test_checkpoints_of_torch_are_read_whatever_their_suffix(tiny, tmp_path, wrap, legacy):
    path = tmp_path / "HSTU-b3_ep100"
    torch.save(wrap(tiny), path, _use_new_zipfile_serialization=not legacy)
    assert weights.digest(weights.load_checkpoint(path, weights.layout(tiny))) == weights.digest(tiny)


def test_checkpoints_of_safetensors_are_read(tiny, tmp_path):
    weights.export(tiny, tmp_path)
    read = weights.load_checkpoint(tmp_path / "weights.safetensors", weights.layout(tiny))
    assert weights.digest(read) == weights.digest(tiny)
    assert list(read) == list(tiny)


def test_a_half_precision_checkpoint_is_widened(tiny, tmp_path):
    path = tmp_path / "half.pt"
    torch.save(weights.rounded(tiny, torch.bfloat16), path)
    read = weights.load_checkpoint(path, weights.layout(tiny))
    expected = weights.rounded(weights.rounded(tiny, torch.bfloat16), torch.float32)
    assert weights.digest(read) == weights.digest(expected)


EMB, MASK, UVQK = "_embedding_module._item_emb.weight", "_attn_mask", "_hstu._attention_layers.1._uvqk"


def _nan(state):
    state[EMB] = state[EMB].clone()
    state[EMB][3, 5:7] = float("nan")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop(UVQK), rf"has not the model's tensors \(only in the model: {UVQK}\); use the case"),
        (lambda s: s.update(more=s[EMB]), r"has not the model's tensors \(only in the file: more\)"),
        (
            lambda s: s.update(renamed=s.pop(EMB)),
            rf"\(only in the model: {EMB}; only in the file: renamed\)",
        ),
        (
            lambda s: s.update({UVQK: s[UVQK].T}),
            rf"{UVQK} is \[64, 16\] in the file and \[16, 64\] in the model",
        ),
        (lambda s: s.update({UVQK: s[UVQK].double()}), rf"{UVQK} is float64 in the file and float32 in the"),
        (
            lambda s: s.update({MASK: s[MASK].float()}),
            rf"{MASK} is float32 in the file and bool in the model",
        ),
        (lambda s: s.update({EMB: s[EMB].to_sparse()}), rf"{EMB} is float32 that is not dense in the file"),
        (_nan, rf"has NaN or Inf \({EMB} has 2, the first nan at \[3, 5\]\); use a checkpoint from before"),
        (lambda s: s.update({UVQK: s[UVQK] / 0}), rf"{UVQK} has 1024, the first -?inf at \[0, 0\]"),
        (lambda s: s.update(step=3), r"holds entries that are no named tensors: 'step' \(int\); give a"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(tiny, tmp_path, change, message):
    expected = weights.layout(tiny)
    change(tiny)
    path = tmp_path / "checkpoint.pt"
    torch.save(tiny, path)
    with pytest.raises(UserError, match=message) as caught:
        weights.load_checkpoint(path, expected)
    assert caught.value.field == "weights"
    assert str(path) in str(caught.value)


class _Harmful:
    """Unpickled, it would write a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize(
    "save", [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content, protocol=2))]
)
def test_a_pickled_object_is_refused_and_not_run(tiny, tmp_path, save):
    path, harm = tmp_path / "checkpoint.pt", tmp_path / "harm"
    save({"weights": _Harmful(harm)}, path)
    with pytest.raises(
        UserError, match="is cut short, or holds objects other than tensors .*; give a .safetens"
    ):
        weights.load_checkpoint(path, weights.layout(tiny))
    assert not harm.exists()


@pytest.mark.parametrize("fraction", [0.0, 0.001, 0.5, 0.99])
def test_a_truncated_checkpoint_is_refused(tiny, tmp_path, fraction):
    path = tmp_path / "checkpoint.pt"
    torch.save(tiny, path)
    os.truncate(path, int(path.stat().st_size * fraction))
    with pytest.raises(UserError, match="is empty|is cut short or damaged"):
        weights.load_checkpoint(path, weights.layout(tiny))


def test_files_that_are_no_checkpoint(tiny, tmp_path):
    expected = weights.layout(tiny)
    with pytest.raises(
        UserError, match="cannot be read .No such file or directory.; give a .safetensors file"
    ):
        weights.load_checkpoint(tmp_path / "absent.pt", expected)
    with pytest.raises(UserError, match="cannot be read .Is a directory."):
        weights.load_checkpoint(tmp_path, expected)
    path = tmp_path / "notes.pt"
    path.write_text("no weights here")
    with pytest.raises(UserError, match="starts like neither of the two kinds of checkpoint"):
        weights.load_checkpoint(path, expected)
    torch.save(torch.zeros(3), path)
    with pytest.raises(UserError, match="holds a Tensor, not a state dict"):
        weights.load_checkpoint(path, expected)
    weights.export(tiny, tmp_path / "export")
    content = (tmp_path / "export" / "weights.safetensors").read_bytes()
    path.write_bytes(content[:-100])
    with pytest.raises(UserError, match="is cut short or not safetensors"):
        weights.load_checkpoint(path, expected)
