"""The lecture's DLRM: its logged shapes, its two printed rows, its printed products, its hashes, its keys."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from reference.criteo_dataset import CriteoParquetDataset
from reference.lecture_dlrm import (
    DLRM,
    DenseArch,
    DenseSparseInteractionLayer,
    Parameters,
    PredictionLayer,
    SparseArch,
    read_metadata,
)
from tests.locations import SHARED

SEED = SHARED / "seeds" / "002_833879316aaa8719.txt"

# The two rows that the lecture prints: the first batch of its sample file.
DENSE = [
    [5, 110, 0, 16, 0, 1, 0, 14, 7, 1, 0, 306, 0],
    [32, 3, 5, 0, 1, 0, 0, 61, 5, 0, 1, 3157, 5],
]
SPARSE = [
    [
        *(1651969401, 3793706328, 2951365679, 2489089999, 951068488, 1875733963, 897624609, 679512323),
        *(1189011366, 771915201, 209470001, 2509774111, 12976055, 3192841527, 2316006604, 1289502458),
        *(3523761834, 3088518074, 2501034507, 3280875304, 351689309, 632402057, 3619814411, 2091868316),
        *(809724924, 3977271069),
    ],
    [
        *(3857972621, 2695561126, 1873417685, 3666490401, 1020698403, 1875733963, 2870406529, 1128426537),
        *(502653268, 2112471209, 1716706404, 2582335015, 12976055, 3192841527, 4089183897, 1289502458),
        *(3523761834, 2716538129, 2501034507, 4273985635, 2737978529, 3370249814, 391309800, 1966410890),
        *(2568167914, 3075991895),
    ],
]
# Cardinalities that are not all alike, and tokenizers in which both rows' values are found.
METADATA = {
    f"SPARSE_{feature}": {
        "cardinality": 5 + feature,
        "tokenizer_values": [7, SPARSE[1][feature], SPARSE[0][feature], 11],
    }
    for feature in range(26)
}
PARAMETERS = Parameters(
    dense_input_feature_size=13,
    sparse_embedding_sizes=dict.fromkeys(METADATA, 16),
    dense_mlp={"hidden_layer_sizes": [32], "output_size": 16},
    prediction_hidden_sizes=[16],
)
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture
def rows():
    return torch.tensor(DENSE, dtype=torch.float32), torch.tensor(SPARSE)


def printed_tensor(text, name):
    """The numbers of the first tensor that the seed prints after a line that is just ``name``."""
    block = re.search(rf"^{name}\ntensor\((.*?)\]\]", text, re.DOTALL | re.MULTILINE)
    return [float(number) for number in re.findall(r"\d+\.?\d*(?:e[+-]\d+)?", block.group(1))]


def test_the_two_rows_are_those_of_the_seed():
    if not SEED.is_file():
        pytest.skip(f"the seed document is not there: {SEED.name}")
    text = SEED.read_text()
    assert printed_tensor(text, "dense") == [value for row in DENSE for value in row]
    assert printed_tensor(text, "sparse") == [value for row in SPARSE for value in row]


def test_shapes_are_those_of_the_lecture(rows):
    dense, sparse = rows
    assert dense.shape == (2, 13)
    assert sparse.shape == (2, 26)
    dense_out = DenseArch(dense_feature_count=13, dense_hidden_layers_sizes=[32], output_size=16)(dense)
    assert dense_out.shape == (2, 16)
    sparse_out = SparseArch(metadata=METADATA, embedding_sizes=dict.fromkeys(METADATA, 16))(sparse)
    assert [out.shape for out in sparse_out] == [(2, 16)] * 26
    products = DenseSparseInteractionLayer()(dense_out, sparse_out)
    assert products.shape == (2, 186_624)
    prediction = PredictionLayer(dense_out_size=16, sparse_out_sizes=[16] * 26, hidden_sizes=[16])(products)
    assert prediction.shape == (2, 1)
    assert bool(((prediction >= 0) & (prediction <= 1)).all())


def test_products_are_those_that_the_lecture_prints():
    # The start of dense_out, to four decimals, and of the interaction that the lecture made of it, to five
    # digits.
    dense_out = torch.tensor([[11.6451, 3.0189, -48.5918], [146.8453, 13.4556, -391.1624]])
    printed = torch.tensor([[1.3561e02, 3.5155e01, -5.6586e02], [2.1564e04, 1.9759e03, -5.7440e04]])
    sparse_out = [torch.tensor([[-2.0452, 0.7938], [-0.5692, 0.4912]])]
    products = DenseSparseInteractionLayer()(dense_out, sparse_out)
    # Half a unit of the last digit that is printed: of both factors, and of their product.
    first = dense_out[:, :1].abs()
    of_factors = 0.5e-4 * (first + dense_out.abs())
    of_product = 0.5e-4 * 10 ** printed.abs().log10().floor()
    assert ((products[:, :3] - printed).abs() <= of_factors + of_product).all()
    concat = torch.cat((dense_out, *sparse_out), dim=1)
    expected = torch.stack([torch.outer(row, row).flatten() for row in concat])
    assert torch.equal(products, expected)


def test_modulus_hash_of_the_two_rows(rows):
    arch = SparseArch(METADATA, dict.fromkeys(METADATA, 16))
    expected = [[(value + 1) % (5 + feature) for feature, value in enumerate(row)] for row in SPARSE]
    assert arch.hash_indices(rows[1]).tolist() == expected
    assert SparseArch.modulus_hash(torch.tensor([-3, -1, 4]), 5).tolist() == [3, 0, 0]


def test_index_hash_of_the_two_rows(rows):
    arch = SparseArch(METADATA, dict.fromkeys(METADATA, 16), use_modulus_hash=False)
    # Features whose two rows agree find the first of the two equal tokens.
    same = [a == b for a, b in zip(*SPARSE, strict=True)]
    assert sum(same) == 6
    assert arch.hash_indices(rows[1]).tolist() == [[1 if equal else 2 for equal in same], [1] * 26]


def test_index_hash_gives_unknown_values_the_first_row():
    assert SparseArch.index_hash(torch.tensor([9, 5, 2**32]), torch.tensor([7, 5, 9])).tolist() == [2, 1, 0]


@pytest.mark.parametrize("use_modulus_hash", [True, False])
def test_sparse_arch_looks_up_the_hashed_rows(rows, use_modulus_hash):
    arch = SparseArch(METADATA, dict.fromkeys(METADATA, 16), use_modulus_hash)
    hashed_BT = arch.hash_indices(rows[1])
    for feature, out in enumerate(arch(rows[1])):
        table = arch.sparse_layers[feature].embedding.weight
        assert torch.equal(out, table[hashed_BT[:, feature]])


def test_keys_are_those_of_the_lecture():
    keys = list(DLRM(METADATA, PARAMETERS).state_dict())
    assert keys == [
        *(f"dense_layer.mlp.fc_layers.{n}.{kind}" for n in (0, 2) for kind in ("weight", "bias")),
        *(f"sparse_layer.sparse_layers.{feature}.embedding.weight" for feature in range(26)),
        *(f"prediction_layer.mlp.fc_layers.{n}.{kind}" for n in (0, 2) for kind in ("weight", "bias")),
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_whole_model_runs_on_the_two_rows(rows, dtype):
    model = DLRM(METADATA, PARAMETERS).to(dtype)
    dense, sparse = rows[0].log1p(), rows[1]
    both = model(dense.to(dtype), sparse)
    assert both.shape == (2,)
    assert both.dtype == dtype
    assert bool(both.isfinite().all())
    assert model(dense[:1].to(dtype), sparse[:1]).shape == (1,)


def test_float16_does_not_hold_the_products_of_raw_counts():
    # The lecture feeds counts as they are; its own printed dense output squares to 153,008, beyond 65,504.
    dense_out = torch.tensor([[146.8453, 13.4556, -391.1624]])
    products = {dtype: DenseSparseInteractionLayer()(dense_out.to(dtype), []) for dtype in DTYPES}
    overflown = [dtype for dtype, product in products.items() if not bool(product.isfinite().all())]
    assert overflown == [torch.float16]


@pytest.mark.parametrize("use_modulus_hash", [True, False])
def test_one_export_serves_any_batch(rows, use_modulus_hash):
    parameters = Parameters(13, dict.fromkeys(METADATA, 2), PARAMETERS.dense_mlp, [4], use_modulus_hash)
    model = DLRM(METADATA, parameters).eval()
    dense, sparse = rows
    batch = torch.export.Dim("batch")
    exported = torch.export.export(model, rows, dynamic_shapes=({0: batch}, {0: batch})).module()
    more = (dense.repeat(3, 1), sparse.repeat(3, 1))
    assert torch.equal(exported(*more), model(*more))


def test_metadata_is_read_and_checked(tmp_path):
    path = tmp_path / "metadata.json"
    path.write_text(json.dumps(METADATA))
    assert read_metadata(path) == METADATA
    for broken, message in [
        ("{", r"is not JSON"),
        ("[]", r"must hold one entry for each feature"),
        ("{}", r"give at least one sparse feature"),
        (json.dumps({"SPARSE_1": METADATA["SPARSE_1"]}), r"must be SPARSE_0 to SPARSE_0, in order"),
        (json.dumps({"SPARSE_0": {"cardinality": 3}}), r"metadata\['SPARSE_0'\].*needs 'tokenizer_values'"),
        (
            json.dumps({"SPARSE_0": {"cardinality": 0, "tokenizer_values": []}}),
            r"must be an integer of at least 1",
        ),
    ]:
        path.write_text(broken)
        with pytest.raises(ValueError, match=message):
            read_metadata(path)


def test_more_tokens_than_rows_are_refused():
    metadata = {"SPARSE_0": {"cardinality": 2, "tokenizer_values": [1, 2, 3]}}
    SparseArch(metadata, {"SPARSE_0": 4}, use_modulus_hash=True)
    with pytest.raises(ValueError, match=r"SPARSE_0 tokens=3: must be 1 to 2"):
        SparseArch(metadata, {"SPARSE_0": 4}, use_modulus_hash=False)
    with pytest.raises(ValueError, match=r"embedding_sizes=\['SPARSE_1'\]: must name each feature"):
        SparseArch(metadata, {"SPARSE_1": 4})


def write_parquet(path, **columns):
    dense = {f"DENSE_{number}": [row[number] for row in DENSE] for number in range(13)}
    sparse = {f"SPARSE_{number}": [row[number] for row in SPARSE] for number in range(26)}
    # Sorted by name: SPARSE_10 stands before SPARSE_2, and must not be taken for it.
    table = dict(sorted({**sparse, "labels": [0, 1], **dense, **columns}.items()))
    parquet.write_table(
        pa.table({name: values for name, values in table.items() if values is not None}), path
    )
    return path


def test_the_dataset_has_the_lecture_shapes(tmp_path):
    dataset = CriteoParquetDataset(write_parquet(tmp_path / "sample.parquet"))
    labels, dense, sparse = next(iter(torch.utils.data.DataLoader(dataset, batch_size=2, shuffle=False)))
    assert (labels.shape, dense.shape, sparse.shape) == ((2,), (2, 13), (2, 26))
    assert (labels.dtype, dense.dtype, sparse.dtype) == (torch.float32, torch.float32, torch.int64)
    assert labels.tolist() == [0.0, 1.0]
    assert dense.tolist() == DENSE
    assert sparse.tolist() == SPARSE
    assert len(dataset) == 2


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"labels": None}, r"no column labels"),
        ({"DENSE_3": None}, r"no column DENSE_3"),
        ({"SPARSE_5": [1, None]}, r"column SPARSE_5 has 1 gaps"),
        ({"SPARSE_5": ["a", "b"]}, r"column SPARSE_5 holds string, not whole numbers"),
        ({"SPARSE_5": [1.5, 2.0]}, r"column SPARSE_5 holds double, not whole numbers"),
    ],
)
def test_incomplete_parquet_files_are_refused(tmp_path, columns, message):
    with pytest.raises(ValueError, match=message):
        CriteoParquetDataset(write_parquet(tmp_path / "sample.parquet", **columns))
