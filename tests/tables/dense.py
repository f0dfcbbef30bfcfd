"""The dense part of DLRMv3 behind tables: requests by id, rows of an engine, predictions of the reference."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from cases.dlrmv3.case import DLRMv3Case
from cases.dlrmv3.inputs import Drawing
from parity.inputs.arrays import make_inputs
from tables.interface import Tables

TABLES = ("item", "category", "context")
OF_ARRAY = {
    "uih_embeddings": "item",
    "candidate_embeddings": "item",
    "uih_category_embeddings": "category",
    "candidate_category_embeddings": "category",
    "contextual_embeddings": "context",
}
PADDING = -1
"""Id of a row of zeros."""


def tables_of(case: DLRMv3Case) -> dict[str, torch.Tensor]:
    """The tables behind a case's requests."""
    rows = Drawing(case.config, 0)._tables
    return {name: torch.from_numpy(rows[number].copy()) for number, name in enumerate(TABLES)}


def requests(case: DLRMv3Case) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The arrays of the typical batch, and for each array of embeddings the ids of its rows."""
    arrays, tables = dict(make_inputs(case).batches[0].inputs.arrays), tables_of(case)
    ids = {}
    for name in OF_ARRAY.keys() & arrays.keys():
        table = tables[OF_ARRAY[name]].numpy()
        same = (arrays[name][:, :, None, :] == table).all(axis=-1)
        ids[name] = np.where(same.any(axis=-1), same.argmax(axis=-1), PADDING)
        assert (arrays[name][ids[name] == PADDING] == 0).all()
    return arrays, ids


def embedded(
    tables: Tables, arrays: Mapping[str, np.ndarray], ids: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The arrays with rows from an engine, in order of names: all ranks make the same calls."""
    looked_up = {}
    for name in sorted(ids):
        valid = torch.from_numpy(ids[name] != PADDING)
        rows = tables.lookup(OF_ARRAY[name], torch.from_numpy(ids[name]).clamp(min=0))
        looked_up[name] = torch.where(valid[..., None], rows, 0).cpu().numpy()
    return {**arrays, **looked_up}


def predictions(
    case: DLRMv3Case, weights: Mapping[str, torch.Tensor], arrays: Mapping[str, np.ndarray]
) -> torch.Tensor:
    """(B, T, K): the reference's predictions."""
    model = case.build_reference().eval()
    model.load_state_dict(weights)
    with torch.no_grad():
        return case.call(model, {name: torch.tensor(array) for name, array in arrays.items()})
