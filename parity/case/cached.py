"""Keys and values of rows that requests share: a server keeps them and computes the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from parity.case.plan import Arrays

if TYPE_CHECKING:
    import numpy as np


class Cached:
    """The k/v cache of a case for a server. By default it has none.

    `parity.case.serving.Serving.shared` says which requests share rows.
    """

    name: str
    resumed: tuple[str, ...] = ()
    """Names of the inputs that `resume` takes; empty where there is no cache."""

    def keep(self, model: Any, arguments: Mapping[str, Any]) -> tuple[Any, Any]:
        """The entry's result, and a nest of tensors (..., columns) with a row for each row of the batch.

        Args:
            model: A model of either side.
            arguments: As for the entry.
        """
        raise NotImplementedError(f"{self.name} has no k/v cache")

    def resume(self, model: Any, arguments: Mapping[str, Any], cache: Sequence[Any]) -> Any:
        """The entry's result for requests whose shared rows are in a cache.

        Args:
            model: A model of either side.
            arguments: The inputs of `resumed`.
            cache: The tensors of `keep` in order, each (B, tokens of a padded request, columns): a request's
                shared rows, and zeros behind.
        """
        raise NotImplementedError(f"{self.name} has no k/v cache")

    def shared_rows(self, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
        """(B,) first row and (B,) number of each request's shared rows in the tensors of `keep`.

        Rows are counted with all axes but the last flattened.
        """
        raise NotImplementedError(f"{self.name} has no k/v cache")
