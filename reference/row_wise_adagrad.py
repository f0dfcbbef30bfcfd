"""Row-wise Adagrad, the public recipe's optimizer of embedding tables: one sum of squares for each row.

Source of the rule: pytorch/FBGEMM, the optimizer ``EXACT_ROWWISE_ADAGRAD``. A row that no id of a batch names
costs nothing: a step's time follows from the batch, and not from the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class RowWiseAdagrad(torch.optim.Optimizer):
    """Moves each row against its gradient, divided by the root of the sum of its mean squares.

    Args:
        params: tables, (rows, columns), whose gradients are sparse.
        lr: the learning rate.
        eps: is added to the root.
    """

    def __init__(self, params: Iterable[torch.Tensor], lr: float, eps: float) -> None:
        super().__init__(params, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Changes the rows of the last gradient; ``closure`` must be None."""
        if closure is not None:
            raise TypeError(
                "closure: row-wise Adagrad does not evaluate a loss; call step() behind backward()"
            )
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is not None:
                    self._move(table, group["lr"], group["eps"])

    def _move(self, table: torch.Tensor, rate: float, eps: float) -> None:
        state = self.state[table]
        if not state:
            state["row_sums"] = table.new_zeros(table.shape[0])
        gradient = table.grad.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
        sums = state["row_sums"][rows] + values.square().mean(dim=1)
        state["row_sums"][rows] = sums
        table[rows] -= rate * values / (sums.sqrt() + eps).unsqueeze(1)
