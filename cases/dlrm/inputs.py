"""Click logs for DLRM: the arrays, synthetic ones, and the checks of both.

Legend: B rows of the batch, C dense features, T tables, L total number of indices of a table.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from configs import CaseConfig, DLRMConfig
from parity.base.errors import UserError
from parity.inputs.arrays import CaseInputs, require_all_good, require_int64, require_names

#: Shares of dense features that are missing (0) or negative, as in the Criteo logs.
_GAP_RATE, _NEGATIVE_RATE = 0.1, 0.05
#: The largest count of the feature whose counts grow largest; Criteo's go beyond.
_LARGEST_COUNT = 3_000_000
#: Share of empty bags in tables with at most one index a bag.
_EMPTY_RATE = 0.2


def index_name(table: int) -> str:
    """The array of a table's indices, (L,) int64: the rows of all bags, one bag after the other."""
    return f"lS_i_{table}"


def weight_name(table: int) -> str:
    """The array of a table's per-sample weights, (L,) float32; inputs have all of them or none."""
    return f"lS_w_{table}"


def make_inputs(
    counts_BC: np.ndarray,
    offsets_TB: np.ndarray,
    indices: list[np.ndarray],
    weights: list[np.ndarray] | None = None,
) -> CaseInputs:
    """``counts`` (B, C) int64; ``lS_o`` (T, B) int64, each table's offsets; indices and weights by table."""
    arrays = {"counts": counts_BC, "lS_o": offsets_TB}
    arrays |= {index_name(table): indices_L for table, indices_L in enumerate(indices)}
    arrays |= {weight_name(table): weights_L for table, weights_L in enumerate(weights or [])}
    return CaseInputs(arrays)


def has_weights(arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether indices have per-sample weights."""
    return weight_name(0) in arrays


def synthetic(case: CaseConfig) -> CaseInputs:
    """Rows that look like logged ones and reach every part of the model.

    Dense features are counts. Each feature has a range of its own, from a handful to millions. Some counts
    are missing, and some are negative. Every other table has bags of 0 to `longest_bag` indices. The rest
    have bags of at most one. The first and the last bag of the batch are empty in some tables. The frequency
    of an index is proportional to 1 / (index + 1). Both ends of a table occur if it gets two indices.
    """
    model, wanted = case.model, case.input
    batch = wanted.batch_size
    streams = np.random.default_rng([wanted.seed, 0xD12]).spawn(4)
    width = model.bottom_widths[0]
    largest_C = np.exp(np.linspace(np.log(5.0), np.log(_LARGEST_COUNT), width))
    counts_BC = np.floor(np.exp(streams[0].random((batch, width)) * np.log(largest_C))).astype(np.int64)
    fate_BC = streams[0].random(counts_BC.shape)
    counts_BC[fate_BC < _GAP_RATE] = 0
    counts_BC[fate_BC > 1.0 - _NEGATIVE_RATE] = -1
    # One of each kind, however small the batch.
    counts_BC[0, [0, width // 2, -1]] = (-1, 0, _LARGEST_COUNT)
    offsets, indices, weights = [], [], []
    for table, rows in enumerate(model.table_rows):
        lengths_B = _lengths(streams[1], batch, wanted.longest_bag, table)
        offsets.append(np.cumsum(lengths_B) - lengths_B)
        total = int(lengths_B.sum())
        indices_L = np.exp(streams[2].random(total) * np.log(rows + 1)).astype(np.int64).clip(1, rows) - 1
        if total > 1:
            indices_L[streams[2].choice(total, 2, replace=False)] = (0, rows - 1)
        indices.append(indices_L)
        weights.append(streams[3].uniform(0.25, 2.0, total).astype(np.float32))
    return make_inputs(counts_BC, np.stack(offsets), indices, weights if wanted.per_sample_weights else None)


def _lengths(rng: np.random.Generator, batch: int, longest: int, table: int) -> np.ndarray:
    if table % 2 or longest == 1:
        lengths_B = (rng.random(batch) >= _EMPTY_RATE).astype(np.int64)
        longest = 1
    else:
        lengths_B = rng.integers(0, longest + 1, batch)
    if batch > 2:
        # Both ends in turn: an offset too far there has no other bag to hide in.
        lengths_B[[0, -1]] = [(0, longest), (longest, 0), (longest, longest)][table % 3]
        lengths_B[1 + table % (batch - 2)] = longest
    else:
        lengths_B[:] = longest
    return lengths_B


def validate(inputs: CaseInputs, model: DLRMConfig) -> None:
    """Checks that a model of this configuration can be run on these inputs.

    Raises:
        UserError: with the array and the index of the first bad element, its value, and the fix.
    """
    tables = range(len(model.table_rows))
    names = ["counts", "lS_o", *map(index_name, tables)]
    weighted = has_weights(inputs.arrays)
    require_names(inputs, names + [weight_name(table) for table in tables] if weighted else names)
    for name in names:
        require_int64(name, inputs[name])
    batch = inputs["counts"].shape[0] if inputs["counts"].ndim else 0
    expected = {"counts": (batch, model.bottom_widths[0]), "lS_o": (len(tables), batch)}
    for name, shape in expected.items():
        if inputs[name].shape != shape or batch == 0:
            raise UserError(
                name,
                inputs[name].shape,
                f"is not the shape {shape} that follows from counts and the model, with at least one row",
                "give a row for each of the batch in counts, and an offset for each in every table of lS_o",
            )
    for table in tables:
        _validate_bags(inputs, model, table)
        if weighted:
            _validate_weights(weight_name(table), inputs[weight_name(table)], inputs[index_name(table)])


def _validate_bags(inputs: CaseInputs, model: DLRMConfig, table: int) -> None:
    name, rows = index_name(table), model.table_rows[table]
    indices_L, offsets_B = inputs[name], inputs["lS_o"][table]
    if indices_L.ndim != 1:
        raise UserError(name, indices_L.shape, "is not a vector", "give the indices of all bags in one")
    if offsets_B[0] != 0:
        raise UserError(f"lS_o[{table}, 0]", int(offsets_B[0]), "is not 0", "begin the first bag at 0")
    require_all_good(
        f"lS_o[{table}]",
        offsets_B[1:],
        np.diff(offsets_B) < 0,
        "comes before the offset to its left",
        "give offsets that do not decrease; two equal ones make an empty bag",
        offset=1,
    )
    require_all_good(
        f"lS_o[{table}]",
        offsets_B,
        offsets_B > indices_L.size,
        f"is beyond the {indices_L.size} indices of {name}",
        "begin every bag within the indices, or at their end",
    )
    require_all_good(
        name,
        indices_L,
        (indices_L < 0) | (indices_L >= rows),
        f"is outside table {table}, which has {rows} rows",
        f"give rows of 0..{rows - 1}, or use a case with larger tables",
    )
    limit = model.max_bag_size
    if limit is not None:
        lengths_B = np.diff(offsets_B, append=indices_L.size)
        require_all_good(
            f"lS_o[{table}]",
            lengths_B,
            lengths_B > limit,
            f"is the length of a bag, and max_bag_size is {limit}",
            "use a case whose max_bag_size allows it, or leave it out there",
        )


def _validate_weights(name: str, weights_L: np.ndarray, indices_L: np.ndarray) -> None:
    if weights_L.dtype != np.float32 or weights_L.shape != indices_L.shape:
        raise UserError(
            name,
            f"{weights_L.dtype} of shape {weights_L.shape}",
            f"is not float32 of shape {indices_L.shape}",
            "give one weight for each index",
        )
    require_all_good(name, weights_L, ~np.isfinite(weights_L), "is not finite", "give finite weights")
