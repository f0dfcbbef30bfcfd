"""Training DLRM: binary cross entropy on the click probability, as the public program does.

Source of the settings: facebookresearch/dlrm, ``dlrm_s_pytorch.py`` (optimizers, loss) and
``bench/dlrm_s_criteo_kaggle.sh`` (SGD at 0.1, 128 rows a step).

Legend: B batch, N rows of the log, C dense features, T tables.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from reference.dlrm import DLRM_Net
from reference.training import TRAIN, VALIDATION
from reference.validation import require, require_choice

#: Learning rates of the optimizers: the public script's for sgd, the public program's default for adagrad.
LEARNING_RATES = {"sgd": 0.1, "adagrad": 0.01}
BATCH_SIZE = 128
EPOCHS, PATIENCE = 50, 5
#: Of the challenge's seven days the public program trains on six.
_PARTS = 7


@dataclass(frozen=True)
class ClickLog:
    """Rows of a click log, one index a bag.

    Attributes:
        counts_NC: (N, C) int64.
        rows_TN: (T, N) integer rows of the tables.
        labels_N: (N,) 0 or 1.
    """

    counts_NC: torch.Tensor
    rows_TN: torch.Tensor
    labels_N: torch.Tensor

    def __len__(self) -> int:
        return self.labels_N.shape[0]

    def split(self) -> dict[str, ClickLog]:
        """The two parts, in order of time: the last seventh, at least one row, is for validation.

        Raises:
            ValueError: fewer than two rows.
        """
        require(len(self) >= 2, "rows", len(self), "give at least two, one to train and one to validate")
        first = len(self) - max(1, len(self) // _PARTS)
        return {TRAIN: self._part(slice(first)), VALIDATION: self._part(slice(first, None))}

    def _part(self, rows: slice) -> ClickLog:
        return ClickLog(self.counts_NC[rows], self.rows_TN[:, rows], self.labels_N[rows])


class DLRMTask:
    """See `reference.training.Task`.

    Args:
        model: a model whose output is a click probability, (B, 1).
        log: rows with indices inside the model's tables.
        optimizer: a name in `LEARNING_RATES`.
        learning_rate: the learning rate; None for the one of `LEARNING_RATES`.
    """

    def __init__(
        self, model: DLRM_Net, log: ClickLog, optimizer: str = "sgd", learning_rate: float | None = None
    ) -> None:
        require_choice("optimizer", optimizer, LEARNING_RATES)
        self.model = model
        self._parts = log.split()
        kind = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}[optimizer]
        rate = LEARNING_RATES[optimizer] if learning_rate is None else learning_rate
        self.lengths = None
        self.optimizers: tuple[torch.optim.Optimizer, ...] = (kind(model.parameters(), lr=rate),)

    def num_rows(self, part: str) -> int:
        return len(self._parts[part])

    def loss(self, part: str, rows_B: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, int]:
        """Mean binary cross entropy, and the number of rows. ``generator`` is not used."""
        log = self._parts[part]
        rows_TB = log.rows_TN[:, rows_B].long()
        offsets_TB = torch.arange(len(rows_B)).expand(len(rows_TB), -1)
        click_B1 = self.model.predict(log.counts_NC[rows_B], offsets_TB, rows_TB)
        labels_B1 = log.labels_N[rows_B].to(click_B1.dtype)[:, None]
        return F.binary_cross_entropy(click_B1, labels_B1), len(rows_B)
