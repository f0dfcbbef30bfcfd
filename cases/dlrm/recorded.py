"""Criteo click logs as DLRM takes them, in batches of rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cases.data_errors import as_user_errors
from cases.dlrm.inputs import make_inputs
from configs import CaseConfig
from datasets.criteo import logs
from datasets.criteo.logs import CriteoData
from parity.case import Batches
from parity.inputs.arrays import CaseInputs


@as_user_errors()
def read(path: Path) -> tuple[Path, CriteoData]:
    """Reads a file, or a folder of days; returns its path beside the rows.

    Raises:
        UserError: see `datasets.criteo.logs.preprocess`.
    """
    return path, logs.preprocess(logs.find_files(path), logs.Preprocessing())


@as_user_errors()
def recorded(case: CaseConfig, data: tuple[Path, CriteoData]) -> Batches:
    """All rows, in the order of the files; clicks are the labels.

    Values of a vocabulary share the rows of a smaller table, by the remainder of the division.

    Raises:
        UserError: the case takes other features than the data have, or a dense feature is no whole number.
    """
    path, rows = data
    model = case.model
    logs.check_features(path, case.name, model.bottom_widths[0], len(model.table_rows))
    batches, labels, folded = [], [], 0
    for batch in rows.batches(case.input.batch_size):
        indices_TB = logs.fold_rows(batch.lS_i, model.table_rows)
        folded += int((indices_TB != batch.lS_i).sum())
        batches.append(make_inputs(logs.counts_of(batch.dense_x), batch.lS_o, list(indices_TB)))
        labels.append(CaseInputs({"clicks": batch.labels[:, 0].astype(np.int64)}))
    counts = {
        "rows": sum(inputs["counts"].shape[0] for inputs in batches),
        "broken_lines": len(rows.report.broken),
        "indices": sum(inputs["lS_o"].size for inputs in batches),
        "indices_folded_into_smaller_tables": folded,
    }
    return Batches(batches, path.name, counts, labels)
