"""Whole models to estimate and to time: the reference on random inputs, on any device.

On the meta device the models have shapes only, for traces of a forward's operations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from configs import CaseConfig, load_case
from perf_model.points import Sizes
from perf_model.trace import Trace, trace
from perf_model.work.parts import Shapes
from perf_model.workloads import DTYPES
from reference import build

YEAR = 365 * 24 * 3600


@dataclass(frozen=True)
class Model:
    """A case in one size and precision.

    Attributes:
        case: name of a case of `configs`.
        batch: number of rows or users.
        precision: one of `parity.timing.ceilings.MATMUL_PRECISIONS`.
        changes: fields of the case's model that differ from its file.
    """

    case: str
    batch: int
    precision: str
    changes: Sizes

    @property
    def key(self) -> str:
        changed = "".join(f",{name}={value}" for name, value in self.changes.items())
        return f"{self.case}/{self.precision}/batch={self.batch}{changed}"

    def __hash__(self) -> int:
        return hash(self.key)

    def config(self) -> CaseConfig:
        """The case with its changes and its batch."""
        case = load_case(self.case)
        fields = {"batch_size": self.batch}
        if case.family == "hstu":
            fields["lengths"] = None
        return case.model_copy(
            update={
                "model": case.model.model_copy(update=self.changes),
                "input": case.input.model_copy(update=fields),
            }
        )


_WIDE: Sizes = {
    "max_sequence_len": 1000,
    "item_embedding_dim": 256,
    "num_heads": 4,
    "attention_dim": 64,
    "linear_dim": 64,
}


def models() -> list[Model]:
    """The models with an estimate and a timing of the whole forward."""
    sizes: list[tuple[str, tuple[int, ...], Sizes]] = [
        ("hstu_ml1m_large", (1, 4, 32, 128), {}),
        ("hstu_ml1m_large", (4, 16), _WIDE),
        ("stu_dlrmv3", (3, 64), {}),
        ("dlrm_mlperf", (1, 2048, 16384), {"max_rows_per_table": 1_000_000}),
        ("dlrm_lecture", (64, 1024), {}),
    ]
    return [
        Model(case, batch, precision, changes)
        for case, batches, changes in sizes
        for batch in batches
        for precision in ("fp32", "bf16")
    ]


def forward(model: Model, device: str) -> Callable[[], Any]:
    """A forward pass of the model on the device, weights and inputs random. Lookups have one index a bag."""
    case, dtype = model.config(), DTYPES[model.precision]
    network = _build(case, dtype, device)
    if device != "meta":
        for parameter in network.parameters():
            parameter.data.uniform_(-0.05, 0.05)
    return _ENTRIES[case.family](network, case, dtype, torch.device(device))


@functools.cache
def traced(model: Model) -> Trace:
    """The operations of a model's forward."""
    return trace(forward(model, "meta"))


FEW_ROWS = 300


def _build(case: CaseConfig, dtype: torch.dtype, device: str) -> torch.nn.Module:
    """The reference, with few rows in DLRM's tables: generating gigabytes on the host takes minutes."""
    if case.family != "dlrm":
        return getattr(build, f"build_{case.family}")(case.model).to(dtype).to(device)
    few = case.model.model_copy(update={"max_rows_per_table": FEW_ROWS})
    # The inputs fit by construction; a check would wait for the device.
    network = build.build_dlrm(few, validate_inputs=False).to(dtype).to(device)
    for bag, rows in zip(network.emb_l, case.model.table_rows, strict=True):
        bag.num_embeddings = rows
        bag.weight = torch.nn.Parameter(torch.empty(rows, bag.embedding_dim, dtype=dtype, device=device))
    return network


def _hstu(network: torch.nn.Module, case: CaseConfig, dtype: torch.dtype, device: torch.device) -> Callable:
    b, n, config = case.input.batch_size, case.model.padded_length, case.model
    ids = torch.randint(1, config.num_items + 1, (b, n), device=device)
    times = torch.randint(YEAR, (b, n), device=device).sort(dim=1).values
    lengths = torch.randint(1, config.max_sequence_len + 1, (b,), device=device)
    payloads = {"timestamps": times, "ratings": torch.randint(config.num_ratings, (b, n), device=device)}
    items = torch.randint(1, config.num_items + 1, (1, case.input.num_candidates), device=device)
    return lambda: network.score(lengths, ids, payloads, items)


def _stu(network: torch.nn.Module, case: CaseConfig, dtype: torch.dtype, device: torch.device) -> Callable:
    b, n, config = case.input.batch_size, case.model.padded_length, case.model
    ids = torch.randint(1, config.num_items + 1, (b, n), device=device)
    times = torch.randint(YEAR, (b, n), device=device).sort(dim=1).values
    lengths = torch.full((b,), n, device=device)
    targets = torch.full((b,), config.max_num_targets, device=device)
    return lambda: network(lengths, ids, times, targets)


def _dlrm(network: torch.nn.Module, case: CaseConfig, dtype: torch.dtype, device: torch.device) -> Callable:
    b, rows = case.input.batch_size, case.model.table_rows
    counts = torch.randint(1000, (b, case.model.bottom_widths[0]), device=device)
    offsets = [torch.arange(b, device=device) for _ in rows]
    indices = [torch.randint(table, (b,), device=device) for table in rows]
    return lambda: network.predict(counts, offsets, indices)


def _lecture_dlrm(
    network: torch.nn.Module, case: CaseConfig, dtype: torch.dtype, device: torch.device
) -> Callable:
    b, config = case.input.batch_size, case.model
    dense = torch.randn(b, config.dense_input_feature_size, device=device, dtype=dtype)
    sparse = torch.randint(1 << 40, (b, len(config.cardinalities)), device=device)
    return lambda: network(dense, sparse)


def input_shapes(model: Model) -> Shapes:
    """Shapes of the forward's input arrays by name, for `perf_model.work`."""
    case = model.config()
    config, b = case.model, case.input.batch_size
    if case.family == "hstu":
        rows = (b, config.padded_length)
        return {"past_ids": rows, "timestamps": rows, "item_ids": (1, case.input.num_candidates)}
    if case.family == "stu":
        return {"seq_ids": (b, config.padded_length)}
    if case.family == "lecture_dlrm":
        return {"dense_features": (b, config.dense_input_feature_size)}
    tables = len(config.table_rows)
    indices = {f"lS_i_{table}": (b,) for table in range(tables)}
    return {"counts": (b, config.bottom_widths[0]), "lS_o": (tables, b), **indices}


_ENTRIES = {"hstu": _hstu, "stu": _stu, "dlrm": _dlrm, "lecture_dlrm": _lecture_dlrm}
