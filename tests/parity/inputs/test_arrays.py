"""Inputs are read-only, digested, and saved with their digest."""

import pickle

import numpy as np
import pytest

import configs
from cases.hstu.inputs import HSTUInputs
from cases.hstu.synthetic import synthetic
from parity.base.errors import UserError
from parity.inputs.arrays import load, save


def _case(**changes):
    return configs.with_input(configs.load_case("hstu_tiny"), **changes)


def test_arrays_are_read_only_and_independent_of_the_caller():
    values = {name: array.copy() for name, array in synthetic(_case()).arrays.items()}
    inputs = HSTUInputs(values)
    digest = inputs.digest
    values["past_ids"][:] = 3
    with pytest.raises(ValueError, match="read-only"):
        inputs["past_ids"][0, 0] = 3
    with pytest.raises(TypeError):
        inputs.arrays["past_ids"] = values["past_ids"]
    assert HSTUInputs(inputs.arrays).digest == digest
    assert pickle.loads(pickle.dumps(inputs)).digest == digest


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: arrays.update(ratings=arrays["ratings"] + 1),
        lambda arrays: arrays.update(ratings=arrays["ratings"].astype(np.int32)),
        lambda arrays: arrays.update(item_ids=arrays["item_ids"].T),
        lambda arrays: arrays.update(ratings=arrays["past_ids"], past_ids=arrays["ratings"]),
    ],
)
def test_the_digest_covers_names_types_shapes_and_values(change):
    inputs = synthetic(_case())
    arrays = dict(inputs.arrays)
    change(arrays)
    assert HSTUInputs(arrays).digest != inputs.digest


def test_saved_inputs_come_back(tmp_path):
    inputs = synthetic(_case())
    path = tmp_path / "new" / "inputs.safetensors"
    save(inputs, path)
    save(inputs, path)
    assert load(path).digest == inputs.digest
    other = tmp_path / "again.safetensors"
    save(inputs, other)
    assert other.read_bytes() == path.read_bytes()
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["inputs.safetensors"]


def test_saving_never_replaces_other_inputs(tmp_path):
    path = tmp_path / "inputs.safetensors"
    save(synthetic(_case(seed=0)), path)
    before = path.read_bytes()
    with pytest.raises(UserError, match="exists with other content; remove it, or choose another folder"):
        save(synthetic(_case(seed=1)), path)
    assert path.read_bytes() == before


def test_saving_into_what_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written .*; choose a folder that you can write to"):
        save(synthetic(_case()), tmp_path / "file" / "inputs.safetensors")


def test_files_that_are_no_inputs(tmp_path):
    path = tmp_path / "inputs.safetensors"
    with pytest.raises(UserError, match="cannot be read"):
        load(path)
    inputs = synthetic(_case())
    save(inputs, path)
    content = path.read_bytes()
    path.write_bytes(content[:-8])
    with pytest.raises(UserError, match="is truncated or not safetensors"):
        load(path)
    path.write_bytes(content[:-8] + (7).to_bytes(8, "little"))
    with pytest.raises(UserError, match="does not have the digest that was saved with it"):
        load(path)
    path.write_bytes(content.replace(b"parity.inputs/1", b"parity.inputs/9"))
    with pytest.raises(UserError, match="has schema parity.inputs/9, not parity.inputs/1"):
        load(path)
