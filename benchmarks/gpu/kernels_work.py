"""Rows of `kernels.py`: each kernel's sizes, its PyTorch form, its fewest bytes and operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from configs import load_case
from kernels.dlrm import (
    Bags,
    TableGroup,
    add_bias_relu,
    bags_interaction,
    dot_interaction,
    embedding_bags,
    linear_activation,
    lora_activation,
    two_layer_mlp,
)
from reference.dlrm_layers import FeatureInteraction

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Bytes of all sets of inputs, so that the L2 cache (60 MB) holds no set from its last use.
SET_BYTES = 256e6
MOST_SETS = 16
MOST_ROWS = 1_000_000
BATCHES = (2048, 16384)
LARGE = (16384, 4096)

Function = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        name: kernel and sizes.
        precision: precision of the result.
        eager: PyTorch's form, for float64 inputs, too; torch.compile gets the same function.
        ours: our forms by backend, with the same arguments.
        sets: the arguments of each call.
        bytes: the fewest bytes that a call must move.
        operations: operations of a call's matrix products.
        longest_sum, modules: terms of the longest sum and number of modules, for the verdict.
        same_shapes: whether all sets have the same shapes.
    """

    name: str
    precision: str
    eager: Function
    ours: dict[str, Function]
    sets: list[tuple]
    bytes: float
    operations: float
    longest_sum: int
    modules: int = 1
    same_shapes: bool = True


def drawn(shape: Sequence[int], dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(tuple(shape), device="cuda") * scale).to(dtype)


def size(*tensors: torch.Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def sets_of(make: Callable[[], tuple]) -> list[tuple]:
    """Sets of arguments that together exceed the cache."""
    first = make()
    own = sum(size(value) for value in first if isinstance(value, torch.Tensor))
    return [first, *(make() for _ in range(min(MOST_SETS, max(2, int(SET_BYTES / own) + 1)) - 1))]


def pointwise_rows() -> Iterator[Row]:
    sizes = (
        ((128, 512), "fp32", ("relu",)),
        (LARGE, "bf16", ("relu", "sigmoid")),
        (LARGE, "fp32", ("relu",)),
    )
    for shape, name, activations in sizes:
        dtype = DTYPES[name]
        bias = drawn(shape[-1:], dtype)
        moved = 2 * shape[0] * shape[1] * dtype.itemsize + size(bias)
        title = f"{shape[0]} x {shape[1]}"
        yield Row(
            f"add + bias + relu, {title}",
            name,
            lambda x, b: torch.relu(x + b),
            {
                backend: lambda x, b, k=backend: add_bias_relu(x, b, backend=k)
                for backend in ("triton", "cuda")
            },
            sets_of(lambda s=shape, d=dtype, b=bias: (drawn(s, d), b)),
            moved,
            0,
            longest_sum=2,
        )
        for activation in activations:
            function = getattr(torch, activation)
            yield Row(
                f"lora + {activation}, {title}",
                name,
                lambda x, y, b, f=function: f(x + 0.5 * y + b),
                {
                    backend: lambda x, y, b, k=backend, a=activation: lora_activation(
                        x, y, b, 0.5, a, backend=k
                    )
                    for backend in ("triton", "cuda")
                },
                sets_of(lambda s=shape, d=dtype, b=bias: (drawn(s, d), drawn(s, d), b)),
                moved * 1.5,
                0,
                longest_sum=3,
            )


def interaction_rows() -> Iterator[Row]:
    interaction = FeatureInteraction("dot", 27).cuda()
    for name, batches in (("bf16", BATCHES), ("fp32", BATCHES[1:])):
        for batch in batches:
            make = lambda b=batch, d=DTYPES[name]: (drawn((b, 27, 128), d),)  # noqa: E731
            yield Row(
                f"interaction, B {batch}, 27 x 128",
                name,
                interaction,
                {"triton": lambda features: dot_interaction(features)},
                sets_of(make),
                batch * (27 * 128 + 479) * DTYPES[name].itemsize,
                2 * batch * 351 * 128 if name == "bf16" else 0,
                longest_sum=128,
            )


def make_bags(rows: Sequence[int], batch: int, longest: int) -> Bags:
    """Bags of 1 to ``longest`` indices, uniform in each table."""
    lengths = torch.randint(1, longest + 1, (len(rows) * batch,), device="cuda")
    offsets = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
    limits = torch.tensor(rows, device="cuda").repeat_interleave(batch).repeat_interleave(lengths)
    indices = (torch.rand(limits.shape, device="cuda", dtype=torch.float64) * limits).long()
    return Bags(indices.minimum(limits - 1), offsets)


def split(bags: Bags, tables: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each table's indices and offsets, as `embedding_bag` takes them."""
    batch = bags.batch(tables)
    edges = bags.offsets[:: batch or 1].tolist()
    return [
        (bags.indices_L[edges[t] : edges[t + 1]], bags.offsets[t * batch : (t + 1) * batch] - edges[t])
        for t in range(tables)
    ]


def bags_rows() -> Iterator[Row]:
    case = load_case("dlrm_mlperf")
    rows = case.model.model_copy(update={"max_rows_per_table": MOST_ROWS}).table_rows
    group = TableGroup([drawn((count, 128), torch.float32, 0.3) for count in rows])
    interaction = FeatureInteraction("dot", len(rows) + 1).cuda()

    def pooled(parts: list, dtype: torch.dtype | None = None) -> torch.Tensor:
        wide = dtype == torch.float64
        vectors = [
            functional.embedding_bag(i, table.double() if wide else table, o, mode="sum")
            for (i, o), table in zip(parts, group.tables, strict=True)
        ]
        return torch.stack(vectors, dim=1)

    def eager_bags(dense: torch.Tensor, bags: Bags, parts: list) -> torch.Tensor:
        return pooled(parts, dense.dtype).to(dense.dtype)

    def eager_both(dense: torch.Tensor, bags: Bags, parts: list) -> torch.Tensor:
        vectors = pooled(parts, dense.dtype).to(dense.dtype)
        return interaction(torch.cat((dense[:, None], vectors), dim=1))

    def ours_bags(dense: torch.Tensor, bags: Bags, parts: list) -> torch.Tensor:
        return embedding_bags(group, bags, dtype=dense.dtype, validate=False)

    def ours_two(dense: torch.Tensor, bags: Bags, parts: list) -> torch.Tensor:
        features = dense.new_empty(dense.shape[0], len(rows) + 1, 128)
        features[:, 0] = dense
        embedding_bags(group, bags, dtype=dense.dtype, validate=False, out=features[:, 1:])
        return dot_interaction(features)

    def ours_both(backend: str) -> Function:
        return lambda dense, bags, parts: bags_interaction(
            dense, group, bags, backend=backend, validate=False
        )

    for longest, batches in ((1, BATCHES), (5, BATCHES[1:])):
        for batch in batches:
            sets = []
            for _ in range(4):
                bags = make_bags(rows, batch, longest)
                sets.append((drawn((batch, 128), torch.bfloat16), bags, split(bags, len(rows))))
            moved = sum(indices.unique().numel() for indices, _ in sets[0][2]) * 128 * 4
            moved += size(sets[0][1].indices_L, sets[0][1].offsets)
            title = f"B {batch}, 26 tables, bags up to {longest}"
            common = {"longest_sum": 128, "modules": 2, "same_shapes": longest == 1}
            written = batch * 26 * 128 * 2
            yield Row(
                f"bags, {title}",
                "bf16",
                eager_bags,
                {"triton": ours_bags},
                sets,
                moved + written,
                0,
                **common,
            )
            yield Row(
                f"bags + interaction, {title}",
                "bf16",
                eager_both,
                {
                    "triton, two kernels": ours_two,
                    "triton": ours_both("triton"),
                    "cuda": ours_both("cuda"),
                },
                sets,
                moved + batch * (128 + 479) * 2,
                2 * batch * 351 * 128,
                **common,
            )


def mlp_rows() -> Iterator[Row]:
    dtype = torch.bfloat16
    for columns, outputs in ((13, 512), (480, 1024), (1024, 1024), (512, 256)):
        weight, bias = drawn((outputs, columns), dtype, columns**-0.5), drawn((outputs,), dtype)
        for batch in BATCHES:
            yield Row(
                f"linear + relu, B {batch}, {columns}-{outputs}",
                "bf16",
                lambda x, w, b: torch.relu(functional.linear(x, w, b)),
                {"triton": lambda x, w, b: linear_activation(x, w, b)},
                sets_of(lambda b=batch, c=columns, w=weight, v=bias: (drawn((b, c), dtype), w, v)),
                2 * batch * (columns + outputs) + size(weight, bias),
                2 * batch * columns * outputs,
                longest_sum=columns,
            )
    for sizes in ((512, 256, 1), (13, 512, 256), (512, 256, 128)):
        columns, hidden, outputs = sizes
        weights = (
            drawn((hidden, columns), dtype, columns**-0.5),
            drawn((hidden,), dtype),
            drawn((outputs, hidden), dtype, hidden**-0.5),
            drawn((outputs,), dtype),
        )
        for batch in BATCHES:
            yield Row(
                f"two layers, B {batch}, {columns}-{hidden}-{outputs}",
                "bf16",
                lambda x, w1, b1, w2, b2: torch.sigmoid(
                    functional.linear(torch.relu(functional.linear(x, w1, b1)), w2, b2)
                ),
                {"triton": lambda *arguments: two_layer_mlp(*arguments)},
                sets_of(lambda b=batch, c=columns, w=weights: (drawn((b, c), dtype), *w)),
                2 * batch * (columns + outputs) + size(*weights),
                2 * batch * hidden * (columns + outputs),
                longest_sum=max(columns, hidden),
                modules=2,
            )


GROUPS: dict[str, Callable[[], Iterator[Row]]] = {
    "pointwise": pointwise_rows,
    "interaction": interaction_rows,
    "bags": bags_rows,
    "mlp": mlp_rows,
}
