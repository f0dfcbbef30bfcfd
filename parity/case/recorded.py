"""The part of a case for recorded data and their labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.base.errors import UserError
from parity.case.plan import Batches

if TYPE_CHECKING:
    from parity.base.precision import Precision
    from parity.base.task import Task


class Recorded:
    """Reads recorded data, and names the metrics of their labels. By default a case reads none."""

    name: str

    def recognises(self, path: Path) -> bool:
        """Whether a file begins like one that `read` reads; False for one that cannot be read at all."""
        return False

    def read(self, path: Path) -> Any:
        """A file of recorded data, for `recorded`. Cases of one class share it.

        Raises:
            UserError: The file cannot be read. By default the case reads no data.
        """
        raise UserError("--data", str(path), f"cannot be read: {self.name} reads no data", "leave --data out")

    def recorded(self, data: Any) -> Batches:
        """All of `data` from `read`, as batches. Raises `UserError` where it does not fit the model."""
        raise NotImplementedError(f"{self.name} reads no data")

    def task(self, weights: Path, precision: Precision) -> Task:
        """The metrics of the labels of `recorded`; needed by cases whose data have labels.

        Args:
            weights: Folder of the exported weights.
            precision: The tested precision.
        """
        raise NotImplementedError(f"{self.name} has no task")
