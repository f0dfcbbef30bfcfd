"""The lecture's DLRM in Tripy: its hashes, its products, its metadata, and the whole model by hand."""

from __future__ import annotations

import json

import numpy as np
import nvtripy as tp
import pytest

from configs import load_case
from tests.tripy_port.port_setup import array, call, compile_for, max_difference, tensor
from tripy_port.build import build_lecture_dlrm
from tripy_port.lecture_dlrm import DenseSparseInteractionLayer, SparseArch, check_metadata, read_metadata

# The first sparse values of the two rows that the lecture prints.
RAW = np.array([[1651969401, 3793706328, 2951365679], [3857972621, 2695561126, 1873417685]])
METADATA = {
    f"SPARSE_{feature}": {
        "cardinality": 5 + feature,
        "tokenizer_values": [7, int(RAW[1, feature]), int(RAW[0, feature]), 11],
    }
    for feature in range(3)
}


def sparse_arch(use_modulus_hash: bool) -> SparseArch:
    return SparseArch(METADATA, dict.fromkeys(METADATA, 2), use_modulus_hash)


def test_the_modulus_hash_is_never_negative():
    raw = np.concatenate([RAW, -RAW, [[0, -1, 2**62]]])
    rows = array(sparse_arch(use_modulus_hash=True).hash_indices(tensor(raw)))
    assert np.array_equal(rows, (raw + 1) % np.array([5, 6, 7]))
    assert array(SparseArch.modulus_hash(tensor(raw), 5)).tolist() == ((raw + 1) % 5).tolist()


def test_the_index_hash_is_the_place_among_the_tokens_and_0_for_strangers():
    raw = np.concatenate([RAW, [[7, 11, 12345]]])
    rows = array(sparse_arch(use_modulus_hash=False).hash_indices(tensor(raw)))
    assert rows.tolist() == [[2, 2, 2], [1, 1, 1], [0, 3, 0]]
    twice = SparseArch.index_hash(tensor(np.array([4, 5])), tensor(np.array([5, 4, 4])))
    assert array(twice).tolist() == [1, 0]


def test_all_products_come_row_by_row():
    dense = np.array([[1.0, 2.0], [0.5, 4.0]], dtype=np.float32)
    sparse = [np.array([[8.0], [16.0]], dtype=np.float32)]
    actual = array(DenseSparseInteractionLayer()(tensor(dense), [tensor(entry) for entry in sparse]))
    whole = np.concatenate([dense, *sparse], axis=1)
    assert actual.tolist() == [np.outer(row, row).ravel().tolist() for row in whole]


@pytest.mark.parametrize("name", ["dlrm_lecture", "dlrm_lecture_index"])
def test_the_whole_model_in_one_executable_for_any_batch(name):
    config = load_case(name).model
    model = build_lecture_dlrm(config)
    rng = np.random.default_rng(0)
    values = {
        key: (rng.standard_normal(tuple(parameter.shape)) / np.sqrt(parameter.shape[-1])).astype(np.float32)
        for key, parameter in sorted(model.state_dict().items())
    }
    model.load_state_dict({key: tensor(value) for key, value in values.items()})
    raw = rng.integers(0, 2**32, (5, len(config.cardinalities)))
    if config.token_hash == "index":
        raw[0] = [entry["tokenizer_values"][-1] for entry in config.metadata.values()]
    dense = rng.random((5, config.dense_input_feature_size)).astype(np.float32)
    compiled = compile_for(model.forward, (dense, raw), smallest=(dense[:1], raw[:1]))
    for batch in (1, 5):
        actual = call(compiled, (dense[:batch], raw[:batch]))
        expected = by_hand(values, config, dense[:batch], raw[:batch])
        # Sums of up to 186,624 products.
        assert max_difference(actual[0] if batch > 1 else np.array(actual).reshape(1), expected) < 1e-4


def by_hand(values: dict, config, dense: np.ndarray, raw: np.ndarray) -> np.ndarray:
    def mlp(name: str, x: np.ndarray) -> np.ndarray:
        layers = sorted(int(key.split(".")[3]) for key in values if key.startswith(name) and "weight" in key)
        for layer in layers:
            prefix = f"{name}.mlp.fc_layers.{layer}"
            x = x @ values[f"{prefix}.weight"].T.astype(np.float64) + values[f"{prefix}.bias"]
            x = x if layer == layers[-1] else np.maximum(x, 0.0)
        return x

    looked_up = []
    for feature, entry in enumerate(config.metadata.values()):
        if config.token_hash == "modulus":
            rows = (raw[:, feature] + 1) % entry["cardinality"]
        else:
            tokens = entry["tokenizer_values"]
            rows = [tokens.index(value) if value in tokens else 0 for value in raw[:, feature]]
        looked_up.append(values[f"sparse_layer.sparse_layers.{feature}.embedding.weight"][rows])
    whole = np.concatenate([mlp("dense_layer", dense), *looked_up], axis=1)
    products = (whole[:, :, None] * whole[:, None, :]).reshape(len(whole), -1)
    return 1.0 / (1.0 + np.exp(-mlp("prediction_layer", products)[:, 0]))


def test_metadata_is_read_and_checked(tmp_path):
    path = tmp_path / "metadata.json"
    path.write_text(json.dumps(METADATA))
    assert read_metadata(path) == METADATA
    for text, message in (("{", "is not JSON"), ("[]", "must hold one entry for each feature")):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_metadata(path)
    with pytest.raises(ValueError, match="must be SPARSE_0 to SPARSE_0, in order"):
        check_metadata({"SPARSE_1": METADATA["SPARSE_1"]})
    with pytest.raises(ValueError, match="needs 'tokenizer_values'"):
        check_metadata({"SPARSE_0": {"cardinality": 3}})


def test_what_does_not_fit_is_refused():
    many = {"SPARSE_0": {"cardinality": 1, "tokenizer_values": [1, 2]}}
    with pytest.raises(ValueError, match="SPARSE_0 tokens=2: must be 1 to 1, the feature's cardinality"):
        SparseArch(many, {"SPARSE_0": 2}, use_modulus_hash=False)
    with pytest.raises(ValueError, match="embedding_sizes=.*: must name each feature of the metadata"):
        SparseArch(METADATA, {"SPARSE_0": 2})
    with pytest.raises(ValueError, match="dtype=int32: choose one of"):
        build_lecture_dlrm(load_case("dlrm_lecture").model, tp.int32)
