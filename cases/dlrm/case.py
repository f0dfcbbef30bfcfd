"""DLRM: `reference.dlrm` against `tripy_port.dlrm`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cases.configured import ConfiguredCase
from cases.dlrm import inputs as dlrm_inputs
from cases.dlrm import plan as dlrm_plan
from cases.dlrm.code_rows import with_code_rows
from cases.dlrm.inputs import has_weights, index_name, weight_name
from cases.dlrm.weight_scales import weight_scale
from parity.base.precision import Precision
from parity.base.task import Task
from parity.case import Arrays, Batches, Matrix, PlannedBatch
from parity.inputs.arrays import CaseInputs

if TYPE_CHECKING:
    from datasets.criteo.logs import CriteoData


class DLRMCase(ConfiguredCase):
    """Counts and bags of indices in, click probabilities out."""

    builder = "build_dlrm"
    entry = "predict"
    outputs = ("click",)

    def build_reference(self) -> torch.nn.Module:
        from reference.build import build_dlrm

        # `validate` has checked the inputs; checking again would show in the timings.
        return build_dlrm(self.model, validate_inputs=False)

    def make_inputs(self) -> Batches:
        inputs = dlrm_inputs.synthetic(self.config)
        indices = [inputs[index_name(table)].size for table in range(len(self.model.table_rows))]
        counts = {
            "rows": self.batch_size,
            "indices": sum(indices),
            "empty_bags": _empty_bags(inputs.arrays),
        }
        return Batches([inputs], f"synthetic, seed {self.seed}", counts)

    def plan(self) -> Iterable[PlannedBatch]:
        return dlrm_plan.plan(self.config)

    def recognises(self, path: Path) -> bool:
        # Every process of a run imports this module, and Arrow, which only recorded data needs, takes long.
        from datasets.criteo import logs

        return logs.recognises(path)

    def read(self, path: Path) -> tuple[Path, CriteoData]:
        from cases.dlrm import recorded

        return recorded.read(path)

    def recorded(self, data: tuple[Path, CriteoData]) -> Batches:
        from cases.dlrm import recorded

        return recorded.recorded(self.config, data)

    def task(self, weights: Path, precision: Precision) -> Task:
        from parity.verdict.task_metrics.clicks import Clicks

        return Clicks("predict.click", precision)

    def validate(self, arrays: Arrays) -> None:
        dlrm_inputs.validate(CaseInputs(arrays), self.model)

    def entry_arguments(self, arrays: Arrays) -> dict[str, Any]:
        tables = range(arrays["lS_o"].shape[0])
        arguments = {
            "counts": arrays["counts"],
            "lS_o": list(arrays["lS_o"]),
            "lS_i": [arrays[index_name(table)] for table in tables],
        }
        if has_weights(arrays):
            arguments["lS_w"] = [arrays[weight_name(table)] for table in tables]
        return arguments

    def table_matrices(self, arrays: Arrays) -> dict[str, Matrix]:
        columns = self.model.arch_sparse_feature_size
        return {
            path: Matrix(arrays[index_name(table)].size, 1, columns, is_table=True)
            for table, path in enumerate(self.model.tables())
        }

    def weight_scale(self, name: str, parameter: torch.Tensor) -> float | None:
        return weight_scale(name, parameter, self.input.logit_scale)

    def initial_values(self, name: str, own: torch.Tensor) -> torch.Tensor | None:
        scheme = self.model.schemes.get(name.removesuffix(".weight"))
        return with_code_rows(own) if scheme is not None and scheme.is_of_tables else None

    def batch_size_of(self, arrays: Arrays) -> int:
        return arrays["counts"].shape[0]

    def dynamic_sizes(self, arrays: Arrays) -> dict[int, int]:
        """The batch, and each table's total number of indices, which may be 0 in any batch."""
        totals = (arrays[index_name(table)].size for table in range(arrays["lS_o"].shape[0]))
        return {total: 0 for total in totals if total} | super().dynamic_sizes(arrays)

    def dynamic_axes(self, arrays: Arrays) -> dict[str, tuple[str, int]]:
        tables = range(arrays["lS_o"].shape[0])
        own = {f"lS_i.{table}": (f"indices_{table}", 0) for table in tables}
        if has_weights(arrays):
            own |= {f"lS_w.{table}": (f"indices_{table}", 0) for table in tables}
        return super().dynamic_axes(arrays) | own

    def rows(self, arrays: Arrays, rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        """The bags of the rows, one behind the other in each table."""
        chosen = {"counts": arrays["counts"][rows], "lS_o": np.empty_like(arrays["lS_o"][:, rows])}
        for table, starts_B in enumerate(arrays["lS_o"]):
            name = index_name(table)
            lengths = np.diff(starts_B, append=arrays[name].size)[rows]
            ends = np.cumsum(lengths)
            chosen["lS_o"][table] = ends - lengths
            # The place of each chosen index in its table's array.
            places = np.repeat(starts_B[rows] - (ends - lengths), lengths) + np.arange(lengths.sum())
            chosen[name] = arrays[name][places]
            if has_weights(arrays):
                chosen[weight_name(table)] = arrays[weight_name(table)][places]
        return chosen


def _empty_bags(arrays: Arrays) -> int:
    return sum(
        int((np.diff(offsets_B, append=arrays[index_name(table)].size) == 0).sum())
        for table, offsets_B in enumerate(arrays["lS_o"])
    )
