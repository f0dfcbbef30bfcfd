"""The lecture's dataset: Criteo rows from a parquet file, as tensors, as in its ``criteo_dataset.py``.

`datasets.criteo` reads the original text files, and data that exceed memory.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from pyarrow import parquet
from torch.utils.data import Dataset


class CriteoParquetDataset(Dataset):
    """Rows of (label, dense, sparse) from a file with columns ``labels``, ``DENSE_0``... and ``SPARSE_0``...

    Columns are in the order of their numbers, whatever their order in the file. The file is read whole.

    Attributes:
        labels_B: (rows,) float32.
        dense_BD: (rows, dense features) float32.
        sparse_BT: (rows, sparse features) int64.

    Raises:
        ValueError: a column is missing, has gaps, or holds no numbers.
    """

    def __init__(self, file_path: str | Path) -> None:
        table = parquet.read_table(file_path)
        self.path = Path(file_path)
        columns = {name: table.column(name) for name in table.column_names}
        self.labels_B = self._stack(columns, ["labels"], np.float32)[:, 0]
        self.dense_BD = self._stack(columns, self._numbered(columns, "DENSE_"), np.float32)
        self.sparse_BT = self._stack(columns, self._numbered(columns, "SPARSE_"), np.int64)

    def _numbered(self, columns: dict, prefix: str) -> list[str]:
        names = [f"{prefix}{number}" for number in range(sum(name.startswith(prefix) for name in columns))]
        if not names:
            raise ValueError(f"{self.path.name}: no column {prefix}0; it has {', '.join(columns)}")
        return names

    def _stack(self, columns: dict, names: list[str], dtype: type[np.generic]) -> torch.Tensor:
        arrays = []
        for name in names:
            if name not in columns:
                raise ValueError(f"{self.path.name}: no column {name}; it has {', '.join(columns)}")
            column = columns[name]
            if column.null_count:
                raise ValueError(
                    f"{self.path.name}: column {name} has {column.null_count} gaps: fill them first"
                )
            try:
                arrays.append(column.to_numpy().astype(dtype, casting="same_kind"))
            except (TypeError, ValueError) as error:
                kind = "whole numbers" if dtype is np.int64 else "numbers"
                raise ValueError(
                    f"{self.path.name}: column {name} holds {column.type}, not {kind}"
                ) from error
        return torch.from_numpy(np.stack(arrays, axis=1))

    def __len__(self) -> int:
        return len(self.labels_B)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.labels_B[index], self.dense_BD[index], self.sparse_BT[index]
