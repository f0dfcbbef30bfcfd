"""Files of weights: exports and checkpoints are read strictly, and never in part."""

import json
import os
import pickle
import zipfile
from collections import OrderedDict

import pytest
import torch

import configs
from cases.hstu.weight_scales import weight_scale
from cases.shipped import load_case
from parity.base.errors import UserError
from parity.inputs import checkpoints, weights
from reference.build import build_hstu


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
    assert weights.digest(checkpoints.load_checkpoint(path, checkpoints.layout(tiny))) == weights.digest(tiny)


def test_a_case_has_the_weights_of_its_checkpoint_and_names_the_file(tiny, tmp_path):
    trained = {name: 0.75 * tensor if tensor.is_floating_point() else tensor for name, tensor in tiny.items()}
    path = tmp_path / "trained.pt"
    torch.save(trained, path)
    loaded, source = weights.case_weights(load_case("hstu_tiny"), path)
    assert source == str(path)
    assert loaded.keys() == trained.keys()
    assert all(torch.equal(loaded[name], trained[name]) for name in trained)


def test_checkpoints_of_safetensors_are_read(tiny, tmp_path):
    weights.export(tiny, tmp_path)
    read = checkpoints.load_checkpoint(tmp_path / "weights.safetensors", checkpoints.layout(tiny))
    assert weights.digest(read) == weights.digest(tiny)
    assert list(read) == list(tiny)


def test_a_half_precision_checkpoint_is_widened(tiny, tmp_path):
    path = tmp_path / "half.pt"
    torch.save(weights.rounded(tiny, torch.bfloat16), path)
    read = checkpoints.load_checkpoint(path, checkpoints.layout(tiny))
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
        (lambda s: s.pop(MASK), rf"has not the model's tensors \(only in the model: {MASK}\)"),
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
        (lambda s: s.update({EMB: s[EMB].to_sparse()}), rf"{EMB} is float32 that is not dense"),
        (
            lambda s: s.update({EMB: torch.nested.as_nested_tensor([s[EMB]])}),
            rf"{EMB} is float32 that is not dense",
        ),
        (_nan, rf"has NaN or Inf \({EMB} has 2, the first nan at \[3, 5\]\); use a checkpoint from before"),
        (lambda s: s.update({UVQK: s[UVQK] / 0}), rf"{UVQK} has 1024, the first -?inf at \[0, 0\]"),
        (
            lambda s: s.update({"more": s.pop(EMB), UVQK: s[UVQK][:3]}),
            rf"only in the model: {EMB}; only in the file: more; {UVQK} is \[3, 64\] in the file and ",
        ),
        (lambda s: s.update(step=3), r"holds entries that are no named tensors: 'step' \(int\); give a"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(tiny, tmp_path, change, message):
    expected = checkpoints.layout(tiny)
    change(tiny)
    path = tmp_path / "checkpoint.pt"
    torch.save(tiny, path)
    with pytest.raises(UserError, match=message) as caught:
        checkpoints.load_checkpoint(path, expected)
    assert caught.value.field == "weights"
    assert str(path) in str(caught.value)


class _OfTheSystem:
    """An object of a module that PyTorch blocks by name."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


class _Harmful:
    """Unpickled, it would write a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize(
    ("save", "message"),
    [
        (torch.save, r"holds an object of \S+open, and is no state dict; save model.state_dict"),
        (
            lambda content, path: path.write_bytes(pickle.dumps(content, protocol=2)),
            "is cut short, or holds objects other than tensors .*; give a .safetens",
        ),
    ],
)
def test_a_pickled_object_is_refused_and_not_run(tiny, tmp_path, save, message):
    path, harm = tmp_path / "checkpoint.pt", tmp_path / "harm"
    save({"weights": _Harmful(harm)}, path)
    with pytest.raises(UserError, match=message):
        checkpoints.load_checkpoint(path, checkpoints.layout(tiny))
    assert not harm.exists()


def test_an_object_of_a_blocked_module_is_named(tiny, tmp_path):
    path, harm = tmp_path / "checkpoint.pt", tmp_path / "harm"
    torch.save({"weights": _OfTheSystem(harm)}, path)
    with pytest.raises(
        UserError, match=r"holds an object of \w+\.mkdir, and is no state dict; save"
    ) as caught:
        checkpoints.load_checkpoint(path, checkpoints.layout(tiny))
    assert "weights_only" not in str(caught.value)
    assert not harm.exists()


def test_a_pickled_model_is_named_without_pytorchs_advice_to_run_it(tiny, tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save(torch.nn.Linear(2, 3), path)
    with pytest.raises(UserError) as raised:
        checkpoints.load_checkpoint(path, checkpoints.layout(tiny))
    assert "holds an object of torch.nn.modules.linear.Linear, and is no state dict" in str(raised.value)
    assert "trust" not in str(raised.value)


@pytest.mark.parametrize("packed", [False, True])
def test_a_pickled_object_with_a_long_name_is_refused_at_once(tiny, tmp_path, packed, monkeypatch):
    path = tmp_path / "checkpoint.pt"
    pickled = b"\x80\x02cbuiltins\n" + b"x" * 300_000 + b"\n."
    torch.save({}, path)
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    if packed:
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, pickled if name.endswith("data.pkl") else content)
    else:
        path.write_bytes(pickled)
    # PyTorch takes the square of the name's length in time.
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("PyTorch sees the name"))
    with pytest.raises(UserError, match="the name of an object has 300009 characters"):
        checkpoints.load_checkpoint(path, checkpoints.layout(tiny))


@pytest.mark.parametrize("fraction", [0.0, 0.001, 0.5, 0.99])
def test_a_truncated_checkpoint_is_refused(tiny, tmp_path, fraction):
    path = tmp_path / "checkpoint.pt"
    torch.save(tiny, path)
    os.truncate(path, int(path.stat().st_size * fraction))
    with pytest.raises(UserError, match="is empty|is cut short or damaged"):
        checkpoints.load_checkpoint(path, checkpoints.layout(tiny))


def test_files_that_are_no_checkpoint(tiny, tmp_path):
    expected = checkpoints.layout(tiny)
    with pytest.raises(
        UserError, match="cannot be read .No such file or directory.; give a .safetensors file"
    ):
        checkpoints.load_checkpoint(tmp_path / "absent.pt", expected)
    with pytest.raises(UserError, match="cannot be read .Is a directory."):
        checkpoints.load_checkpoint(tmp_path, expected)
    path = tmp_path / "notes.pt"
    path.write_text("no weights here")
    with pytest.raises(UserError, match="starts like neither of the two kinds of checkpoint"):
        checkpoints.load_checkpoint(path, expected)
    torch.save(torch.zeros(3), path)
    with pytest.raises(UserError, match="holds a Tensor, not a state dict"):
        checkpoints.load_checkpoint(path, expected)
    weights.export(tiny, tmp_path / "export")
    content = (tmp_path / "export" / "weights.safetensors").read_bytes()
    path.write_bytes(content[:-100])
    with pytest.raises(UserError, match="is cut short or not safetensors"):
        checkpoints.load_checkpoint(path, expected)
