"""Requests of DLRMv3 for a server.

Legend: B users, H rows of a padded history, T candidates at most, K tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import numpy as np

from cases.dlrmv3 import inputs as dlrmv3_inputs
from cases.dlrmv3.plan import narrow_width
from cases.dlrmv3.requests import BenchmarkRequests
from cases.dlrmv3.returning import FRESH, returning, shared
from configs import CaseConfig
from parity.case import Arrays
from parity.case.serving import Audit, DeviceLookup, Drawn, Lookup, Serving

_NARROWEST = 1024
"""Rows of a history that are not halved again, unless they are all rows of a small model."""
_LEAST = 1e-7
"""Distance of a prediction from 0 and 1 from which the audit's metric does not tell it apart."""


class DLRMv3Serving(Serving):
    """Requests of one case. The tokens are rows of history, context and all possible candidates.

    Args:
        config: The case.
        forbidden_widths: Sizes that no padded axis may have.
        requests: Requests and tables by the tables' seed; the benchmark's with small tables by default.
    """

    benchmark = "dlrm-v3"
    # Public source (mlcommons/inference): compliance/TEST08, README.md and dlrm-v3/audit.config.
    fresh = FRESH
    audit = Audit("TEST08", log_seed=720381539243781796, log_target=4096, tolerance=1e-3)

    def __init__(
        self,
        config: CaseConfig,
        forbidden_widths: set[int],
        requests: Callable[[int], BenchmarkRequests] | None = None,
    ) -> None:
        self._config, self._model = config, config.model
        self._requests = partial(BenchmarkRequests, config) if requests is None else requests
        self._other = self._model.contextual_seq_len + self._model.max_num_candidates
        self.widths = [rows + self._other for rows in _histories(config, forbidden_widths)]

    def draw(self, requests: int, seed: int, data: Path | None = None) -> Drawn:
        return self._requests(seed).draw(requests, data)

    def tables(self, folder: Path, seed: int) -> AbstractContextManager[Lookup]:
        return self._requests(seed).tables(folder)

    def device_tables(self, folder: Path, seed: int, device: str) -> AbstractContextManager[DeviceLookup]:
        return self._requests(seed).device_tables(folder, device)

    def shared(self, inputs: Arrays) -> Arrays:
        return shared(inputs, self._model)

    def returning(self, drawn: Drawn) -> Drawn:
        return returning(drawn, self._model)

    def tokens(self, arrays: Arrays) -> np.ndarray:
        return arrays["uih_lengths"] + self._other

    def padded(self, arrays: Arrays, width: int) -> Arrays:
        rows = (*dlrmv3_inputs.UIH, dlrmv3_inputs.ACTIONS)
        h = width - self._other
        return {name: array[:, :h] if name in rows else array for name, array in arrays.items()}

    def counted(self, arrays: Arrays) -> np.ndarray:
        valid_BT = np.arange(self._model.max_num_candidates) < arrays["num_candidates"][:, None]
        return np.repeat(valid_BT[:, :, None], self._model.num_tasks, axis=2)

    def change(self, before: np.ndarray, after: np.ndarray) -> float:
        """Of the normalized entropy, a sum of -log p and -log(1 - p) over another one of labels alone.

        No term has another sign than the sum, so that its relative change is at most that of one term.
        """
        k = self._model.num_classification_tasks
        one, other = (
            np.clip(predictions[..., :k].astype(np.float64), _LEAST, 1.0 - _LEAST)
            for predictions in (before, after)
        )
        terms = [(np.log(one), np.log(other)), (np.log1p(-one), np.log1p(-other))]
        return max(float(np.max(np.abs(new - old) / np.abs(old), initial=0.0)) for old, new in terms)


def _histories(config: CaseConfig, forbidden_widths: set[int]) -> list[int]:
    """Rows of padded histories, ascending: all, half of them, and so on."""
    model = config.model
    longest = model.max_uih_len
    wanted = [longest / 2]
    while wanted[-1] >= 2 * _NARROWEST:
        wanted.append(wanted[-1] / 2)
    narrow = (narrow_width(model, forbidden_widths, rows) for rows in wanted)
    return sorted({longest, *(rows for rows in narrow if rows is not None)})
