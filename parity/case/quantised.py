"""The part of a case that quantises its model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from parity.base.errors import UserError
from parity.base.work import Work
from parity.case.plan import Arrays

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Matrix:
    """A product or a table that can be quantised, on one batch.

    Attributes:
        rows: Rows of the product's input; looked-up rows of a table.
        inputs: Inputs of the product; 1 for a table.
        outputs: Outputs of the product; columns of the table.
        is_table: Whether it is a table.
    """

    rows: int
    inputs: int
    outputs: int
    is_table: bool = False


_Case = TypeVar("_Case", bound="Quantised")


class Quantised:
    """Quantised modules of a case; none by default."""

    name: str

    def quantised(self: _Case, schemes: Mapping[str, str]) -> _Case:
        """The same case with other quantised modules.

        Args:
            schemes: Names of `parity.base.quantisation.SCHEMES` by patterns of modules; empty for none.

        Raises:
            UserError: The case has no quantised form, as by default, or the schemes do not fit it.
        """
        if not schemes:
            return self
        raise UserError(
            "--policy",
            self.name,
            "has no quantised modules",
            "leave the schemes out of the policy, or give no policy",
        )

    def is_scale(self, name: str) -> bool:
        """Whether a tensor of the state dict is a scale that `calibrated` sets."""
        return False

    def calibrated(
        self, weights: Mapping[str, torch.Tensor], batches: Iterable[Arrays] | None = None
    ) -> dict[str, torch.Tensor]:
        """A state dict with the scales of a calibration in place of any scales in it.

        Args:
            weights: A state dict of this case, or of the case without quantisation.
            batches: Inputs that scales of inputs follow from; None for those that the case makes.
        """
        return dict(weights)

    def scheme_work(self, arrays: Arrays, item: int) -> Mapping[str, Mapping[str, Work]]:
        """Least work of each of `matrices` by path, and by each scheme that fits; "" is without one.

        Args:
            arrays: The batch's inputs.
            item: Bytes of a number in the tested precision.
        """
        return {}

    def matrices(self, arrays: Arrays) -> Mapping[str, Matrix]:
        """The products and tables that can be quantised, by path; none by default."""
        return {}
